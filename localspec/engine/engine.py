"""A loaded pair: tokenizer, chat template and two token models on llama.cpp."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain
from pathlib import Path

from localspec.chat.answer import Piece
from localspec.chat.message import Message, read_messages
from localspec.chat.reasoning import closing_mark, marks_of
from localspec.chat.templates import renderer
from localspec.chat.templates.continuation import Continues, goes_on, parted
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.chat.tools.forms import GENERIC
from localspec.chat.tools.tool import ToolChoice, forced_tools, read_tools, with_known_names
from localspec.core.compute import COMPUTE
from localspec.core.errors import EngineError, ModelClosed, UsageError
from localspec.core.formatting import size
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_choice import ChosenSampling, choose_sampling
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.caches.written_calls import WrittenCalls
from localspec.engine.grammar.constraint import GrammarConstraint, GrammarVocabulary
from localspec.engine.grammar.matcher import tokenize_within
from localspec.engine.grammar.tool_calls import free_or_call, tool_grammar
from localspec.engine.loading.pair import load_pair, usable_pair
from localspec.engine.loading.pair_file import ModelFile, PairFile, open_pair_file
from localspec.engine.profile_store import StoredProfile
from localspec.engine.session.batching import Batcher
from localspec.engine.session.cell_budget import CellBudget
from localspec.engine.session.job import GenerationRequest, Stream
from localspec.engine.session.limits import NO_LIMITS, Limits
from localspec.engine.session.llama_context import PassContext, SharedContext
from localspec.engine.session.session import Session
from localspec.engine.session.shared_heads import SharedHeads
from localspec.engine.session.slot import NOT_ROLLED_BACK, ROUNDS_APART, make_slots
from localspec.engine.text_stream import OutputFormat, Prompt
from localspec.llama.heads.head import Head
from localspec.llama.memory.probe import free_memory
from localspec.llama.model import LlamaModel
from localspec.llama.parameters import uses_devices
from localspec.llama.vocabulary.control_tokens import ControlTokens, new_mark
from localspec.llama.vocabulary.token_rules import require_known_tokens, token_rules
from localspec.pairing import drafts_by_text
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.pair_profile import LossBudget
from localspec.speculative.history import AnswerHistory
from localspec.speculative.loop import Clock
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.logit_changes import TokenRules
from localspec.speculative.text_drafter import TextVocabulary, Vocabularies

_CLOSED = ("The model is closed.", "Load it again: localspec.load(...) or Engine.load(...)")
_FORKED = (
    "The model was loaded before this process was made by fork, and the thread that computes is in "
    "the other one.",
    'Load it in the child, or let children start by spawn: multiprocessing.get_context("spawn").',
)


class Engine:
    """A loaded target, perhaps with a draft, ready to generate.

    ``notes`` are for the user: findings of the pairing check, and why a draft is not used.
    ``template`` writes the prompts of a conversation: the model's own, or ChatML if it has none,
    as in llama.cpp; assign another to replace it. ``no_trees_reason`` is the reason why the target
    verifies no trees of candidates; None if it does, and if none were asked for.

    `encode_chat`, `encode_text`, `token_rules`, `piece`, `constraint` and `stream` are thread-safe.
    All else is for one thread at a time, also a constraint. llama.cpp computes in the one thread of
    `COMPUTE` only.
    """

    _owns_models = False  # as engines of `load` do: another may share its target

    def __init__(
        self,
        target: LlamaModel,
        draft: LlamaModel | Head | None,
        notes: Sequence[str] = (),
        no_trees_reason: str | None = None,
        file: PairFile | None = None,
    ) -> None:
        self._target = target
        self._closed, self._process = False, os.getpid()
        self.draft = draft
        self.no_trees_reason = no_trees_reason
        self.file = file or _own_file(target, draft)
        self.profile = StoredProfile(target, draft, self.file)
        self.prompt_lookup = PromptLookup()
        self.history: AnswerHistory | None = None
        self.conversations = Conversations()
        self.loss_budget = LossBudget()
        self.template = _own_template(target)
        self._pieces: dict[int, bytes] = {}
        self.vocabularies = _vocabularies(target, draft)
        self._rules: dict[object, TokenRules] = {}
        self._notes = list(notes)
        self._written_calls = WrittenCalls()
        self._shared: list[PassContext] = []
        self._session: Session | None = None

    @property
    def target(self) -> LlamaModel:
        """The target; raises ModelClosed after `close`, which frees it, UsageError after a fork."""
        if self._closed:
            raise ModelClosed(*_CLOSED)
        if self._process != os.getpid():
            raise UsageError(*_FORKED)
        return self._target

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def notes(self) -> list[str]:
        return [*self._notes, *self.profile.notes]

    @classmethod
    def load(
        cls,
        target: LoadOptions | str | Path,
        draft: LoadOptions | str | Path | None = None,
        *,
        lenient: bool = False,
        say: Callable[[str], None] | None = None,
        trial: bool = True,
    ) -> "Engine":
        """Check the files' headers and their fit, then load them; a path stands for its options.

        The draft has as many slots as the target (`LoadOptions.parallel`), both one if passes
        cannot be shared. ``lenient`` is that of `pairing.check_pair`; ``say`` gets notes before
        the weights are read, which can take minutes. With ``trial``, files that are new, and a pair
        that is new on a device, are tried in a child process first, since llama.cpp or a driver may
        crash, and it is measured whether drafted text can differ by rounding. Raises FileProblem or
        NotAGGUF for a bad file, IncompatiblePair for a pair that must not run, NotEnoughMemory,
        UsageError for options that the files or this build do not support, EngineError when
        llama.cpp refuses.
        """
        first, second = _load_options(target), None if draft is None else _load_options(draft)
        renderer.SHARED.prepare()
        find = partial(usable_pair, first, second, lenient=lenient, say=say, trial=trial)
        engine = COMPUTE.call(lambda: cls(*load_pair(find(), say, trial=trial)))
        engine._owns_models = True
        return engine

    def stream(
        self,
        prompt: Sequence[int],
        options: GenerateOptions = GenerateOptions(),
        *,
        on_prompt: Callable[[], None] | None = None,
        clock: Clock = time.perf_counter,
        reports_progress: bool = False,
    ) -> Stream:
        """Generate after a prompt of `encode_chat` or `encode_text`; see `stream_generate`.

        ``on_prompt`` is called in the compute thread. With ``reports_progress``, pieces with a
        `Progress` precede the answer. Raises ModelClosed after `close`.
        """
        _ = self.target  # raises ModelClosed
        session = self._session
        if session is None or session.is_closed:
            session = self.open_session()
        return session.stream(
            GenerationRequest(prompt, options, on_prompt, clock, reports_progress=reports_progress)
        )

    @contextmanager
    def plain(self, say: Callable[[str], None]) -> "Iterator[Engine]":
        """An engine without a draft, with a context of its own on the same target's weights.

        It holds the text of this one, and answers of both can be under way at the same time: they
        take turns, round by round. If its context would take more than half of the free memory,
        ``say`` gets a note, and this engine stands for it.
        """
        try:
            second = COMPUTE.call(self._second)
        except EngineError as problem:
            say(f"{problem.message} So drafted and plain answers come one after the other.")
            yield self
            return
        with second:
            yield second

    def _second(self) -> "Engine":
        """The engine of `plain`; raises EngineError."""
        model = self.target
        free = free_memory(model.options.device)
        on_device = uses_devices(model.options) and free.devices
        room = free.gpu + sum(free.workers) if on_device else free.ram
        needed = model.memory.kv + model.memory.compute
        if room is not None and needed > room / 2:
            raise EngineError(
                f"A second context takes {size(needed)}, and {size(room)} are free.", ""
            )
        text = [*model.tokens]
        # The state is read first: if that fails, there is no second context to close.
        state = model.state() if text else None
        second = Engine(model.second(), None)
        if state is not None:
            second.target.restore(text, state)
        return second

    @contextmanager
    def stream_with_plain(
        self,
        prompt: Sequence[int],
        options: GenerateOptions,
        say: Callable[[str], None],
        *,
        on_prompt: Callable[[], None] | None = None,
        reports_progress: bool = False,
    ) -> Iterator[tuple[Iterator[Piece], Iterator[Piece]]]:
        """The pieces of `stream`, and those of a plain answer to the same prompt; see `plain`.

        The second begins when the prompt is read, and is to be read after the first. A machine
        that is busy slows both alike.
        """
        begun: list[Stream] = []
        with ExitStack() as opened:

            def begin() -> None:
                if on_prompt is not None:
                    on_prompt()
                plain = opened.enter_context(self.plain(say))
                alone = replace(options, draft_tokens=0)
                stream = plain.stream(prompt, alone, reports_progress=reports_progress)
                begun.append(opened.enter_context(stream))

            first = self.stream(prompt, options, on_prompt=begin, reports_progress=reports_progress)
            opened.enter_context(first)

            def shown() -> Iterator[Piece]:
                for piece in first:
                    yield piece
                    for each in begun:
                        each.require_uninterrupted()

            yield shown(), chain.from_iterable(begun)

    def open_session(
        self, limits: Limits = NO_LIMITS, prefixes: PrefixCache | None = None
    ) -> Session:
        """The session that answers with this pair, in as many slots as it was loaded for.

        There is one at a time; `stream` opens one without limits. If there are several slots, a
        pair that is new here is measured now, because no slot could.
        """
        assert self._session is None or self._session.is_closed
        self._session = COMPUTE.call(partial(self._make_session, limits, prefixes))
        return self._session

    def forget(self) -> None:
        """Empty the caches of all slots, and forget earlier answers, when those under way end."""
        session = self._session
        if session is not None and not session.is_closed:
            slots = range(len(session.slots()))
            for emptied in [session.run(i, lambda slot: None, replaces=True) for i in slots]:
                emptied.result()
        if self.history is not None:
            COMPUTE.call(self.history.clear)

    def _make_session(self, limits: Limits, prefixes: PrefixCache | None) -> Session:
        if self.target.options.parallel == 1:
            return Session([self], None, limits, prefixes)
        if not self.target.can_roll_back:  # nor is there a draft then
            self._notes.append(NOT_ROLLED_BACK)
            return Session([self], None, limits, prefixes)
        if self.target.options.exact and not self.target.rounds_alike:
            self._notes.append(ROUNDS_APART)
            return Session([self], None, limits, prefixes)
        self.profile.learnt(time.perf_counter)
        self._free_shared()
        target = SharedContext(self.target)
        draft: SharedContext | SharedHeads | None = None
        if isinstance(self.draft, Head):
            draft = SharedHeads(self.draft)
            target.tap = draft.tap
        elif self.draft is not None:
            draft = SharedContext(self.draft)
        self._shared = [target] if draft is None else [draft, target]
        batcher = Batcher(self._shared, prompt_share=limits.prompt_share)
        count, shared = self.target.options.parallel, self.target.options.shared_ctx
        budget = None if shared is None else CellBudget(shared, target.n_ctx, count)
        slots = make_slots(self, count, batcher, target, draft)
        return Session(slots, batcher, limits, prefixes, budget)

    def is_stop(self, token: int) -> bool:
        return self.target.is_stop(token)

    def piece(self, token: int) -> bytes:
        """The bytes of a token of the target, cached."""
        if token not in self._pieces:
            self._pieces[token] = self.target.piece(token)
        return self._pieces[token]

    def constraint(self, grammar: str, start: int, *, endless: bool = False) -> GrammarConstraint:
        """The constraint of a grammar from position ``start`` on; the last few stay compiled.

        See `source.read_grammar` for the notations. An ``endless`` answer continues while the
        grammar allows anything but its end. Raises GrammarError for a bad grammar.
        """
        return GrammarConstraint(grammar, self._vocabulary, start, endless=endless)

    @cached_property
    def _vocabulary(self) -> GrammarVocabulary:
        """The vocabulary for grammars, made at the first one."""
        target, ids = self.target, range(self.target.n_vocab)
        return GrammarVocabulary(
            [target.piece(i, special=True) for i in ids],
            [i for i in ids if target.is_stop(i)],
            lambda text: target.tokenize(text, add_special=False, parse_special=True),
        )

    def token_rules(self, params: SamplingParams) -> TokenRules:
        """These parameters in ids of the target's vocabulary, cached.

        Raises UsageError for a logit bias of an id that it does not have.
        """
        require_known_tokens(params, self.target.n_vocab)
        key = params.ignore_eos, params.dry_sequence_breakers if params.dry else None
        if key not in self._rules:
            self._rules[key] = token_rules(self.target, params)
        return self._rules[key]

    def resolve_options(
        self,
        sampling: Mapping[str, object],
        options: GenerateOptions,
        without_draft: tuple[str, str] | None = None,
    ) -> tuple[GenerateOptions, ChosenSampling]:
        """The options of an answer with its sampling and the allowed draft length.

        The given fields of ``sampling`` have precedence over the target's recommendation, and that
        over the defaults. For ``without_draft`` and the errors see `GenerateOptions.allowed`
        and `token_rules`.
        """
        chosen = choose_sampling(sampling, self.target.header.sampling)
        self.token_rules(chosen.params)
        options = replace(options, sampling=chosen.params)
        return options.allowed(self, without_draft), chosen

    def encode_text(self, text: str, *, special: bool = False) -> Prompt:
        """Raw text as token ids, with one BOS if the model wants one.

        Control tokens in it are parsed; with ``special``, those in the answer are shown. Raises
        UsageError for a prompt that is not a text.
        """
        if not isinstance(text, str):
            raise UsageError(f"{text!r:.60} is no text.", "Expected a str.")
        return Prompt(
            self._tokenize(text), OutputFormat(self._special_piece if special else self.piece)
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        variables: Mapping[str, object] | None = None,
        continues: Continues = None,
        generation: bool = True,
        owner: str = "",
    ) -> Prompt:
        """A conversation as token ids up to the assistant's turn, never with two BOS.

        Messages, ``tools`` and ``tool_choice`` are in OpenAI's form; a call that ``tool_choice``
        forces comes without reasoning. Unless ``parallel_tool_calls``, the answer ends after its
        first call. ``thinking`` overrides the template's own setting,
        ``variables`` add to its variables or override them; for ``continues`` and ``generation``
        see `ChatTemplate.begin`. The texts of control tokens in messages and tools are texts. Calls
        that the model made for this ``owner`` stand in the prompt as it wrote them.
        Raises UsageError for malformed arguments, a call that cannot be forced and an answer that
        cannot be continued, TemplateError if the template fails.
        """
        _ = self.target  # raises UsageError if it cannot be used
        template, offered, read = self.template, read_tools(tools), read_messages(messages)
        forced = forced_tools(tool_choice, offered)
        if tool_choice == "none":
            offered = ()
        calls = template.tools.form if offered else None
        mark = new_mark()
        begin = partial(
            template.begin,
            thinking=thinking,
            tools=[
                replace(tool, definition=self._control.divided(tool.definition, mark))
                for tool in offered
            ],
            variables=variables,
            continues=continues,
            generation=generation,
        )
        texts = [self._as_text(each, mark) for each in with_known_names(read, offered)]
        places = self._marked(owner, read, texts)
        text, state = begin(texts)
        ends = [text.partition(place)[2] for place in places if place in text]
        if not all(map(self._control.begins, ends)):  # then they are tokens of their own
            for each in texts:
                each.pop("written", None)
            text, state = begin(texts)
        form = template.format_with_calls if offered else template.format
        grammar = None
        if calls is not None and forced:
            grammar = tool_grammar(calls, forced, closing_mark(form or {}, state))
        elif calls is GENERIC:
            grammar = free_or_call(calls, offered)
        shown = self._control_tokens(marks_of(form or {}).union(calls.marks if calls else ()))
        output = OutputFormat(
            lambda token: shown.get(token) or self.piece(token),
            form,
            state,
            template.stop,
            calls,
            offered,
            grammar,
            parallel_tool_calls,
            bool(forced),
            partial(self._written_calls.keep, owner),
            self._ids_of,
        )
        ids = self._with_written(text, mark, places)
        if goes_on(read, continues) and continues != "reasoning_content":
            begun = parted(read[-1], template.format)[1]
            output = replace(output, prefilled=self._tokens_of(begun, ids))
        return Prompt(ids, output)

    def _tokens_of(self, text: str, ids: Sequence[int]) -> int | None:
        """How many of the last token ids are this text; None where it begins within one."""
        left = len(text.encode())
        for count, token in enumerate(reversed(ids)):
            if left <= 0:
                return count if left == 0 else None
            left -= len(self._special_piece(token))
        return None

    def _marked(
        self, owner: str, given: Sequence[Message], shown: Sequence[Message]
    ) -> dict[str, list[int]]:
        """Mark the places of answers whose tokens are known; returns these by their marks."""
        places = {}
        for message, each in zip(given, shown, strict=True):
            if tokens := self._written_calls.tokens(owner, message):
                each["written"] = place = new_mark()
                places[place] = tokens
        return places

    def _with_written(self, text: str, mark: str, places: Mapping[str, list[int]]) -> list[int]:
        """Token ids of text, with those of answers in their places."""
        ids = list[int]()
        for place, tokens in places.items():
            before, found, rest = text.partition(place)
            if found:
                ids += self._tokenize(before, mark, begins=not ids) + tokens
                text = rest
        return ids + self._tokenize(text, mark, begins=not ids)

    def system_notes(self, system: str) -> list[str]:
        """Notes on the parts of a system message that the template ignores, in sentences."""
        without = self.template.notes()
        return [note for note in self.template.notes(system) if note not in without]

    def _tokenize(self, text: str, mark: str = "", *, begins: bool = True) -> list[int]:
        """Token ids of text, control tokens parsed, with one BOS if the model wants one.

        Text that the mark divides is not parsed as a control token.
        """
        bos = self.template.bos
        begins = begins and not (bool(bos) and text.startswith(bos))
        if mark and mark in text:
            return self._control.tokenize(self.target, text.split(mark), add_special=begins)
        return self.target.tokenize(text, add_special=begins, parse_special=True)

    def _ids_of(self, text: str, special: bool) -> list[int]:
        """A piece of text as token ids; control tokens in it are parsed if it is ``special``."""
        tokenize = partial(self.target.tokenize, add_special=False, parse_special=special)
        return tokenize_within(text, tokenize)

    @cached_property
    def _control(self) -> ControlTokens:
        return self.target.control_tokens()

    def _as_text(self, message: Message, mark: str) -> Message:
        """Escape control-token texts inside a message by the mark."""
        divided = partial(self._control.divided, mark=mark)
        if divided(message["content"]) != message["content"] and message["role"] == "assistant":
            reasoning, content = parted(message, self.template.format)
            message = {**message, "content": content}
            if reasoning:  # its marks may be control tokens, which the template writes
                message["reasoning_content"] = reasoning
        shown: Message = {**message, "content": divided(message["content"])}
        if "reasoning_content" in message:
            shown["reasoning_content"] = divided(message["reasoning_content"])
        if "tool_calls" in message:
            calls = message["tool_calls"]
            shown["tool_calls"] = [c | {"function": divided(c["function"])} for c in calls]
        return shown

    def _control_tokens(self, marks: Iterable[str]) -> dict[int, bytes]:
        """Texts of the control tokens in these marks, which `piece` leaves out."""
        return {
            token: self._special_piece(token)
            for mark in marks
            for token in self.target.tokenize(mark, add_special=False, parse_special=True)
            if not self.piece(token)
        }

    def _special_piece(self, token: int) -> bytes:
        return self.target.piece(token, special=True)

    def settings(self) -> dict[str, object]:
        """Files and options as plain data; the draft with llama.cpp's name of its kind."""
        draft = None
        if self.draft is not None:
            draft = {"spec_type": "draft-simple"} | self.draft.settings()
        return {"target": self.target.settings(), "draft": draft}

    @property
    def text_equality(self) -> str | None:
        """How drafted texts relate to plain ones, as far as `exact_passes` measured it; a sentence.

        None if nothing was measured, and if the cells of a text may stand in another order: with
        trees, and in slots that share their cells.
        """
        model, options = self.target, self.target.options
        is_shared = options.parallel > 1 and not options.own_cells
        if model.rounding is None or options.branches > 1 or is_shared:
            return None
        words = str(model.rounding)
        return f"{words[0].upper()}{words[1:]}."

    @property
    def drafts_off_reason(self) -> str | None:
        """Why nothing is drafted with `--exact`, in words; None if drafts are left on."""
        passes = self.target.passes
        return str(passes) if passes.alone else None

    @property
    def can_roll_back(self) -> bool:
        return self.target.can_roll_back

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        """Pad passes of the target to multiples of ``width`` tokens inside the block.

        The context must have room for ``width`` more tokens than are generated. Costs of such
        passes are not learnt.
        """
        before = self.target.min_width
        self.target.min_width = width
        try:
            with self.profile.learning_nothing():
                yield
        finally:
            self.target.min_width = before

    @property
    def min_width(self) -> int:
        """The target's passes are padded to multiples of this number of tokens."""
        return self.target.min_width

    def close(self) -> None:
        """Save the profile, and free both models; harmless when called twice.

        Answers under way end with ModelClosed.
        """
        if self._closed:
            return
        if self._process != os.getpid():
            self._closed = True  # the memory is freed by the process that computes
            return
        if self._session is not None:
            self._session.close(reason=ModelClosed(*_CLOSED))
        COMPUTE.call(self._free)

    def __del__(self) -> None:
        """Free the models when the last reference is dropped, without waiting, from any thread."""
        owned = self._owns_models and not getattr(self, "_closed", True)
        if owned and self._process == os.getpid():
            COMPUTE.post(self._free)

    def _free(self) -> None:
        vars(self).pop("_vocabulary", None)  # and its child
        self.profile.save()
        self._free_shared()
        if self.draft is not None:
            self.draft.close()
        self._target.close()
        self._closed = True

    def _free_shared(self) -> None:
        for context in self._shared:
            context.close()
        self._shared.clear()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _load_options(given: LoadOptions | str | Path) -> LoadOptions:
    return given if isinstance(given, LoadOptions) else LoadOptions(given)  # type: ignore[arg-type]


def _own_file(target: LlamaModel, draft: LlamaModel | Head | None) -> PairFile:
    """The file of models that were not loaded by `Engine.load`."""
    models = [ModelFile(target.header, target.options)]
    if draft is not None:
        options = draft.options if isinstance(draft, LlamaModel) else target.options
        models.append(ModelFile(draft.header, options))
    return open_pair_file(*models)


def _vocabularies(target: LlamaModel, draft: LlamaModel | Head | None) -> Vocabularies | None:
    """Those of a target and of a draft that drafts by text; None for any other."""
    if draft is None or isinstance(draft, Head) or not drafts_by_text(target.header, draft.header):
        return None
    return Vocabularies(_text_vocabulary(target), _text_vocabulary(draft))


def _text_vocabulary(model: LlamaModel) -> TextVocabulary:
    """A model's vocabulary by its texts."""

    def tokenize(text: str, special: bool) -> list[int]:
        ids = partial(model.tokenize, add_special=False, parse_special=special)
        return tokenize_within(text, ids)

    vocab = model.header.vocab
    begin = model.tokenize("", add_special=True, parse_special=False)
    return TextVocabulary(
        cache(model.piece),
        partial(model.piece, special=True),
        tokenize,
        model.is_stop,
        tuple(begin[:1]),
        None if vocab is None else vocab.eos_id if vocab.eot_id is None else vocab.eot_id,
    )


def _own_template(model: LlamaModel) -> ChatTemplate:
    """The template of the model's file, or else ChatML."""
    vocab = model.header.vocab
    bos = model.special_text(vocab.bos_id if vocab else None)
    eos = model.special_text(vocab.eos_id if vocab else None)
    source = model.header.chat_template
    name = f"The chat template of {model.header.path.name}"
    return ChatTemplate(CHATML if source is None else source, bos, eos, name=name)
