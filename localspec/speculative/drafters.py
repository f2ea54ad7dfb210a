"""Candidates, and the drafter that samples them from a draft model."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from localspec.core.origins import DRAFT
from localspec.speculative.loop import BatchShare, TokenModel
from localspec.speculative.prefix import SharedPrefix

if TYPE_CHECKING:
    from localspec.speculative.loop import Logits
    from localspec.speculative.sampling.sampler import Sampler
    from localspec.speculative.sampling.truncation import TokenDistribution

# Groups of candidates: of a draft model, and of a grammar that allows one token only.
MODEL = f"{DRAFT} model"
FORCED = "forced"
TAIL = 32  # warm-up tokens that a review reads before it scores past tokens


class Candidate(NamedTuple):
    """A token that may come next, if those before it were right.

    ``confidence`` is in log-odds, comparable within a ``group``; ``distribution`` is the one that
    the token was drawn from, if the rule of acceptance needs it. ``rivals`` are other candidates
    for its place, the likelier first; their confidence is minus their distance to it.
    """

    token: int
    confidence: float
    group: str
    distribution: "TokenDistribution | None" = None
    rivals: tuple["Candidate", ...] = ()

    @property
    def source(self) -> str:
        """The name of its origin."""
        return self.group.partition(" ")[0]


class Lookup(Protocol):
    """A source of candidates without a model, chosen in `engine.generate`.

    Their groups begin with a name of `core.origins.ORIGINS`.
    """

    def update(self, context: list[int]) -> None:
        """Index this text; the same list may only grow."""

    def continuation(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        """Candidates after ``context`` and ``ahead``, each computed when it is asked for."""


class ModelDrafter:
    """Samples candidates from a draft model by the target's own rule, for one answer.

    Sharing the rule, noise included, makes the picks agree at a temperature above 0 (arXiv
    2408.07978). Accepted tokens stay in the cache (llama.cpp decodes them a second time, see its
    TAG_SPEC_AVOID_DRAFT_REEVAL). Any context may be passed; the same list, which may only grow, is
    not compared again. Of one longer than the draft's it sees a window: its first token (an
    attention sink) and the most recent ones. ``n_target_vocab`` is the target's number of ids; the
    draft may have more or fewer. Its own ``confidences`` take the place of the sampler's lead. With
    ``branches`` of 2 or 3, each candidate has 1 or 2 rivals.
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
        self.drafts_block = model.block_size is not None
        self.follows_target = model.follows_target

    @property
    def batch_share(self) -> BatchShare:
        """How the model's last pass was batched."""
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
        """Candidates after ``context`` and ``ahead``, computed one by one.

        Ends with the draft's window or vocabulary, or at a stop token. There are none after
        tokens ``ahead`` that the window does not hold with the first token of the context. Heads
        propose nothing after tokens ``ahead``, for which the target has no hidden states yet.
        """
        if ahead and self.follows_target:
            return
        position = len(context) + len(ahead)
        shift = self._shift(position)
        if shift >= len(context):
            return
        unread = [*self._unread(context, shift), *ahead]
        if not self._knows(unread):
            return
        rows = self._model.decode(unread, 1)
        most = self._model.block_size
        for count in itertools.count(1):
            # The model's tokens are the end of the text: they serve as the history.
            candidate = self._candidate(rows, 0, position, self._model.tokens)
            position += 1
            yield candidate
            if self._is_stop(candidate.token) or len(self._model.tokens) >= self._model.n_ctx:
                return
            if count == most:
                return
            if count == 1:
                self._model.checkpoint()
            rows = self._model.decode([candidate.token], 1)

    def step(self, context: list[int]) -> int | None:
        """Make one step, whose time is all that is wanted; returns the tokens before it.

        It is made after the tokens that the model has read, and forgotten; None if it cannot be.
        """
        model = self._model
        if self.follows_target:
            return len(context) - 1 if next(self.propose(context), None) else None
        held = len(model.tokens)
        if held >= model.n_ctx or not self._knows(context[-1:]):
            return None
        model.checkpoint()
        model.decode(context[-1:], 1)
        model.truncate(held)
        return held

    def to_review(self, context: list[int], longest: int) -> int:
        """How many tokens a review reads."""
        unread = self.unread(context)
        return TAIL + longest if self._scores_tail(unread, context, longest) else unread

    def score_past_tokens(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        """Candidates for the last ``longest`` tokens, each with the actual token.

        Reads all unread tokens; if these are most of the context, only the end, so that a review
        does not cost a long prompt.
        """
        end = len(context)
        if self._scores_tail(self.unread(context), context, longest):
            # After the tokens in the cache, which stay: the next prefill continues from them.
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
        for row, position in enumerate(range(end - rows_wanted, end)):
            history = context[max(0, position - self._sampler.memory) : position]
            reviewed.append((self._candidate(rows, row, position, history), context[position]))
        return reviewed

    def _candidate(
        self, rows: "Logits", row: int, position: int, history: Sequence[int]
    ) -> Candidate:
        """The candidate for a place, from a row of the logits decoded last."""
        logits = rows[row, : self._n_shared]  # ids that the target lacks are never picked
        chosen, known = self._sampler.choose(logits, position, history, self._n_rivals), self._model
        confidence = chosen.lead if known.confidences is None else known.confidences[row]
        rivals = tuple(Candidate(token, -distance, MODEL) for token, distance in chosen.runners_up)
        return Candidate(chosen.token, confidence, MODEL, chosen.distribution, rivals)

    def _knows(self, tokens: list[int]) -> bool:
        return max(tokens) < self._model.n_vocab

    def _scores_tail(self, unread: int, context: list[int], longest: int) -> bool:
        """True if most of the context is unread, so only its tail is scored; never for heads."""
        if self.follows_target:
            return False
        return unread > TAIL + longest and 2 * unread > min(len(context), self._model.n_ctx)

    def _unread(self, context: list[int], shift: int) -> list[int]:
        """Tokens of the window that the model has not read, at least the last one."""
        shared = self._forget_others(context, shift)
        return context[shared + shift :] if shared else [context[0], *context[1 + shift :]]

    def _forget_others(self, context: list[int], shift: int) -> int:
        """Truncate the cache to a beginning of the window; returns its length."""
        shared = self._prefix.measure(self._model.tokens, context, shift)
        self._model.truncate(min(shared, len(context) - shift - 1))
        return len(self._model.tokens)  # it may forget more

    def _shift(self, length: int) -> int:
        """How many tokens after the first are out of view, with room for some proposals.

        The window moves by half its length at a time, because it is read again after each move.
        """
        n_ctx = self._model.n_ctx
        capacity = n_ctx - min(8, n_ctx // 2)
        step = max(1, capacity // 2)
        return step * max(0, -(-(length - capacity) // step))
