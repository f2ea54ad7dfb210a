"""Prompt-lookup drafter: proposes the tokens that followed the same n-gram earlier in the text."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from localspec.speculative.drafters import Candidate

_KEY = 3  # tokens of context that must have occurred before
_LONGEST_MATCH = 32
_MOST_PLACES = 24  # of a key's occurrences, the latest
_LEAST_LIKELY = 0.1  # of the whole continuation, where a walk ends
_SMOOTHING = 0.3  # of an occurrence: one that was seen once is not certain
_GROUPS = ((16, "suffix 16+"), (8, "suffix 8+"), (5, "suffix 5+"), (0, "suffix 3+"))
GROUPS = tuple(name for _, name in _GROUPS)


class SuffixIndex:
    """N-gram index of one growing text, for prompt lookup by the longest matching suffix.

    After SuffixDecoding (arXiv 2411.04975), on a table of n-grams of three tokens in place of a
    suffix tree. It needs no model and costs microseconds.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._places: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)

    def update(self, context: Sequence[int]) -> None:
        """Let the index hold this text: what is new is added, and what left it is removed."""
        shared = self._shared(context)
        while len(self._text) > shared:
            self._remove_last()
        for token in context[shared:]:
            self._text.append(token)
            if len(self._text) > _KEY:
                # The place behind a key: a key at the very end has no continuation yet.
                end = len(self._text) - 1
                self._places[tuple(self._text[end - _KEY : end])].append(end)

    def _shared(self, context: Sequence[int]) -> int:
        n = len(self._text)
        if list(context[:n]) == self._text:
            return n
        return next(
            i for i, token in enumerate(self._text) if i >= len(context) or token != context[i]
        )

    def _remove_last(self) -> None:
        if len(self._text) > _KEY:
            end = len(self._text) - 1
            key = tuple(self._text[end - _KEY : end])
            self._places[key].pop()
            if not self._places[key]:
                del self._places[key]
        self._text.pop()

    def continuation(self, context: Sequence[int]) -> Iterator[Candidate]:
        """The likeliest continuation of ``context``, which begins with the indexed text.

        Walks from the places whose preceding tokens match the end of ``context`` longest; where
        they part, the most frequent token wins. Ends where the whole is unlikely.
        """
        places, match = self._longest_matches(context)
        if not places:
            return
        group = next(name for least, name in _GROUPS if match >= least)
        text, likelihood = self._text, 1.0
        while places:
            counts: dict[int, int] = {}
            for place in places:
                counts[text[place]] = counts.get(text[place], 0) + 1
            # Of equally frequent ones the latest: the places are in ascending order.
            token = max(reversed([text[p] for p in places]), key=lambda t: counts[t])
            share = counts[token] / (len(places) + _SMOOTHING)
            likelihood *= share
            if likelihood < _LEAST_LIKELY:
                return
            yield Candidate(token, math.log(share / (1.0 - share)), group)
            places = [p + 1 for p in places if text[p] == token and p + 1 < len(text)]

    def _longest_matches(self, context: Sequence[int]) -> tuple[list[int], int]:
        """Places behind the longest matches with the end of ``context``, and their length."""
        if len(context) < _KEY:
            return [], 0
        found = self._places.get(tuple(context[-_KEY:]))
        if not found:
            return [], 0
        lengths = {place: self._match(place, context) for place in found[-_MOST_PLACES:]}
        longest = max(lengths.values())
        # Long matches decide together; a short one does not outvote a long one.
        enough = min(longest, max(_KEY, longest // 2 + 1))
        return [place for place, length in lengths.items() if length >= enough], longest

    def _match(self, place: int, context: Sequence[int]) -> int:
        text, last = self._text, len(context)
        most = min(place, last, _LONGEST_MATCH)
        length = _KEY
        while length < most and text[place - 1 - length] == context[last - 1 - length]:
            length += 1
        return length
