"""Streaming generation: text, tokens and figures of one answer, round by round.

What it needs of an engine is a Protocol; it knows neither llama.cpp nor the terminal.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from localspec.core.config import DraftTokens
from localspec.core.errors import PromptTooLong, UsageError
from localspec.core.sampling_params import SamplingParams, require_fixed_length
from localspec.chat.answer import GenerationResponse, Origin, TextPiece
from localspec.chat.stats import GenerationStats
from localspec.engine.text_stream import Prompt, Reading, TextStream
from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.knowledge import Knowledge
from localspec.speculative.drafters import Lookup, ModelDrafter
from localspec.speculative.history import KEY, AnswerHistory
from localspec.speculative.loop import (
    Clock,
    Controller,
    Prefill,
    Round,
    TokenModel,
    TreeDecoder,
    generate_rounds,
    prefill,
)
from localspec.speculative.sampling.constrained import (
    ConstrainedLookup,
    ConstrainedSampler,
    Constraint,
)
from localspec.speculative.sampling.logit_changes import TokenRules
from localspec.speculative.sampling.logprobs import RecordingPicker
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

    def keep(self) -> None:
        """Write down what was learnt."""
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

    @property
    def history(self) -> AnswerHistory | None:
        """Earlier answers, which "auto" drafts from too; None where they are not to be."""
        ...

    @property
    def conversations(self) -> Conversations:
        """What earlier answers missed where the draft had not read their prompt."""
        ...

    def answering(self) -> AbstractContextManager[None]:
        """Entered around an answer by the thread that wants it, where several share a model."""
        ...

    def is_stop(self, token: int) -> bool:
        """True for tokens that end an answer."""
        ...

    def constraint(self, grammar: str, start: int, *, endless: bool = False) -> Constraint:
        """What a grammar allows in the answer that begins at this position."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""
        ...

    def token_rules(self, params: SamplingParams) -> TokenRules:
        """What the parameters mean in ids of the target's vocabulary."""
        ...


def stream_generate(
    engine: TextEngine,
    prompt: Sequence[int],
    params: SamplingParams,
    draft_tokens: DraftTokens,
    *,
    suffix: bool = True,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    on_prompt: Callable[[], None] | None = None,
    grammar: str | None = None,
    logprobs: int | None = None,
    clock: Clock = time.perf_counter,
) -> Generator[GenerationResponse, None, None]:
    """Generate after the token ids of ``prompt``; the last response carries the finish reason.

    Behind a `Prompt`, as `Engine.encode_chat` gives it, the model's thoughts and its calls of tools
    come apart from its answer; behind other ids, all text is the answer. ``stop`` holds for the
    answer alone.

    ``suffix`` lets "auto" also draft by prompt lookup, with a draft model or without. ``on_prompt``
    is called when the target has read the prompt, or all but its last token. ``grammar`` is GBNF or
    another notation (`grammar.source`), which the answer obeys from its first token on, as far as
    it gets. The answer may fill the context where ``max_tokens`` is None, or -1 or -2 as in
    llama.cpp; 0 only reads the prompt, and the one response is empty. With ``logprobs``, each
    response tells how likely its tokens were, and the so many likeliest in the place of each (see
    `TokenLogprob`).

    The text for a seed does not depend on ``draft_tokens`` or on the draft (up to the rounding of
    llama.cpp's kernels; see `LoadOptions.exact`), but with the rule "rejection". Raises
    PromptTooLong when no room is left for an answer, UsageError for "auto" with "rejection", for a
    ``max_tokens`` or ``logprobs`` out of bounds and for a grammar where tools are offered,
    GrammarError for a bad grammar or where it allows no token.
    """
    require_room(len(prompt), engine.target.n_ctx)
    most = _most_tokens(max_tokens, engine.target.n_ctx)
    reading, grammar = _reading(engine, prompt, grammar)
    constraint = None
    if grammar is not None:
        constraint = engine.constraint(grammar, len(prompt), endless=params.ignore_eos)
        params = replace(params, ignore_eos=False)  # the end of the grammar ends the answer
    sampler = make_sampler(params, engine.token_rules(params), constraint)
    recorder = None if logprobs is None else RecordingPicker(sampler, logprobs)
    # Before the prompt is read: a pair that is new here is measured on empty caches.
    lookups = _lookups(engine, constraint, draft_tokens, suffix)
    tree = _tree(engine.target, draft_tokens)
    branches = 1 if tree is None else tree.branches
    drafter = model_drafter(engine, params, constraint, branches=branches)
    own = _own_clock(engine.target, clock)
    controller = _make_controller(
        engine, params, drafter, draft_tokens, lookups, own, tree, constraint is not None
    )
    controller.begin_answer()
    stats = GenerationStats()
    read = _read_prompt(engine.target, lookups, prompt, clock)
    stats.start(read)
    if on_prompt is not None:
        on_prompt()
    rounds = generate_rounds(
        engine.target,
        controller,
        recorder or sampler,
        prompt,
        max_tokens=most,
        is_stop=engine.is_stop,
        clock=own,
        row=read.row,
    )
    emitted = list(prompt[-KEY:])
    try:
        for response in _responses(rounds, controller, reading, stop, stats, clock, recorder):
            emitted += response.tokens
            yield response
    finally:
        if suffix and engine.history is not None:
            engine.history.add(emitted)


def _reading(
    engine: TextEngine, prompt: Sequence[int], grammar: str | None
) -> tuple[Reading, str | None]:
    """How the answer is to be read, and the grammar that it obeys."""
    reading = prompt.reading if isinstance(prompt, Prompt) else Reading(engine.piece)
    if grammar is None:
        return reading, reading.grammar
    if reading.calls is not None:
        raise UsageError(
            "A grammar is given, which would keep the model from calling the tools it is offered.",
            'Leave out the grammar or JSON schema, or the tools; or let tool_choice be "none".',
        )
    # It knows no thoughts: all that it forms is the answer.
    return replace(reading, form=None), grammar


def _own_clock(target: TokenModel, clock: Clock) -> Clock:
    """A clock that stands still while a shared pass is waited for: costs are learnt by it."""
    return lambda: clock() - target.company.waited


def _lookups(
    engine: TextEngine, constraint: Constraint | None, length: DraftTokens, suffix: bool
) -> list[Lookup]:
    """What drafts without a model: texts if "auto" may look them up, and what a grammar forces.

    Nothing where drafts are off, or the target's tokens cannot be forgotten.
    """
    if length == 0 or not engine.can_roll_back:
        return []
    texts = [engine.suffix_index, engine.history] if suffix and length == "auto" else []
    found: list[Lookup] = [each for each in texts if each is not None]
    if constraint is None:
        return found
    return [ConstrainedLookup(each, constraint) for each in found] or [
        ConstrainedLookup(None, constraint)
    ]


def _responses(
    rounds: Iterator[Round],
    controller: Controller,
    reading: Reading,
    stop: Sequence[str],
    stats: GenerationStats,
    clock: Clock,
    recorder: RecordingPicker | None,
) -> Iterator[GenerationResponse]:
    """Text and figures of each round; the consumer's own time counts for none."""
    stream = TextStream((*stop, *reading.stop), reading.splitter(), reading.finder())
    began = clock()
    for whole in rounds:
        pieces, outcome = _read(whole, stream, reading.piece)
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
            _held(stream),
            () if recorder is None else recorder.take()[: len(outcome.tokens)],
            stream.take_calls(),
        )
        shown = clock()
        yield response
        if outcome.finish_reason is not None:
            return
        began = ended + clock() - shown
    # No round was wanted.
    yield GenerationResponse((), (), stats, "length", controller.length, controller.status)


def _most_tokens(max_tokens: int | None, n_ctx: int) -> int:
    """The bound of an answer; as in llama.cpp, -1 and -2 are none but the context."""
    if max_tokens is None or max_tokens in (-1, -2):
        return n_ctx
    if max_tokens < 0:
        raise UsageError(
            f"max_tokens is {max_tokens}.",
            "Expected 0 or more, or -1 for an answer that may fill the context.",
        )
    return max_tokens


def require_room(n_prompt: int, n_ctx: int) -> None:
    """Raise PromptTooLong where a context of ``n_ctx`` tokens leaves no room for an answer."""
    if n_prompt == 0:
        raise PromptTooLong("The prompt is empty.", "Give some text to continue.")
    if n_prompt >= n_ctx:
        raise PromptTooLong(
            f"The prompt has {n_prompt} tokens and the context holds {n_ctx}, answer included.",
            "Shorten the prompt, or enlarge the context with --ctx-size.",
        )


def _read_prompt(
    target: TokenModel, lookups: Sequence[Lookup], prompt: Sequence[int], clock: Clock
) -> Prefill:
    """Let the lookups and the target read the prompt."""
    began = clock()
    for lookup in lookups:
        lookup.update(list(prompt))
    indexed = clock() - began
    read = prefill(target, prompt, clock)
    return replace(read, seconds=indexed + read.seconds)


def make_sampler(
    params: SamplingParams, rules: TokenRules, constraint: Constraint | None = None
) -> Sampler:
    """RejectionSampler where acceptance is "rejection", else Sampler; within a constraint."""
    rejects = params.acceptance == "rejection" and not params.greedy
    sampler = RejectionSampler(params, rules) if rejects else Sampler(params, rules)
    return sampler if constraint is None else ConstrainedSampler(sampler, constraint)


def model_drafter(
    engine: TextEngine,
    params: SamplingParams,
    constraint: Constraint | None = None,
    *,
    branches: int = 1,
) -> ModelDrafter | None:
    """The draft model as a drafter that chooses as the rule of acceptance wants; None without.

    What it proposes, up to ``branches`` candidates for each place, obeys the constraint too.
    """
    if engine.draft is None:
        return None
    rules = engine.token_rules(params)
    matched = params.acceptance == "match"
    sampler = make_sampler(params.draft_greedy if matched else params, rules)
    if constraint is not None:
        sampler = ConstrainedSampler(sampler, constraint, proposes=True)
    n_vocab = engine.target.n_vocab
    return ModelDrafter(engine.draft, sampler, n_vocab, engine.is_stop, branches)


def _tree(target: TokenModel, length: DraftTokens) -> TreeDecoder | None:
    """How trees are verified, where they are wanted with this draft length."""
    tree = target.tree
    return None if tree is not None and tree.by_value and length != "auto" else tree


def _make_controller(
    engine: TextEngine,
    params: SamplingParams,
    drafter: ModelDrafter | None,
    length: DraftTokens,
    lookups: Sequence[Lookup],
    clock: Clock,
    tree: TreeDecoder | None,
    constrained: bool,
) -> Controller:
    require_fixed_length(length, params)
    if length == "auto" and (drafter is not None or lookups):
        bucket = "greedy" if params.greedy else f"{params.acceptance} at {params.temperature:.1f}"
        bucket += " in a grammar" * constrained  # another text, and known to the draft
        known = engine.profile.knowledge(clock)
        return Adaptive(
            known,
            clock,
            drafter,
            *lookups,
            bucket=bucket,
            tree=tree,
            conversations=engine.conversations,
        )
    if drafter is None or length == 0 or length == "auto":
        return NoDraft()
    # The rule "rejection" tests distributions, which nothing but a model has.
    forced = lookups[0] if lookups and params.acceptance != "rejection" else None
    return FixedLength(drafter, length, clock, tree, forced)


def _read(
    outcome: Round, stream: TextStream, piece: Callable[[int], bytes]
) -> tuple[tuple[TextPiece, ...], Round]:
    """The text of a round, and the round cut behind the token that completed a stop string.

    Cutting by token keeps the answer independent of how many tokens a round verified.
    """
    pieces: list[TextPiece] = []
    for i, token in enumerate(outcome.tokens):
        if outcome.finish_reason == "stop" and i == len(outcome.tokens) - 1:
            break  # the stop token itself is no text
        origin = _origin(outcome, i)
        pieces += [TextPiece(text, origin, part) for text, part in stream.push(piece(token))]
        if stream.stopped:
            return tuple(pieces), _cut(outcome, i + 1)
    if outcome.finish_reason is not None:
        origin = _origin(outcome, len(outcome.tokens) - 1)
        pieces += [TextPiece(text, origin, part) for text, part in stream.push(b"", final=True)]
        if stream.stopped:
            outcome = replace(outcome, finish_reason="stop")
    return tuple(pieces), outcome


def _held(stream: TextStream) -> tuple[TextPiece, ...]:
    """What the stream holds back: nothing was drafted where an answer is cut off."""
    return tuple([TextPiece(text, "plain", reasoning) for text, reasoning in stream.held])


_ORIGINS: Mapping[str, Origin] = {each: each for each in ("suffix", "history", "forced")}


def _origin(outcome: Round, i: int) -> Origin:
    """Where the token at this place of the round came from."""
    if i < outcome.accepted:
        return _ORIGINS.get(outcome.sources[i], "draft")
    return "corrected" if outcome.corrected else "plain"


def _cut(outcome: Round, length: int) -> Round:
    """The first ``length`` tokens of a round, which end the answer."""
    return replace(
        outcome,
        tokens=outcome.tokens[:length],
        drafted=min(outcome.drafted, length),
        accepted=min(outcome.accepted, length),
        branched=min(outcome.branched, length),
        sources=outcome.sources[:length],
        finish_reason="stop",
    )
