"""Responses kept in memory, for `previous_response_id` and for GET."""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from localspec.chat.content import text_of
from localspec.core.formatting import size
from localspec.server.api.messages import Message, OtherPart, TextContent
from localspec.server.errors import BadRequest

MOST_RESPONSES = 1000
MOST_BYTES = 64 * 2**20
_SHARE = 4  # a response takes at most MOST_BYTES / _SHARE
_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_RESPONSE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def new_id(model: str) -> str:
    """The id of a new response, by which a front finds the model that stored it."""
    return _begins(model) + secrets.token_hex(20)


def is_stored_by(model: str, path: str) -> bool:
    """Whether a path is that of a response of this model."""
    return path.startswith(f"/v1/responses/{_begins(model)}")


def _begins(model: str) -> str:
    return f"resp_{sha256(model.encode()).hexdigest()[:8]}"


class _Entry(NamedTuple):
    """JSON texts: the response, and the conversation that ends with it."""

    response: bytes
    messages: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.response) + len(self.messages)


class _Owned(OrderedDict[str, _Entry]):
    """The responses of one owner by their ids, the least recently used first."""

    @property
    def n_bytes(self) -> int:
        return sum(entry.n_bytes for entry in self.values())


class StoredResponses:
    """Responses by the client that owns them, which cannot push out those of others.

    The least recently used go first, of the owner who has most. A conversation is stored whole with
    each of its responses, so each stands by itself.
    """

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._by_owner: dict[str, _Owned] = {}  # without empty ones

    def require_room(self, messages: Sequence[Message]) -> None:
        """Raise BadRequest for a conversation that is too large to be stored."""
        n_bytes = len(_dump(messages))
        if n_bytes > self._most_bytes // _SHARE:
            raise BadRequest(
                f"This conversation has {size(n_bytes)}, and up to "
                f"{size(self._most_bytes // _SHARE)} are stored.",
                "Send store: false.",
                param="store",
            )

    def add(self, owner: str, response: dict[str, Any], messages: Sequence[Message]) -> None:
        """Store a response; one that is larger than its share is not stored."""
        entry = _Entry(_RESPONSE.dump_json(response), _dump(messages))
        if entry.n_bytes > self._most_bytes // _SHARE:
            return
        self._by_owner.setdefault(owner, _Owned())[response["id"]] = entry
        while sum(map(len, self._by_owner.values())) > self._most:
            self._drop(max(self._by_owner, key=lambda each: len(self._by_owner[each])))
        while sum(each.n_bytes for each in self._by_owner.values()) > self._most_bytes:
            self._drop(max(self._by_owner, key=lambda each: self._by_owner[each].n_bytes))

    def response(self, owner: str, name: str) -> dict[str, Any]:
        """The response of this id; raises BadRequest (404) if it is not stored."""
        return _RESPONSE.validate_json(self._find(owner, name).response)

    def messages(self, owner: str, name: str) -> list[Message]:
        """The conversation up to this response; raises BadRequest (404)."""
        entry = self._find(
            owner,
            name,
            "Send the whole conversation as input.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
        return _MESSAGES.validate_json(entry.messages)

    def remove(self, owner: str, name: str) -> None:
        """Forget a response; raises BadRequest (404) if it is not stored."""
        self._find(owner, name)
        self._drop(owner, name)

    def _find(self, owner: str, name: str, hint: str = "", **more: str) -> _Entry:
        owned = self._by_owner.get(owner)
        if owned is None or name not in owned:
            message = f"The response {name[:100]} is not stored here (any more)."
            raise BadRequest(message, hint, status=404, **more)
        owned.move_to_end(name)
        return owned[name]

    def _drop(self, owner: str, name: str | None = None) -> None:
        """Remove a response, by default the least recently used one."""
        entries = self._by_owner[owner]
        del entries[next(iter(entries)) if name is None else name]
        if not entries:
            del self._by_owner[owner]


def _dump(messages: Sequence[Message]) -> bytes:
    """The messages with texts in place of images and the like, which no model here reads."""
    return _MESSAGES.dump_json([*map(_with_texts, messages)], exclude_none=True)


def _with_texts(message: Message) -> Message:
    if not isinstance(message.content, list):
        return message
    parts = [
        TextContent(type="text", text=text_of([part.model_dump()]))
        if isinstance(part, OtherPart)
        else part
        for part in message.content
    ]
    return message.model_copy(update={"content": parts})
