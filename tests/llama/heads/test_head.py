"""Heads that follow a target: what they read, and that nothing but drafts comes of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.llama.heads import PAIRS, HeadPair, head_pair
from tests.support.real_pair import random_ids

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]


@pytest.fixture(scope="module", params=PAIRS, ids=lambda names: names[1] or names[0])
def twins(request: pytest.FixtureRequest, architecture: Files) -> Iterator[tuple[HeadPair, ...]]:
    """The same pair twice: one with a history, one that reads everything anew."""
    target, heads = request.param
    with (
        head_pair(architecture, target, heads, exact=True) as first,
        head_pair(architecture, target, heads, exact=True) as second,
    ):
        yield first, second


class Text:
    """A text on a pair: what happens to it, by the target's greedy picks."""

    def __init__(self, pair: HeadPair, prompt: list[int]) -> None:
        self.pair = pair
        self.tokens = prompt
        pair.restart()
        pair.target.decode(prompt[:-1], 0)

    def draft(self, count: int, right: int) -> None:
        """A round of ``count`` drafted tokens, of which the first ``right`` are."""
        target, pending = self.pair.target, len(self.tokens) - 1
        drafted = self._truth(right) + random_ids(count - right, seed=pending)
        target.truncate(pending)
        self.pair.draft(self.tokens, drafted[:-1])
        rows = target.decode([self.tokens[-1], *drafted], count + 1)
        for i, row in enumerate(rows):
            self.tokens.append(int(row.argmax()))
            if i == count or self.tokens[-1] != drafted[i]:
                break
        target.truncate(len(self.tokens) - 1)

    def _truth(self, count: int) -> list[int]:
        found = list[int]()
        for _ in range(count):
            row = self.pair.target.decode([*self.tokens[-1:], *found][-1:], 1)[0]
            found.append(int(row.argmax()))
        return found

    def plain(self, count: int, _: int) -> None:
        """Rounds without a draft."""
        for _ in range(count):
            row = self.pair.target.decode(self.tokens[-1:], 1)[0]
            self.tokens.append(int(row.argmax()))

    def back(self, count: int, other: int) -> None:
        """Another token in place of an earlier one, and all behind it forgotten."""
        del self.tokens[max(1, len(self.tokens) - count) :]
        self.pair.target.truncate(len(self.tokens) - 1)
        self.tokens[-1] = other
        self.pair.target.truncate(len(self.tokens) - 1)

    def read(self, count: int, seed: int) -> None:
        """More text at once, such as a next message."""
        more = random_ids(10 * count, seed)
        self.pair.target.decode([self.tokens[-1], *more[:-1]], 0)
        self.tokens += more

    def again(self, count: int, _: int) -> None:
        """The last tokens, read a second time: as when a state was restored that lacks them."""
        count, end = min(count, len(self.tokens) - 1), len(self.tokens) - 1
        self.pair.target.truncate(end - count)
        self.pair.target.decode(self.tokens[end - count : end], 1)

    def swap(self, count: int, seed: int) -> None:
        """Another text in between, as with the RAM cache."""
        target, head = self.pair.target, self.pair.head
        if not head.has_cache:
            return
        target_state, state = target.state(), head.state()
        tokens, copies = [*target.tokens], target.reusable_lengths().copies
        target.truncate(0)
        target.decode(random_ids(10 * count, seed), 0)
        assert target.restore(tokens, target_state, copies)
        head.restore(state)

    def score_past_tokens(self, count: int, _: int) -> None:
        """What the head would have said of the last tokens."""
        head = self.pair.head
        head.truncate(len(head.tokens))
        unread = self.tokens[len(head.tokens) : -1]
        if unread:
            head.decode(unread, min(count, len(unread)))


EVENTS = st.tuples(
    st.sampled_from(["draft", "plain", "back", "read", "again", "swap", "score_past_tokens"]),
    st.integers(1, 6),
    st.integers(0, 4),
)


@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(prompt=st.integers(2, 90), events=st.lists(EVENTS, max_size=12))
def test_after_any_history_the_first_draft_is_that_of_a_head_that_reads_anew(
    twins: tuple[HeadPair, ...], prompt: int, events: list[tuple[str, int, int]]
) -> None:
    pair, anew = twins
    text = Text(pair, random_ids(prompt, seed=prompt))
    for name, count, more in events:
        getattr(text, name)(count, min(more, count) if name == "draft" else more)
    anew.restart()
    anew.target.decode(text.tokens[:-1], 0)
    drafted = random_ids(3, seed=len(text.tokens))
    for expected, found in zip(
        anew.draft(text.tokens, drafted), pair.draft(text.tokens, drafted), strict=True
    ):
        assert np.array_equal(np.isfinite(expected), np.isfinite(found))
        finite = np.isfinite(expected)
        assert np.abs(expected[finite]).max() > 0.05
        np.testing.assert_allclose(found[finite], expected[finite], atol=2e-3)
