"""Agents on real weights: twenty turns with what their histories hold, in two APIs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.served import CHAT, Site

pytestmark = [pytest.mark.llama, pytest.mark.real]
Turn = dict[str, Any]
MESSAGES = "/v1/messages"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LINE = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [("read", "Reads a file.", PATH), ("bash", "Runs a command.", LINE)]
SYSTEM = "You are a coding assistant. Call tools where you need them, and answer in one sentence."
SUMMARY = "The session goes on behind this summary: calc.py was read, its tests failed."
READ, FAIL = (
    ("read", {"path": "calc.py"}, "def add(a, b): return a - b"),
    "No such file: missing.py",
)


class Claude:
    """Histories as Claude Code sends them to the Messages API."""

    path = MESSAGES
    system = {"system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]}
    tools = [{"name": n, "description": d, "input_schema": s} for n, d, s in TOOLS]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                         "data": PIXEL}}  # fmt: skip

    def user(self, text: str, *, image: bool = False) -> list[Turn]:
        parts = [{"type": "text", "text": text}, *([self.image] if image else [])]
        return [{"role": "user", "content": parts}]

    def called(self, name: str, given: Turn, result: Any, error: bool = False) -> list[Turn]:
        use = {"type": "tool_use", "id": "t1", "name": name, "input": given}
        back = {"type": "tool_result", "tool_use_id": "t1", "content": result}
        back |= {"is_error": True} if error else {}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [back]}]

    def shown(self) -> list[Turn]:
        """A picture that a tool read."""
        return self.called("read", {"path": "red.png"}, [self.image])

    def answered(self, reply: Turn) -> list[Turn]:
        """An answer, with results for what it calls."""
        calls = [block for block in reply["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": FAIL, "is_error": True}
            for call in calls
        ]
        answer = {"role": "assistant", "content": reply["content"]}
        return [answer, *([{"role": "user", "content": results}] if results else [])]

    def interrupted(self, begun: str) -> list[Turn]:
        told = [{"type": "text", "text": "[Request interrupted by user]"}]
        return [{"role": "assistant", "content": [{"type": "text", "text": begun}]},
                {"role": "user", "content": told}]  # fmt: skip

    def text_of(self, line: str) -> str:
        """What a line of a stream adds to the answer."""
        return json.loads(line[6:]).get("delta", {}).get("text") or ""


class OpenCode(Claude):
    """Histories as OpenCode sends them to chat completions."""

    path = CHAT
    system: Turn = {}
    tools = [
        {"type": "function", "function": {"name": n, "description": d, "parameters": s}}
        for n, d, s in TOOLS
    ]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}

    def called(self, name: str, given: Turn, result: Any, error: bool = False) -> list[Turn]:
        call = {"name": name, "arguments": json.dumps(given)}
        calls = [{"id": "t1", "type": "function", "function": call}]
        return [{"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "t1", "content": result}]  # fmt: skip

    def shown(self) -> list[Turn]:
        picture = {"role": "user", "content": [self.image]}
        return [*self.called("read", {"path": "red.png"}, "Image read successfully"), picture]

    def answered(self, reply: Turn) -> list[Turn]:
        message = reply["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"Error: {FAIL}"}
            for call in calls
        ]
        return [{key: message[key] for key in ("role", "content", "tool_calls") if key in message},
                *results]  # fmt: skip

    def interrupted(self, begun: str) -> list[Turn]:
        return [{"role": "assistant", "content": begun}]

    def text_of(self, line: str) -> str:
        choices = [] if line.endswith("[DONE]") else json.loads(line[6:]).get("choices", [])
        return (choices[0].get("delta", {}).get("content") or "") if choices else ""


@pytest.mark.parametrize("client", [Claude(), OpenCode()], ids=["messages", "chat"])
def test_twenty_turns(real_site: Site, client: Claude) -> None:
    history = [] if client.system else [{"role": "system", "content": SYSTEM}]
    kinds: list[Callable[[], list[Turn]]] = [
        lambda: [*client.user("What is in calc.py?"), *client.called(*READ)],
        lambda: client.user("Which colour is this?", image=True),
        lambda: [*client.user("Read missing.py."),
                 *client.called("read", {"path": "missing.py"}, FAIL, error=True)],
        client.shown,
        lambda: client.user("Run the tests."),
    ]  # fmt: skip
    for turn in range(20):
        if turn in (7, 14):  # compaction
            history = [*history[: not client.system], *client.user(SUMMARY)]
        history += kinds[turn % len(kinds)]()
        body: Turn = {"model": "local", "messages": history, "tools": client.tools, **client.system}
        body |= {"max_tokens": 24, "temperature": 0}
        if turn % 6 == 5:
            history += client.interrupted(_begun(real_site, client, body))
            continue
        reply = real_site.client.post(client.path, json=body, timeout=600)
        assert reply.status_code == 200, (turn, reply.text)
        history += client.answered(reply.json())


def _begun(site: Site, client: Claude, body: Turn) -> str:
    """The first text of an answer that its client does not wait for."""
    asked = site.client.stream("POST", client.path, json={**body, "stream": True}, timeout=600)
    with asked as reply:
        assert reply.status_code == 200, reply.read()
        lines = (line for line in reply.iter_lines() if line.startswith("data: "))
        return next((text for text in map(client.text_of, lines) if text), "")
