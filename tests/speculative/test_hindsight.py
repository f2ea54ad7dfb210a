"""benchmarks/hindsight.py: what an exhaustive search and the real loop find."""

import random
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.controllers import FixedLength, NoDraft
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.limits import usual_best
from tests.support.toy.models import GREEDY, FakeClock, ToyModel, emitted, never_stop, start_answer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from hindsight import (
    Guess,
    best_seconds,
    causal_seconds,
    chains_along,
    fixed_seconds,
    isotonic,
    runs,
)

VERIFY = [1.0, 1.6, 1.3, 2.5, 2.6, 2.1]  # a staircase that falls, too
texts = st.lists(st.booleans(), min_size=1, max_size=9)


def test_runs() -> None:
    assert runs([True, True, False, True]) == [2, 1, 0, 1]
    assert runs([]) == []


def all_choices(agreed: Sequence[bool]) -> Iterator[float]:
    """Seconds of every way to choose a length in every round."""
    right = runs(agreed)

    @cache
    def behind(i: int) -> tuple[float, ...]:
        if i == len(agreed):
            return (0.0,)
        most = min(len(agreed) - i - 1, len(VERIFY) - 1) if i else 0
        return tuple(
            k * 0.1 + VERIFY[k] + rest
            for k in range(most + 1)
            for rest in behind(i + min(k, right[i]) + 1)
        )

    yield from behind(0)


@given(texts)
def test_the_best_is_the_best_of_all(agreed: list[bool]) -> None:
    assert best_seconds(agreed, VERIFY, 0.1) == pytest.approx(min(all_choices(agreed)))


@given(texts, st.integers(0, 5), st.floats(0, 2))
def test_no_fixed_length_beats_the_best(agreed: list[bool], length: int, step: float) -> None:
    fixed = fixed_seconds(agreed, VERIFY, step, length)
    assert fixed >= best_seconds(agreed, VERIFY, step) - 1e-9
    assert fixed_seconds(agreed, VERIFY, step, 0) == pytest.approx(len(agreed))


@given(texts, st.floats(0, 2))
def test_no_draft_beats_the_ceiling(agreed: list[bool], step: float) -> None:
    most, _ = usual_best(VERIFY, step, 1.0)
    assert len(agreed) / best_seconds(agreed, VERIFY, step) <= most + 1e-9


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_the_loop_takes_as_long_as_foretold(length: int) -> None:
    clock, prompt = FakeClock(), [1, 2]
    target = ToyModel(n_ctx=256, clock=clock, seconds=10.0, seconds_per_token=1.0)
    draft = ToyModel(n_ctx=256, quirk=0.5, clock=clock, seconds=2.0)
    drafter = ModelDrafter(draft, GREEDY, 16, never_stop)
    controller = FixedLength(drafter, length, clock) if length else NoDraft()
    rounds = list(start_answer(target, controller, prompt, 80, clock=clock))
    text = emitted(rounds)
    context = [*prompt, *text]
    oracle = ToyModel(n_ctx=256, quirk=0.5)
    agreed = [int(oracle.row(context[: 2 + i]).argmax()) == text[i] for i in range(len(text))]
    verify = [10.0 + (k + 1) for k in range(6)]
    assert sum(r.seconds for r in rounds) == fixed_seconds(agreed, verify, 2.0, length)
    assert 0.2 < sum(agreed) / len(agreed) < 1


guesses = st.lists(st.builds(Guess, st.booleans(), st.integers(0, 4).map(float)), max_size=12)


@given(guesses)
def test_isotonic_regression(found: list[Guess]) -> None:
    values = sorted({guess.confidence for guess in found})
    groups = [[g.right for g in found if g.confidence == value] for value in values]

    def mean(i: int, j: int) -> float:
        rights = [right for group in groups[i : j + 1] for right in group]
        return sum(rights) / len(rights)

    blocks = isotonic(found)
    assert sum(seen for *_, seen in blocks) == len(found)
    last = len(values) - 1
    for at, value in enumerate(values):  # the max-min formula
        wanted = max(min(mean(i, j) for j in range(at, last + 1)) for i in range(at + 1))
        (*_, chance) = (share for least, share, _ in blocks if least <= value)
        assert chance == pytest.approx(wanted)


def test_a_chain_along_the_text() -> None:
    a, b, c = Guess(True, 3.0), Guess(False, 1.0), Guess(True, 2.0)
    assert chains_along([a, b, c], 2) == [[a, b], [b, c], [c]]


@given(st.lists(guesses.filter(bool), min_size=1, max_size=4), st.floats(0, 0.5))
def test_no_policy_beats_foreknowledge_and_the_best_beats_every_length(
    answers: list[list[Guess]], step: float
) -> None:
    agreed = [[guess.right for guess in answer] for answer in answers]
    found = causal_seconds([chains_along(answer, 5) for answer in answers], VERIFY, step)
    assert found >= sum(best_seconds(one, VERIFY, step) for one in agreed) - 1e-9
    for length in range(6):
        fixed = sum(fixed_seconds(one, VERIFY, step, length) for one in agreed)
        assert found <= fixed + 1e-9


@given(st.lists(texts, min_size=1, max_size=4))
def test_a_draft_that_knows_when_it_is_right_is_as_good_as_foreknowledge(
    agreed: list[list[bool]],
) -> None:
    answers = [[Guess(right, float(right)) for right in one] for one in agreed]
    # Steps that cost nothing: to see that the next one is wrong, it must be drafted.
    verify = [1.0, 1.1, 1.1, 1.1, 1.1, 1.1]
    found = causal_seconds([chains_along(one, 5) for one in answers], verify, 0.0)
    assert found == pytest.approx(sum(best_seconds(one, verify, 0.0) for one in agreed))


@given(st.lists(st.booleans(), min_size=2, max_size=80), st.floats(0, 0.5))
def test_a_draft_that_is_always_as_sure_gains_what_the_best_length_does(
    agreed: list[bool], step: float
) -> None:
    verify = [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]
    chains = chains_along([Guess(right, 1.0) for right in agreed], 5)
    best = min(fixed_seconds(agreed, verify, step, length) for length in range(6))
    assert causal_seconds([chains], verify, step) == pytest.approx(best)


def half_sure(chance: float) -> list[Guess]:
    """4,000 guesses: half of them sure, and right; of the others this share is right."""
    generator = random.Random(0)
    sure = [generator.random() < 0.5 for _ in range(4000)]
    return [Guess(True, 5.0) if each else Guess(generator.random() < chance, 0.5) for each in sure]


def test_the_best_policy_stops_at_the_first_unsure_token() -> None:
    text, step = half_sure(0.4), 0.05
    verify = [1 + 0.3 * length for length in range(9)]
    agreed = [guess.right for guess in text]
    best = min(fixed_seconds(agreed, verify, step, length) for length in range(9))
    # A round drafts up to the first unsure token and does not verify it: at 1.43 tokens a second
    # 0.3 seconds are worth more than its chance, but not at the rate of the best length.
    sure = sum(0.5**length for length in range(1, 9))
    rate = (1 + sure) / (1 + 0.3 * sure + step * 2 * sure)
    assert 0.3 * rate > 0.4 > 0.3 * len(text) / best
    causal = causal_seconds([chains_along(text, 8)], verify, step)
    assert len(text) / causal == pytest.approx(rate, rel=0.015)


def test_a_draft_may_be_sure_behind_its_own_mistake() -> None:
    along = chains_along(half_sure(0.6), 3)
    right = [runs([guess.right for guess in chain])[0] for chain in along]
    recorded = [
        [*chain[: run + 1], *[Guess(False, 5.0)] * (len(chain) - run - 1)]
        for chain, run in zip(along, right, strict=True)
    ]
    verify, step = [1.0, 1.2, 1.5, 1.8], 0.02
    assert causal_seconds([recorded], verify, step) > 1.03 * causal_seconds([along], verify, step)


def test_a_draft_that_proposes_nothing_is_plain_decoding() -> None:
    assert causal_seconds([[[]] * 7, [[]]], VERIFY, 0.1) == 8.0
