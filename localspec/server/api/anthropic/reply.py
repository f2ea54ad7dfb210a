"""Replies of Anthropic's Messages API: a message with content blocks, or events that build it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from itertools import groupby

from localspec.chat.answer import Piece
from localspec.chat.tools.tool import arguments_of
from localspec.server.api.answers import Answers, Choice
from localspec.server.api.replies import PING, Json, Reply, event, figures_of
from localspec.server.errors import anthropic_error, describe

_event = partial(event, named=True)
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesReply(Reply):
    """One message; a stream has an event for the beginning and end of each of its blocks."""

    id_prefix = "msg_"
    kind = chunk_kind = "message"

    def whole(self, answers: Answers) -> Json:
        (choice,) = answers.choices
        content = [
            *([_block("thinking", choice.reasoning)] if choice.reasoning else []),
            *([_block("text", choice.text)] if choice.text else []),
            *(
                _tool_use(call.id, call.name, arguments_of(call.arguments))
                for call in choice.tool_calls
            ),
        ]
        return self._message(choice, content) | _end(choice) | self._figures(choice)

    async def events(self, answers: Answers, request_id: str) -> AsyncIterator[bytes]:
        (choice,) = answers.choices
        blocks = _Blocks()
        try:
            async for _, piece in answers:
                if choice.pieces == 1:  # its usage counts the cached tokens
                    yield _event({"type": "message_start", "message": self._message(choice, [])})
                for body in blocks.add(piece):
                    yield _event(body)
        except Exception as error:
            status, body, _ = describe(error, request_id)
            yield _event(anthropic_error(status, body, request_id))
            return
        for body in blocks.close():
            yield _event(body)
        yield _event({"type": "message_delta", "delta": _end(choice), **self._figures(choice)})
        yield _event({"type": "message_stop"})

    def sign_of_life(self) -> bytes:
        return PING

    def _message(self, choice: Choice, content: Sequence[Json]) -> Json:
        """The message with these blocks, before its end."""
        return {
            "id": self._head["id"],
            "type": "message",
            "role": "assistant",
            "model": self._head["model"],
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(choice),
        }

    def _figures(self, choice: Choice) -> Json:
        figures = figures_of(choice.stats) if self.request.timings_per_token else {}
        return {"usage": _usage(choice), **figures, **self._warnings}


class _Blocks:
    """Events of content blocks; one block is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""  # the type of the open block

    def add(self, piece: Piece) -> Iterator[Json]:
        """The events of a piece: thoughts, text, calls of tools."""
        for reasoning, parts in groupby(piece.parts, lambda part: part.reasoning):
            kind = "thinking" if reasoning else "text"
            if self._open != kind:
                yield from self._begin(_block(kind, ""))
            yield self._delta({"type": f"{kind}_delta", kind: "".join([p.text for p in parts])})
        for part in piece.tool_deltas:
            if part.name is not None:
                yield from self._begin(_tool_use(part.id, part.name, {}))
            yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def close(self) -> Iterator[Json]:
        """The end of the open block, if there is one."""
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _begin(self, block: Json) -> Iterator[Json]:
        yield from self.close()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _usage(choice: Choice) -> Json:
    """Token counts; the cache's are not among the input's."""
    cached = choice.stats.cached_tokens
    return {
        "input_tokens": len(choice.job.request.prompt) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": choice.stats.tokens,
    }


def _end(choice: Choice) -> Json:
    if choice.finish_reason == "stop" and choice.stop_text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_text}
    return {"stop_reason": _STOP_REASONS[choice.finish_reason or "stop"], "stop_sequence": None}


def _block(kind: str, text: str) -> Json:
    """A block of the kind "text" or "thinking"; nothing here signs thoughts."""
    return {"type": kind, kind: text} | ({"signature": ""} if kind == "thinking" else {})


def _tool_use(call_id: str | None, name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
