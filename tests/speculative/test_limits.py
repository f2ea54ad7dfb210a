"""Limits: they are what an exhaustive search and the real loop find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.config import SamplingParams
from localspec.speculative.control.controllers import FixedLength, NoDraft
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.limits import (
    best_seconds,
    ceiling,
    fixed_seconds,
    runs,
    shares,
    usual_gain,
)
from localspec.speculative.loop import generate_rounds, prefill
from localspec.speculative.sampler import Sampler
from tests.support.toys import FakeClock, ToyModel, never_stop

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


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_the_loop_takes_as_long_as_foretold(length: int) -> None:
    greedy, clock, prompt = Sampler(SamplingParams(temperature=0)), FakeClock(), [1, 2]
    target = ToyModel(n_ctx=256, clock=clock, seconds=10.0, seconds_per_token=1.0)
    draft = ToyModel(n_ctx=256, quirk=0.5, clock=clock, seconds=2.0)
    drafter = ModelDrafter(draft, greedy, 16, never_stop)
    prefill(target, prompt, clock)
    controller = FixedLength(drafter, length, clock) if length else NoDraft()
    rounds = list(
        generate_rounds(
            target, controller, greedy, prompt, max_tokens=80, is_stop=never_stop, clock=clock
        )
    )
    text = [token for each in rounds for token in each.tokens]
    context = [*prompt, *text]
    oracle = ToyModel(n_ctx=256, quirk=0.5)
    agreed = [int(oracle.row(context[: 2 + i]).argmax()) == text[i] for i in range(len(text))]
    verify = [10.0 + (k + 1) for k in range(6)]
    assert sum(r.seconds for r in rounds) == fixed_seconds(agreed, verify, 2.0, length)
    assert 0.2 < sum(agreed) / len(agreed) < 1


def test_shares_of_places() -> None:
    found = shares([[True, True, False, True, True, True], [False, True]], 3)
    assert found == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert shares([[True, False]], 8) == [1.0, 0.0]
    assert shares([], 8) == []


@given(st.lists(texts, min_size=1), st.integers(1, 9))
def test_more_in_a_row_is_never_more_frequent(agreed: list[list[bool]], longest: int) -> None:
    found = shares(agreed, longest)
    assert found == sorted(found, reverse=True)


def test_the_ceiling() -> None:
    costs = [1.0, 2.0, 2.0, 2.0, 3.5, 5.0, 6.5, 8.0]
    most, length = ceiling(costs, 0.0)
    assert most == pytest.approx(2.0) and length == 3
    most, length = ceiling(costs, 1.0)
    assert most == pytest.approx(1.0) and length == 0


@given(texts, st.floats(0, 2))
def test_no_draft_beats_the_ceiling(agreed: list[bool], step: float) -> None:
    most, _ = ceiling(VERIFY, step)
    assert len(agreed) / best_seconds(agreed, VERIFY, step) <= most + 1e-9


@given(st.floats(0, 1), st.floats(0, 2))
def test_a_usual_gain_lies_between_plain_and_the_ceiling(chance: float, step: float) -> None:
    most, _ = ceiling(VERIFY, step)
    assert 1 <= usual_gain(VERIFY, step, chance) <= max(1, most) + 1e-9
    assert usual_gain(VERIFY, step, 1.0) == pytest.approx(max(1, most))
    assert usual_gain(VERIFY, step, 0.0) == 1


def test_a_usual_gain_by_hand() -> None:
    assert usual_gain([1.0, 1.0], 0.1, 0.5) == pytest.approx(1.5 / 1.1)
