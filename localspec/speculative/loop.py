"""Speculative decoding loop: draft tokens, verify them in one pass, accept those that agree."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from localspec.core.errors import LocalspecError
from localspec.core.interrupt import require_wanted
from localspec.speculative.prefix import common_prefix

if TYPE_CHECKING:  # `--help` imports this file, and need not wait for numpy
    import numpy as np
    from numpy.typing import NDArray

    from localspec.speculative.sampling.truncation import TokenDistribution

Logits: TypeAlias = "NDArray[np.float32]"
Clock = Callable[[], float]
PassListener = Callable[[Sequence[int], int, int], None]  # tokens, first position, rows of logits
FinishReason = Literal["stop", "length", "context"]


class BatchShare(NamedTuple):
    """How a pass was batched: the number of sequences with a round in it, the others' tokens.

    ``waited`` are the seconds for which this sequence has waited for others so far, ``prompts``
    those of them in which prompts of others were read. A ``mixed`` pass also read a prompt, so its
    seconds do not show the cost of rounds. ``filled`` is the width up to which rounds are padded to
    that of the widest, 0 if they are not: the padding counts among the others' tokens.
    ``drafting`` is how many other sequences had a draft in it, and ``answering`` how many sequences
    had an answer under way then, this one included: the next passes will be shared with them.
    """

    sequences: int = 1
    others: int = 0
    waited: float = 0.0
    mixed: bool = False
    filled: int = 0
    drafting: int = 0
    answering: int = 1
    prompts: float = 0.0


ALONE = BatchShare()


class TreeDecoder(Protocol):
    """Verifies a tree of candidates in one pass of a model.

    Row 0 is the pending token, row i the i-th candidate; ``parents`` holds the earlier row that
    each candidate follows. A chain has the parents 0, 1, 2, ...
    """

    @property
    def branches(self) -> int:
        """Most candidates at one place."""

    @property
    def paths(self) -> int:
        """Most leaves of a tree."""

    def decode(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Append the pending token and the candidates after it, in this order.

        Returns logits of shape (len(tokens), n_vocab), valid until the next call, which must be
        `commit`; an interrupted pass leaves the cache as it was before.
        """

    def commit(self, rows: Sequence[int]) -> None:
        """Append the pending token and the candidates of one path to the cache, drop the others.

        The path begins after the pending token; it may be empty, and may end before a leaf.
        """


class TokenModel(Protocol):
    """A model with a cache of one token sequence, which can be truncated."""

    @property
    def n_ctx(self) -> int:
        """Most tokens the cache holds."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids: the width of a row of logits."""

    @property
    def tokens(self) -> list[int]:
        """The tokens in the cache, in order."""

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append tokens; return logits after the last ``rows`` of them, shape (rows, n_vocab).

        The array is a view that is valid until the next call.
        """

    @property
    def pending(self) -> int:
        """Tokens in the cache to be decoded again in the next pass, after a rollback."""

    @property
    def reusable(self) -> int:
        """How many of ``tokens``, from the first, a prompt need not read again."""

    @property
    def follows_target(self) -> bool:
        """Whether it reads along with the target, as heads do, so that no prompt is unread."""

    @property
    def gives_prompt_row(self) -> bool:
        """Whether the prompt's last chunk may include its last token and return its logits.

        False if that token could not be rolled back without decoding others again.
        """

    @property
    def batch_share(self) -> BatchShare:
        """How the last pass was batched; `ALONE` if passes are never shared."""

    @property
    def tree(self) -> TreeDecoder | None:
        """How it verifies trees of candidates; None if it verifies chains only."""

    @property
    def block_size(self) -> int | None:
        """Most tokens of one proposal, if its first step pays for all of them; else None."""

    @property
    def confidences(self) -> Sequence[float] | None:
        """Log-odds that a token by each row decoded last is accepted; None without such a head."""

    def truncate(self, length: int) -> None:
        """Forget every token at position ``length`` and beyond; nothing when already shorter.

        A model may forget more, see ``tokens``: an MTP head forgets tokens that it read with hidden
        states other than the target's.
        """

    def checkpoint(self) -> None:
        """Checkpoint: later tokens may be rolled back. A pass with several rows implies one."""


class DraftStatus(StrEnum):
    """Why a controller drafts nothing at present, empty if it drafts; shown in JSON."""

    DRAFTING = ""  # or it may at any time
    OFF = "off"  # as asked for
    RECENTLY_SLOWER = "recently_slower"  # the loss budget is spent
    VERIFICATION_TOO_SLOW = "verification_too_slow"  # even a good draft would not pay here
    DRAFT_TOO_OFTEN_WRONG = "draft_too_often_wrong"
    DRAFT_NOT_NUMBERS = "draft_not_numbers"  # its logits, for the rest of the answer
    ANSWER_TOO_SHORT = "answer_too_short"  # for the draft to read the prompt first


class Controller:
    """Proposes tokens for the target to verify, and decides how many; by itself none.

    One controller serves one answer. ``length`` is the number of tokens proposed last, or always;
    ``drafts_at_once`` means that the first token need not wait for a draft that has a prompt to
    read.
    """

    length = 0
    status = DraftStatus.OFF
    drafts_at_once = False

    def begin_answer(self) -> None:
        """Called once, before the first round of the answer."""

    def propose(self, context: list[int], limit: int) -> "Proposal":
        """At most ``limit`` tokens, all branches counted, that may follow ``context``.

        The whole context is passed, the same growing list in all rounds of an answer: the tokens to
        forget are found by comparison with it.
        """
        return Proposal()

    def observe(self, outcome: "Round") -> None:
        """Learn from the round that the last proposal led to."""


class Drafted(NamedTuple):
    """A drafted token, and the distribution that it was drawn from, if known."""

    token: int
    distribution: "TokenDistribution | None" = None


class TokenSampler(Protocol):
    """Decides which token the target emits; see `sampling.sampler.Sampler`."""

    def sample(self, logits: Logits, position: int, history: Sequence[int]) -> int:
        """The token at ``position``, given one row of logits and the tokens before it."""

    def verify(
        self, logits: Logits, position: int, history: Sequence[int], drafted: Drafted
    ) -> int:
        """The token in the place of a drafted one."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens to verify, their sources, and the distributions they were drawn from, if known.

    With ``parents`` they are a tree (see `TreeDecoder`) in which siblings differ; without, a chain.
    ``reading_seconds`` is the time that the draft model took to read a new prompt. ``filling``
    more tokens make the pass of a chain wider, and are forgotten with those that are rejected.
    """

    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    reading_seconds: float = 0.0
    distributions: tuple["TokenDistribution | None", ...] = ()
    parents: tuple[int, ...] = ()
    filling: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and its verification.

    ``tokens`` were emitted; ``drafted`` counts proposals up to a stop token, ``accepted`` those the
    target agreed with, ``branched`` those of them that are not the first candidate of their place;
    ``sources`` are those of drafted tokens, the accepted ones first. ``rejected`` is the first
    candidate in the last token's place, if none was right. ``past`` is the number of tokens
    before the pass, ``width`` that in it (0: there was no pass, the token was picked after the
    prompt's last chunk, and ``sequences`` and ``others`` are those of the pass to come),
    ``replayed`` of them were read before and ``pending`` will be read again.
    Of a shared pass, ``width`` and ``verify_seconds`` are those of the whole; see `BatchShare`.
    Tokens that filled up a pass count among ``others``.
    ``seconds`` include ``draft_seconds`` and ``verify_seconds``, but not ``draft_prompt_seconds``.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    seconds: float
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_prompt_seconds: float = 0.0
    finish_reason: FinishReason | None = None
    past: int = 0
    width: int = 1
    sources: tuple[str, ...] = ()
    branched: int = 0
    rejected: int | None = None
    replayed: int = 0
    pending: int = 0
    sequences: int = 1
    others: int = 0
    mixed: bool = False
    filled: int = 0
    drafting: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether nothing was drafted for this sequence."""
        return self.width - self.others == 1 + self.replayed


@dataclass(frozen=True, slots=True)
class Prefill:
    """The target's reading of the prompt: tokens decoded, tokens found in the cache, seconds.

    The prompt's last token counts as neither. ``row`` holds its logits, valid until the target's
    next pass; None if it is left to the first round.
    """

    tokens: int
    cached: int
    seconds: float
    row: "Logits | None" = None


def prefill(target: TokenModel, prompt: Sequence[int], clock: Clock) -> Prefill:
    """Let the target read the part of the prompt that is not in its cache.

    Counts pending tokens too. The last token is read with the last chunk if the target
    `gives_prompt_row`; if no other is unread, it is left to the first round, which may draft.
    """
    began, context, row = clock(), list(prompt), None
    shared = min(common_prefix(target.tokens, context), target.reusable, len(context) - 1)
    target.truncate(shared)
    require_wanted()  # a short pass does not ask
    decoded = target.pending + len(context) - 1 - shared
    if decoded and target.gives_prompt_row:
        row = target.decode(context[shared:], 1)[0]
    elif decoded:
        target.decode(context[shared:-1], 0)
    return Prefill(decoded, len(context) - 1 - decoded, clock() - began, row)


def generate_rounds(
    target: TokenModel,
    controller: Controller,
    sampler: TokenSampler,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    is_stop: Callable[[int], bool],
    clock: Clock,
    row: "Logits | None" = None,
) -> Iterator[Round]:
    """Emit tokens after ``prompt``, one Round at a time, on a target that `prefill` prepared.

    Plain decoding is the same loop with `NoDraft`. With the ``row`` of `Prefill` the first token
    costs no pass; without, the first round drafts nothing unless the draft `drafts_at_once`.
    A drafted token is accepted if the sampler picks the same. `Sampler` picks what it would have
    picked anyway: sample-and-match, which preserves the target's distribution for any proposal
    (arXiv 2211.17192 and 2302.01318 with a deterministic proposal, coupled as in 2408.07978).
    The generator may be closed at any yield: the target's cache then holds every emitted token but
    the last.
    """
    context = list(prompt)
    answer = _Answer(target, controller, sampler, is_stop, clock, context)
    if row is None:
        target.truncate(len(prompt) - 1)  # a prefill whose row is not used leaves it
    room = target.n_ctx - len(prompt)
    ends: FinishReason = "length" if max_tokens <= room else "context"
    end = len(prompt) + min(max_tokens, room)
    while len(context) < end:
        is_first = len(context) == len(prompt)
        if is_first and row is not None:
            outcome = answer.first_token(row)
        else:
            limit = end - len(context) - 1
            if is_first and not controller.drafts_at_once:
                limit = 0
            outcome = answer.one_round(limit)
        if outcome.finish_reason is None and len(context) >= end:
            outcome = replace(outcome, finish_reason=ends)
        controller.observe(outcome)
        yield outcome
        if outcome.finish_reason is not None:
            return


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer under way: ``context`` is the prompt and the tokens emitted after it."""

    target: TokenModel
    controller: Controller
    sampler: TokenSampler
    is_stop: Callable[[int], bool]
    clock: Clock
    context: list[int]

    def first_token(self, row: Logits) -> Round:
        """Extend the prompt by a token picked from the logits after it."""
        began, past = self.clock(), len(self.context)
        token = self.sampler.sample(row, past, self.context)
        self.context.append(token)
        reason: FinishReason | None = "stop" if self.is_stop(token) else None
        seconds = self.clock() - began
        together = self.target.batch_share.answering
        return Round(
            tokens=(token,),
            drafted=0,
            accepted=0,
            seconds=seconds,
            finish_reason=reason,
            past=past,
            width=0,
            sequences=together,
            others=together - 1,
        )

    def one_round(self, limit: int) -> Round:
        """Draft, verify, extend the context by the emitted tokens, forget the rejected ones."""
        target, context, length = self.target, self.context, len(self.context)
        began = self.clock()
        proposal = self.controller.propose(context, limit) if limit > 0 else Proposal()
        draft = _Draft(proposal, self)
        replayed = target.pending
        drafted_at = self.clock()
        found = draft.verify()
        batch_share = target.batch_share
        others = batch_share.others + draft.filling
        target.truncate(len(context) - 1)  # before the yield: a consumer may stop there
        ended = self.clock()
        return Round(
            tokens=tuple(context[length:]),
            drafted=len(found.judged),
            accepted=len(found.path),
            seconds=ended - began - proposal.reading_seconds,
            draft_seconds=drafted_at - began - proposal.reading_seconds,
            verify_seconds=ended - drafted_at,
            draft_prompt_seconds=proposal.reading_seconds,
            finish_reason="stop" if found.stopped else None,
            past=length - 1 - replayed,
            width=replayed + 1 + len(draft) + others,
            replayed=replayed,
            pending=target.pending,
            sources=tuple(proposal.sources[row - 1] for row in found.judged if proposal.sources),
            branched=found.branched,
            rejected=found.rejected,
            sequences=batch_share.sequences,
            others=others,
            mixed=batch_share.mixed,
            filled=batch_share.filled,
            drafting=batch_share.drafting,
        )


@dataclass(slots=True)
class _Verification:
    """Accepted candidates (``path``) and all that count as drafted (``judged``), by row.

    ``judged`` begins with the path; the other fields are as in `Round`.
    """

    path: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    branched: int = 0
    stopped: bool = False
    rejected: int | None = None


class _Draft:
    """The candidates of one round as rows of the pass, in which row 0 is the pending token's."""

    def __init__(self, proposal: Proposal, answer: _Answer) -> None:
        target = answer.target
        self._tokens = _known(proposal.tokens, target.n_vocab)
        self._distributions = proposal.distributions
        self._answer = answer
        self._tree = target.tree if proposal.parents and self._tokens else None
        # Without a tree decoder, any proposal is verified as a chain.
        chain = range(len(self._tokens))
        self._parents = chain if self._tree is None else proposal.parents[: len(self._tokens)]
        self.filling = proposal.filling if self._tree is None else 0
        self._children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for row, parent in enumerate(self._parents, start=1):
            self._children[parent].append(row)

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self._tokens)

    def verify(self) -> _Verification:
        """Extend the context by the target's tokens.

        The cache then holds all candidates of a chain, but only the accepted ones of a tree.
        """
        pending = self._answer.context[-1]
        tokens = [pending, *self._tokens]
        if self._tree is None:
            tokens += [pending] * self.filling
            return self._judge(self._answer.target.decode(tokens, len(tokens)))
        rows, found = self._tree.decode(tokens, self._parents), _Verification()
        try:
            found = self._judge(rows)
        finally:
            self._tree.commit(found.path)
        return found

    def _judge(self, rows: Logits) -> _Verification:
        """Append the target's tokens to the context until one is no candidate, or stops the text.

        Candidates after an accepted stop token, or after a sampler error, are not counted. After an
        error, accepted tokens are emitted first, since the text may end with them, and the next
        round raises.
        """
        found, row, unjudged = _Verification(), 0, -1
        while not found.stopped:
            here = self._children[row]
            try:
                token = self._pick(rows[row], here)
            except LocalspecError:
                if row == 0:
                    raise
                unjudged = row
                break
            self._answer.context.append(token)
            found.stopped = self._answer.is_stop(token)
            agreed = next((each for each in here if self._tokens[each - 1] == token), None)
            if agreed is None:
                found.rejected = self._tokens[here[0] - 1] if here else None
                break
            found.path.append(agreed)
            found.branched += agreed != here[0]
            row = agreed
            if found.stopped:
                unjudged = row
        found.judged = self._judged(found.path, unjudged)
        return found

    def _pick(self, logits: Logits, here: Sequence[int]) -> int:
        """The target's token after the context, in the place of these candidates if any."""
        sampler, context = self._answer.sampler, self._answer.context
        if not here:
            return sampler.sample(logits, len(context), context)
        i = here[0] - 1
        drawn_from = self._distributions[i] if self._distributions else None
        drafted = Drafted(self._tokens[i], drawn_from)
        return sampler.verify(logits, len(context), context, drafted)

    def _judged(self, path: list[int], unjudged: int) -> list[int]:
        """The path's rows, then all others but those that follow the row ``unjudged``."""
        after = {unjudged}
        for row, parent in enumerate(self._parents, start=1):
            if parent in after:
                after.add(row)
        aside = after.union(path)
        return path + [row for row in range(1, len(self) + 1) if row not in aside]


def _known(draft: Sequence[int], n_vocab: int) -> Sequence[int]:
    """Cut the draft at the first id the target does not have: its decode would refuse it."""
    for i, token in enumerate(draft):
        if not 0 <= token < n_vocab:
            return draft[:i]
    return draft
