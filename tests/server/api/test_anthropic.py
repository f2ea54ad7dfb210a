"""Anthropic's Messages API: requests become those of a chat, replies are blocks and events."""

import json
from typing import Any

import pytest

from localspec.chat.reasoning import tagged
from localspec.engine.text_stream import OutputFormat, Prompt
from tests.support.served import HELLO, ServedToy, Site, serving

MESSAGES = "/v1/messages"


def asked(site: Site, **fields: object) -> Any:
    reply = site.post(MESSAGES, {"messages": HELLO} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


class Thinker(ServedToy):
    """Thinks before it answers."""

    def encode_chat(self, *args: Any, **more: Any) -> Prompt:
        said = iter(b"<think>hm</think>No")
        reading = OutputFormat(lambda token: bytes([next(said)]), tagged("<think>", "</think>"))
        return Prompt(super().encode_chat(*args, **more), reading)


def test_events_come_in_their_order() -> None:
    with serving(Thinker(quirk=None)) as site:
        whole = asked(site, max_tokens=19)
        lines = site.post(MESSAGES, {"messages": HELLO, "max_tokens": 19, "stream": True}).text
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "No"},
    ]
    *events, rest = lines.split("\n\n")
    names, bodies = [], []
    for event in events:
        name, data = event.split("\ndata: ")
        names.append(name.removeprefix("event: "))
        bodies.append(json.loads(data))
    assert rest == "" and names == [body["type"] for body in bodies]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert list(dict.fromkeys(names)) == ["message_start", *block, "message_delta", "message_stop"]
    starts = [body for body in bodies if body["type"] == "content_block_start"]
    assert [(each["index"], each["content_block"]["type"]) for each in starts] == [
        (0, "thinking"), (1, "text"),
    ]  # fmt: skip
    deltas = [body["delta"] for body in bodies if body["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "hm"
    assert "".join(delta.get("text", "") for delta in deltas) == "No"
    end = bodies[-2]
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"]["output_tokens"] == 19 == whole["usage"]["output_tokens"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"messages": [{"role": "user", "content": "a " * 999}]}, "prompt is too long: The"),
        ({"tool_choice": {"type": "tool"}}, "names no tool"),
        ({"thread": {"type": "create"}}, "stores no threads"),
        ({"temperature": -1}, "temperature should be"),
        ({}, "not a JSON object"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered(toy_server: Site, fields: dict[str, Any], sentence: str) -> None:
    reply = toy_server.post(MESSAGES, {"messages": HELLO} | fields if fields else [])
    body = reply.json()
    assert reply.status_code == 400 and body["type"] == "error"
    assert sentence in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"
    assert body["request_id"] == reply.headers["request-id"]
