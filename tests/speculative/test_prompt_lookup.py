"""Prompt lookup: what followed an n-gram is proposed again, however the text grew and shrank."""

import sys
from collections.abc import Sequence
from itertools import islice
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.speculative import prompt_lookup
from localspec.speculative.prompt_lookup import PromptLookup
from tests.support.toy.models import WatchedList

texts = st.lists(st.integers(0, 3), max_size=40)


def proposed(text: list[int], most: int = 99) -> list[int]:
    index = PromptLookup()
    index.update(text)
    return [each.token for each, _ in zip(index.continuation(text), range(most), strict=False)]


def test_a_text_that_repeats_is_continued() -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 1, 2, 3], 6) == [4, 5, 6, 1, 2, 3]
    assert proposed([1, 2, 3, 4, 9, 2, 3, 4], 4) == [9, 2, 3, 4]


def test_what_never_occurred_has_no_continuation() -> None:
    assert proposed([1, 2, 3, 4]) == []
    assert proposed([1, 2]) == []
    assert proposed([]) == []
    assert proposed([1, 1, 2, 1, 1]) == []  # two tokens are too few


def test_the_longer_match_wins() -> None:
    text = [*[1, 2, 3, 9] * 3, 7, 6, 5, 1, 2, 3, 4, 8, 7, 6, 5, 1, 2, 3]
    assert proposed(text, 1) == [4]


def test_of_equal_matches_the_most_frequent_then_the_latest_wins() -> None:
    assert proposed([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 1) == [4]
    assert proposed([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 1, 2, 3], 1) == [5]


def test_confidence_follows_counts() -> None:
    index = PromptLookup()
    index.update([1, 2, 3, 4] * 8)
    often = next(index.continuation([1, 2, 3, 4] * 8))
    once = PromptLookup()
    once.update([1, 2, 3, 4, 1, 2, 3])
    rarely = next(once.continuation([1, 2, 3, 4, 1, 2, 3]))
    assert often.confidence > rarely.confidence
    assert often.group == "lookup 16+" and rarely.group == "lookup 3+"


@given(st.lists(texts, min_size=1, max_size=6), texts)
def test_an_index_that_was_edited_is_as_one_made_anew(
    history: list[list[int]], end: list[int]
) -> None:
    index = PromptLookup()
    for text in history:
        index.update(text)
    index.update(end)
    fresh = PromptLookup()
    fresh.update(end)
    assert list(index.continuation(end)) == list(fresh.continuation(end))


@given(texts, st.lists(st.integers(0, 3), max_size=4))
def test_each_step_occurred_behind_the_one_before(text: list[int], more: list[int]) -> None:
    index = PromptLookup()
    index.update(text)
    whole = [*text, *more]
    for each in index.continuation(text, more):
        grams = {tuple(whole[i : i + 4]) for i in range(len(whole) - 3)}
        whole.append(each.token)
        assert tuple(whole[-4:]) in grams


def test_a_loop_is_continued_beyond_the_end_of_the_text() -> None:
    assert proposed([1, 2, 3, 4] * 16, 32) == [1, 2, 3, 4] * 8
    assert proposed([7] * 20, 32) == [7] * 32


@given(texts, st.lists(st.integers(0, 3), max_size=8))
def test_what_is_ahead_is_context_but_not_indexed(text: list[int], ahead: list[int]) -> None:
    index = PromptLookup()
    index.update(text)
    before = list(index.continuation(text))
    found = list(index.continuation(text, ahead))
    assert found == list(index.continuation([*text, *ahead]))
    assert list(index.continuation(text)) == before


# -- one index for many answers ------------------------------------------------------------


binary = st.lists(st.integers(0, 1), max_size=30)


@given(st.lists(st.tuples(st.integers(0, 60), binary), min_size=1, max_size=8))
def test_an_index_of_one_growing_list_is_as_one_made_anew(
    history: list[tuple[int, list[int]]],
) -> None:
    index, context = PromptLookup(), list[int]()
    for kept, more in history:
        if kept < len(context):  # shorter now, which is noticed; mostly the list only grows
            del context[kept:]
            index.update(context)
        context += more
        index.update(context)
    fresh = PromptLookup()
    fresh.update(list(context))
    assert list(index.continuation(context)) == list(fresh.continuation(context))


class Interrupt:
    """A trace function that raises KeyboardInterrupt at one line of `prompt_lookup.py`."""

    def __init__(self, line: int) -> None:
        self._remaining = line

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Interrupt | None":
        if frame.f_code.co_filename != prompt_lookup.__file__:
            return None
        if event == "line":
            self._remaining -= 1
            if self._remaining == 0:
                raise KeyboardInterrupt
        return self


@given(texts, texts, texts, st.integers(1, 200))
def test_after_ctrl_c_in_an_update_an_index_is_as_one_made_anew(
    before: list[int], cut: list[int], after: list[int], line: int
) -> None:
    index, tracing = PromptLookup(), sys.gettrace()
    index.update(before)
    try:
        sys.settrace(Interrupt(line))
        index.update(cut)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(tracing)
    fresh = PromptLookup()
    for text in (after, cut):
        index.update(text)
        fresh.update(text)
        assert list(index.continuation(text)) == list(fresh.continuation(text))


def test_only_what_is_new_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    added, removed = list[int](), list[int]()
    append, remove = PromptLookup._append, PromptLookup._remove_last

    def count_added(index: PromptLookup, tokens: list[int]) -> None:
        added.append(len(tokens))
        append(index, tokens)

    def count_removed(index: PromptLookup) -> None:
        removed.append(1)
        remove(index)

    monkeypatch.setattr(PromptLookup, "_append", count_added)
    monkeypatch.setattr(PromptLookup, "_remove_last", count_removed)
    index, text = PromptLookup(), list(range(1000))
    for context in (text, [*text, 5, 6], [*text[:990], 7]):
        index.update(context)
    assert (added, sum(removed)) == ([1000, 2, 1], 12)
    index.update([*text[:100], 8])  # removing 891 tokens would take longer than adding 101
    assert (added[3:], sum(removed)) == ([101], 12)


def test_a_growing_list_is_compared_once() -> None:
    index, context = PromptLookup(), WatchedList(range(1000))
    touched = []
    for token in range(50):
        index.update(context)
        list(index.continuation(context, [1, 2]))
        context.append(token)
        touched.append(context.take_touched())
    assert max(touched[2:]) < 50


# -- copies --------------------------------------------------------------------------------

ORIGINAL = [100 + i for i in range(600)]
# The trigram (1, 2, 3) occurs behind each 20th token, more often than places are looked up.
COMMON = [token for i in range(0, 600, 20) for token in (*ORIGINAL[i : i + 17], 1, 2, 3)]


def test_a_long_copy_goes_on_at_what_occurs_everywhere() -> None:
    assert rounds([*COMMON, 7, *COMMON], 600 + 4) < 600 / 32 + 2
    index, context = PromptLookup(), [*COMMON, 7, *COMMON[:3]]
    for end in range(3, 200, 17):
        context += COMMON[len(context) - 601 : end]
        index.update(context)
        found = [each.token for each in islice(index.continuation(context), 40)]
        assert found == COMMON[end : end + 40]


@pytest.mark.parametrize(
    ("edited", "most"),
    [
        ([*ORIGINAL[:300], 9, *ORIGINAL[301:]], 2),  # another token
        ([*ORIGINAL[:300], 9, 8, *ORIGINAL[301:]], 2),  # two for one
        ([*ORIGINAL[:300], *range(9), *ORIGINAL[300:]], 10),  # an insertion
        ([*ORIGINAL[:300], *ORIGINAL[305:]], 1),  # a deletion
    ],
)
def test_behind_an_edit_a_copy_goes_on_at_once(edited: list[int], most: int) -> None:
    whole = rounds([*ORIGINAL, 7, *ORIGINAL], 604)
    assert rounds([*ORIGINAL, 7, *edited], 604) <= whole + 1 + most


def test_the_copy_nearest_behind_an_edit_is_taken() -> None:
    text = [*COMMON, 7, *COMMON[:217], 9, *COMMON[218:220]]  # then (1, 2) became (9, 2)
    index = PromptLookup()
    for end in (500, 700, 800, 818, 821):
        index.update(context := text[:end])
        found = [each.token for each in islice(index.continuation(context), 3)]
    assert found == COMMON[220:223]


def test_the_longer_a_copy_the_surer_it_is() -> None:
    index, confidences = PromptLookup(), list[float]()
    for end in (16, 32, 100, 400):
        index.update(context := [*ORIGINAL, 7, *ORIGINAL[:end]])
        confidences.append(next(index.continuation(context)).confidence)
    assert confidences == sorted(set(confidences)) and confidences[-1] > confidences[0] + 3


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 9), max_size=40))
def test_what_is_followed_is_always_in_the_text(text: list[int], ends: list[int]) -> None:
    """However far each round follows what is proposed; and the text stays as it was."""
    index, context = PromptLookup(), list(text)
    for accepted in ends:
        index.update(context)
        before = list(context)
        found = [each.token for each in index.continuation(context)]
        assert context == before and len(found) <= MAX_DRAFT_TOKENS
        assert set(found) <= set(context)
        context += [*found[:accepted], accepted % 4]


# -- the work of a look-up -----------------------------------------------------------------


class Counted(int):
    """A token that counts how often one is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def comparisons(text: Sequence[int]) -> tuple[int, int]:
    """Of a look-up behind this text, and the tokens it proposes."""
    context: list[int] = [Counted(token) for token in text]
    index = PromptLookup()
    index.update(context)
    Counted.comparisons = 0
    found = list(islice(index.continuation(context), 32))
    return Counted.comparisons, len(found)


@pytest.mark.parametrize("period", [1, 3, 7, 40])
def test_a_text_that_loops_takes_few_steps(period: int) -> None:
    count, tokens = comparisons(list(range(period)) * (2000 // period))
    assert tokens == 32
    assert count <= 8 * 32 + 16 * tokens


@given(st.lists(st.integers(0, 2), max_size=400), st.integers(1, 9))
def test_a_look_up_takes_a_bounded_number_of_steps(text: list[int], times: int) -> None:
    count, tokens = comparisons(text * times)
    assert count <= 3 + 8 * 32 + (8 + 64 + 64) * (tokens + 1)  # a vote where 8 places differ


def rounds(text: list[int], start: int = 1) -> int:
    """Passes that it takes to say a text behind its start, where all proposed is verified."""
    index, context, passes = PromptLookup(), text[:start], 0
    while len(context) < len(text):
        index.update(context)
        for each in islice(index.continuation(context), 32):
            if [each.token] != text[len(context) : len(context) + 1]:
                break
            context.append(each.token)
        context += text[len(context) : len(context) + 1]
        passes += 1
    return passes
