"""Drafter interface, and the drafter that samples from a draft model.

How many are drafted is the controller's decision.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from localspec.speculative.loop import TokenModel, common_prefix

if TYPE_CHECKING:
    from localspec.speculative.sampler import Sampler, TokenDistribution

MODEL = "draft model"  # the group of a model's candidates
TAIL = 32  # tokens: from so many a draft shows whether it knows the text


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may come next, if those before it were right.

    ``confidence`` is in log-odds; ``group`` names candidates whose confidence means the same;
    ``distribution`` is what the token was drawn from, where the rule of acceptance asks for it.
    """

    token: int
    confidence: float
    group: str
    distribution: "TokenDistribution | None" = None

    @property
    def source(self) -> str:
        """Who proposed it, in a word: draft or suffix."""
        return self.group.partition(" ")[0]


class Drafter(Protocol):
    """Whoever proposes candidates for a context; it synchronises itself with what it is shown.

    "Unread" are the tokens of a context that it must read before it can propose.
    """

    def unread(self, context: list[int]) -> int:
        """How many tokens a proposal must read first, the pending one included."""
        ...

    def read(self, context: list[int]) -> None:
        """Read all of ``context`` but its last token, which is pending."""
        ...

    def propose(self, context: list[int]) -> Iterator[Candidate]:
        """Candidates one after the other, each computed when it is asked for."""
        ...

    def to_review(self, context: list[int], longest: int) -> int:
        """How many tokens a review reads."""
        ...

    def review(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        """What would have been proposed for the last ``longest`` tokens, beside what came."""
        ...


class ModelDrafter:
    """Proposes what a small model would say next, by the target's own picking rule.

    Sharing the rule, noise included, is what makes the picks agree at a temperature above 0
    (arXiv 2408.07978). The cache is never rolled back to the prompt: accepted tokens stay in it.
    llama.cpp decodes them a second time (its TAG_SPEC_AVOID_DRAFT_REEVAL).

    A context longer than the draft's is seen through a window: its first token, which models lean
    on, and the most recent ones. ``n_target_vocab`` is the target's number of ids; the draft may
    have more or fewer.
    """

    def __init__(
        self,
        model: TokenModel,
        sampler: "Sampler",
        n_target_vocab: int,
        is_stop: Callable[[int], bool],
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._n_shared = min(model.n_vocab, n_target_vocab)
        self._is_stop = is_stop

    def unread(self, context: list[int]) -> int:
        """How many tokens a proposal must read first, the pending one included."""
        return len(self._unread(context))

    def read(self, context: list[int]) -> None:
        """Read all of ``context`` but its last token."""
        unread = self._unread(context)
        if len(unread) > 1 and self._knows(unread):
            self._model.decode(unread[:-1], 0)

    def propose(self, context: list[int]) -> Iterator[Candidate]:
        """Candidates one after the other, each computed when it is asked for.

        Ends where the draft's window or vocabulary ends, or the text would.
        """
        unread = self._unread(context)
        if not self._knows(unread):
            return
        rows = self._model.decode(unread, 1)
        history = list(context)
        while True:
            # Ids that the target lacks are masked before the pick, not rejected after it.
            chosen = self._sampler.choose(rows[0][: self._n_shared], len(history), history)
            history.append(chosen.token)
            yield Candidate(chosen.token, chosen.lead, MODEL, chosen.distribution)
            if self._is_stop(chosen.token) or len(self._model.tokens) >= self._model.n_ctx:
                return
            rows = self._model.decode([chosen.token], 1)

    def to_review(self, context: list[int], longest: int) -> int:
        """How many tokens a review reads."""
        unread = len(self._unread(context))
        return TAIL + longest if self._misses_most(unread, context, longest) else unread

    def review(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        """What would have been drafted at the last tokens, each beside the actual token.

        At most the last ``longest`` tokens are reviewed. Reads what is unread; of a context that
        was hardly read yet only the end, so that a look at a draft does not cost a long prompt.
        """
        unread = self._unread(context)
        if self._misses_most(len(unread), context, longest):
            unread = self._new_in([context[0], *context[1 - TAIL - longest :]])
        rows_wanted = min(longest, len(unread) - 1)
        if rows_wanted <= 0 or not self._knows(unread):
            return []
        rows = self._model.decode(unread[:-1], rows_wanted)
        begin = len(context) - rows_wanted
        reviewed = []
        for row, position in zip(rows, range(begin, len(context)), strict=True):
            history = context[:position]
            chosen = self._sampler.choose(row[: self._n_shared], position, history)
            candidate = Candidate(chosen.token, chosen.lead, MODEL)
            reviewed.append((candidate, context[position]))
        return reviewed

    def _knows(self, tokens: list[int]) -> bool:
        return max(tokens) < self._model.n_vocab

    def _misses_most(self, unread: int, context: list[int], longest: int) -> bool:
        return unread > TAIL + longest and 2 * unread > min(len(context), self._model.n_ctx)

    def _unread(self, context: list[int]) -> list[int]:
        return self._new_in(self._window(context))

    def _new_in(self, window: list[int]) -> list[int]:
        """Forget what is not in this window, and return what is new, at least its last token."""
        shared = min(common_prefix(self._model.tokens, window), len(window) - 1)
        self._model.keep(shared)
        return window[shared:]

    def _window(self, context: list[int]) -> list[int]:
        """The context as the draft sees it, with room for some proposals behind it.

        The window moves by half its length at a time, because each move reads it anew.
        """
        n_ctx = self._model.n_ctx
        capacity = n_ctx - min(8, n_ctx // 2)
        step = max(1, capacity // 2)
        moves = max(0, -(-(len(context) - capacity) // step))
        return [context[0], *context[1 + moves * step :]]
