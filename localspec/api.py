"""Library interface: load a pair by its name, then generate."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any

from localspec.chat.answer import Answer, collect
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens, LoadOptions, RopeOptions
from localspec.core.options.model_options import (
    ModelOptions,
    choose_draft,
    parse_draft_tokens,
)
from localspec.core.options.option import options
from localspec.core.options.sampling_params import sampling_fields
from localspec.engine.engine import Engine
from localspec.engine.grammar.source import read_regex, schema_grammar
from localspec.engine.session.job import Stream
from localspec.hub.provenance import Progress
from localspec.library.acquire import DownloadUI
from localspec.library.pairs.request import resolve_pair
from localspec.self_draft import store
from localspec.speculative.history import AnswerHistory

Prompt = str | Sequence[Mapping[str, object]] | Sequence[int]

_LOAD_ROWS = options(LoadOptions, RopeOptions, ModelOptions)
_LOAD_OPTIONS = {*options(LoadOptions, RopeOptions), "branches"} - {"parallel"}
_ANSWER_OPTIONS = {field.name for field in fields(GenerateOptions)} - {"sampling"}


def load(
    target: str | Path,
    draft: str | Path | int | None = "auto",
    *,
    parallel: int = 1,
    lenient: bool = False,
    download_large: bool = False,
    on_note: Callable[[str], None] = lambda sentence: None,
    on_progress: Progress = lambda name, done, total: None,
    **options: Any,
) -> "Model":
    """Load a target and its draft; download files that are not on this disk.

    ``target`` is a pair's name, a GGUF file, a file on the Hub or a name that `localspec list`
    shows. ``draft`` is a model named in the same ways, "mtp" (prediction heads), "find" (the best
    draft on this disk), "self" (the one that `localspec draft make` made), a draft length, "auto"
    or "off"; None is "off". Without a model's name, the pair's draft or the target's own heads
    draft. ``parallel`` is how many answers share passes in `Model.generate_many`.

    ``options`` are fields of `LoadOptions` and `RopeOptions`, those of the draft alone with
    ``draft_`` before the name (such as draft_gpu_layers), and fields of `SamplingParams` and
    `GenerateOptions`, which hold for every answer. ``on_note`` is called with each sentence that a
    user should know, ``on_progress`` with the file, bytes done and bytes in all of a download; one
    of more than 10 GB needs ``download_large``. Raises a LocalspecError for what cannot be.
    """
    either = [] if draft == "auto" else ["off" if draft is None else str(draft)]
    asked = choose_draft(either, None, _text(options.pop("draft_tokens", None)))
    request = resolve_pair(str(target), asked, options, under={"lenient": lenient})
    settings, lenient = dict(request.given), request.models.lenient
    del settings["lenient"]
    ui = DownloadUI(on_note, lambda question: download_large, lambda: nullcontext(on_progress))
    loading = _take(settings, _LOAD_OPTIONS)
    answering, sampling = _take(settings, _ANSWER_OPTIONS), _take(settings, sampling_fields())
    _require_empty(settings, {*_LOAD_OPTIONS, *_ANSWER_OPTIONS, *sampling_fields()})
    for name, value in {**loading, "parallel": parallel}.items():
        _LOAD_ROWS[name].require(value)
    answers = GenerateOptions(draft_tokens=request.draft_tokens, **answering)
    first, second = request.load_options(ui, store.require_stored, parallel)
    engine = Engine.load(first, second, lenient=lenient, say=on_note)
    for note in [*([request.note] if request.note else []), *engine.notes]:
        on_note(note)
    try:
        return Model(engine, answers, sampling)
    except BaseException:
        engine.close()
        raise


class Model:
    """A loaded pair. Answers wait for each other, unless slots share passes; thread-safe.

    An answer goes on whether its stream is read or not, until the stream is closed or dropped.
    """

    def __init__(
        self,
        engine: Engine,
        options: GenerateOptions = GenerateOptions(),
        sampling: Mapping[str, object] | None = None,
    ) -> None:
        self.engine = engine
        self._options = options
        self._sampling = dict(sampling or {})
        self._lock = threading.Lock()  # tokenizing, and closing: llama.cpp's vocabulary is freed
        engine.history = AnswerHistory()
        engine.open_session()
        self._settings({})  # refuses what cannot be before the first answer

    @property
    def notes(self) -> list[str]:
        """What the user should know of the pair, in sentences."""
        return self.engine.notes

    def stream(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        tool_choice: str | Mapping[str, object] = "auto",
        **changes: Any,
    ) -> Stream:
        """Pieces of an answer to a question, to messages in OpenAI's form, or after token ids.

        ``raw`` continues a text as it is, without the chat template. ``changes`` are fields of
        `SamplingParams` and `GenerateOptions` for this answer; ``json_schema`` (a mapping) and
        ``regex`` may stand for ``grammar``. Without a seed, each answer draws its own. Raises
        UsageError for an option that is unknown or cannot be.
        """
        with self._lock:
            options = self._settings(changes)
            if isinstance(prompt, str) and raw:
                ids: Sequence[int] = self.engine.encode_text(prompt)
            elif isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], int):
                ids = _token_ids(prompt)
            else:
                messages = _messages(prompt, system)
                ids = self.engine.encode_chat(
                    messages,
                    thinking=thinking,
                    tools=tools,
                    tool_choice=tool_choice,  # type: ignore[arg-type]
                )
            return self.engine.stream(ids, options)

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """The whole answer; arguments are those of `stream`. Ctrl-C raises KeyboardInterrupt."""
        answer = collect(self.stream(prompt, **options))
        if answer.finish_reason == "cancelled":
            raise KeyboardInterrupt
        return answer

    def generate_many(self, prompts: Sequence[Prompt], **options: Any) -> list[Answer]:
        """An answer to each prompt, in their order; as many at once as the pair has slots."""
        streams = [self.stream(prompt, **options) for prompt in prompts]
        answers: list[Answer] = []
        for stream in streams:
            answers.append(collect(stream))
            if answers[-1].finish_reason == "cancelled":
                for each in streams:
                    each.close()
                raise KeyboardInterrupt
        return answers

    def close(self) -> None:
        """Save the pair's profile, and free both models; streams under way raise UsageError."""
        with self._lock:
            self.engine.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _settings(self, changes: Mapping[str, Any]) -> GenerateOptions:
        """The options of one answer: ``changes``, else the pair's, else the model's own."""
        given = _with_grammar(changes)
        answering, sampling = _take(given, _ANSWER_OPTIONS), _take(given, sampling_fields())
        _require_empty(given, {*_ANSWER_OPTIONS, *sampling_fields(), "json_schema", "regex"})
        if "draft_tokens" in answering:
            answering["draft_tokens"] = _length(answering["draft_tokens"])
        options = replace(self._options, **answering)
        refusal = (
            f"draft_tokens is {options.draft_tokens}, but no draft model is loaded.",
            'Give load() a draft, or draft_tokens="auto".',
        )
        return self.engine.resolve_options({**self._sampling, **sampling}, options, refusal)[0]


def _token_ids(prompt: Sequence[object]) -> list[int]:
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) < len(prompt):
        raise UsageError("Not all items of the prompt are token ids.", "Give a list of ints.")
    return ids


def _messages(prompt: Prompt, system: str | None) -> list[Mapping[str, object]]:
    if not isinstance(prompt, str | list | tuple):
        raise UsageError(
            f"The prompt is {prompt!r:.60}.",
            'Expected a str, messages such as [{"role": "user", "content": …}], or token ids.',
        )
    found: list[Mapping[str, object]] = []
    if system is not None:
        found.append({"role": "system", "content": system})
    if isinstance(prompt, str):
        return [*found, {"role": "user", "content": prompt}]
    return [*found, *prompt]


def _with_grammar(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with a JSON schema or a regular expression as a grammar."""
    given = dict(changes)
    found = [name for name in ("grammar", "json_schema", "regex") if given.get(name) is not None]
    if len(found) > 1:
        raise UsageError(f"Both {found[0]} and {found[1]} were given.", "Give one.")
    schema, regex = given.pop("json_schema", None), given.pop("regex", None)
    if schema is not None:
        given["grammar"] = schema_grammar(schema)[0]
    if regex is not None:
        given["grammar"] = read_regex(regex)
    return given


def _take(settings: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those settings, which are no longer in the mapping."""
    return {name: settings.pop(name) for name in names if name in settings}


def _require_empty(settings: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in settings:
        near = get_close_matches(name, sorted(known), 1)
        meant = f"Did you mean {near[0]}? " if near else ""
        options = ", ".join(sorted(known))
        raise UsageError(f"There is no option {name}.", f"{meant}Options are: {options}.")


def _length(value: object) -> DraftTokens:
    lengths = parse_draft_tokens(str(value))
    if not lengths or len(lengths) > 1:
        raise UsageError(f"{value!r} is no draft length.", 'Give a number, "auto" or "off".')
    return lengths[0]


def _text(value: object) -> str | None:
    return None if value is None else str(value)
