"""Repetition penalty: what is remembered from history to history, against counting anew."""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.sampling import penalties
from localspec.speculative.sampling.penalties import _TAIL, SHORT, Penalties

VOCABULARY = 12


def penalised(history: Sequence[int], last: int) -> set[int]:
    """The obvious way: every token of the window, from the start."""
    window = history if last < 0 else history[-last:]
    return {token for token in window if token < VOCABULARY}


def seen(penalty: Penalties) -> set[int]:
    return set(np.flatnonzero(penalty.applies_to(np.arange(VOCABULARY))).tolist())


tokens = st.lists(st.integers(0, VOCABULARY + 2), max_size=9)
# How many tokens are taken back, and which follow.
changes = st.lists(st.tuples(st.integers(0, 12), tokens), min_size=1, max_size=20)


@given(tokens, changes, st.sampled_from([-1, 1, 3, 7, 50]), st.sampled_from([0, SHORT]))
def test_histories_that_grow_and_change_their_mind(
    history: list[int], changes: list[tuple[int, list[int]]], last: int, short: int
) -> None:
    penalty = Penalties(1.3, last)
    for back, new in changes:
        history = [*history[: max(0, len(history) - back)], *new]
        with patch.object(penalties, "SHORT", short):  # 0: all windows are long
            penalty.show(history, VOCABULARY)
        assert seen(penalty) == penalised(history, last)


@given(st.lists(st.tuples(tokens, st.integers(1, 40)), min_size=1, max_size=6), st.integers(-1, 90))
def test_another_text_is_counted_anew(texts: list[tuple[list[int], int]], last: int) -> None:
    last = last or -1
    penalty = Penalties(1.3, last)
    for text, times in texts:
        history = text * times
        with patch.object(penalties, "SHORT", 0):
            penalty.show(history, VOCABULARY)
        if len(history) <= _TAIL:  # of a longer one the end is compared
            assert seen(penalty) == penalised(history, last)


def test_a_window_that_moved_is_another_text() -> None:
    # What a draft sees of a long context: its first token and the most recent ones.
    text = [i * i % 11 for i in range(1000)]
    penalty = Penalties(1.3, -1)
    penalty.show([11, *text[:600]], VOCABULARY)
    for moved in ([11, *[3] * 520], [11, *text[80:600]], [3, 4]):
        penalty.show(moved, VOCABULARY)
        assert seen(penalty) == penalised(moved, -1)


def test_another_vocabulary_is_counted_anew() -> None:
    penalty = Penalties(1.3, -1)
    penalty.show([1, 5], 4)
    penalty.show([1, 5], VOCABULARY)
    assert seen(penalty) == {1, 5}


class Read(list[int]):
    """A history that counts what is read of it."""

    read = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found


@pytest.mark.parametrize("last", [-1, 64, 5000])
def test_a_pick_does_not_read_the_whole_history(last: int) -> None:
    history, penalty = Read([i % 7 for i in range(8000)]), Penalties(1.3, last)
    penalty.show(history, VOCABULARY)
    for token in (9, 10, 11):
        del history[-3:]
        history.extend([8, token, 8, 8])
        history.read = 0
        penalty.show(history, VOCABULARY)
        assert history.read < 2 * _TAIL
        assert seen(penalty) == penalised(list(history), last)


def test_logits_are_lowered_or_raised() -> None:
    logits = np.array([4, -4, 0, 4, -4], np.float32)
    for factor, expected in ((2.0, [2, -8, 0, 4, -4]), (0.5, [8, -2, 0, 4, -4])):
        penalty = Penalties(factor, -1)
        penalty.show([0, 0, 1, 2], 5)
        assert penalty.whole(logits).tolist() == expected
        assert penalty.of(np.array([3, 1]), logits[[3, 1]]).tolist() == [4, expected[1]]
    assert logits.tolist() == [4, -4, 0, 4, -4]
