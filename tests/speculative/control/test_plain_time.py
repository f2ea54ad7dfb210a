"""The estimated time of plain decoding: both sides at the speed of the answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.plain_time import PlainTime
from localspec.speculative.loop import Round

PLAIN, WIDE, DRAFT, SAMPLING = 10.0, 16.0, 2.0, 0.5  # seconds
WIDTH = 4


def costs() -> PassCosts:
    known = PassCosts()
    known.observe(1, 0, PLAIN)
    known.observe(WIDTH, 0, WIDE)
    return known


def round_of(tokens: int, drafted: int, slower: float = 1.0) -> tuple[Round, float]:
    """A round and its seconds on a machine that is this many times slower."""
    draft = DRAFT * slower if drafted else 0.0
    verify = (WIDE if drafted else PLAIN) * slower
    seconds = draft + verify + SAMPLING
    done = Round(
        (1,) * tokens,
        drafted,
        tokens - 1,
        seconds,
        draft,
        verify,
        width=1 + drafted,
    )
    return done, seconds


def estimated(plain: PlainTime, *rounds: tuple[Round, float]) -> float:
    for outcome, seconds in rounds:
        plain.add(outcome, seconds)
    return plain.seconds


def test_without_a_draft_plain_decoding_takes_what_the_answer_took() -> None:
    assert estimated(PlainTime(None), *[round_of(1, 0)] * 3) == 3 * (PLAIN + SAMPLING)
    assert estimated(PlainTime(costs()), *[round_of(1, 0, 5.0)] * 3) == 3 * (5 * PLAIN + SAMPLING)


def test_a_draft_that_was_only_looked_at_is_a_loss() -> None:
    looked_at = Round((1,), 0, 0, PLAIN + DRAFT, DRAFT, PLAIN)
    assert estimated(PlainTime(costs()), (looked_at, PLAIN + DRAFT)) == PLAIN


def test_drafted_tokens_count_at_the_plain_cost() -> None:
    assert estimated(PlainTime(costs()), round_of(3, 3)) == 3 * PLAIN + SAMPLING


def test_a_plain_pass_takes_no_longer_than_a_wider_one() -> None:
    known = costs()
    for _ in range(100):
        known.observe(1, 0, 4 * PLAIN)  # beside other programs
    assert estimated(PlainTime(known), round_of(3, 3)) == 3 * WIDE + SAMPLING


@pytest.mark.parametrize("slower", [0.5, 4.0])
def test_a_machine_that_is_busy_now_slows_both_sides(slower: float) -> None:
    rounds = [round_of(3, 3, slower), round_of(1, 0, slower), round_of(1, 3, slower)]
    plain = 5 * slower * PLAIN + 3 * SAMPLING
    assert estimated(PlainTime(costs()), *rounds) == pytest.approx(plain)


def test_plain_passes_of_the_answer_tell_more_than_learnt_costs() -> None:
    known = costs()
    for _ in range(100):
        known.observe(WIDTH, 0, PLAIN)  # learnt while the machine was quieter than for plain passes
    rounds = [round_of(1, 0)] * 8 + [round_of(3, 3)]
    assert estimated(PlainTime(known), *rounds) == pytest.approx(11 * PLAIN + 9 * SAMPLING)


def test_what_later_passes_teach_changes_no_answer_under_way() -> None:
    known = costs()
    plain = PlainTime(known)
    for _ in range(50):
        known.observe(WIDTH, 0, 3 * WIDE)
    assert estimated(plain, round_of(3, 3, 3.0)) == pytest.approx(3 * 3 * PLAIN + SAMPLING)


def test_nothing_is_estimated_without_costs() -> None:
    assert estimated(PlainTime(None), round_of(1, 0), round_of(3, 3)) == 0.0
    unknown = PassCosts()
    unknown.observe(1, 0, PLAIN)  # not what the passes of this answer cost
    assert estimated(PlainTime(unknown), round_of(3, 3)) == 0.0


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.booleans(), st.floats(0.1, 10.0)).map(
            lambda each: (
                round_of(each[0], WIDTH - 1, each[2]) if each[1] else round_of(1, 0, each[2])
            )
        )
    )
)
def test_no_more_is_lost_than_drafted_rounds_took(rounds: list[tuple[Round, float]]) -> None:
    lost = sum(seconds for _, seconds in rounds) - estimated(PlainTime(costs()), *rounds)
    assert lost <= sum(seconds for outcome, seconds in rounds if outcome.drafted) + 1e-6
