"""Output items of a response as they grow, and the events of their stream."""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from localspec.chat.tools.tool import ToolCallDelta, is_json
from localspec.server.api.messages import Message
from localspec.server.api.replies import Json
from localspec.server.api.responses.items import ITEMS, hidden, messages_of

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
