"""Drafter interface, and the drafter that samples from a draft model.

How many are drafted is the controller's decision.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from localspec.speculative.loop import BatchShare, TokenModel
from localspec.speculative.prefix import SharedPrefix

if TYPE_CHECKING:
    from localspec.speculative.loop import Logits
    from localspec.speculative.sampling.sampler import Sampler, TokenDistribution

MODEL = "draft model"  # the group of a model's candidates
FORCED = "forced"  # and of what a grammar leaves no choice about
# And of its second and third choices for the same places: so far behind the first, the third is
# right half as often as the second.
RUNNERS_UP = ("draft runner-up", "draft third choice")
TAIL = 32  # tokens: from so many a draft shows whether it knows the text


class Candidate(NamedTuple):
    """A token that may come next, if those before it were right.

    ``confidence`` is in log-odds; ``group`` names candidates whose confidence means the same;
    ``distribution`` is what the token was drawn from, where the rule of acceptance asks for it.
    ``rivals`` may stand in its place, the likelier first; their confidence is minus how far they
    are behind it: before anything is learnt, it and its only rival share a chance of 1.
    """

    token: int
    confidence: float
    group: str
    distribution: "TokenDistribution | None" = None
    rivals: tuple["Candidate", ...] = ()

    @property
    def source(self) -> str:
        """Who proposed it, in a word: draft, suffix, history or forced."""
        return self.group.partition(" ")[0]


class Drafter(Protocol):
    """Whoever proposes candidates for a context; it synchronises itself with what it is shown.

    One drafter serves one answer. It may be shown any context, but only what is the same list each
    time, which grows and is never changed otherwise, costs no time that grows with its length.
    "Unread" are the tokens of a context that it must read before it can propose.
    """

    @property
    def drafts_block(self) -> bool:
        """Whether the first candidate pays for all of a proposal."""

    @property
    def reads_along(self) -> bool:
        """Whether there is never a prompt to read before a proposal."""

    @property
    def batch_share(self) -> BatchShare:
        """With whom the last pass was shared."""

    def unread(self, context: list[int]) -> int:
        """How many tokens a proposal must read first, the pending one included."""

    def read(self, context: list[int]) -> None:
        """Read all of ``context`` but its last token, which is pending."""

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """Candidates behind ``context`` and ``ahead``, each computed when it is asked for."""

    def to_review(self, context: list[int], longest: int) -> int:
        """How many tokens a review reads."""

    def review(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        """What would have been proposed for the last ``longest`` tokens, beside what came."""


class Lookup(Protocol):
    """What finds candidates in texts, without a model."""

    def update(self, context: list[int]) -> None:
        """Take up this text, which may only grow for as long as it is the same list."""

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """Candidates behind ``context`` and ``ahead``, each computed when it is asked for."""


class ModelDrafter:
    """Proposes what a small model would say next, by the target's own picking rule.

    Sharing the rule, noise included, is what makes the picks agree at a temperature above 0
    (arXiv 2408.07978). The cache is never rolled back to the prompt: accepted tokens stay in it.
    llama.cpp decodes them a second time (its TAG_SPEC_AVOID_DRAFT_REEVAL).

    A context longer than the draft's is seen through a window: its first token, which models lean
    on, and the most recent ones. ``n_target_vocab`` is the target's number of ids; the draft may
    have more or fewer. With ``branches`` of 2 or 3, each candidate comes with 1 or 2 rivals, the
    runners-up by the same rule. The model is never asked what follows these.
    """

    def __init__(
        self,
        model: TokenModel,
        sampler: "Sampler",
        n_target_vocab: int,
        is_stop: Callable[[int], bool],
        branches: int = 1,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._n_shared = min(model.n_vocab, n_target_vocab)
        self._is_stop = is_stop
        self._n_rivals = branches - 1
        self._prefix = SharedPrefix()

    @property
    def drafts_block(self) -> bool:
        """Whether the model is one that says several tokens in one pass."""
        return self._model.block_size is not None

    @property
    def reads_along(self) -> bool:
        """Whether the model reads what the target reads, as heads do."""
        return self._model.reads_along

    @property
    def batch_share(self) -> BatchShare:
        """With whom the model's last pass was shared."""
        return self._model.batch_share

    def unread(self, context: list[int]) -> int:
        """How many tokens a proposal must read first, the pending one included."""
        shift = self._shift(len(context))
        return len(context) - shift - self._forget_others(context, shift)

    def read(self, context: list[int]) -> None:
        """Read all of ``context`` but its last token."""
        unread = self._unread(context, self._shift(len(context)))
        if len(unread) > 1 and self._knows(unread):
            self._model.decode(unread[:-1], 0)

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """Candidates behind ``context`` and ``ahead``, each computed when it is asked for.

        Ends where the draft's window or vocabulary ends, or the text would. Heads say nothing
        behind tokens ``ahead``, of which the target has no states yet.
        """
        if ahead and self.reads_along:
            return
        position = len(context) + len(ahead)
        unread = [*self._unread(context, self._shift(position)), *ahead]
        if not self._knows(unread):
            return
        rows = self._model.decode(unread, 1)
        most = self._model.block_size
        for count in itertools.count(1):
            # The model's tokens end where the text does so far: they are the history.
            candidate = self._candidate(rows[0], position, self._model.tokens)
            position += 1
            yield candidate
            if self._is_stop(candidate.token) or len(self._model.tokens) >= self._model.n_ctx:
                return
            if count == most:
                return
            if count == 1:
                self._model.checkpoint()
            rows = self._model.decode([candidate.token], 1)

    def to_review(self, context: list[int], longest: int) -> int:
        """How many tokens a review reads."""
        unread = self.unread(context)
        return TAIL + longest if self._misses_most(unread, context, longest) else unread

    def review(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        """What would have been drafted at the last tokens, each beside the actual token.

        At most the last ``longest`` tokens are reviewed. Reads what is unread; of a context that
        was hardly read yet only the end, so that a look at a draft does not cost a long prompt.
        """
        end = len(context)
        if self._misses_most(self.unread(context), context, longest):
            # Behind what is held, which stays: the next reading goes on from there.
            tail = context[1 + end - TAIL - longest :]
            unread = tail if self._model.tokens else [context[0], *tail]
            self._model.checkpoint()
        else:
            unread = self._unread(context, self._shift(end))
        rows_wanted = min(longest, len(unread) - 1)
        if rows_wanted <= 0 or not self._knows(unread):
            return []
        rows = self._model.decode(unread[:-1], rows_wanted)
        reviewed = []
        for row, position in zip(rows, range(end - rows_wanted, end), strict=True):
            history = context[max(0, position - self._sampler.memory) : position]
            reviewed.append((self._candidate(row, position, history), context[position]))
        return reviewed

    def _candidate(self, row: "Logits", position: int, history: Sequence[int]) -> Candidate:
        """The candidate for a place, from a row of logits.

        Ids that the target lacks are masked before the pick, not rejected after it.
        """
        row = row[: self._n_shared]
        chosen = self._sampler.choose(row, position, history, self._n_rivals)
        rivals = tuple(
            Candidate(token, -behind, group)
            for group, (token, behind) in zip(RUNNERS_UP, chosen.runners_up, strict=False)
        )
        return Candidate(chosen.token, chosen.lead, MODEL, chosen.distribution, rivals)

    def _knows(self, tokens: list[int]) -> bool:
        return max(tokens) < self._model.n_vocab

    def _misses_most(self, unread: int, context: list[int], longest: int) -> bool:
        return unread > TAIL + longest and 2 * unread > min(len(context), self._model.n_ctx)

    def _unread(self, context: list[int], shift: int) -> list[int]:
        """What the model has not read of the window, at least its last token."""
        shared = self._forget_others(context, shift)
        return context[shared + shift :] if shared else [context[0], *context[1 + shift :]]

    def _forget_others(self, context: list[int], shift: int) -> int:
        """Let the model hold nothing but a beginning of the window; how many tokens of it."""
        shared = self._prefix.measure(self._model.tokens, context, shift)
        self._model.truncate(min(shared, len(context) - shift - 1))
        return len(self._model.tokens)  # it may forget more

    def _shift(self, length: int) -> int:
        """How many tokens behind the first are out of view, with room for some proposals.

        The window moves by half its length at a time, because each move reads it anew.
        """
        n_ctx = self._model.n_ctx
        capacity = n_ctx - min(8, n_ctx // 2)
        step = max(1, capacity // 2)
        return step * max(0, -(-(length - capacity) // step))
