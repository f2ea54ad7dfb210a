"""Replies of OpenAI's Responses API, whole or as events."""

import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count, groupby

from localspec.chat.answer import Piece
from localspec.chat.tools.tool import ToolCallDelta
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.replies import Json, Reply, event, figures_of, usage
from localspec.server.api.responses.output import Output
from localspec.server.api.responses.request import ResponsesRequest
from localspec.server.api.responses.stored import new_id
from localspec.server.errors import describe
from localspec.server.service import Service

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
