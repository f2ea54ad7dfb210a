"""Responses kept in memory, for `previous_response_id` and for GET."""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from localspec.server.api.messages import Message
from localspec.server.errors import BadRequest

OWNER_HEADER = "x-localspec-owner"  # from a front: the name of the client's key
MOST_RESPONSES = 1000
MOST_BYTES = 64 * 2**20
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


class StoredResponses:
    """Responses by the client that owns them; the least recently used go first.

    A conversation is stored whole with each of its responses, so each stands by itself.
    """

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._n_bytes = 0

    def add(self, owner: str, response: dict[str, Any], messages: Sequence[Message]) -> None:
        """Store a response; one that is too large for the bound is not stored."""
        texts = _RESPONSE.dump_json(response), _MESSAGES.dump_json([*messages], exclude_none=True)
        self._entries[owner, response["id"]] = entry = _Entry(*texts)
        self._n_bytes += entry.n_bytes
        while len(self._entries) > self._most or self._n_bytes > self._most_bytes:
            self._n_bytes -= self._entries.popitem(last=False)[1].n_bytes

    def response(self, owner: str, name: str) -> dict[str, Any]:
        """The response of this id; raises BadRequest (404) where it is not stored."""
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
        """Forget a response; raises BadRequest (404) where it is not stored."""
        self._n_bytes -= self._find(owner, name).n_bytes
        del self._entries[owner, name]

    def _find(self, owner: str, name: str, hint: str = "", **more: str) -> _Entry:
        if (owner, name) not in self._entries:
            message = f"The response {name[:100]} is not stored here (any more)."
            raise BadRequest(message, hint, status=404, **more)
        self._entries.move_to_end((owner, name))
        return self._entries[owner, name]
