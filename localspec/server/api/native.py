"""llama-server's own paths: /completion, /infill, /tokenize, /apply-template, /slots and more."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.chat.answer import Piece
from localspec.chat.message import read_messages
from localspec.chat.tools.tool import read_tools, with_known_names
from localspec.core.options.generate_options import MAX_LOGPROBS, GenerateOptions
from localspec.engine.caches.slot_files import erase
from localspec.engine.engine import Engine
from localspec.engine.infill import Infill, infill_prompt
from localspec.engine.text_stream import Prompt
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.chat import ChatRequest
from localspec.server.api.completions import Ids, PromptText, prompt_of
from localspec.server.api.replies import Json, Reply, event, figures_of, prompt_text, settings_of
from localspec.server.api.requests import (
    MOST_ANSWERS,
    WHOLE,
    AnswerRequest,
    LogprobCount,
    RequestObject,
    Text,
)
from localspec.server.errors import BadRequest, describe
from localspec.server.service import Service
from localspec.speculative.sampling.logprobs import TokenLogprob

SlotAction = Literal["save", "restore", "erase"]
_MOST_FILES = 1000
_MISSING = object()


class NativeRequest(AnswerRequest):
    """Fields that /completion and /infill share."""

    n_probs: LogprobCount | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    response_fields: (
        Annotated[
            list[Annotated[Text, Field(max_length=200)]], Field(max_length=100, fail_fast=True)
        ]
        | None
    ) = None

    def top_logprob_count(self) -> int | None:
        return min(self.n_probs, MAX_LOGPROBS) if self.n_probs else None

    def _options(self, service: Service, grammar: str | None) -> GenerateOptions:
        options = super()._options(service, grammar)
        return replace(options, sampled_logprobs=bool(self.post_sampling_probs))


class PromptObject(RequestObject):
    """A prompt as an object, which may hold images elsewhere."""

    prompt_string: PromptText
    multimodal_data: Annotated[list[Text], Field(max_length=0)] | None = None


Mixed = Annotated[
    list[Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] | PromptText],
    Field(min_length=1, max_length=2**20, fail_fast=True),
]
Several = Annotated[
    list[PromptText | Ids | PromptObject | Mixed], Field(min_length=1, max_length=MOST_ANSWERS)
]


class NativeCompletionRequest(NativeRequest):
    """POST /completion; a list with token ids in it is one prompt, another is several."""

    prompt: PromptText | Ids | PromptObject | Mixed | Several

    def prompts(self, engine: Engine) -> list[Prompt]:
        given: list[Any] = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        is_one = any(isinstance(each, int) for each in given)
        return [_prompt(engine, each) for each in ([given] if is_one else given)]


class File(RequestObject):
    """Another file that a text belongs with."""

    text: Text
    filename: Annotated[Text, Field(max_length=1000)] = "tmp"


class InfillRequest(NativeRequest):
    """POST /infill; ``prompt`` is the beginning of the text to fill in."""

    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[list[File], Field(max_length=_MOST_FILES, fail_fast=True)] = []
    prompt: Text = ""

    def prompts(self, engine: Engine) -> list[Prompt]:
        files = [(file.filename, file.text) for file in self.input_extra]
        around = Infill(self.input_prefix, self.input_suffix, self.prompt, files)
        return [infill_prompt(engine, around, self.answer_tokens())]


class TokenizeRequest(RequestObject):
    """POST /tokenize."""

    content: Text
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(RequestObject):
    """POST /detokenize."""

    tokens: Annotated[list[Annotated[int, Field(ge=0), WHOLE]], Field(max_length=2**20)]


class SlotRequest(RequestObject):
    """POST /slots/{id}?action=save, restore or erase."""

    filename: Annotated[Text, Field(max_length=255)] = ""


class NativeReply(Reply):
    """llama-server's objects: one, or in a stream one a round, the last with the figures."""

    id_prefix = kind = chunk_kind = "completion"
    request: NativeRequest

    @property
    def shows_prompts(self) -> bool:
        paths = self.request.response_fields
        return not paths or "prompt" in paths

    def whole(self, answers: Answers) -> Json | list[Json]:
        bodies = []
        for choice in answers.choices:
            new = self._common(choice, choice.text, choice.tokens, choice.logprobs)
            bodies.append(self._fields(new | self._last(choice)))
        return bodies[0] if len(bodies) == 1 else bodies

    async def events(self, answers: Answers, request_id: str) -> AsyncIterator[bytes]:
        """Without OpenAI's ``[DONE]``."""
        try:
            async for choice, piece in answers:
                if choice.finish_reason is not None:
                    await self.read_prompts(answers)
                for body in self._next(choice, piece):
                    yield event(body)
        except Exception as error:
            yield event(describe(error, request_id)[1])

    def _next(self, choice: Choice, piece: Piece) -> Iterator[Json]:
        """A piece of a stream; after the last one the figures without a text."""
        if piece.progress is not None:
            yield {**self._common(choice, "", [], []), "stop": False, **self.progress(piece)}
            return
        if piece.tokens or piece.text or choice.finish_reason is None:
            new = self._common(choice, piece.text, list(piece.tokens), list(piece.logprobs))
            yield {**new, "stop": False, **self.figures(piece)}
        if choice.finish_reason is not None:
            yield self._fields(self._common(choice, "", [], []) | self._last(choice))

    def _fields(self, body: Json) -> Json:
        """The requested parts of a complete answer: all, or values by their paths."""
        paths = self.request.response_fields
        return _values(body, paths) if paths else body

    def _common(
        self, choice: Choice, text: str, tokens: list[int], logprobs: list[TokenLogprob]
    ) -> Json:
        body: Json = {
            "index": choice.index,
            "content": text,
            "tokens": tokens if self.request.stream or self.request.return_tokens else [],
            "tokens_predicted": choice.stats.tokens,
            "tokens_evaluated": len(choice.job.request.prompt),
        }
        shown = [self.token(entry) for entry in self.reported(logprobs)]
        return body | ({"completion_probabilities": shown} if choice.has_logprobs else {})

    def _last(self, choice: Choice) -> Json:
        prompt = choice.job.request.prompt
        used = len(prompt) + choice.stats.tokens
        return {
            "stop": True,
            "model": self._head["model"],
            "prompt": self.prompt(choice) if self.shows_prompts else "",
            "generation_settings": settings_of(self.engine, choice),
            "truncated": choice.truncated,
            "stop_type": _stop_type(choice),
            "stopping_word": choice.stop_text or "",
            "tokens_cached": used,
            "has_new_line": "\n" in choice.text,
            "seed": choice.seed,
            **figures_of(choice.stats),
            **self._warnings,
        }

    def candidate(self, token: int, logprob: float) -> Json:
        shown = {"id": token, **super().candidate(token, logprob)}
        if self.request.post_sampling_probs:
            shown["prob"] = math.exp(shown.pop("logprob"))
        return shown

    def token(self, entry: TokenLogprob) -> Json:
        shown = super().token(entry)
        if self.request.post_sampling_probs:
            shown["top_probs"] = shown.pop("top_logprobs")
        return shown


def _values(body: Json, paths: Sequence[str]) -> Json:
    """The values at paths such as ``generation_settings/seed``, by their paths."""
    found = {}
    for path in paths:
        value: Any = body
        for name in path.split("/"):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found[path] = value
    return found


def _prompt(engine: Engine, given: str | PromptObject | Sequence[int | str]) -> Prompt:
    """A text, ids, an object with a text, or texts and ids in a row."""
    if isinstance(given, PromptObject):
        given = given.prompt_string
    if isinstance(given, str):
        return prompt_of(engine, given)
    ids: list[int] = []
    for each in given:
        if isinstance(each, str):
            ids += engine.target.tokenize(each, add_special=not ids, parse_special=True)
        else:
            ids.append(each)
    return prompt_of(engine, ids)


def _stop_type(choice: Choice) -> str:
    if choice.stop_text is not None:
        return "word"
    return "limit" if choice.finish_reason == "length" else "eos"


def tokenized(engine: Engine, request: TokenizeRequest) -> Json:
    """Token ids of a text, with the text of each if the request asked for it."""
    ids = engine.target.tokenize(
        request.content, add_special=request.add_special, parse_special=request.parse_special
    )
    if not request.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": _piece(engine, token)} for token in ids]}


def _piece(engine: Engine, token: int) -> str | list[int]:
    data = engine.target.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:  # a part of a character
        return list(data)


async def slot_changed(
    service: Service, slot: int, action: SlotAction, request: SlotRequest, owner: str = ""
) -> Json:
    """Save, restore or erase the owner's cache of a slot; raises BadRequest, UsageError."""
    if action == "erase":
        erased = await asyncio.wrap_future(service.session.run(slot, erase, owner))
        return {"id_slot": slot, "n_erased": erased}
    files = service.slot_files
    if files is None:
        raise BadRequest(
            "This server saves no slots.",
            "Start it with --slot-save-path FOLDER.",
            code="unsupported",
        )
    began = time.perf_counter()
    owned = files.of(owner)
    act = owned.save if action == "save" else owned.restore
    future = service.session.run(
        slot, lambda engine: act(engine, request.filename), owner, replaces=action == "restore"
    )
    tokens, n_bytes = await asyncio.wrap_future(future)
    done, moved = ("saved", "written") if action == "save" else ("restored", "read")
    return {
        "id_slot": slot,
        "filename": request.filename,
        f"n_{done}": tokens,
        f"n_{moved}": n_bytes,
        "timings": {f"{action}_ms": 1000 * (time.perf_counter() - began)},
    }


def detokenized(engine: Engine, request: DetokenizeRequest) -> Json:
    ids = prompt_of(engine, request.tokens, "tokens") if request.tokens else []
    return {"content": prompt_text(engine, ids)}


def templated(engine: Engine, request: ChatRequest) -> Json:
    """The prompt that a conversation becomes, without the BOS that /completion adds."""
    tools = read_tools([tool.model_dump(exclude_none=True) for tool in request.tools or ()])
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    text, _ = engine.template.begin(
        with_known_names(read_messages(messages), tools),
        thinking=request.thinking,
        tools=tools,
        variables=request.variables,
        continues=request.continues,
        generation=request.add_generation_prompt is not False,
    )
    bos = engine.template.bos
    adds = bool(bos) and engine.target.tokenize("", add_special=True, parse_special=False) != []
    return {"prompt": text.removeprefix(bos) if adds else text}
