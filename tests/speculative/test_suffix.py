"""Prompt lookup: what followed an n-gram is proposed again, however the text grew and shrank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.suffix import GROUPS, SuffixIndex

texts = st.lists(st.integers(0, 3), max_size=40)


def proposed(text: list[int], most: int = 99) -> list[int]:
    index = SuffixIndex()
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
    index = SuffixIndex()
    index.update([1, 2, 3, 4] * 8)
    often = next(index.continuation([1, 2, 3, 4] * 8))
    once = SuffixIndex()
    once.update([1, 2, 3, 4, 1, 2, 3])
    rarely = next(once.continuation([1, 2, 3, 4, 1, 2, 3]))
    assert often.confidence > rarely.confidence
    assert often.group == "suffix 16+" and rarely.group == "suffix 3+"
    assert {often.group, rarely.group} <= set(GROUPS)


@given(st.lists(texts, min_size=1, max_size=6), texts)
def test_an_index_that_was_edited_is_as_one_made_anew(
    history: list[list[int]], end: list[int]
) -> None:
    index = SuffixIndex()
    for text in history:
        index.update(text)
    index.update(end)
    fresh = SuffixIndex()
    fresh.update(end)
    assert list(index.continuation(end)) == list(fresh.continuation(end))


@given(texts, st.lists(st.integers(0, 3), max_size=4))
def test_each_step_occurred_behind_the_one_before(text: list[int], more: list[int]) -> None:
    index = SuffixIndex()
    index.update(text)
    whole = [*text, *more]
    for each in index.continuation(text, more):
        grams = {tuple(whole[i : i + 4]) for i in range(len(whole) - 3)}
        whole.append(each.token)
        assert tuple(whole[-4:]) in grams
