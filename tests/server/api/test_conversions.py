"""What the requests of all APIs become: the messages and the rest that the engine gets."""

from typing import Any

import pytest

from tests.support.served import CHAT, HELLO, Site

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"}
CACHED = {"cache_control": {"type": "ephemeral"}}
FUNCTION = {"name": "f", "description": "Does it", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
THEIRS = {"name": "f", "description": "Does it", "input_schema": {"type": "object"}}
FLAT = {"type": "function", **FUNCTION}
CALL: dict[str, Any] = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": 1}'},
}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "a tree"}


def said(role: str, *texts: str, kind: str = "text") -> dict[str, Any]:
    """A message of several texts."""
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def result(**more: object) -> dict[str, Any]:
    """A result of a call, as Anthropic has it."""
    tree = {"type": "text", "text": "a tree", **CACHED}
    return {"type": "tool_result", "tool_use_id": "c", "content": [tree], **more}


BRIEF = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb"}]
THOUGHT = [*HELLO, {"role": "assistant", "content": "c", "reasoning_content": "hm"}, *HELLO]
CALLED: list[dict[str, Any]] = [
    *HELLO,
    {"role": "assistant", "content": "",
     "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "a tree", "tool_call_id": "c"},
]  # fmt: skip
FORCED = {"type": "function", "function": {"name": "f"}}
# Path, fields of the request, messages, and what else is not as in the plainest request.
TABLE: list[tuple[str, dict[str, Any], list[Any], dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "developer", "content": "Be brief."}, said("user", "a", "b")]},
     BRIEF, {}),
    (MESSAGES, {"system": [BILLING, {"type": "text", "text": "Be brief."}],
                "messages": [said("user", "a", "b")]}, BRIEF, {}),
    (RESPONSES, {"instructions": "Be brief.", "input": [said("user", "a", "b", kind="input_text")]},
     BRIEF, {}),
    (RESPONSES, {"instructions": "Be brief.", "input": [
        {"type": "message", "role": "developer", "content": "Only facts."}, *HELLO]},
     [BRIEF[0], {"role": "system", "content": "Only facts."}, *HELLO], {}),
    (CHAT, {"messages": THOUGHT}, THOUGHT, {}),
    (MESSAGES, {"messages": [*HELLO, {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "c"}]}, *HELLO]}, THOUGHT, {}),
    (RESPONSES, {"input": [*HELLO, {"type": "reasoning", "summary": [], "content": [
        {"type": "reasoning_text", "text": "hm"}]}, said("assistant", "c", kind="output_text"),
        *HELLO]}, THOUGHT, {}),
    (CHAT, {"messages": [
        *HELLO, {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        CALLED[2]]}, CALLED, {}),
    (MESSAGES, {"messages": [*HELLO, {"role": "assistant", "content": [USE]},
                             {"role": "user", "content": [result()]}]}, CALLED, {}),
    (MESSAGES, {"messages": [
        *HELLO, {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [result(is_error=True), {"type": "text", "text": "hello"}]}]},
     [*CALLED[:2], {**CALLED[2], "content": "Error: a tree"}, *HELLO], {}),
    (RESPONSES, {"input": [
        *HELLO, {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        OUTPUT]}, CALLED, {}),
    (CHAT, {"tools": [TOOL], "tool_choice": FORCED}, HELLO,
     {"tools": [TOOL], "tool_choice": FORCED}),
    (MESSAGES, {"tools": [THEIRS], "tool_choice": {
        "type": "tool", "name": "f", "disable_parallel_tool_use": True}}, HELLO,
     {"tools": [TOOL], "tool_choice": FORCED}),
    (RESPONSES, {"tools": [FLAT, {"type": "web_search"}],
                 "tool_choice": {"type": "function", "name": "f"}}, HELLO,
     {"tools": [TOOL], "tool_choice": FORCED}),
    (CHAT, {"tools": [TOOL], "tool_choice": "any"}, HELLO,
     {"tools": [TOOL], "tool_choice": "required"}),
    (MESSAGES, {"tools": [THEIRS], "tool_choice": {"type": "any"}}, HELLO,
     {"tools": [TOOL], "tool_choice": "required"}),
    (RESPONSES, {"tools": [FLAT, {**FLAT, "name": "other"}], "tool_choice": {
        "type": "allowed_tools", "mode": "required",
        "tools": [{"type": "function", "name": "f"}]}}, HELLO,
     {"tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"tools": None, "parallel_tool_calls": False}, HELLO, {}),
    (CHAT, {"reasoning_effort": "default"}, HELLO, {}),
    (CHAT, {"reasoning_effort": "none"}, HELLO, {"thinking": False}),
    (CHAT, {"enable_thinking": True}, HELLO, {"thinking": True}),
    (MESSAGES, {"thinking": {"type": "disabled", "budget_tokens": 5}}, HELLO,
     {"thinking": False, "variables": {"thinking_budget": 5}}),
    (RESPONSES, {"reasoning": {"effort": "none"}}, HELLO, {"thinking": False}),
    (CHAT, {"reasoning_effort": "low"}, HELLO, {"variables": {"reasoning_effort": "low"}}),
    (CHAT, {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}}, HELLO,
     {"variables": {"reasoning_effort": "max"}}),
    (CHAT, {"chat_template_kwargs": {"a": [1]}}, HELLO, {"variables": {"a": [1]}}),
    (MESSAGES, {"output_config": {"effort": "low"}}, HELLO,
     {"variables": {"reasoning_effort": "low"}}),
    (RESPONSES, {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}},
     HELLO, {"variables": {"reasoning_effort": "low"}}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "messages", "more"), TABLE)
def test_a_request_becomes_a_chat(
    toy_server: Site, path: str, fields: dict[str, Any], messages: list[Any], more: dict[str, Any]
) -> None:
    body = {"input" if path == RESPONSES else "messages": HELLO, "max_tokens": 1} | fields
    reply = toy_server.post(path, body)
    assert reply.status_code == 200, reply.text
    toy: Any = toy_server.service.engine
    plain: dict[str, Any] = {"thinking": None, "tools": [], "tool_choice": "auto", "variables": {}}
    assert toy.asked[-1] == messages
    assert toy.told[-1] == plain | more
    if path == MESSAGES:
        counted = toy_server.post(f"{MESSAGES}/count_tokens", body).json()["input_tokens"]
        usage = reply.json()["usage"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
