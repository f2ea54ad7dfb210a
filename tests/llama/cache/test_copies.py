"""Copies of partial states: where a prompt is copied, and which copies stay."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.cache.copies import NativeSequence, StateCheckpoints, places_to_return

LONG = 96  # tokens of a question


@pytest.mark.parametrize(
    ("pending", "new", "expected"),
    [
        (0, 1, []),  # a step of an answer
        (8, 8, []),  # one behind a rollback
        (300, 0, []),  # nothing is asked
        (0, 40, [(0, False)]),
        (0, 191, [(0, False)]),
        (0, 192, [(96, False)]),
        (0, 1000, [(904, False)]),
        (600, 20, [(600, True)]),
        (600, 191, [(600, True)]),
        (600, 192, [(600, True), (696, False)]),
        (8, 400, [(312, False)]),  # as soon read again as restored
    ],
)
def test_copies_lie_where_later_prompts_may_branch_off(
    pending: int, new: int, expected: list[tuple[int, bool]]
) -> None:
    assert places_to_return(pending, new) == expected


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 64))
def test_places_divide_a_prompt_into_passes_of_whole_steps(
    pending: int, new: int, step: int
) -> None:
    offsets = [place.offset for place in places_to_return(pending, new, step)]
    assert offsets == sorted(set(offsets)) and all(at % step == 0 for at in offsets)
    assert all(0 <= at < pending + new for at in offsets)


class SizedStates:
    """In place of llama.cpp: each state has a byte for each token."""

    def __init__(self) -> None:
        self.length = 0

    def llama_get_memory(self, context: object) -> None: ...

    def llama_state_seq_get_size_ext(self, *which: object) -> int:
        return self.length

    def llama_state_seq_get_data_ext(self, *which: object) -> int:
        return self.length


def kept(most: int, limit: int | None, *added: tuple[int, bool]) -> list[int]:
    """The lengths of the copies that stay, of these lengths, some of which are shared."""
    states: Any = SizedStates()
    copies = StateCheckpoints(NativeSequence(states, None), most, limit)
    for states.length, shared in added:
        copies.add(states.length, shared=shared)
    return [length for length, _ in copies.copies]


def test_the_copy_goes_that_saves_least() -> None:
    texts = [(length, False) for length in (1000, 1040, 2000, 2100, 2110)]
    assert kept(5, None, *texts) == [1000, 1040, 2000, 2100, 2110]
    assert kept(4, None, *texts) == [1000, 2000, 2100, 2110]
    assert kept(2, None, *texts) == [2000, 2110]


def test_what_prompts_shared_stays_though_it_saves_little() -> None:
    texts = [(904, False), (1000, True), (1200, False), (1400, False), (1600, False)]
    assert kept(4, None, *texts) == [904, 1000, 1400, 1600]
    assert kept(2, None, *texts) == [1000, 1600]


@given(st.integers(0, 5), st.integers(0, 400), st.lists(st.booleans(), max_size=12))
def test_copies_stay_within_their_bounds(most: int, limit: int, shared: list[bool]) -> None:
    found = kept(most, limit, *((10 * i + 10, each) for i, each in enumerate(shared)))
    assert len(found) <= most and sum(found) <= limit and found == sorted(found)
