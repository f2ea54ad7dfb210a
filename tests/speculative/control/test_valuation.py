"""Valuation: what reading tokens again costs counts against a draft."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.pair_profile import GroupAcceptance, PairProfile
from localspec.speculative.control.valuation import Valuation
from localspec.speculative.drafters import MODEL, Candidate
from localspec.speculative.loop import Round

CANDIDATES = [Candidate(token, 1.0, MODEL) for token in range(4)]


def outcome(**fields: Any) -> Round:
    return Round((0,), 0, 0, 1.0, **fields)


def priced(
    costs: Sequence[float], *, replay: float = 0.0, has_draft: bool = True,
    steps: Sequence[tuple[int, float]] = ((1, 0.1),), company: float = 1.0, **last_pass: int,
) -> Valuation:  # fmt: skip
    """Seconds of passes of one token, two and more, behind a pass that others may have shared."""
    known = PairProfile(replay=replay, company=company)
    for width, seconds in enumerate(costs, start=1):
        known.verify.observe(width, 0, seconds)
    for width, seconds in steps:
        known.draft.observe(width, 0, seconds)
    value = Valuation(known, GroupAcceptance(known, "greedy"), has_draft=has_draft)
    value.prepare(0)
    if last_pass:
        value.expect(outcome(**last_pass))
        value.refresh(0, drafting=True)
    return value


def valuation(replay: float = 0.0) -> Valuation:
    """Passes of one second and a tenth for each token more; steps of a tenth."""
    return priced([0.9 + 0.1 * width for width in range(1, 34)], replay=replay)


def test_what_is_read_again_makes_a_draft_worth_less() -> None:
    cheap, dear = valuation(), valuation(replay=0.5)
    count, worth = cheap.best(CANDIDATES)
    less, lower = dear.best(CANDIDATES)
    assert count > 0 and less > 0
    assert abs((worth - lower) - 0.5 * cheap.rate()) < 1e-9
    assert dear.gain < cheap.gain
    assert abs(dear.seconds_added(3) - cheap.seconds_added(3) - 0.5) < 1e-9
    assert valuation(replay=9.0).best(CANDIDATES)[0] == 0


def test_what_is_pending_is_read_by_a_plain_pass_too() -> None:
    value = valuation()
    alone = value.plain_worth
    _, worth = value.best(CANDIDATES)
    value.expect(outcome(pending=3))
    assert abs(alone - value.plain_worth - 0.3 * value.rate()) < 1e-9
    assert abs(worth - value.best(CANDIDATES)[1] - 0.3 * value.rate()) < 1e-9
    value.expect(outcome(pending=100))  # wider than any pass that is priced
    assert value.best(CANDIDATES)[0] == 0


def shared(sequences: int, others: int, company: float = 1.0) -> Valuation:
    """The same costs beside others, whose last pass had so many tokens."""
    return priced(
        [0.9 + 0.1 * width for width in range(1, 70)], steps=[(4, 0.2), (1, 0.1)],
        sequences=sequences, others=others, company=company,
    )  # fmt: skip


def test_a_plain_token_costs_its_share_of_the_pass() -> None:
    assert shared(4, 3).plain == pytest.approx((0.9 + 0.4) / 4)
    assert shared(4, 3).rate() == pytest.approx(4 / 1.3)
    assert shared(4, 20).plain == shared(4, 3).plain  # what others draft is not plain


def test_a_token_is_charged_what_it_adds_to_the_pass_of_others() -> None:
    value = shared(4, 11)
    assert value.plain_worth == pytest.approx(1 - value.rate() * (0.9 + 0.1 * 12))
    assert value.seconds_added(3) == pytest.approx(0.3)  # of a pass of twelve
    assert value._step(0) == pytest.approx(0.2 / 4)  # that all take together
    assert shared(4, 11, company=0.0)._step(0) == pytest.approx(0.1)


def test_fewer_tokens_pay_beside_others_where_each_makes_the_pass_longer() -> None:
    """The base of a pass is paid for by all, so that what a token adds weighs more."""
    assert 0 < shared(8, 7).best(CANDIDATES)[0] < valuation().best(CANDIDATES)[0]


def test_tokens_are_free_where_a_pass_has_room_for_them() -> None:
    value = priced([1.0] * 8 + [9.0] * 57, sequences=2, others=1)
    assert value.best(CANDIDATES * 5)[0] == 6  # eight, less one of the other and the pending one


def test_the_budget_counts_each_second_of_a_shared_pass_once() -> None:
    """Four that draft in a pass of eight seconds: two each, with what the draft took of its own."""
    value = shared(4, 28)
    drafted = outcome(width=32, sequences=4, others=28, verify_seconds=4.0, drafting=3)
    assert value.counted_seconds(drafted, 0.5) == pytest.approx(0.5 + 4.0 / 4)
    plain = outcome(width=4, sequences=4, others=3, verify_seconds=77.0)
    assert value.counted_seconds(plain, 0.0) == pytest.approx(value.plain)


def test_who_drafts_alone_pays_for_all_that_a_shared_pass_takes_longer() -> None:
    value = shared(4, 28)
    alone = outcome(width=32, sequences=4, others=24, verify_seconds=4.0)
    beside = outcome(width=32, sequences=4, others=31, verify_seconds=4.0, drafting=1)
    counted = [value.counted_seconds(each, 0.0) for each in (alone, beside, beside, beside)]
    assert counted[1:] == pytest.approx([value.plain] * 3)
    assert sum(counted) == pytest.approx(4.0)


def test_what_others_draft_is_expected_to_last_and_other_sequences_count_at_once() -> None:
    value = shared(3, 2)
    value.expect(outcome(sequences=3, others=10))
    value.refresh(0, drafting=True)
    assert value.plain_worth == pytest.approx(1 - value.rate() * (0.9 + 0.1 * 5))  # 1 + 2 + 8 / 4
    value.expect(outcome(sequences=1, others=0))
    value.refresh(0, drafting=True)
    assert value.plain == pytest.approx(1.0)
    assert value.plain_worth == pytest.approx(0.0)


def test_a_step_of_the_costs_is_shared_by_all_that_climb_it() -> None:
    """Beside eight drafted tokens four more add nothing, but pay a third of what all twelve add."""
    value = priced([1.0] * 4 + [3.0] * 65, has_draft=False, sequences=4, others=11)
    count, worth = value.best([Candidate(0, 30.0, MODEL)] * 4)  # which are right
    charged = value.rate() * 2.0 * 4 / 12
    assert count == 4 and worth - value.plain_worth == pytest.approx(4 - charged, abs=0.01)
    assert value.best(CANDIDATES)[0] == 0


def test_what_a_token_adds_is_charged_where_costs_rise_ever_faster() -> None:
    """Though that is more than its share of what all drafted tokens add."""
    value = priced([width**2 for width in range(1, 70)], sequences=2, others=9)
    assert value.seconds_added(1) == pytest.approx(11**2 - 10**2, abs=0.01)


def filled(company: float) -> Valuation:
    """Four sequences, of which a draft makes all rounds wider; each row costs a tenth."""
    value = shared(4, 3)
    value._profile.company = company
    value.expect(outcome(width=4, sequences=4, others=3, filled=7))
    value.expire()
    value.refresh(0, drafting=True)
    return value


def test_rows_that_fill_up_the_rounds_of_others_are_shared_with_those_that_draft() -> None:
    together, alone = filled(1.0), filled(0.0)
    assert together.plain_worth == pytest.approx(alone.plain_worth)
    assert together.seconds_added(3) == pytest.approx(4 * 0.3 / 4)
    assert alone.seconds_added(3) == pytest.approx(4 * 0.3)
    own_pass = 0.9 + 0.1 * 8  # beside that of the three others
    assert together.seconds_added(7) == pytest.approx(1.2 + own_pass - 1.3)


# -- how far prompt lookup goes ----------------------------------------------------------------


def lengthened(value: Valuation, confidence: float, limit: int = 99, done: int = 0) -> int:
    """How many candidates of this confidence are taken, behind so many others."""
    asked = list[int]()

    def endless() -> Iterator[Candidate]:
        while True:
            asked.append(len(asked))
            yield Candidate(0, confidence, "lookup 16+")

    chain = [Candidate(0, confidence, "lookup 16+")] * done
    value.lengthen(chain, endless(), limit)
    assert len(asked) == len(chain) - done  # no token is looked up for nothing
    return len(chain)


def test_prompt_lookup_goes_on_while_a_token_may_pay() -> None:
    value = valuation()
    assert lengthened(value, 30.0) == 62  # all that a pass has room for
    assert lengthened(value, 30.0, limit=20) == 20
    assert 8 < lengthened(value, 2.0) < 24
    assert lengthened(value, -3.0) == 8  # which teach
    assert lengthened(value, -3.0, done=9) == 9


@pytest.mark.parametrize(("widest", "most"), [(2, 8), (4, 8), (9, 17), (31, 61)])
def test_no_pass_is_far_wider_than_those_that_were_seen(widest: int, most: int) -> None:
    value = priced([1.0] * widest)
    assert value.best([Candidate(0, 30.0, "lookup 16+")] * 62)[0] == most


@given(st.lists(st.floats(0, 2), min_size=1, max_size=62), st.floats(-1, 6))
def test_what_is_not_looked_up_would_not_be_verified(rises: list[float], odds: float) -> None:
    costs = [1.0, *(1.0 + sum(rises[: i + 1]) for i in range(len(rises)))]
    value = priced(costs, has_draft=False)
    all_of_them = [Candidate(0, odds, "lookup 16+")] * (len(costs) - 1)
    taken = lengthened(value, odds, limit=len(costs) - 1)
    count, worth = value.best(all_of_them[:taken])
    assert value.best(all_of_them)[1] <= worth + 1e-9


def test_in_a_long_copy_time_is_worth_what_its_rounds_give() -> None:
    """At the rate of plain decoding 62 pay; 32 give more in a second, and others will follow."""
    costs = [1.0 + 0.01 * min(n, 33) + 0.5 * max(0, n - 33) for n in range(1, 64)]
    value = priced(costs, has_draft=False)
    assert value.best([Candidate(0, 30.0, MODEL)] * 62)[0] == 32
