"""A loaded pair: tokenizer, chat template and two token models on llama.cpp.

Both headers are checked before any weight is read: some bad files trip assertions in llama.cpp that
end the process, and what does not fit should be said before it is tried.
"""

import shlex
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import TracebackType

from localspec.core import machine
from localspec.core.config import LoadOptions, RopeOptions
from localspec.core.errors import FileProblem, IncompatiblePair
from localspec.core.sampling_params import SamplingParams
from localspec.engine.chat.message import read_messages
from localspec.engine.chat.reasoning import closing_mark, marks_of
from localspec.engine.chat.template import CHATML, ChatTemplate
from localspec.engine.chat.tools.grammar import tool_grammar
from localspec.engine.chat.tools.tool import ToolChoice, forced_tools, read_tools
from localspec.engine.llama import llama_library
from localspec.engine.llama.grammar import GrammarConstraint, GrammarState
from localspec.engine.llama.heads.head import Head
from localspec.engine.llama.heads.opening import open_head
from localspec.engine.llama.model import LlamaModel
from localspec.engine.llama.rollback import Trim
from localspec.engine.llama.rpc.servers import connect, warning
from localspec.engine.llama.token_rules import require_known, token_rules
from localspec.engine.memory.plan import MemoryPlan
from localspec.engine.memory.probe import (
    announcement,
    free_memory,
    plan_here,
    require_survival,
)
from localspec.engine.profile_store import PairProfile
from localspec.engine.rollback_choice import load_target
from localspec.engine.slots.llama_context import SharedContext
from localspec.engine.slots.shared_passes import SharedPasses
from localspec.engine.slots.slot import NOT_TRIMMED, Slot, make_slots, one_at_a_time
from localspec.engine.text_stream import Prompt, Reading
from localspec.metadata.adapter import check_adapter
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader, read_header
from localspec.pairing import Finding, check_model, check_own_heads, check_pair
from localspec.speculative.loop import Clock
from localspec.speculative.sampling.logit_changes import TokenRules
from localspec.speculative.suffix import SuffixIndex

_CANNOT_ROLL_BACK = (
    "llama.cpp cannot take rejected tokens back from {}, in no way that is known: running plain, "
    "the draft is not used."
)

_ONE_AT_A_TIME = "Requests are answered one after the other: {}."


_GRAMMARS = 8  # kept compiled: as many as a server may have requests at once


class Engine:
    """A target and perhaps its draft, ready to generate.

    ``notes`` are things the user should know before the first token: findings of the pairing
    check, and why a draft that was asked for is not used. ``template`` writes the prompts of a
    conversation: the model's own, or ChatML where it has none, as in llama.cpp; set another to
    replace it.

    `encode_chat`, `encode_text`, `token_rules`, `piece` and `constraint` may be called from several
    threads, also while another one generates: they read the vocabulary alone, and what they keep is
    found again the same. All else is for one thread at a time, and so is a constraint once made.
    """

    def __init__(
        self, target: LlamaModel, draft: LlamaModel | Head | None, notes: Sequence[str] = ()
    ) -> None:
        self.target = target
        self.draft = draft
        self.profile = PairProfile(target, draft)
        self.suffix_index = SuffixIndex()
        self.template = _own_template(target)
        self._pieces: dict[int, bytes] = {}
        self._rules: dict[object, TokenRules] = {}
        self._grammars: OrderedDict[str, GrammarState] = OrderedDict()
        self._compiling = threading.Lock()
        self._notes = list(notes)
        self._shared: list[SharedContext] = []

    @property
    def notes(self) -> list[str]:
        """What the user should know, in sentences."""
        return [*self._notes, *self.profile.notes]

    @classmethod
    def load(
        cls,
        target: LoadOptions,
        draft: LoadOptions | None = None,
        *,
        lenient: bool = False,
        parallel: int = 1,
        say: Callable[[str], None] | None = None,
    ) -> "Engine":
        """Check the files' headers and what fits, then load them.

        ``lenient`` is that of `pairing.check_pair`; ``parallel`` is how many texts are answered at
        the same time, see `open_slots`; ``say`` hears what should be known before the weights are
        read, which can take minutes. Raises FileProblem or NotAGGUF for a bad file,
        IncompatiblePair for a pair that must not run, NotEnoughMemory for what cannot fit,
        UsageError for options that the files or this build cannot have, EngineError when llama.cpp
        refuses.
        """
        header = read_header(target.path, target.override_kv)
        target = replace(target, load_heads=_is_own(draft, target))
        of_other_file = draft is not None and not target.load_heads
        draft_header = (
            read_header(draft.path, draft.override_kv) if draft and of_other_file else None
        )
        notes = _require(header, draft_header, lenient)
        if target.load_heads:
            require_own_heads(header)
        for adapter, _ in target.loras:
            check_adapter(adapter, header)
        target = _connected(target, notes, say)
        if parallel > 1 and (reason := one_at_a_time(header, draft_header, target)):
            parallel = 1
            notes.append(_ONE_AT_A_TIME.format(reason))
        target = replace(target, parallel=parallel)
        draft = draft and replace(draft, parallel=parallel)
        plan = _plan(header, target, draft_header, draft, notes, say)
        notes += missing_gpu() + _without_gpu(target, draft)
        target = replace(target, ctx_size=plan.ctx_size, gpu_layers=plan.gpu_layers)
        require_survival(target)
        model = load_target(header, target, say, drafted=draft is not None)
        notes += _stretched(model)
        if draft is None:
            return cls(model, None, notes + _not_overridden(model, None))
        if draft_header is not None:
            draft = replace(draft, ctx_size=plan.draft_ctx_size, gpu_layers=plan.draft_gpu_layers)
        try:
            require_survival(draft)
            drafter = _load_draft(model, draft_header, draft, notes)
            return cls(model, drafter, notes + _not_overridden(model, drafter))
        except BaseException:
            model.close()
            raise

    def answering(self) -> AbstractContextManager[None]:
        """Nothing to wait for: a whole engine gives one answer at a time."""
        return nullcontext()

    def open_slots(self, clock: Clock = time.perf_counter) -> "Sequence[Engine | Slot]":
        """As many slots as the pair was loaded for, once; one, the engine itself, answers alone.

        From here on the engine answers only through its slots, and is closed after all of them are
        done. What passes cost is measured now, if it is not known, because no slot could; by this
        ``clock``, as in all answers.
        """
        if self.target.options.parallel == 1:
            return [self]
        assert not isinstance(self.draft, Head) and not self._shared
        for model in (self.target, self.draft):
            if model is not None and model.rollback.name != Trim.name:
                self._notes.append(_ONE_AT_A_TIME.format(NOT_TRIMMED))
                return [self]
        self.profile.knowledge(clock)
        target = SharedContext(self.target)
        draft = None if self.draft is None else SharedContext(self.draft)
        self._shared = [target] if draft is None else [draft, target]
        passes = SharedPasses(self._shared, clock)
        return make_slots(self, self.target.options.parallel, passes, target, draft)

    def is_stop(self, token: int) -> bool:
        """True for the target's end-of-generation tokens."""
        return self.target.is_stop(token)

    def piece(self, token: int) -> bytes:
        """The bytes of a token of the target; llama.cpp is asked once for each."""
        if token not in self._pieces:
            self._pieces[token] = self.target.piece(token)
        return self._pieces[token]

    def constraint(self, grammar: str, start: int) -> GrammarConstraint:
        """What a GBNF grammar allows from position ``start`` on; the last few are kept compiled.

        Raises GrammarError for one that is malformed, or that llama.cpp could not bear.
        """
        with self._compiling:  # which reads the reason of a failure from the process's own stderr
            state = self._grammars.pop(grammar, None)
            if state is None:
                state = GrammarState.beginning(grammar, self.target.vocab)
            self._grammars[grammar] = state
            while len(self._grammars) > _GRAMMARS:
                self._grammars.popitem(last=False)
        return GrammarConstraint(state, start)

    def token_rules(self, params: SamplingParams) -> TokenRules:
        """What these parameters mean in ids of the target's vocabulary, which is asked once.

        Raises UsageError for a logit bias of an id that it does not have.
        """
        require_known(params, self.target.n_vocab)
        key = params.ignore_eos, params.dry_sequence_breakers if params.dry else None
        if key not in self._rules:
            self._rules[key] = token_rules(self.target, params)
        return self._rules[key]

    def encode_text(self, text: str, *, special: bool = False) -> Prompt:
        """Raw text as token ids, with BOS where the model wants one.

        With ``special``, markup in the text is obeyed, a BOS of its own counts as the one that is
        wanted, and control tokens in the answer are shown.
        """
        ids = (
            self._tokenize(text)
            if special
            else self.target.tokenize(text, add_special=True, parse_special=False)
        )
        return Prompt(ids, Reading(self._special_piece if special else self.piece))

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        tool_choice: ToolChoice = "auto",
        variables: Mapping[str, object] | None = None,
    ) -> Prompt:
        """A conversation as token ids up to the assistant's turn, never with two BOS.

        Messages, ``tools`` and ``tool_choice`` are in OpenAI's form; calls of these tools are told
        apart from the answer by `stream_generate`, and one is forced where ``tool_choice`` says so,
        without thoughts before it. ``thinking`` replaces the template's own setting, and
        ``variables`` are told to it besides its own, which they replace. As in llama.cpp, template
        markup inside a message is obeyed: do not pass on text of strangers where that matters.
        Raises UsageError for what is malformed and for tools that the template or this version
        makes nothing of, TemplateError where the template fails.
        """
        template, offered = self.template, read_tools(tools)
        forced = forced_tools(tool_choice, offered)
        if tool_choice == "none":
            offered = ()
        calls = template.tools.form if offered else None
        text, state = template.begin(
            read_messages(messages), thinking=thinking, tools=offered, variables=variables
        )
        form = template.format_with_calls if offered else template.format
        grammar = None
        if calls is not None and forced:
            grammar = tool_grammar(calls, forced, closing_mark(form or {}, state))
        shown = self._control_tokens(marks_of(form or {}).union(calls.marks if calls else ()))
        reading = Reading(
            lambda token: shown.get(token) or self.piece(token),
            form,
            state,
            template.stop,
            calls,
            offered,
            grammar,
        )
        return Prompt(self._tokenize(text), reading)

    def system_notes(self, system: str) -> list[str]:
        """What a system message changes of what the template makes nothing of, in sentences."""
        without = self.template.notes()
        return [note for note in self.template.notes(system) if note not in without]

    def _tokenize(self, text: str) -> list[int]:
        """Text with its markup obeyed; BOS is not added to one that the text begins with."""
        bos = self.template.bos
        doubled = bool(bos) and text.startswith(bos)
        return self.target.tokenize(text, add_special=not doubled, parse_special=True)

    def _control_tokens(self, marks: Iterable[str]) -> dict[int, bytes]:
        """The texts of the control tokens that marks are made of, which `piece` leaves out."""
        return {
            token: self._special_piece(token)
            for mark in marks
            for token in self.target.tokenize(mark, add_special=False, parse_special=True)
            if not self.piece(token)
        }

    def _special_piece(self, token: int) -> bytes:
        return self.target.piece(token, special=True)

    def settings(self) -> dict[str, object]:
        """Which files are loaded, and how, as plain data; the draft with llama.cpp's name of it."""
        draft = None
        if self.draft is not None:
            draft = {"spec_type": "draft-simple"} | self.draft.settings()
        return {"target": self.target.settings(), "draft": draft}

    @property
    def can_roll_back(self) -> bool:
        """Whether the target's last tokens can be forgotten."""
        return self.target.can_roll_back

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        """Let no pass of the target be narrower than ``width`` tokens while the block runs.

        The context must have room for ``width`` more tokens than are generated. Nothing is learnt
        meanwhile: such passes cost more than their tokens.
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
        """Tokens of the target's narrowest pass."""
        return self.target.min_width

    def close(self) -> None:
        """Keep what was learnt, and free both models."""
        self.profile.keep()
        self._grammars.clear()
        for context in self._shared:
            context.close()
        self._shared.clear()
        if self.draft is not None:
            self.draft.close()
        self.target.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _own_template(model: LlamaModel) -> ChatTemplate:
    """What the model's file says, or else ChatML."""
    vocab = model.header.vocab
    bos = model.special_text(vocab.bos_id if vocab else None)
    eos = model.special_text(vocab.eos_id if vocab else None)
    source = model.header.chat_template
    return ChatTemplate(CHATML if source is None else source, bos, eos)


def _require(target: ModelHeader, draft: ModelHeader | None, lenient: bool) -> list[str]:
    """Refuse what must not be loaded; else what the user should know of the files."""
    if draft is None:
        return require_model(target)
    return require_pair(target, draft, lenient=lenient)


def _plan(
    header: ModelHeader,
    target: LoadOptions,
    draft_header: ModelHeader | None,
    draft: LoadOptions | None,
    notes: list[str],
    say: Callable[[str], None] | None,
) -> MemoryPlan:
    """Contexts and GPU layers that fit, told to ``say``, or else noted."""
    free = free_memory(target.device)
    plan = plan_here(header, target, draft_header, draft, free)
    if say is None:
        notes += plan.notes
        return plan
    announced = announcement(plan, free)
    for sentence in (*plan.notes, *([announced] if announced else [])):
        say(sentence)
    return plan


def _connected(
    target: LoadOptions, notes: list[str], say: Callable[[str], None] | None
) -> LoadOptions:
    """The options with RPC servers that are connected, and what is to be known of them told."""
    connected = connect(target)
    if target.rpc:
        (say or notes.append)(warning(target.rpc))
    return connected


def _is_own(draft: LoadOptions | None, target: LoadOptions) -> bool:
    """Whether the draft is the heads in the target's own file."""
    return draft is not None and draft.load_heads and draft.path == target.path


def _load_draft(
    target: LlamaModel, header: ModelHeader | None, options: LoadOptions, notes: list[str]
) -> LlamaModel | Head | None:
    """The draft, with its notes; None, with the reason noted, where either cannot roll back.

    Without a header it is the target's own heads.
    """
    if not target.can_roll_back:
        notes.append(_CANNOT_ROLL_BACK.format(target.header.path.name))
        return None
    if header is None or not draft_kind(header).is_model:
        # What heads borrow of the target can be computed only where the target is.
        options = replace(options, rpc=target.options.rpc)
        return open_head(target, header, options)
    draft = LlamaModel(header, options)
    if not draft.can_roll_back:
        draft.close()
        notes.append(_CANNOT_ROLL_BACK.format(header.path.name))
        return None
    notes += _stretched(draft)
    return draft


def require_model(header: ModelHeader) -> list[str]:
    """Raise FileProblem when the file must not be loaded by itself; else its warnings."""
    findings = check_model(header)
    for finding in findings:
        if finding.level == "error":
            raise FileProblem(f"{header.path}: {finding.message}", finding.hint)
    return _warnings(findings)


def require_pair(target: ModelHeader, draft: ModelHeader, *, lenient: bool = False) -> list[str]:
    """Raise IncompatiblePair for an incompatible draft; else the warnings."""
    report = check_pair(target, draft, lenient=lenient)
    if not report.compatible:
        first, *others = report.errors
        more = f" And {len(others)} more." if others else ""
        anyway = " No text can be corrupted by that: --lenient runs the pair." * report.harmless
        raise IncompatiblePair(
            f"{draft.path} cannot draft for {target.path}: {first.message}{more}",
            f"{first.hint}{anyway} All findings: "
            + shlex.join(["localspec", "check", str(target.path), str(draft.path)]),
        )
    return _warnings(report.findings)


def require_own_heads(header: ModelHeader) -> None:
    """Raise IncompatiblePair for a model that cannot draft for itself."""
    for finding in check_own_heads(header).errors:
        raise IncompatiblePair(finding.message, finding.hint)


def _warnings(findings: Sequence[Finding]) -> list[str]:
    return [f"{f.message} {f.hint}" for f in findings if f.level == "warning"]


def _stretched(model: LlamaModel) -> list[str]:
    trained = model.header.context_length
    if trained is None or model.n_ctx <= trained or model.options.rope != RopeOptions():
        return []
    return [
        f"The context of {model.n_ctx} tokens is longer than the {trained} that "
        f"{model.header.path.name} was trained for: expect nonsense beyond them."
    ]


def _not_overridden(target: LlamaModel, draft: LlamaModel | Head | None) -> list[str]:
    """A line for each replaced value that no model asked for."""
    taken = target.overridden | (draft.overridden if draft else frozenset())
    return [
        f"--override-kv {key} has no effect: llama.cpp did not ask for this key, or for another "
        "type of value."
        for key, _ in target.options.override_kv
        if key not in taken
    ]


def _without_gpu(options: LoadOptions, draft: LoadOptions | None) -> list[str]:
    """One line when it was said how to spread layers over GPUs, and llama.cpp has none."""
    given = {
        "--n-gpu-layers": options.gpu_layers,
        "--draft-n-gpu-layers": draft and draft.gpu_layers,
        "--tensor-split": options.tensor_split,
        "--main-gpu": options.main_gpu,
        "--split-mode": options.split_mode != "layer",
    }
    flags = [flag for flag, value in given.items() if value]
    if not flags or options.rpc or any(device.is_gpu for device in llama_library.devices()):
        return []
    return [f"No effect without a GPU that llama.cpp can use: {', '.join(flags)}."]


def missing_gpu() -> list[str]:
    """One line when the machine has an NVIDIA card that this build cannot use."""
    if not machine.has_nvidia_gpu() or llama_library.build().gpu_offload:
        return []
    return [
        "This build of llama.cpp has no GPU support, but the machine has an NVIDIA GPU. Mend it in "
        "localspec's own folder: bash scripts/build_cuda.sh --python " + shlex.quote(sys.executable)
    ]
