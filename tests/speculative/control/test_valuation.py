"""Valuation: what reading tokens again costs counts against a draft."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.speculative.control.knowledge import GroupAcceptance, Knowledge
from localspec.speculative.control.valuation import Valuation
from localspec.speculative.drafters import MODEL, Candidate
from localspec.speculative.loop import Round

CANDIDATES = [Candidate(token, 1.0, MODEL) for token in range(4)]


def valuation(replay: float = 0.0, known: Knowledge | None = None) -> Valuation:
    """Passes of one second and a tenth for each token more; steps of a tenth."""
    known = known or Knowledge(replay=replay)
    for width in range(1, 34):
        known.verify.observe(width, 0, 0.9 + 0.1 * width)
    known.draft.observe(1, 0, 0.1)
    value = Valuation(known, GroupAcceptance(known, "greedy"), has_draft=True)
    value.prepare(0)
    return value


def outcome(**fields: Any) -> Round:
    return Round((0,), 0, 0, 1.0, **fields)


def test_what_is_read_again_makes_a_draft_worth_less() -> None:
    cheap, dear = valuation(), valuation(replay=0.5)
    count, worth = cheap.best(CANDIDATES)
    less, lower = dear.best(CANDIDATES)
    assert count > 0 and less > 0
    assert abs((worth - lower) - 0.5 * cheap.rate()) < 1e-9
    assert dear.gain < cheap.gain
    assert abs(dear.loss_of_trial(3, 0) - cheap.loss_of_trial(3, 0) - 0.5) < 1e-9
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


def shared(sequences: int, others: int, drafting: int = 0) -> Valuation:
    """The same costs beside others, whose last pass had so many tokens."""
    known = Knowledge()
    for width in range(34, 70):
        known.verify.observe(width, 0, 0.9 + 0.1 * width)
    known.draft.observe(4, 0, 0.2)
    value = valuation(known=known)
    value.expect(outcome(sequences=sequences, others=others), drafting)
    value.refresh(0, drafting=True)
    return value


def test_a_plain_token_costs_its_share_of_the_pass() -> None:
    assert shared(4, 3).plain == pytest.approx((0.9 + 0.4) / 4)
    assert shared(4, 3).rate() == pytest.approx(4 / 1.3)
    assert shared(4, 20).plain == shared(4, 3).plain  # what others draft is not plain


def test_a_token_is_charged_what_it_adds_to_the_pass_of_others() -> None:
    value = shared(4, 11)
    assert value.plain_worth == pytest.approx(1 - value.rate() * (0.9 + 0.1 * 12))
    trial = 0.3 + 3 * 0.2 / 4  # of a pass of twelve, and steps that all take together
    assert value.loss_of_trial(3, 0) == pytest.approx(trial)
    assert shared(4, 11, drafting=1).loss_of_trial(3, 0) == pytest.approx(0.3 + 3 * 0.1)


def test_fewer_tokens_pay_beside_others_where_each_makes_the_pass_longer() -> None:
    """The base of a pass is paid for by all, so that what a token adds weighs more."""
    assert 0 < shared(8, 7).best(CANDIDATES)[0] < valuation().best(CANDIDATES)[0]


def test_tokens_are_free_where_a_pass_has_room_for_them() -> None:
    known = Knowledge()
    for width in range(1, 66):
        known.verify.observe(width, 0, 1.0 if width <= 8 else 9.0)
    known.draft.observe(1, 0, 0.1)
    value = Valuation(known, GroupAcceptance(known, "greedy"), has_draft=True)
    value.prepare(0)
    value.expect(outcome(sequences=2, others=1))
    value.refresh(0, drafting=True)
    assert value.best(CANDIDATES * 5)[0] == 6  # eight, less one of the other and the pending one


def test_the_budget_counts_each_second_of_a_shared_pass_once() -> None:
    """Four that draft in a pass of eight seconds: two each, with what the draft took of its own."""
    value = shared(4, 28)
    drafted = outcome(width=32, sequences=4, others=28, verify_seconds=4.0)
    assert value.counted_seconds(drafted, 0.5) == pytest.approx(0.5 + 4.0 / 4)
    plain = outcome(width=4, sequences=4, others=3, verify_seconds=77.0)
    assert value.counted_seconds(plain, 0.0) == pytest.approx(value.plain)


def test_what_others_draft_is_expected_to_last_and_another_company_counts_at_once() -> None:
    value = shared(3, 2)
    value.expect(outcome(sequences=3, others=10))
    value.refresh(0, drafting=True)
    assert value.plain_worth == pytest.approx(1 - value.rate() * (0.9 + 0.1 * 5))  # 1 + 2 + 8 / 4
    value.expect(outcome(sequences=1, others=0))
    assert value.plain == pytest.approx(1.0)
    assert value.plain_worth == pytest.approx(0.0)


def test_a_step_of_the_costs_is_shared_by_all_that_climb_it() -> None:
    """Beside eight drafted tokens four more add nothing, but pay a third of what all twelve add."""
    known = Knowledge()
    for width in range(1, 70):
        known.verify.observe(width, 0, 1.0 if width <= 4 else 3.0)
    value = Valuation(known, GroupAcceptance(known, "greedy"), has_draft=False)
    value.prepare(0)
    value.expect(outcome(sequences=4, others=11))
    value.refresh(0, drafting=True)
    count, worth = value.best([Candidate(0, 30.0, MODEL)] * 4)  # which are right
    charged = value.rate() * 2.0 * 4 / 12
    assert count == 4 and worth - value.plain_worth == pytest.approx(4 - charged, abs=0.01)
    assert value.best(CANDIDATES)[0] == 0


def test_what_a_token_adds_is_charged_where_costs_rise_ever_faster() -> None:
    """Though that is more than its share of what all drafted tokens add."""
    known = Knowledge()
    for width in range(1, 70):
        known.verify.observe(width, 0, float(width * width))
    known.draft.observe(1, 0, 0.1)
    value = Valuation(known, GroupAcceptance(known, "greedy"), has_draft=True)
    value.prepare(0)
    value.expect(outcome(sequences=2, others=9))
    value.refresh(0, drafting=True)
    assert value.loss_of_trial(1, 0) == pytest.approx(11**2 - 10**2 + 0.1 / 2, abs=0.06)
