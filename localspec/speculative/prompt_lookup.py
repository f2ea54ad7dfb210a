"""Prompt-lookup drafter: proposes the tokens that followed the same n-gram earlier in the text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.speculative.drafters import Candidate
from localspec.speculative.prefix import SharedPrefix

_KEY = 3  # tokens of context that must have occurred before
LONGEST_MATCH = 32  # tokens that are compared; the match of a copy may be longer
_MOST_PLACES = 8  # of a key's occurrences, the latest: older ones hardly change the proposal
_SMOOTHING = 0.3  # of an occurrence: one that was seen once is not certain
LONG = 16  # tokens of a match
_GROUPS = ((LONG, "lookup 16+"), (8, "lookup 8+"), (5, "lookup 5+"), (0, "lookup 3+"))
_GROUP = [next(name for least, name in _GROUPS if n >= least) for n in range(LONG + 1)]
_RESUMED = "lookup resumed"
_LEAST_COPY = 8  # tokens of a copy needed to look for its continuation after an edit
_LONGEST_EDIT = 64  # tokens that an edit may insert
_DOUBT = 1.0  # log-odds by which a copy is less likely to continue after an edit
_SKIPPED = (8, 32, 128)  # tokens that an edit may leave out if 1, 2, 3 tokens after it match


@dataclass(slots=True)
class _Copy:
    """The place from which the end of a text is copied, followed while the text grows.

    A place is the position of the token to come; ``match`` is how many tokens before it agree with
    the end of the text, 0 without a place.
    """

    place: int = 0
    match: int = 0
    resumed: bool = False  # after an edit, and not confirmed yet
    found: dict[int, int] = field(default_factory=dict)  # places of the last look-up, with matches
    lost: int = 0  # place in the original at which the text departed from it, 0 for none
    lost_at: int = 0  # and the same place in the text

    def follow(self, text: list[int], before: int) -> None:
        """Follow the place that predicted the tokens after ``before``."""
        found, self.found = self.found, {}
        if self.place and not found:
            found[self.place] = self.match
        if found:
            self._go_on(found, text, text[before:])
        if not self.match and self.lost and len(text) - self.lost_at <= _LONGEST_EDIT:
            self._resume(text)

    def _go_on(self, found: dict[int, int], text: list[int], new: list[int]) -> None:
        """Take the best of the places that predicted the new tokens; without one, the copy ends."""
        going = [place for place in found if text[place : place + len(new)] == new]
        best = max(going or found, key=found.__getitem__)
        match, self.resumed = found[best], self.resumed and best == self.place
        if going:
            self.place, self.match = best + len(new), match + len(new)
            if self.resumed and self.match >= _KEY:  # the match before the edit counts again
                self.match, self.resumed = self.match + LONG, False
            return
        self.place, self.match, self.resumed = 0, 0, False
        agreed = next(i for i, token in enumerate(new) if text[best + i] != token)
        if match + agreed >= _LEAST_COPY:
            self.lost, self.lost_at = best + agreed, len(text) - len(new) + agreed

    def _resume(self, text: list[int]) -> None:
        """Look for the place where a lost copy continues: the nearest that the last tokens fit."""
        inserted = len(text) - self.lost_at
        for length in range(min(_KEY, inserted), 0, -1):
            place = _find(text, text[-length:], self.lost, self.lost + _SKIPPED[length - 1])
            if place:
                self.place, self.match, self.resumed = place, length, True
                return
        self.place, self.match, self.resumed = self.lost + inserted, 0, True


def _find(text: list[int], tokens: list[int], start: int, stop: int) -> int:
    """The first position after these tokens, which begin from ``start`` to ``stop``; or 0."""
    stop = min(stop, len(text) - len(tokens))
    while start < stop:
        try:
            start = text.index(tokens[0], start, stop)
        except ValueError:
            return 0
        if text[start : start + len(tokens)] == tokens:
            return start + len(tokens)
        start += 1
    return 0


def _candidate(token: int, share: float, match: int, resumed: bool) -> Candidate:
    """A token that has this share of the votes after a match, in the group of such matches.

    A copy may end anywhere: the odds that one of n tokens continues are in proportion to n.
    """
    if resumed and match < LONG:
        return Candidate(token, math.log(1 + match) - _DOUBT, _RESUMED)
    odds = share / (1.0 - share) * max(1.0, match / LONG)
    return Candidate(token, math.log(odds), _GROUP[min(match, LONG)])


class PromptLookup:
    """N-gram index of one growing text, for prompt lookup by the longest matching suffix.

    After SuffixDecoding (arXiv 2411.04975), on a table of n-grams of three tokens in place of a
    suffix tree; occurrences of an n-gram are chained from the latest on, as in zlib's deflate. It
    costs microseconds: a look-up compares at most 8 places over 32 tokens, and a proposed token
    counts the votes of 9 places.

    The place of a copy is followed from look-up to look-up, so that a long copy is neither lost at
    a common n-gram nor compared again; after an edit it is searched nearby. An index can serve
    many answers: only what differs from the text before is removed and added.
    """

    def __init__(self) -> None:
        self._prefix = SharedPrefix()
        self._torn = False  # true while the fields below may contradict each other
        self._clear()

    def _clear(self) -> None:
        self._text: list[int] = []
        self._copy = _Copy()
        # A place is the position after an n-gram that occurred: by n-gram the latest place, and by
        # place the one before it of the same n-gram, 0 if there is none.
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier = [0] * _KEY

    def update(self, context: list[int]) -> None:
        """Let the index hold this text, which may only grow for as long as it is the same list."""
        if self._torn:  # Ctrl-C ended an update
            self._clear()
        shared = self._prefix.measure(self._text, context)
        self._torn = True
        if shared < len(self._text):  # another text
            self._copy = _Copy()
        if len(self._text) - shared > shared:  # adding is quicker than removing
            self._clear()
        while len(self._text) > shared:
            self._remove_last()
        before = len(self._text)
        if len(context) > before:
            self._append(context[before:])
            self._copy.follow(self._text, before)
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
        """The likeliest continuation of ``context``, the indexed text, followed by ``ahead``.

        Walks from the places with the longest matches; if they differ, the most frequent token
        wins. A place that reaches the end of the text continues in the tokens proposed after it.
        """
        beyond = [*context[len(self._text) :], *ahead]
        end = [*context[-LONGEST_MATCH:], *ahead][-LONGEST_MATCH:]
        places, match, resumed = self._places(end, beyond)
        for length in range(match, match + MAX_DRAFT_TOKENS):
            if not places:
                return
            votes = self._votes(places, beyond)
            token, count = votes[0], votes.count(votes[0])
            if count < len(votes):
                token = max(votes, key=votes.count)  # of equally frequent ones the latest
                count = votes.count(token)
            yield _candidate(token, count / (len(votes) + _SMOOTHING), length, resumed)
            beyond.append(token)
            places = [p + 1 for p, each in zip(places, votes, strict=True) if each == token]

    def _votes(self, places: list[int], beyond: list[int]) -> list[int]:
        """The tokens at these places, that of the latest place first."""
        text, n = self._text, len(self._text)
        if places[0] < n:
            return [text[p] for p in places]
        return [text[p] if p < n else beyond[p - n] for p in places]

    def _places(self, end: list[int], beyond: list[int]) -> tuple[list[int], int, bool]:
        """Places to continue from, the latest first, their match, and whether a copy resumes.

        ``end`` is the end of the text, and ``beyond`` the tokens of it that are not indexed.
        """
        copy, lengths = self._copy, dict[int, int]()
        place, match = copy.place, copy.match
        if place and beyond:
            agrees = self._text[place : place + len(beyond)] == beyond
            place, match = (place + len(beyond), match + len(beyond)) if agrees else (0, 0)
        if place:
            lengths[place] = match
        if match < 2 * LONGEST_MATCH:  # else no other match is half as long
            self._look_up(end, lengths)
        longest = max(lengths.values(), default=0)
        resumes = copy.resumed and match == longest
        if resumes:
            lengths = {place: match} if place else {}
        # Long matches decide together; a short one does not outvote a long one.
        enough = min(longest, max(_KEY, longest // 2 + 1))
        found = {p: lengths[p] for p in sorted(lengths, reverse=True) if lengths[p] >= enough}
        if not beyond:
            copy.found = found
        return list(found), longest, resumes

    def _look_up(self, end: list[int], lengths: dict[int, int]) -> None:
        """Add the latest places of the last n-gram, with how long they match the end."""
        place = self._latest.get(tuple(end[-_KEY:]), 0)
        for _ in range(_MOST_PLACES):
            if not place:
                return
            if place not in lengths:
                lengths[place] = self._match(place, end)
            place = self._earlier[place]

    def _match(self, place: int, end: list[int]) -> int:
        text, last = self._text, len(end)
        most = min(place, last)
        length = _KEY
        while length < most and text[place - 1 - length] == end[last - 1 - length]:
            length += 1
        return length
