"""Streaming generation: text, tokens and statistics of one answer, round by round."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from localspec.chat.answer import Piece, Progress, TextPart
from localspec.chat.reasoning import closing_mark
from localspec.chat.stats import GenerationStats
from localspec.chat.tools.tool import ToolCall
from localspec.chat.window import require_prompt_fits
from localspec.core.errors import UsageError
from localspec.core.interrupt import stopped_when
from localspec.core.options.generate_options import GenerateOptions, LoadedModels
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.grammar.tool_calls import answer_or_call
from localspec.engine.text_stream import OutputFormat, Prompt, TextStream
from localspec.engine.thinking_budget import ThinkingBudget
from localspec.speculative.control.controllers import (
    Adaptive,
    FixedLength,
    NoDraft,
    UntilNotNumbers,
)
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.pair_profile import LossBudget, PairProfile
from localspec.speculative.control.plain_time import PlainTime
from localspec.speculative.drafters import Lookup, ModelDrafter
from localspec.speculative.history import KEY, AnswerHistory
from localspec.speculative.loop import (
    Clock,
    Controller,
    Prefill,
    Round,
    TokenModel,
    generate_rounds,
    prefill,
)
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.constrained import (
    ConstrainedLookup,
    ConstrainedSampler,
    Constraint,
)
from localspec.speculative.sampling.logit_changes import TokenRules
from localspec.speculative.sampling.logprobs import RecordingSampler
from localspec.speculative.sampling.rejection import RejectionSampler
from localspec.speculative.sampling.sampler import Sampler
from localspec.speculative.text_drafter import Drafter as AnyDrafter
from localspec.speculative.text_drafter import TextDrafter, Vocabularies

MAX_LEARNT_TEMPERATURE = 2.0  # acceptance at a higher temperature is learnt as at this one


class Profile(Protocol):
    """The profile of a pair on this machine; see `profile_store.StoredProfile`."""

    @property
    def known(self) -> PairProfile | None: ...
    def learnt(self, clock: Clock) -> PairProfile: ...
    def save(self) -> None: ...


class TextEngine(LoadedModels, Protocol):
    """A loaded target, perhaps with a draft, and the target's vocabulary; see `engine.Engine`.

    ``history`` holds earlier answers, which "auto" drafts from too; None if they are not used.
    """

    history: AnswerHistory | None

    @property
    def target(self) -> TokenModel: ...
    @property
    def draft(self) -> TokenModel | None: ...
    @property
    def vocabularies(self) -> Vocabularies | None: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def prompt_lookup(self) -> PromptLookup: ...
    @property
    def conversations(self) -> Conversations: ...
    @property
    def loss_budget(self) -> LossBudget: ...
    def is_stop(self, token: int) -> bool: ...
    def constraint(self, grammar: str, start: int, *, endless: bool = False) -> Constraint: ...
    def piece(self, token: int) -> bytes: ...
    def token_rules(self, params: SamplingParams) -> TokenRules: ...


def stream_generate(
    engine: TextEngine,
    prompt: Sequence[int],
    options: GenerateOptions = GenerateOptions(),
    *,
    on_prompt: Callable[[], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Clock = time.perf_counter,
) -> Generator[Piece, None, None]:
    """Generate after the token ids of ``prompt``; the last piece carries the finish reason.

    After a `Prompt` of `Engine.encode_chat`, reasoning and tool calls are separated from the
    answer, and stop strings apply to the answer alone; after other ids, all text is the answer.
    ``on_prompt`` is called when the prompt was read, perhaps without its last token;
    ``on_progress`` before it is read, after each pass over it, and at the end. With ``max_tokens``
    0 the one piece is empty.

    The text for a seed does not depend on the draft or its length (up to the rounding of
    llama.cpp's kernels; see `LoadOptions.exact`), except with the rule "rejection". Raises
    PromptTooLong when no room is left for an answer, UsageError for "auto" with "rejection", for
    ``logprobs`` out of bounds, GrammarError for a bad grammar or where it allows
    no token.
    """
    options = options.allowed(engine)
    require_prompt_fits(len(prompt), engine.target.n_ctx)
    limit = options.max_tokens
    most = engine.target.n_ctx if limit is None or limit < 0 else limit
    output, grammar = _output_format(engine, prompt, options.grammar)
    constraint = _constraint(engine, prompt, options, output, grammar)
    if grammar is not None:
        options = replace(options, sampling=replace(options.sampling, ignore_eos=False))
    sampler = make_sampler(options.sampling, engine.token_rules(options.sampling), constraint)
    recorder = None
    if options.logprobs is not None:
        recorder = RecordingSampler(sampler, options.logprobs, sampled=options.sampled_logprobs)

    def own() -> float:
        """The time without waiting for a shared pass, to measure costs."""
        return clock() - engine.target.batch_share.waited

    # Before the prompt is read: a pair that is new here is measured on empty caches.
    lookups = _lookups(engine, options, constraint)
    controller = _make_controller(engine, options, constraint, lookups, own)
    controller.begin_answer()
    stats = GenerationStats()
    if engine.draft is not None:
        stats.drafter = "prediction heads" if engine.draft.follows_target else "draft model"
    known = engine.profile.known if options.draft_tokens else None
    plain = PlainTime(None if known is None else known.verify)
    if not options.cache_prompt:
        for model in (engine.target, engine.draft):
            if model is not None:
                model.truncate(0)
    read = _read_prompt(engine.target, lookups, prompt, clock, on_progress)
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
    if options.max_seconds is not None:
        rounds = _in_time(rounds, options.max_seconds, output.piece, clock)
    stream = TextStream((*options.stop, *output.stop), output.splitter(), output.finder())
    emitted = list(prompt[-KEY:])
    texts, calls = list[str](), list[ToolCall]()
    try:
        for piece in _pieces(
            engine.target, rounds, controller, stream, output.piece, stats, plain, clock, recorder
        ):
            emitted += piece.tokens
            texts.append(piece.text)
            calls += piece.tool_calls
            ended = piece.finish_reason == "stop" and engine.is_stop(piece.tokens[-1])
            if ended and calls and output.keep is not None:
                output.keep(output, calls, "".join(texts), emitted[len(prompt[-KEY:]) : -1])
            yield piece
    finally:
        if options.prompt_lookup and engine.history is not None:
            engine.history.add(emitted)


def _output_format(
    engine: TextEngine, prompt: Sequence[int], grammar: str | None
) -> tuple[OutputFormat, str | None]:
    """How tokens become text, and the grammar of the answer."""
    output = prompt.output if isinstance(prompt, Prompt) else OutputFormat(engine.piece)
    if grammar is None:
        return output, output.grammar
    if output.calls is not None:
        if output.forces_call:
            return output, output.grammar
        before = closing_mark(output.form or {}, output.state)
        return output, answer_or_call(output.calls, output.tools, grammar, before)
    # A grammar describes the answer without reasoning.
    return replace(output, form=None), grammar


def _prefilled(output: OutputFormat, grammar: str | None) -> int:
    """Tokens of the prompt that the grammar of an answer is about too; raises UsageError."""
    if grammar is None or output.forces_call:
        return 0
    if output.prefilled is None:
        raise UsageError(
            "The beginning of the answer cannot be held to the grammar: it begins within a token.",
            "Leave out the beginning or the grammar.",
        )
    return output.prefilled


def _constraint(
    engine: TextEngine,
    prompt: Sequence[int],
    options: GenerateOptions,
    output: OutputFormat,
    grammar: str | None,
) -> Constraint | None:
    """The grammar of an answer, or the limit of its thoughts if it may have some, or both."""
    within, most, start = None, options.reasoning_budget, len(prompt)
    if grammar is not None:
        within = partial(engine.constraint, grammar, endless=options.sampling.ignore_eos)
    # A grammar of the whole answer leaves no thoughts.
    is_whole = options.grammar is not None or output.forces_call
    if most is None or most < 0 or is_whole or output.form is None or output.ids_of is None:
        return within(start - _prefilled(output, options.grammar)) if within else None
    return ThinkingBudget(
        output.form,
        output.state,
        start,
        most,
        options.reasoning_budget_message or "",
        engine.target.n_vocab,
        output.piece,
        output.ids_of,
        within,
    )


def _lookups(
    engine: TextEngine, options: GenerateOptions, constraint: Constraint | None
) -> list[Lookup]:
    """Sources of candidates without a model: prompt lookup and history for "auto", and a grammar.

    None if drafts are off, or the target cannot roll back.
    """
    if options.draft_tokens == 0 or not engine.can_roll_back:
        return []
    found: list[Lookup] = []
    if options.prompt_lookup and options.draft_tokens == "auto":
        found = [engine.prompt_lookup, *([] if engine.history is None else [engine.history])]
    if constraint is None:
        return found
    sources: list[Lookup | None] = [*found] or [None]
    return [ConstrainedLookup(each, constraint) for each in sources]


def _pieces(
    target: TokenModel,
    rounds: Iterator[Round],
    controller: Controller,
    stream: TextStream,
    bytes_of: Callable[[int], bytes],
    stats: GenerationStats,
    plain: PlainTime,
    clock: Clock,
    recorder: RecordingSampler | None,
) -> Iterator[Piece]:
    """Pieces of each round, without the time that the consumer takes."""
    began, before = clock(), target.batch_share.prompts
    for whole in rounds:
        parts, outcome = _read(whole, stream, bytes_of)
        ended = clock()
        seconds = ended - began - outcome.draft_prompt_seconds
        stats.add(outcome, seconds)
        stats.others_prompts_seconds = target.batch_share.prompts - before
        plain.add(outcome, seconds)
        stats.plain_seconds = plain.seconds
        rejected = ""
        if recorder is not None and outcome.rejected is not None:
            rejected = bytes_of(outcome.rejected).decode(errors="replace")
        piece = Piece(
            parts,
            outcome.tokens,
            stats.snapshot(),
            outcome.finish_reason,
            controller.length,
            controller.status,
            tuple(TextPart(text, "plain", reasoning) for text, reasoning in stream.held),
            () if recorder is None else recorder.take()[: len(outcome.tokens)],
            stream.take_calls(),
            stream.take_deltas(),
            stop_text=stream.stop_text,
            rejected=rejected,
        )
        shown = clock()
        yield piece
        if outcome.finish_reason is not None:
            return
        began = ended + clock() - shown
    # max_tokens is 0.
    yield Piece((), (), stats, "length", controller.length, controller.status)


def _in_time(
    rounds: Iterator[Round], seconds: float, bytes_of: Callable[[int], bytes], clock: Clock
) -> Iterator[Round]:
    """The rounds up to the first that ends too late, after a line break."""
    began, has_line = None, False
    for outcome in rounds:
        began = clock() if began is None else began
        if has_line and outcome.finish_reason is None and clock() - began > seconds:
            yield replace(outcome, finish_reason="length")
            return
        has_line = has_line or any(b"\n" in bytes_of(token) for token in outcome.tokens)
        yield outcome


def _read_prompt(
    target: TokenModel,
    lookups: Sequence[Lookup],
    prompt: Sequence[int],
    clock: Clock,
    on_progress: Callable[[Progress], None] | None,
) -> Prefill:
    """Let the lookups and the target read the prompt."""
    began = clock()
    for lookup in lookups:
        lookup.update(list(prompt))
    indexed = clock() - began
    if on_progress is None:
        read = prefill(target, prompt, clock)
    else:
        report = _Report(target, len(prompt), on_progress, clock)
        with stopped_when(report):
            read = prefill(target, prompt, clock)
        report.end(read.cached)
    return replace(read, seconds=indexed + read.seconds)


class _Report:
    """Reports how much of a prompt is read, called by `stopped_when` and never ending anything."""

    def __init__(
        self, target: TokenModel, total: int, report: Callable[[Progress], None], clock: Clock
    ) -> None:
        self._target, self._total = target, total
        self._report, self._clock = report, clock
        self._began, self._cached, self._read = 0.0, 0, -1

    def __call__(self) -> bool:
        self._note(len(self._target.tokens) - self._target.pending)
        return False

    def end(self, cached: int) -> None:
        """All is read except perhaps the last token, which the first round then reads."""
        self._note(cached if self._read < 0 else self._total)
        self._note(self._total)

    def _note(self, read: int) -> None:
        if self._read < 0:
            self._began, self._cached = self._clock(), read
        if read > self._read:
            self._read, seconds = read, self._clock() - self._began if self._read >= 0 else 0.0
            self._report(Progress(self._total, self._cached, read, seconds))


def make_sampler(
    params: SamplingParams, rules: TokenRules, constraint: Constraint | None = None
) -> Sampler:
    """RejectionSampler if acceptance is "rejection", else Sampler; within a constraint."""
    rejects = params.acceptance == "rejection" and not params.greedy
    sampler = RejectionSampler(params, rules) if rejects else Sampler(params, rules)
    return sampler if constraint is None else ConstrainedSampler(sampler, constraint)


def model_drafter(
    engine: TextEngine,
    params: SamplingParams,
    constraint: Constraint | None = None,
    *,
    branches: int = 1,
) -> AnyDrafter | None:
    """A drafter whose sampler fits the rule of acceptance and the constraint; None without a draft.

    It proposes up to ``branches`` candidates for each place.
    """
    if engine.draft is None:
        return None
    if engine.vocabularies is not None:
        greedy = Sampler(SamplingParams(temperature=0))
        return TextDrafter(engine.draft, greedy, engine.vocabularies)
    rules = engine.token_rules(params)
    matched = params.acceptance == "match"
    sampler = make_sampler(params.draft_greedy if matched else params, rules)
    if constraint is not None:
        sampler = ConstrainedSampler(sampler, constraint, proposes=True)
    n_vocab = engine.target.n_vocab
    return ModelDrafter(engine.draft, sampler, n_vocab, engine.is_stop, branches)


def _make_controller(
    engine: TextEngine,
    options: GenerateOptions,
    constraint: Constraint | None,
    lookups: Sequence[Lookup],
    clock: Clock,
) -> Controller:
    """The controller of this answer, whose draft length is allowed."""
    params, length = options.sampling, options.draft_tokens
    tree = None if length == "auto" else engine.target.tree  # auto gains nothing by trees
    branches = 1 if tree is None else tree.branches
    drafter = model_drafter(engine, params, constraint, branches=branches)
    if length == "auto":
        warmth = min(params.temperature, MAX_LEARNT_TEMPERATURE)
        sampling_kind = "greedy" if params.greedy else f"{params.acceptance} at {warmth:.1f}"
        sampling_kind += " in a grammar" * (constraint is not None)  # accepted more often

        def adaptive(drafter: AnyDrafter | None) -> Adaptive:
            return Adaptive(
                engine.profile.learnt(clock),
                clock,
                drafter,
                *lookups,
                sampling_kind=sampling_kind,
                conversations=engine.conversations,
                loss_budget=engine.loss_budget,
            )

        if drafter is None:
            return adaptive(None)
        return UntilNotNumbers(adaptive(drafter), lambda: adaptive(None))
    if drafter is None or length == 0:
        return NoDraft()
    # "rejection" needs the distribution of each draft, which lookups lack.
    forced = lookups[0] if lookups and params.acceptance != "rejection" else None
    return UntilNotNumbers(FixedLength(drafter, length, clock, tree, forced), NoDraft)


def _read(
    outcome: Round, stream: TextStream, piece: Callable[[int], bytes]
) -> tuple[tuple[TextPart, ...], Round]:
    """The text of a round, and the round cut after the token that completed a stop string."""
    pieces: list[TextPart] = []
    for i, token in enumerate(outcome.tokens):
        if outcome.finish_reason == "stop" and i == len(outcome.tokens) - 1:
            break  # the stop token itself has no text
        origin = _origin(outcome, i)
        pieces += [TextPart(text, origin, part, i) for text, part in stream.push(piece(token))]
        if stream.stopped:
            return tuple(pieces), _cut(outcome, i + 1)
    if outcome.finish_reason is not None:
        last = len(outcome.tokens) - 1
        final = stream.push(b"", final=True, cut=outcome.finish_reason != "stop")
        pieces += [TextPart(text, _origin(outcome, last), part, last) for text, part in final]
        if stream.stopped:
            outcome = replace(outcome, finish_reason="stop")
    return tuple(pieces), outcome


def _origin(outcome: Round, i: int) -> str:
    """The origin, by name, of the token at this place of the round."""
    if i < outcome.accepted:
        return outcome.sources[i]
    return "plain" if outcome.rejected is None else "corrected"


def _cut(outcome: Round, length: int) -> Round:
    """The first ``length`` tokens of a round, which end the answer."""
    return replace(
        outcome,
        tokens=outcome.tokens[:length],
        drafted=min(outcome.drafted, length),
        accepted=min(outcome.accepted, length),
        branched=min(outcome.branched, length),
        sources=outcome.sources[:length],
        rejected=outcome.rejected if length == len(outcome.tokens) else None,
        finish_reason="stop",
    )
