"""Speculative decoding loop: draft tokens, verify them in one pass of the target, keep what agrees.

It knows no text, no llama.cpp and no clock but the one it is given.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from localspec.core.errors import LocalspecError
from localspec.speculative.prefix import common_prefix

if TYPE_CHECKING:  # `--help` imports this file, and need not wait for numpy
    import numpy as np
    from numpy.typing import NDArray

    from localspec.speculative.sampling.sampler import TokenDistribution

Logits: TypeAlias = "NDArray[np.float32]"
Clock = Callable[[], float]
FinishReason = Literal["stop", "length", "context"]


class Company(NamedTuple):
    """With whom a pass was shared: sequences in it, the others' tokens.

    ``waited`` are the seconds that this sequence spent so far on waiting for others.
    """

    sequences: int = 1
    others: int = 0
    waited: float = 0.0


ALONE = Company()


class TreeDecoder(Protocol):
    """A model's way to verify a tree of candidates in one pass.

    Row 0 is the pending token, row i the i-th candidate; ``parents`` holds for each candidate the
    row that it follows, which comes before it. A chain has the parents 0, 1, 2, ...
    """

    @property
    def branches(self) -> int:
        """Most candidates at one place."""
        ...

    @property
    def paths(self) -> int:
        """Most leaves of a tree."""
        ...

    def decode(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Append the pending token and the candidates behind it: ``tokens``, the pending one first.

        Logits after each of them, shape (len(tokens), n_vocab), valid until the next call. Then
        `take` must follow; an interrupted pass leaves the cache as it was before.
        """
        ...

    def take(self, rows: Sequence[int]) -> None:
        """Keep the pending token and, of the candidates, those of one path, in its order."""
        ...


class TokenModel(Protocol):
    """A model over one sequence of tokens whose end can be forgotten."""

    @property
    def n_ctx(self) -> int:
        """Most tokens the cache holds."""
        ...

    @property
    def n_vocab(self) -> int:
        """Number of token ids: the width of a row of logits."""
        ...

    @property
    def tokens(self) -> list[int]:
        """The tokens in the cache, in order."""
        ...

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append tokens; return logits after the last ``rows`` of them, shape (rows, n_vocab).

        The array is a view that is valid until the next call.
        """
        ...

    @property
    def pending(self) -> int:
        """Tokens in the cache that the next pass reads again, as a recurrent state went back."""
        ...

    @property
    def reads_along(self) -> bool:
        """Whether it reads what the target reads, at once: no prompt is left for it."""
        ...

    @property
    def company(self) -> Company:
        """With whom the last pass was shared; `ALONE` where passes are never shared."""
        ...

    @property
    def tree(self) -> TreeDecoder | None:
        """How it verifies trees of candidates; None where it verifies chains only."""
        ...

    @property
    def block(self) -> int | None:
        """Most tokens of one proposal, where its first step pays for all of them; else None."""
        ...

    def keep(self, length: int) -> None:
        """Forget every token at position ``length`` and beyond; nothing when already shorter.

        The length is absolute: relative rewinds drift apart from the text at the first mistake.
        A model may forget more, which is to be read from ``tokens``: an MTP head forgets what it
        read with other hidden states than the target's.
        """
        ...

    def mark(self) -> None:
        """Expect that what is read from here on is forgotten.

        A pass of which several rows are wanted needs no mark: it is one.
        """
        ...


class DraftStatus(StrEnum):
    """What a controller does at present, and if it drafts nothing, why; JSON shows the value."""

    DRAFTING = ""  # or it may at any time
    OFF = "off"  # as asked for
    RECENTLY_SLOWER = "recently_slower"  # the loss budget is spent
    VERIFICATION_TOO_SLOW = "verification_too_slow"  # even a good draft would not pay here
    DRAFT_TOO_OFTEN_WRONG = "draft_too_often_wrong"
    ANSWER_TOO_SHORT = "answer_too_short"  # for the draft to read the prompt first


class Controller(Protocol):
    """Proposes tokens for the target to verify, and decides how many: the draft length."""

    @property
    def length(self) -> int:
        """Tokens proposed last, or always."""
        ...

    @property
    def status(self) -> DraftStatus:
        """Whether it drafts at present, and if not, why."""
        ...

    @property
    def plain_seconds(self) -> float:
        """What plain decoding would have taken for the tokens so far, if costs are known; or 0."""
        ...

    @property
    def drafts_at_once(self) -> bool:
        """Whether the first token need not wait for a draft that has a prompt to read."""
        ...

    def begin_answer(self) -> None:
        """Go on with another answer; called once, before its first round."""
        ...

    def propose(self, context: list[int], limit: int) -> "Proposal":
        """At most ``limit`` tokens that may follow ``context``; possibly none.

        The whole context is passed: what must be forgotten is found out from it. In all rounds of
        an answer it is the same list, which only grows.
        """
        ...

    def observe(self, outcome: "Round") -> None:
        """Learn from the round that the last proposal led to."""
        ...


class Picker(Protocol):
    """Says which token the target emits; see `sampling.sampler.Sampler`."""

    def pick(self, logits: Logits, position: int, history: Sequence[int]) -> int:
        """The token at ``position``, given one row of logits and the tokens before it."""
        ...

    def verify(
        self,
        logits: Logits,
        position: int,
        history: Sequence[int],
        token: int,
        distribution: "TokenDistribution | None",
    ) -> int:
        """The token in the place of a drafted one, which was drawn from ``distribution``."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens to verify, what proposed each of them, and what it was drawn from, if known.

    ``parents`` make a tree of them (see `TreeDecoder`); without, each follows the one before.
    ``reading_seconds`` is what the draft model took to read a prompt it had not seen.
    """

    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    reading_seconds: float = 0.0
    distributions: tuple["TokenDistribution | None", ...] = ()
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One draft and its verification.

    ``tokens`` were emitted. ``drafted`` counts proposals up to a stop token, ``accepted`` those
    the target agreed with, ``sources`` tells who proposed each that was drafted, the accepted ones
    first. In a tree all candidates are drafted, and at most one of each place is accepted;
    ``branched`` counts the accepted ones that are not the first candidate of their place. ``past``
    is the number of tokens before the pass, ``width`` that in it, ``replayed`` of which were read
    before. ``pending`` will be read again by the next one. Of a pass that was shared, ``width`` and
    ``verify_seconds`` are those of the whole, with ``others`` tokens of others. Seconds:
    ``draft_prompt_seconds`` is the draft's first reading of the prompt and is no part of
    ``seconds``; ``draft_seconds`` and ``verify_seconds`` are.
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
    replayed: int = 0
    pending: int = 0
    sequences: int = 1
    others: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether nothing of this text was drafted."""
        return self.width - self.others == 1 + self.replayed


@dataclass(frozen=True, slots=True)
class Prefill:
    """The target's reading of the prompt: tokens decoded, tokens found in the cache, seconds."""

    tokens: int
    cached: int
    seconds: float


def catch_up(model: TokenModel, context: list[int]) -> int:
    """Make the model's cache hold all of ``context`` but its last token; return the tokens decoded.

    What the cache already shares with the context is not decoded again, but for tokens that a
    rollback left to be read again (`TokenModel.pending`). The last token is left out, because its
    logits are wanted together with those of a draft.
    """
    shared = min(common_prefix(model.tokens, context), len(context) - 1)
    model.keep(shared)
    missing, again = context[shared:-1], model.pending
    if missing or again:
        model.decode(missing, 0)
    return again + len(missing)


def prefill(target: TokenModel, prompt: Sequence[int], clock: Clock) -> Prefill:
    """Bring the target up to the prompt's last token, which stays pending."""
    began = clock()
    decoded = catch_up(target, list(prompt))
    return Prefill(decoded, len(prompt) - 1 - decoded, clock() - began)


def generate_rounds(
    target: TokenModel,
    controller: Controller,
    sampler: Picker,
    prompt: Sequence[int],
    *,
    max_tokens: int,
    is_stop: Callable[[int], bool],
    clock: Clock,
) -> Iterator[Round]:
    """Emit tokens after ``prompt``, one Round at a time, on a target that `prefill` prepared.

    Plain decoding is the same loop with `NoDraft`, so the two cannot be measured differently.
    The first round drafts nothing where the first token would wait for the draft's prompt.
    A drafted token counts if the sampler, shown it, says the same. `Sampler` says what it would
    have said anyway: sample-and-match, which leaves the target's distribution untouched for any
    proposal (arXiv 2211.17192 and 2302.01318 with a deterministic proposal, coupled as in
    2408.07978).
    The consumer may abandon the generator at any yield: the target's cache then holds every
    emitted token but the last.
    """
    context = list(prompt)
    room = target.n_ctx - len(prompt)
    ends: FinishReason = "length" if max_tokens <= room else "context"
    end = len(prompt) + min(max_tokens, room)
    while len(context) < end:
        waits = len(context) == len(prompt) and not controller.drafts_at_once
        limit = 0 if waits else end - len(context) - 1
        outcome = _one_round(target, controller, sampler, context, limit, is_stop, clock)
        if outcome.finish_reason is None and len(context) >= end:
            outcome = replace(outcome, finish_reason=ends)
        controller.observe(outcome)
        yield outcome
        if outcome.finish_reason is not None:
            return


def _one_round(
    target: TokenModel,
    controller: Controller,
    sampler: Picker,
    context: list[int],
    limit: int,
    is_stop: Callable[[int], bool],
    clock: Clock,
) -> Round:
    """Draft, verify, extend ``context`` by what was emitted, forget what was rejected."""
    length = len(context)
    began = clock()
    proposal = controller.propose(context, limit) if limit > 0 else Proposal()
    draft = _known(proposal.tokens, target.n_vocab)
    children = _children(proposal, len(draft))
    replayed = target.pending
    drafted_at = clock()
    tree = target.tree if proposal.parents and draft else None
    if tree is None:
        rows = target.decode([context[-1], *draft], len(draft) + 1)
    else:
        rows = tree.decode([context[-1], *draft], proposal.parents[: len(draft)])
    company = target.company
    found = _accept(rows, draft, children, proposal, context, sampler, is_stop)
    if tree is not None:
        tree.take(found.path[: len(context) - length - 1])
    target.keep(len(context) - 1)  # before the yield: a consumer may stop there
    ended = clock()
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
        width=replayed + 1 + len(draft) + company.others,
        replayed=replayed,
        pending=target.pending,
        sources=tuple(proposal.sources[row - 1] for row in found.judged if proposal.sources),
        branched=found.branched,
        sequences=company.sequences,
        others=company.others,
    )


def _known(draft: Sequence[int], n_vocab: int) -> Sequence[int]:
    """Cut the draft at the first id the target does not have: its decode would refuse it."""
    for i, token in enumerate(draft):
        if not 0 <= token < n_vocab:
            return draft[:i]
    return draft


def _children(proposal: Proposal, drafted: int) -> list[list[int]]:
    """For each row of the pass the rows of the candidates that follow it, the first ones first."""
    children: list[list[int]] = [[] for _ in range(drafted + 1)]
    for row in range(1, drafted + 1):
        children[proposal.parents[row - 1] if proposal.parents else row - 1].append(row)
    return children


@dataclass(slots=True)
class _Accepted:
    """The rows of the candidates that were accepted, in order, and what came of the others.

    ``judged`` are the rows of all candidates that count as drafted, the accepted ones first;
    ``branched`` is how many of the accepted ones were not the first at their place.
    """

    path: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    branched: int = 0
    stopped: bool = False


def _accept(
    rows: Logits,
    draft: Sequence[int],
    children: Sequence[Sequence[int]],
    proposal: Proposal,
    context: list[int],
    sampler: Picker,
    is_stop: Callable[[int], bool],
) -> _Accepted:
    """Append the target's tokens to ``context`` until one is not in the draft, or stops the text.

    The longest accepted path is the only one: in each place the target has one token, which at most
    one candidate is. What was drafted behind an agreed stop token was never judged, nor what
    follows tokens behind which nothing can be picked: these are emitted first, since the text may
    end with them, and the next round raises.
    """
    found, row = _Accepted(), 0
    unjudged = list(range(1, len(draft) + 1))
    while True:
        here = children[row]
        try:
            token = _judge(rows[row], here, draft, proposal, context, sampler)
        except LocalspecError:
            if row == 0:
                raise
            unjudged = [each for each in unjudged if each < row]  # those before it in the pass
            break
        context.append(token)
        agreed = next((each for each in here if draft[each - 1] == token), None)
        if agreed is not None:
            found.path.append(agreed)
            found.branched += agreed != here[0]
            row = agreed
        if is_stop(token):
            found.stopped = True
            if agreed is not None:
                unjudged = [each for each in unjudged if each <= agreed]
            break
        if agreed is None:
            break
    found.judged = found.path + [each for each in unjudged if each not in found.path]
    return found


def _judge(
    row: Logits,
    candidates: Sequence[int],
    draft: Sequence[int],
    proposal: Proposal,
    context: list[int],
    sampler: Picker,
) -> int:
    """The target's token behind ``context``, in the place of these rows of the pass if any."""
    if not candidates:
        return sampler.pick(row, len(context), context)
    i = candidates[0] - 1
    drawn_from = proposal.distributions[i] if proposal.distributions else None
    return sampler.verify(row, len(context), context, draft[i], drawn_from)
