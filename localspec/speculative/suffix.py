"""Prompt-lookup drafter: proposes the tokens that followed the same n-gram earlier in the text."""

import math
from collections.abc import Iterator, Sequence

from localspec.speculative.drafters import Candidate
from localspec.speculative.prefix import SharedPrefix

_KEY = 3  # tokens of context that must have occurred before
_LONGEST_MATCH = 32
_MOST_PLACES = 8  # of a key's occurrences, the latest: older ones hardly change what is proposed
_LEAST_LIKELY = 0.1  # of the whole continuation, where a walk ends
_SMOOTHING = 0.3  # of an occurrence: one that was seen once is not certain
_GROUPS = ((16, "suffix 16+"), (8, "suffix 8+"), (5, "suffix 5+"), (0, "suffix 3+"))
GROUPS = tuple(name for _, name in _GROUPS)


class SuffixIndex:
    """N-gram index of one growing text, for prompt lookup by the longest matching suffix.

    After SuffixDecoding (arXiv 2411.04975), on a table of n-grams of three tokens in place of a
    suffix tree; the occurrences of an n-gram are chained from the latest on, as those of a string
    are in zlib's deflate. It needs no model and costs microseconds: a look-up compares at most 8
    places over 32 tokens, and a proposed token counts the votes of 8 places.

    An index can serve many answers: only what differs from the text before is removed and added.
    """

    def __init__(self) -> None:
        self._prefix = SharedPrefix()
        self._torn = False  # true while the fields below may contradict each other
        self._clear()

    def _clear(self) -> None:
        self._text: list[int] = []
        # A place is a position behind an n-gram that occurred: by n-gram the latest place, and by
        # place the one before it of the same n-gram, 0 where there is none.
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier = [0] * _KEY

    def update(self, context: list[int]) -> None:
        """Let the index hold this text, which may only grow for as long as it is the same list."""
        if self._torn:  # Ctrl-C ended an update
            self._clear()
        shared = self._prefix.measure(self._text, context)
        self._torn = True
        if len(self._text) - shared > shared:  # adding is quicker than removing
            self._clear()
        while len(self._text) > shared:
            self._remove_last()
        self._append(context[len(self._text) :])
        self._torn = False

    def _append(self, tokens: list[int]) -> None:
        text, latest, earlier = self._text, self._latest, self._earlier
        begin = max(0, len(text) - _KEY)
        text.extend(tokens)
        # An n-gram at the very end has no continuation yet, so no place.
        parts = (text[begin + i : -1] for i in range(_KEY))
        for place, key in enumerate(zip(*parts, strict=False), begin + _KEY):
            earlier.append(latest.get(key, 0))
            latest[key] = place

    def _remove_last(self) -> None:
        self._text.pop()
        if len(self._text) >= _KEY:
            key, before = tuple(self._text[-_KEY:]), self._earlier.pop()
            if before:
                self._latest[key] = before
            else:
                del self._latest[key]

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """The likeliest continuation of ``context``, the indexed text, and of ``ahead`` behind it.

        Walks from the places whose preceding tokens match the end longest; where they part, the
        most frequent token wins. A place that reaches the end of the text goes on in what was
        proposed behind it. Ends where the whole is unlikely.
        """
        end = [*context[-_LONGEST_MATCH:], *ahead][-_LONGEST_MATCH:]
        places, match = self._longest_matches(end)
        group = next(name for least, name in _GROUPS if match >= least)
        beyond, likelihood = [*context[len(self._text) :], *ahead], 1.0
        while places:
            said = self._said(places, beyond)
            token, count = said[0], said.count(said[0])
            if count < len(said):
                token = max(said, key=said.count)  # of equally frequent ones the latest
                count = said.count(token)
            share = count / (len(said) + _SMOOTHING)
            likelihood *= share
            if likelihood < _LEAST_LIKELY:
                return
            yield Candidate(token, math.log(share / (1.0 - share)), group)
            beyond.append(token)
            places = [p + 1 for p, each in zip(places, said, strict=True) if each == token]

    def _said(self, places: list[int], beyond: list[int]) -> list[int]:
        """The tokens at these places, the latest of which comes first."""
        text, n = self._text, len(self._text)
        if places[0] < n:
            return [text[p] for p in places]
        return [text[p] if p < n else beyond[p - n] for p in places]

    def _longest_matches(self, end: list[int]) -> tuple[list[int], int]:
        """Places behind the longest matches with ``end``, the latest first, and their length."""
        lengths = dict[int, int]()
        place = self._latest.get(tuple(end[-_KEY:]), 0)
        while place and len(lengths) < _MOST_PLACES:
            lengths[place] = self._match(place, end)
            place = self._earlier[place]
        longest = max(lengths.values(), default=0)
        # Long matches decide together; a short one does not outvote a long one.
        enough = min(longest, max(_KEY, longest // 2 + 1))
        return [place for place, length in lengths.items() if length >= enough], longest

    def _match(self, place: int, end: list[int]) -> int:
        text, last = self._text, len(end)
        most = min(place, last)
        length = _KEY
        while length < most and text[place - 1 - length] == end[last - 1 - length]:
            length += 1
        return length
