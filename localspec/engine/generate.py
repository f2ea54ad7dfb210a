"""Streaming generation: text, tokens and figures of one answer, round by round.

What it needs of an engine is a Protocol; it knows neither llama.cpp nor the terminal.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple, Protocol

from localspec.core.config import DraftTokens
from localspec.core.errors import PromptTooLong
from localspec.core.sampling_params import SamplingParams, require_fixed_length
from localspec.engine.stats import GenerationStats
from localspec.engine.text_stream import TextStream
from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft
from localspec.speculative.control.knowledge import Knowledge
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.loop import (
    Clock,
    Controller,
    DraftStatus,
    FinishReason,
    Prefill,
    Round,
    TokenModel,
    generate_rounds,
    prefill,
)
from localspec.speculative.sampling.constrained import (
    ConstrainedIndex,
    ConstrainedSampler,
    Constraint,
)
from localspec.speculative.sampling.rejection import RejectionSampler
from localspec.speculative.sampling.sampler import Sampler
from localspec.speculative.suffix import SuffixIndex


class Profile(Protocol):
    """What is known of a pair on this machine; see `profile_store.PairProfile`."""

    def knowledge(self, clock: Clock) -> Knowledge:
        """What was learnt of this pair; measured first if nothing was."""
        ...

    def introduce(self, say: Callable[[str], None]) -> None:
        """Get to know the pair, as auto needs to; say what that takes and shows."""
        ...


class TextEngine(Protocol):
    """A loaded target, perhaps with a draft, and the target's vocabulary; see `engine.Engine`."""

    @property
    def target(self) -> TokenModel: ...

    @property
    def draft(self) -> TokenModel | None: ...

    @property
    def can_roll_back(self) -> bool:
        """Whether the target's last tokens can be forgotten, as every wrong draft must be."""
        ...

    @property
    def profile(self) -> Profile: ...

    @property
    def suffix_index(self) -> SuffixIndex:
        """For prompt lookup; kept from answer to answer, so that a chat's text is added once."""
        ...

    def is_stop(self, token: int) -> bool:
        """True for tokens that end an answer."""
        ...

    def constraint(self, grammar: str, start: int) -> Constraint:
        """What a grammar allows in the answer that begins at this position."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""
        ...


Origin = Literal["draft", "suffix", "corrected", "plain"]


class TextPiece(NamedTuple):
    """Text of one token, and where the token came from.

    "draft" and "suffix": drafted by the draft model or by prompt lookup, and accepted; "corrected":
    the target's own, where a drafted token was rejected; "plain": the target's own, where nothing
    was drafted. Text that was held back belongs to the token that released it.
    """

    text: str
    origin: Origin
    reasoning: bool = False


@dataclass(frozen=True, slots=True)
class GenerationResponse:
    """Text and tokens of one round, the figures so far, draft length and controller status.

    ``stats`` is live: the same object in every response of a stream.
    """

    pieces: tuple[TextPiece, ...]
    tokens: tuple[int, ...]
    stats: GenerationStats
    finish_reason: FinishReason | None
    draft_tokens: int
    status: DraftStatus = DraftStatus.DRAFTING

    @property
    def text(self) -> str:
        """The answer's part of the round's text."""
        return "".join(piece.text for piece in self.pieces if not piece.reasoning)

    @property
    def reasoning(self) -> str:
        """What the model thinks before it answers: the other part."""
        return "".join(piece.text for piece in self.pieces if piece.reasoning)


@dataclass(slots=True)
class Answer:
    """A stream put together; ``finish_reason`` is "cancelled" when Ctrl-C ended it.

    ``status`` says why nothing was drafted in the end, if that was so.
    """

    text: str
    tokens: list[int]
    stats: GenerationStats
    finish_reason: FinishReason | Literal["cancelled"]
    status: DraftStatus = DraftStatus.DRAFTING

    def as_json(self) -> dict[str, object]:
        """Plain data: seconds end in ``_s``, tokens per second in ``_tps``."""
        stats = self.stats
        return {
            "text": self.text,
            "tokens": stats.tokens,
            "token_ids": self.tokens,
            "finish_reason": self.finish_reason,
            "status": self.status.value,
            "prompt_tokens": stats.prompt_tokens,
            "prompt_tps": stats.prompt_tps,
            "generation_tps": stats.generation_tps,
            "ttft_s": stats.ttft_s,
            "slowest_round_s": stats.slowest_round,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_rate": stats.acceptance_rate,
            "mean_accepted_length": stats.mean_accepted_length,
            "accepted_at": stats.accepted_at,
            "sources": {name: asdict(source) for name, source in stats.sources.items()},
            "estimated_speedup": stats.estimated_speedup,
            "rounds": stats.rounds,
            "draft_s": stats.draft_seconds,
            "verify_s": stats.verify_seconds,
        }


def collect(
    responses: Iterator[GenerationResponse],
    on_response: Callable[[GenerationResponse], None] = lambda response: None,
) -> Answer:
    """Put a stream together, passing each response on; Ctrl-C keeps what was said."""
    answer, parts = Answer("", [], GenerationStats(), "cancelled"), list[str]()
    try:
        for response in responses:
            parts.append(response.text)
            answer.tokens += response.tokens
            answer.stats, answer.status = response.stats, response.status
            on_response(response)
            if response.finish_reason is not None:
                answer.finish_reason = response.finish_reason
    except KeyboardInterrupt:
        answer.finish_reason = "cancelled"
    answer.text = "".join(parts)
    return answer


def stream_generate(
    engine: TextEngine,
    prompt: Sequence[int],
    params: SamplingParams,
    draft_tokens: DraftTokens,
    *,
    suffix: bool = True,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    grammar: str | None = None,
    clock: Clock = time.perf_counter,
) -> Iterator[GenerationResponse]:
    """Generate after the token ids of ``prompt``; the last response carries the finish reason.

    ``suffix`` lets "auto" also draft by prompt lookup, with a draft model or without. Without
    ``max_tokens`` the answer may fill the context. ``grammar`` is GBNF, which the answer obeys from
    its first token on, as far as it gets. The text for a seed does not depend on
    ``draft_tokens`` or on the draft (up to the rounding of llama.cpp's kernels; see
    `LoadOptions.exact`), but with the rule "rejection". Raises PromptTooLong when no room is left
    for an answer, UsageError for "auto" with "rejection", GrammarError for a bad grammar or where
    it allows no token.
    """
    _require_room(len(prompt), engine.target.n_ctx)
    constraint = None if grammar is None else engine.constraint(grammar, len(prompt))
    sampler = make_sampler(params, constraint)
    # Before the prompt is read: a pair that is new here is measured on empty caches.
    looks_up = suffix and draft_tokens == "auto" and engine.can_roll_back
    index = engine.suffix_index if looks_up else None
    if index is not None and constraint is not None:
        index = ConstrainedIndex(index, constraint)
    drafter = model_drafter(engine, params, constraint)
    controller = _make_controller(
        engine, params, drafter, draft_tokens, index, clock, constraint is not None
    )
    controller.begin_answer()
    stats = GenerationStats()
    stats.start(_read_prompt(engine.target, index, prompt, clock))
    rounds = generate_rounds(
        engine.target,
        controller,
        sampler,
        prompt,
        max_tokens=engine.target.n_ctx if max_tokens is None else max_tokens,
        is_stop=engine.is_stop,
        clock=clock,
    )
    stream = TextStream(stop)
    began = clock()
    for whole in rounds:
        pieces, outcome = _read(whole, stream, engine)
        ended = clock()
        stats.add(outcome, ended - began - outcome.draft_prompt_seconds)
        stats.plain_seconds = controller.plain_seconds
        response = GenerationResponse(
            pieces,
            outcome.tokens,
            stats,
            outcome.finish_reason,
            controller.length,
            controller.status,
        )
        shown = clock()
        yield response
        if outcome.finish_reason is not None:
            return
        began = ended + clock() - shown  # all but the consumer's own time


def _require_room(n_prompt: int, n_ctx: int) -> None:
    if n_prompt == 0:
        raise PromptTooLong("The prompt is empty.", "Give some text to continue.")
    if n_prompt >= n_ctx:
        raise PromptTooLong(
            f"The prompt has {n_prompt} tokens and the context holds {n_ctx}, answer included.",
            "Shorten the prompt, or enlarge the context with --ctx-size.",
        )


def _read_prompt(
    target: TokenModel, index: SuffixIndex | None, prompt: Sequence[int], clock: Clock
) -> Prefill:
    """Let the target and the suffix index read the prompt."""
    began = clock()
    if index is not None:
        index.update(list(prompt))
    indexed = clock() - began
    read = prefill(target, prompt, clock)
    return replace(read, seconds=indexed + read.seconds)


def make_sampler(params: SamplingParams, constraint: Constraint | None = None) -> Sampler:
    """RejectionSampler where acceptance is "rejection", else Sampler; within a constraint."""
    rejects = params.acceptance == "rejection" and not params.greedy
    sampler = RejectionSampler(params) if rejects else Sampler(params)
    return sampler if constraint is None else ConstrainedSampler(sampler, constraint)


def model_drafter(
    engine: TextEngine, params: SamplingParams, constraint: Constraint | None = None
) -> ModelDrafter | None:
    """The draft model as a drafter that chooses as the rule of acceptance wants; None without.

    What it proposes obeys the constraint too.
    """
    if engine.draft is None:
        return None
    matched = params.acceptance == "match"
    sampler = make_sampler(replace(params, temperature=0.0) if matched else params)
    if constraint is not None:
        sampler = ConstrainedSampler(sampler, constraint, proposes=True)
    return ModelDrafter(engine.draft, sampler, engine.target.n_vocab, engine.is_stop)


def _make_controller(
    engine: TextEngine,
    params: SamplingParams,
    drafter: ModelDrafter | None,
    length: DraftTokens,
    index: SuffixIndex | None,
    clock: Clock,
    constrained: bool,
) -> Controller:
    require_fixed_length(length, params)
    if length == "auto" and (drafter is not None or index is not None):
        bucket = "greedy" if params.greedy else f"{params.acceptance} at {params.temperature:.1f}"
        bucket += " in a grammar" * constrained  # another text, and known to the draft
        return Adaptive(engine.profile.knowledge(clock), clock, drafter, index, bucket=bucket)
    if drafter is None or length == 0 or length == "auto":
        return NoDraft()
    return FixedLength(drafter, length, clock)


def _read(
    outcome: Round, stream: TextStream, engine: TextEngine
) -> tuple[tuple[TextPiece, ...], Round]:
    """The text of a round, and the round cut behind the token that completed a stop string.

    Cutting by token keeps the answer independent of how many tokens a round verified.
    """
    pieces: list[TextPiece] = []
    for i, token in enumerate(outcome.tokens):
        if outcome.finish_reason == "stop" and i == len(outcome.tokens) - 1:
            break  # the stop token itself is no text
        pieces.append(TextPiece(stream.push(engine.piece(token)), _origin(outcome, i)))
        if stream.stopped:
            return tuple(pieces), _cut(outcome, i + 1)
    if outcome.finish_reason is not None:
        last = _origin(outcome, len(outcome.tokens) - 1)
        pieces.append(TextPiece(stream.push(b"", final=True), last))
        if stream.stopped:
            outcome = replace(outcome, finish_reason="stop")
    return tuple(pieces), outcome


def _origin(outcome: Round, i: int) -> Origin:
    """Where the token at this place of the round came from."""
    if i < outcome.accepted:
        return "suffix" if outcome.sources[i] == "suffix" else "draft"
    return "corrected" if outcome.drafted > outcome.accepted else "plain"


def _cut(outcome: Round, length: int) -> Round:
    """The first ``length`` tokens of a round, which end the answer."""
    return replace(
        outcome,
        tokens=outcome.tokens[:length],
        drafted=min(outcome.drafted, length),
        accepted=min(outcome.accepted, length),
        sources=outcome.sources[:length],
        finish_reason="stop",
    )
