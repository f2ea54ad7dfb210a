"""Library interface: load a pair by its name, then generate."""

import asyncio
import gc
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from types import FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    NoReturn,
    ParamSpec,
    TypedDict,
    TypeGuard,
    TypeVar,
    Unpack,
    get_type_hints,
)

from localspec.chat.answer import Answer, Progress
from localspec.chat.content import media_in
from localspec.chat.templates import renderer
from localspec.chat.templates.template import template_text
from localspec.chat.tools.tool import ToolChoice
from localspec.chat.window import require_prompt_fits
from localspec.core.errors import LocalspecError, UsageError
from localspec.core.formatting import one_line
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.keywords import AnswerKeywords, LoadKeywords
from localspec.core.options.load_options import DraftTokens, LoadOptions, RopeOptions
from localspec.core.options.model_options import ModelOptions, choose_draft, parse_draft_tokens
from localspec.core.options.names import in_python, member_here, reword, unknown_option
from localspec.core.options.option import Option, options
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.engine.engine import Engine
from localspec.engine.grammar.source import read_grammar, read_regex, schema_grammar
from localspec.engine.session.job import Stream, as_completed
from localspec.hub.provenance import Progress as DownloadProgress
from localspec.library.acquire import DownloadUI
from localspec.library.pairs.request import resolve_pair
from localspec.llama import llama_library
from localspec.self_draft import store
from localspec.speculative.history import AnswerHistory

_LOG = logging.getLogger("localspec")
P = ParamSpec("P")
T = TypeVar("T")
Prompt = str | Sequence[Mapping[str, object]] | Sequence[int]


class PromptKeywords(TypedDict, total=False):
    """How a prompt is written: ``raw`` without the chat template.

    Tools are in OpenAI's form, or functions, whose signature and docstring describe them.

    ``chat_template_kwargs`` are variables of the template, such as ``reasoning_effort``.
    """

    system: str | None
    raw: bool | None
    thinking: bool | None
    chat_template_kwargs: Mapping[str, object] | None
    tools: Sequence[Mapping[str, object] | Callable[..., object]] | None
    tool_choice: ToolChoice | None


class GenerateKeywords(PromptKeywords, AnswerKeywords, total=False):
    """Options of one answer; ``json_schema`` and ``regex`` stand for ``grammar``.

    ``json_schema`` is a mapping, or a class of pydantic.
    """

    json_schema: Mapping[str, object] | type | None
    regex: str | None


_LOAD_ROWS = options(LoadOptions, RopeOptions, ModelOptions)
_LOAD_OPTIONS = {*options(LoadOptions, RopeOptions), "branches"} - {"parallel", "kv_unified"}
_ANSWER_NAMES = get_type_hints(GenerateKeywords).keys()
_PROMPT_OPTIONS = get_type_hints(PromptKeywords).keys()
_ANSWER_OPTIONS = {field.name for field in fields(GenerateOptions)} - {"sampling"}


def _named_for_python(function: Callable[P, T]) -> Callable[P, T]:
    """Name arguments of the library in errors, which name flags elsewhere.

    Another library's name for the prompt would make Python say that the prompt is missing.
    """

    @wraps(function)
    def named(*args: P.args, **options: P.kwargs) -> T:
        try:
            if "messages" in options:
                raise unknown_option("messages", ("prompt",), "", ())
            return function(*args, **options)
        except LocalspecError as error:
            reword(error)
            raise

    return named


@_named_for_python
def load(
    target: str | Path,
    draft: str | Path | int | None = "auto",
    *,
    parallel: int = 1,
    kv_unified: bool = False,
    lenient: bool = False,
    download_large: bool = False,
    chat_template: str | None = None,
    on_note: Callable[[str], None] = lambda sentence: None,
    on_progress: DownloadProgress = lambda name, done, total: None,
    **options: Unpack[LoadKeywords],
) -> "Model":
    """Load a target and its draft; download files that are not on this disk.

    ``target`` is a pair's name, a GGUF file, a file on the Hub or a name that `localspec list`
    shows. ``draft`` is a model named in the same ways, "mtp" (prediction heads), "find" (the best
    draft on this disk), "self" (the one that `localspec draft make` made), a draft length, "auto"
    or "off"; None is "off". Without a model's name, the pair's draft or the target's own heads
    draft. ``parallel`` is how many answers share passes in `Model.generate_many`, each with a
    context of ctx_size, or with ``kv_unified`` all together.
    ``chat_template`` stands for the model's own: Jinja, or "chatml".

    ``options`` are fields of `LoadOptions` and `RopeOptions`, those of the draft alone with
    ``draft_`` before the name (such as draft_gpu_layers), and fields of `SamplingParams` and
    `GenerateOptions`, which hold for every answer; None is as if left out. ``verbose`` shows
    llama.cpp's log on stderr, of all models of the process. ``on_note`` is called with each
    sentence that a user should know, as is the log "localspec"; ``on_progress`` with the file,
    bytes done and bytes in all of a download; one of more than 10 GB needs ``download_large``.
    Raises UsageError for options that
    cannot be, FileProblem, UnknownPair, HubProblem or DownloadProblem for a model that cannot be
    had, IncompatiblePair, NotEnoughMemory, and EngineError if llama.cpp refuses.
    """
    for name, value in {"target": target, "draft": draft}.items():
        if not isinstance(value, str | Path) and (name == "target" or isinstance(value, bool)):
            raise UsageError(f"{name} is {value!r:.60}.", "Expected a model's name, or a path.")
    given = _given(options)
    either = [] if draft == "auto" else ["off" if draft is None else str(draft)]
    length = given.pop("draft_tokens", None)
    asked = choose_draft(either, None, None if length is None else str(length))
    request = resolve_pair(str(target), asked, _values(given), under={"lenient": lenient})
    settings, lenient = dict(request.given), request.models.lenient
    del settings["lenient"]
    verbose = settings.pop("verbose", False)
    _LOAD_ROWS["verbose"].require(verbose)
    loading = _take(settings, _LOAD_OPTIONS)
    answering, sampling = _take(settings, _ANSWER_OPTIONS), _take(settings, sampling_fields())
    _require_none_left(settings, _load_names(), "Model.generate", _ANSWER_NAMES)
    for name, value in {**loading, "parallel": parallel, "kv_unified": kv_unified}.items():
        _LOAD_ROWS[name].require(value)
    answers = GenerateOptions(draft_tokens=request.draft_tokens, **answering)
    template = None if chat_template is None else _template(chat_template)
    ui = DownloadUI(on_note, lambda question: download_large, lambda: nullcontext(on_progress))
    first, second = request.load_options(ui, store.require_stored, parallel)
    first = replace(first, kv_unified=kv_unified)
    llama_library.log.verbose = verbose

    def say(sentence: str) -> None:
        _LOG.info("%s", in_python(sentence))
        on_note(in_python(sentence))

    engine = Engine.load(first, second, lenient=lenient, say=say)
    if template is not None:
        engine.template = replace(engine.template, source=template, name="The chat template")
    for note in [*([request.note] if request.note else []), *engine.notes]:
        say(note)
    try:
        return Model(engine, answers, sampling, request.pair)
    except BaseException:
        engine.close()
        raise


class Model:
    """A loaded pair. Answers wait for each other, unless slots share passes; thread-safe.

    Its memory is free after `close`, or when nothing refers to it and its streams any more.

    ``name`` is that of the pair, or of the target's file. An answer goes on whether its stream is
    read or not, until the stream is closed or dropped.
    """

    def __init__(
        self,
        engine: Engine,
        options: GenerateOptions = GenerateOptions(),
        sampling: Mapping[str, object] | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(engine, str | Path):
            raise UsageError("A Model is made by load.", f"localspec.load({str(engine)!r})")
        self.engine = engine
        self.name: str = name or engine.target.header.path.stem
        self._options = options
        self._sampling = dict(sampling or {})
        self._lock = threading.Lock()  # tokenizing, and closing: llama.cpp's vocabulary is freed
        engine.history = AnswerHistory()
        engine.open_session()
        self._settings({})  # refuses invalid values before the first answer
        draft = "" if engine.draft is None else f", draft {engine.draft.header.path.name}"
        target = f"{engine.target.header.path.name}{draft}"
        self._shown = f"{self.name}: {target}, context of {self.context_size} tokens"

    if not TYPE_CHECKING:  # names of other libraries

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"A localspec.Model has no {name}. {member_here(name)}")

        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise UsageError("A Model cannot be called.", member_here("__call__"))

    def __repr__(self) -> str:
        return f"<localspec.Model {self._shown}{', closed' * self.engine.is_closed}>"

    @property
    def notes(self) -> list[str]:
        """Warnings about the pair, in sentences."""
        return [in_python(note) for note in self.engine.notes]

    @property
    def context_size(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.engine.target.n_ctx

    @_named_for_python
    def tokenize(self, text: str) -> list[int]:
        """The token ids that a ``raw`` prompt becomes: control tokens parsed, BOS if there is one.

        Raises UsageError for a prompt that is no text, PromptTooLong for one that no context holds.
        """
        with self._lock:
            return [*self.engine.encode_text(text)]

    @_named_for_python
    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids without control tokens; broken characters become U+FFFD.

        Raises UsageError for an id that the vocabulary does not have.
        """
        with self._lock:
            known = self._known(ids)
            return b"".join(map(self.engine.piece, known)).decode("utf-8", "replace")

    @_named_for_python
    def count_tokens(self, prompt: Prompt, **options: Unpack[PromptKeywords]) -> int:
        """The number of tokens that a prompt has for the model; arguments as those of `stream`."""
        others = options.keys() - _PROMPT_OPTIONS
        _require_none_left(others, _PROMPT_OPTIONS, "Model.generate", _ANSWER_NAMES)
        with self._lock:
            return len(self._encode(prompt, **_given(options)))

    @_named_for_python
    def stream(
        self, prompt: Prompt, *, progress: bool = False, **options: Unpack[GenerateKeywords]
    ) -> Stream:
        """Pieces of an answer to a question, to messages in OpenAI's form, or after token ids.

        ``raw`` continues a text as it is, without the chat template. Other ``options`` are fields
        of `SamplingParams` and `GenerateOptions` for this answer; ``json_schema`` (a mapping) and
        ``regex`` may stand for ``grammar``. Without a seed, each answer draws its own. With
        ``progress``, pieces whose ``progress`` says how much of the prompt is read come first.

        Raises UsageError for an option that is unknown or cannot be, GrammarError, PromptTooLong,
        and TemplateError for messages that the chat template refuses: all before there is a stream.
        """
        with self._lock:
            changes = _given(options)
            written = _take(changes, _PROMPT_OPTIONS)
            settings = self._settings(changes)
            encoded = self._encode(prompt, **written)
            require_prompt_fits(len(encoded), self.context_size)
            stream = self.engine.stream(encoded, settings, reports_progress=progress)
        stream.on_error, stream.answer.seed = reword, settings.sampling.seed
        return stream

    @_named_for_python
    def generate(
        self,
        prompt: Prompt,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Answer:
        """The whole answer; arguments are those of `stream`. Ctrl-C raises KeyboardInterrupt.

        ``on_progress`` is called while the prompt is read.
        """

        with self.stream(prompt, progress=on_progress is not None, **options) as stream:
            for piece in stream:
                if on_progress is not None and piece.progress is not None:
                    on_progress(piece.progress)
        if stream.answer.finish_reason == "cancelled":
            raise KeyboardInterrupt
        return stream.answer

    @_named_for_python
    async def agenerate(self, prompt: Prompt, **options: Unpack[GenerateKeywords]) -> Answer:
        """The whole answer, as `generate`; a cancelled task ends it."""
        return await self.stream(prompt, **options)

    @_named_for_python
    def generate_many(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerateKeywords]
    ) -> list[Answer]:
        """An answer to each prompt, in their order; as many at once as the pair has slots."""
        found = dict[int, Answer]()
        with closing(self.answer_each(prompts, **options)) as answers:
            for i, answer in answers:
                if isinstance(answer, LocalspecError):
                    raise answer
                found[i] = answer
        return [found[i] for i in range(len(found))]

    def answer_each(
        self, prompts: Sequence[Prompt], **options: Unpack[GenerateKeywords]
    ) -> Generator[tuple[int, Answer | LocalspecError], None, None]:
        """Each answer when it is complete, with the index of its prompt; many at once as above.

        An error takes the place of its answer, and the others go on. Answers that have not ended
        end with the iteration.
        """
        if isinstance(prompts, str | bytes | Mapping):
            raise UsageError(
                f"The prompts are {prompts!r:.60}, expected a list of prompts.",
                "Give generate_many([prompt, ...]), or generate(prompt) for one answer.",
            )
        streams = dict[Stream, int]()
        try:
            for i, prompt in enumerate(prompts):
                try:
                    streams[self.stream(prompt, **options)] = i
                except LocalspecError as error:
                    yield i, error
            for stream in as_completed(list(streams)):
                yield streams[stream], stream.error or stream.answer
        finally:
            for stream in streams:
                stream.close()

    def forget(self) -> None:
        """Forget all prompts and answers, as if the pair had just been loaded.

        Their caches are emptied, and later answers are not drafted from them: so that answers that
        are compared with each other begin alike. The pair's costs and acceptance stay. Waits for
        answers under way. Raises ModelClosed after `close`.
        """
        _ = self.engine.target  # raises ModelClosed
        self.engine.forget()

    def __del__(self) -> None:
        """Free the pair at once: its parts refer to each other, and a collection may be far."""
        if not sys.is_finalizing() and "engine" in vars(self) and not self.engine.is_closed:
            del self.engine
            gc.collect()

    def close(self) -> None:
        """Save the pair's profile, and free both models; streams under way raise ModelClosed."""
        with self._lock:
            self.engine.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Model":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def _encode(
        self, prompt: Prompt, system: str | None = None, raw: bool = False, **written: Any
    ) -> Sequence[int]:
        """The prompt as token ids; ``written`` are the other `PromptKeywords`."""
        if raw and not (_is_list(prompt) and prompt and isinstance(prompt[0], int)):
            _require_unwritten({"system": system, **written}, "raw=True")
            return self.engine.encode_text(prompt)  # type: ignore[arg-type] # raises UsageError
        if _is_list(prompt) and prompt and isinstance(prompt[0], int):
            _require_unwritten({"system": system, **written}, "token ids")
            return self._known(prompt)
        variables = _variables(written.pop("chat_template_kwargs", None))
        if written.get("thinking") and self.engine.template.format is None:
            raise UsageError("This model's chat template has no thoughts.", "Leave out thinking.")
        if _is_list(tools := written.get("tools")):
            written["tools"] = [_as_tool(each) for each in tools]
        return self.engine.encode_chat(_messages(prompt, system), variables=variables, **written)

    def _known(self, ids: Sequence[object]) -> list[int]:
        """The token ids; raises UsageError for one outside the vocabulary."""
        size = self.engine.target.n_vocab
        known = [token for token in ids if isinstance(token, int) and 0 <= token < size]
        if len(known) < len(ids):
            raise UsageError(
                "Not all items are token ids of this model.", f"Expected ints from 0 to {size - 1}."
            )
        return known

    def _settings(self, changes: Mapping[str, Any]) -> GenerateOptions:
        """The options of one answer: ``changes``, else the pair's, else the model's own."""
        given = _with_grammar(changes)
        answering, sampling = _take(given, _ANSWER_OPTIONS), _take(given, sampling_fields())
        _require_none_left(given, _ANSWER_NAMES | {"prompt"}, "localspec.load", _load_names())
        if "draft_tokens" in answering:
            answering["draft_tokens"] = _length(answering["draft_tokens"])
        options = replace(self._options, **answering)
        refusal = (
            f"draft_tokens is {options.draft_tokens}, but no draft model is loaded.",
            'Give load() a draft, or draft_tokens="auto".',
        )
        return self.engine.resolve_options({**self._sampling, **sampling}, options, refusal)[0]


def _template(given: object) -> str:
    if not isinstance(given, str):
        raise UsageError(f"chat_template is {given!r:.60}.", "Expected Jinja, or a name: chatml.")
    source = template_text(given)
    renderer.SHARED.names_read(source, "The chat template")
    return source


def _as_tool(given: Any) -> Any:
    """A function as a tool in OpenAI's form; raises UsageError for one that no schema describes."""
    if not isinstance(given, FunctionType | MethodType):
        return given
    from pydantic import PydanticUserError, TypeAdapter

    name, description = given.__name__, inspect.getdoc(given) or ""
    try:
        parameters = TypeAdapter(given).json_schema()
    except PydanticUserError as error:
        raise UsageError(
            f"The arguments of {name} cannot be described: {one_line(str(error))[:200]}.",
            "Give each a type that JSON has, or a tool in OpenAI's form.",
        ) from error
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _require_unwritten(written: Mapping[str, object], prompt: str) -> None:
    """Raise UsageError for what only the chat template could write."""
    for name, value in written.items():
        if value not in (None, (), [], {}) and not (name == "tool_choice" and value == "none"):
            raise UsageError(
                f"With {prompt} no chat template is used, which would write {name}.",
                f"Leave out {name}, or give a text or messages.",
            )


def _variables(given: object) -> Mapping[str, object]:
    expected = "Expected a mapping, such as {'reasoning_effort': 'low'}."
    if not isinstance(given, Mapping | None):
        raise UsageError(f"chat_template_kwargs is {given!r:.60}.", expected)
    if kept := (given or {}).keys() & {"messages", "add_generation_prompt"}:
        raise UsageError(f"chat_template_kwargs cannot set {min(kept)}: localspec does.", expected)
    return given or {}


def _is_list(given: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray)


def _messages(prompt: Prompt, system: str | None) -> list[Mapping[str, object]]:
    if not isinstance(prompt, str) and not (_is_list(prompt) and prompt):
        raise UsageError(
            f"The prompt is {prompt!r:.60}.",
            'Expected a str, messages such as [{"role": "user", "content": …}], or token ids.',
        )
    found: list[Mapping[str, object]] = []
    if system is not None:
        found.append({"role": "system", "content": system})
    if isinstance(prompt, str):
        return [*found, {"role": "user", "content": prompt}]
    contents = [each.get("content") for each in prompt if isinstance(each, Mapping)]
    if media := sorted(set().union(*map(media_in, contents))):
        raise UsageError(
            f"The messages hold {' and '.join(media)} content, which localspec cannot read.",
            "Leave it out, or describe it in text.",
        )
    return [*found, *prompt]


def _with_grammar(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with a JSON schema or a regular expression as a grammar."""
    given = dict(changes)
    names = ("grammar", "json_schema", "regex")
    found = [name for name in names if given.get(name) not in (None, "")]
    if len(found) > 1:
        raise UsageError(f"Both {found[0]} and {found[1]} were given.", "Give one.")
    schema, regex = given.pop("json_schema", None), given.pop("regex", None)
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    if isinstance(grammar := given.get("grammar"), str) and grammar.strip():
        given["grammar"] = read_grammar(grammar)
    if schema is not None:
        given["grammar"] = schema_grammar(schema)[0]
    if regex not in (None, ""):
        given["grammar"] = read_regex(regex)
    return given


def _take(settings: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: settings.pop(name) for name in names if name in settings}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that have a value; biases by token as texts."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(biases := given.get("logit_bias"), Mapping):
        given["logit_bias"] = [f"{token}{bias:+}" for token, bias in biases.items()]
    return given


def _values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of loading; words such as "all" and texts of flags become their values."""
    return {
        name: _value(_LOAD_ROWS[name], value) if name in _LOAD_OPTIONS else value
        for name, value in given.items()
    }


def _value(row: Option, value: Any) -> Any:
    """The value of an option that may be given as a flag's text; raises UsageError."""
    if isinstance(value, bool) and "on" in row.choices:
        return "on" if value else "off"
    if isinstance(value, list | tuple) and row.many:
        return [_value(replace(row, many=False), each) for each in value]
    if not isinstance(value, str) or row.many:
        return value
    try:
        return row.parse(value) if row.parse else row.words.get(value, value)
    except ValueError as error:
        raise UsageError(f"{row.name} is {value!r:.60}: {error}.", row.help) from None


def _require_none_left(
    settings: Iterable[str], known: Collection[str], place: str, elsewhere: Collection[str]
) -> None:
    """Raise UsageError for options that are none of ``known``."""
    for name in settings:
        raise unknown_option(name, known, place, elsewhere)


def _load_names() -> Collection[str]:
    return (get_type_hints(LoadKeywords).keys() | inspect.signature(load).parameters.keys()) - {
        "options"
    }


def _length(value: object) -> DraftTokens:
    lengths = parse_draft_tokens(str(value))
    if not lengths or len(lengths) > 1:
        raise UsageError(f"{value!r} is no draft length.", 'Give a number, "auto" or "off".')
    return lengths[0]


def _list_options(
    function: Callable[..., object], rows: Mapping[str, Option], more: str | None = None
) -> None:
    """Add options to what `help` shows of a function, each with its unit and default."""
    listed = []
    for name, row in rows.items():
        value = "False: " if row.flags and row.flags[0].startswith("--no-") else ""
        listed += [f"{name}: {value}{in_python(row.help_text)}"] if row.help else []
    shown = [inspect.cleandoc(function.__doc__ or ""), OPTIONS, *listed, "", more or ""]
    function.__doc__ = "\n".join(shown)


OPTIONS = "\nOptions:\n"
_list_options(load, _LOAD_ROWS | options(SamplingParams))
for _answers in (Model.stream, Model.generate, Model.agenerate):
    _list_options(_answers, options(SamplingParams), GenerateOptions.__doc__)
