"""Tool calls in the three APIs: arguments in parts, and at most one call where that is asked."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.chat.tools.forms import HERMES
from localspec.chat.tools.tool import Tool
from localspec.engine.text_stream import OutputFormat, Prompt
from tests.support.served import HELLO, ServedToy, Site, serving

CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
SAID = f"I look.{CALL}\n{CALL} And"


class Caller(ServedToy):
    """Calls a tool twice, whatever it is asked."""

    def encode_chat(self, *args: Any, parallel_tool_calls: bool = True, **more: Any) -> Prompt:
        said = iter(SAID.encode())
        reading = OutputFormat(
            lambda token: bytes([next(said)]),
            calls=HERMES,
            tools=(Tool("f", {}, {}),),
            parallel_calls=parallel_tool_calls,
        )
        return Prompt(super().encode_chat(*args, **more), reading)


@pytest.fixture
def caller() -> Iterator[Site]:
    with serving(Caller(quirk=None)) as site:
        yield site


def events(site: Site, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = site.post(path, body | {"stream": True}).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return [json.loads(each) for each in data]


def chat(site: Site, length: int, parallel: bool) -> tuple[str, list[Any], list[Any], int]:
    """Why the answer ended, its calls, those of a stream, and the number of their parts."""
    body = {"messages": HELLO, "max_tokens": length, "parallel_tool_calls": parallel}
    (choice,) = site.post("/v1/chat/completions", body).json()["choices"]
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    parts: list[dict[str, Any]] = []
    for event in events(site, "/v1/chat/completions", body):
        for each in event["choices"]:
            parts += each["delta"].get("tool_calls", [])
    whole: dict[int, dict[str, str]] = {}
    for part in parts:
        function = part["function"]
        call = whole.setdefault(part["index"], {"name": function.get("name"), "arguments": ""})
        call["arguments"] += function["arguments"]
    found = [(call["name"], call["arguments"]) for call in whole.values()]
    return choice["finish_reason"], [tuple(call.values()) for call in calls], found, len(parts)


def messages(site: Site, length: int, parallel: bool) -> tuple[str, list[Any], list[Any], int]:
    choice = {"type": "auto", "disable_parallel_tool_use": not parallel}
    body = {"messages": HELLO, "max_tokens": length, "tool_choice": choice}
    made = site.post("/v1/messages", body).json()
    calls = [(b["name"], b["input"]) for b in made["content"] if b["type"] == "tool_use"]
    streamed = events(site, "/v1/messages", body)
    begun = [e for e in streamed if e.get("content_block", {}).get("type") == "tool_use"]
    parts = [e for e in streamed if e.get("delta", {}).get("type") == "input_json_delta"]
    found = []
    for each in begun:
        text = [p["delta"]["partial_json"] for p in parts if p["index"] == each["index"]]
        found.append((each["content_block"]["name"], "".join(text)))
    return made["stop_reason"], calls, found, len(parts)


def responses(site: Site, length: int, parallel: bool) -> tuple[str, list[Any], list[Any], int]:
    body = {"input": "Hi", "max_output_tokens": length, "parallel_tool_calls": parallel}
    made = site.post("/v1/responses", body).json()
    calls = [item for item in made["output"] if item["type"] == "function_call"]
    streamed = events(site, "/v1/responses", body)
    parts = [e for e in streamed if e["type"] == "response.function_call_arguments.delta"]
    ended = [e for e in streamed if e["type"] == "response.function_call_arguments.done"]
    for each in ended:
        text = [p["delta"] for p in parts if p["item_id"] == each["item_id"]]
        assert "".join(text) == each["arguments"]
    states = {call["status"] for call in calls}
    return (
        made["status"] if states == {made["status"]} else "",
        [(call["name"], call["arguments"]) for call in calls],
        [(each["name"], each["arguments"]) for each in ended],
        len(parts),
    )


ARGUMENTS = '{"city": "Oslo"}'
CUT = len(SAID[: SAID.index("Oslo")]) + 2


@pytest.mark.parametrize(
    ("api", "ends"),
    [
        (chat, ("tool_calls", "length")),
        (messages, ("tool_use", "max_tokens")),
        (responses, ("completed", "incomplete")),
    ],
)
def test_arguments_come_in_parts(caller: Site, api: Any, ends: tuple[str, str]) -> None:
    reason, calls, found, parts = api(caller, len(SAID), parallel=False)
    assert reason == ends[0] and parts > 9
    assert found == [("f", ARGUMENTS)]
    assert calls == [("f", json.loads(ARGUMENTS) if api is messages else ARGUMENTS)]
    assert len(api(caller, len(SAID), parallel=True)[2]) == 2
    reason, calls, found, _ = api(caller, CUT, parallel=True)
    assert reason == ends[1] and found == [("f", '{"city": "Os')]
    assert calls == [("f", {"city": "Os"} if api is messages else '{"city": "Os')]


def test_a_call_that_is_cut_off_before_its_name_is_no_text(caller: Site) -> None:
    for length in range(SAID.index("{") - 3, SAID.index("arguments")):
        body = {"messages": HELLO, "max_tokens": length}
        (choice,) = caller.post("/v1/chat/completions", body).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("I look.", "length")
        streamed = events(caller, "/v1/chat/completions", body)
        texts = [c["delta"].get("content") or "" for e in streamed for c in e["choices"]]
        assert "".join(texts) == "I look."
