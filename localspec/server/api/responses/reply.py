"""Replies of OpenAI's Responses API, whole or as events of items that grow."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import Literal

from localspec.chat.answer import Piece
from localspec.chat.tools.tool import ToolCallDelta, is_json
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.messages import Message
from localspec.server.api.replies import Json, Reply, event, figures_of, usage
from localspec.server.api.responses.items import ITEMS, hidden, messages_of
from localspec.server.api.responses.request import ResponsesRequest
from localspec.server.api.responses.stored import new_id
from localspec.server.errors import describe
from localspec.server.service import Service

_IDS = {"message": "msg", "reasoning": "rs", "function_call": "fc"}  # by type: an id's beginning
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}  # by type: that of the part


@dataclass(slots=True)
class Output:
    """The items so far; the methods yield the events of their additions.

    ``namespaced`` has name and namespace of tools in one. With ``hides_reasoning``, reasoning is
    given as ``encrypted_content`` too.
    """

    namespaced: Mapping[str, Mapping[str, str]]
    hides_reasoning: bool
    items: list[Json] = field(default_factory=list)
    _open: str = ""  # the type of the last item, while it grows
    _texts: list[str] = field(default_factory=list)  # of that item

    def text(self, kind: Literal["message", "reasoning"], text: str) -> Iterator[Json]:
        """Add to the message or the reasoning, or begin one."""
        if self._open != kind:
            yield from self.close()
            own: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield self._begin(kind, **own, content=[])
            yield self._event("content_part.added", part=_part(kind, ""))
        self._texts.append(text)
        yield self._event(f"{_TEXTS[kind]}.delta", delta=text, **_logprobs(kind))

    def call(self, part: ToolCallDelta) -> Iterator[Json]:
        """Add to the call of a tool, or begin one."""
        if part.name is not None:
            yield from self.close()
            names = self.namespaced.get(part.name, {"name": part.name})
            yield self._begin("function_call", call_id=part.id, **names, arguments="")
        self._texts.append(part.arguments)
        yield self._event("function_call_arguments.delta", delta=part.arguments)

    def close(self, status: str = "completed") -> Iterator[Json]:
        """End the last item; a call is incomplete only if its arguments break off."""
        if not self._open:
            return
        self._open = ""
        item, text = self.items[-1], "".join(self._texts)
        item["status"] = status
        if item["type"] == "function_call":
            item["status"] = "completed" if is_json(text) else status
            item["arguments"] = text
            done = {"name": item["name"], "arguments": text}
            yield self._event("function_call_arguments.done", **done)
        else:
            yield from self._close_text(item["type"], text)
        yield {**self._place("output_item.done"), "item": item}

    def _close_text(self, kind: str, text: str) -> Iterator[Json]:
        part = _part(kind, text)
        self.items[-1]["content"] = [part]
        if kind == "reasoning" and self.hides_reasoning:
            self.items[-1]["encrypted_content"] = hidden(text)
        yield self._event(f"{_TEXTS[kind]}.done", text=text, **_logprobs(kind))
        yield self._event("content_part.done", part=part)

    def messages(self) -> list[Message]:
        """The chat messages that the items become; without a call that was cut off."""
        kept = [i for i in self.items if i["status"] == "completed" or i["type"] in _TEXTS]
        return messages_of(ITEMS.validate_python(kept))

    def _begin(self, kind: str, **fields: object) -> Json:
        item_id = f"{_IDS[kind]}_{secrets.token_hex(20)}"
        self.items.append({"id": item_id, "type": kind, "status": "in_progress", **fields})
        self._open, self._texts = kind, []
        return {**self._place("output_item.added"), "item": self.items[-1]}

    def _event(self, kind: str, **fields: object) -> Json:
        item = self.items[-1]
        index = {} if item["type"] == "function_call" else {"content_index": 0}
        return {**self._place(kind), "item_id": item["id"], **index, **fields}

    def _place(self, kind: str) -> Json:
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1}


def _part(kind: str, text: str) -> Json:
    part: Json = {"type": _TEXTS[kind], "text": text}
    return part | ({"annotations": [], "logprobs": []} if kind == "message" else {})


def _logprobs(kind: str) -> Json:
    """Clients expect the field in the events of a message."""
    return {"logprobs": []} if kind == "message" else {}


_REPEATED = (
    "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id",
    "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "temperature",
    "text", "tool_choice", "tools", "top_p", "truncation", "user",
)  # fmt: skip
_DEFAULTS: Json = {
    "background": False, "error": None, "incomplete_details": None, "instructions": None,
    "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
    "service_tier": "default", "store": True, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "truncation": "disabled", "usage": None, "user": None,
}  # fmt: skip


class ResponsesReply(Reply):
    """A response with a list of items."""

    id_prefix = kind = chunk_kind = "response"
    request: ResponsesRequest

    def __init__(
        self, request: ResponsesRequest, service: Service, warnings: Sequence[str]
    ) -> None:
        super().__init__(request, service, warnings)
        sampling = service.defaults.options.sampling
        given = _serializable(request.model_dump(include={*_REPEATED}, by_alias=True))
        self._response: Json = {
            "id": new_id(service.model),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "model": service.model,
            "output": [],
            **_DEFAULTS,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **{name: value for name, value in given.items() if value is not None},
        }
        self._numbers = count()  # of events
        self._output = Output(request.namespaced, hides_reasoning=request.hides_reasoning)

    def whole(self, answers: Answers) -> Json:
        (choice,) = answers.choices
        if choice.reasoning:
            list(self._output.text("reasoning", choice.reasoning))
        if choice.text:
            list(self._output.text("message", choice.text))
        for call in choice.tool_calls:
            whole = ToolCallDelta(0, call.id, call.name, call.arguments)
            list(self._output.call(whole))
        *_, last = self._end(choice)
        response: Json = last["response"]
        return response

    async def events(self, answers: Answers, request_id: str) -> AsyncIterator[bytes]:
        """Numbered events, without ``[DONE]``."""
        numbered = self._numbered
        yield numbered({"type": "response.created", "response": self._response})
        yield numbered({"type": "response.in_progress", "response": self._response})
        try:
            async for _, piece in answers:
                for body in self._added(piece):
                    yield numbered(body | self.figures(piece))
            for body in self._end(answers.choices[0]):
                yield numbered(body)
        except Exception as error:
            yield numbered(self._failed(error, request_id))

    def sign_of_life(self) -> bytes:
        """An event: Codex gives up a stream without one for 300 s, and does not count comments."""
        return self._numbered({"type": "response.in_progress", "response": self._response})

    def _numbered(self, body: Json) -> bytes:
        return event({**body, "sequence_number": next(self._numbers)}, named=True)

    def _added(self, piece: Piece) -> Iterator[Json]:
        if piece.progress is not None:
            begun = {"type": "response.in_progress", "response": self._response}
            yield begun | self.progress(piece)
        for reasoning, parts in groupby(piece.parts, lambda part: part.reasoning):
            if text := "".join([part.text for part in parts]):
                yield from self._output.text("reasoning" if reasoning else "message", text)
        for part in piece.tool_deltas:
            yield from self._output.call(part)

    def _end(self, choice: Choice) -> Iterator[Json]:
        """The last events, with the complete response; which is stored."""
        cut_off = choice.finish_reason == "length"
        status = "incomplete" if cut_off else "completed"
        yield from self._output.close(status)
        response = {
            **self._response,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
            "completed_at": int(time.time()),
            "output": self._output.items,
            "usage": _usage(choice),
            "seed": choice.seed,
            **figures_of(choice.stats),
            **self._warnings,
        }
        self.request.keep(response, self._output.messages())
        figures = {"timings": response["timings"]}
        yield {"type": f"response.{status}", "response": response, **figures}

    def _failed(self, error: Exception, request_id: str) -> Json:
        list(self._output.close("incomplete"))
        found = describe(error, request_id)[1]["error"]
        shown = {"code": found["code"] or "server_error", "message": found["message"]}
        failed = {"status": "failed", "error": shown, "output": self._output.items}
        return {"type": "response.failed", "response": self._response | failed}


def _serializable(fields: Json) -> Json:
    """Fields of a request without values that a reply cannot hold: lone surrogates, NaN."""
    text = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")
    found: Json = json.loads(text, parse_constant=lambda name: None)
    return found


def _usage(choice: Choice) -> Json:
    counts = usage([choice])
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": choice.reasoning_tokens},
        "total_tokens": counts["total_tokens"],
    }
