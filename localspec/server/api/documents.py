"""Descriptions of replies, for the OpenAPI document; docs/reference/http.md has their fields."""

from typing import Any

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is invalid."},
    "5XX": {"description": "The server failed, or has no room now."},
}
_OBJECT: dict[str, Any] = {"schema": {"type": "object"}}
# llama-server's paths give an object for each of several answers.
_OBJECTS: dict[str, Any] = {"schema": {"type": ["object", "array"]}}


def answered(several: bool = False) -> dict[int | str, dict[str, Any]]:
    """The responses of a path with answers, whole or streamed."""
    whole = _OBJECTS if several else _OBJECT
    content = {"application/json": whole, "text/event-stream": {}}
    return {200: {"description": "An answer.", "content": content}, **ERRORS}
