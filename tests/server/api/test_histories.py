"""Histories of agents: what they send again with each turn never ends a session, in any API."""

from typing import Any

import pytest

from tests.support.served import CHAT, HELLO, Site

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
PICTURE = {"type": "base64", "media_type": "image/png", "data": "A" * 5000}
IMAGE = {"type": "image", "source": PICTURE}
DOCUMENT = {"type": "document", "title": "a.txt", "source": {"type": "text", "data": "Facts."}}
PDF = {"type": "document", "source": {"type": "base64", "data": "A" * 5000}}
CALL = {"id": None, "type": "function", "function": {"name": "f", "arguments": "{'a': 1"}}
FORMER = {"name": "f", "arguments": "{}"}
RULE = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}


def use(name: str, kind: str = "tool_use") -> dict[str, Any]:
    return {"type": kind, "id": "t1", "name": name, "input": {"a": 1}}


def result(*content: Any, kind: str = "tool_result") -> dict[str, Any]:
    return {"type": kind, "tool_use_id": "t1", "content": [*content]}


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "user", "content": [IMAGE, DOCUMENT, PDF, {"type": "new", "a": 1}]}],
        [{"role": "assistant", "content": [use("f")]},
         {"role": "user", "content": [result(IMAGE, {"type": "tool_reference", "name": "g"})]}],
        [{"role": "assistant", "content": [use("web_search", "server_tool_use"),
                                           result({"url": "x"}, kind="web_search_tool_result")]}],
        [{"role": "system", "content": "Plan."}, {"role": "user", "content": []}],
        [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": "x"}]}],
        [{"role": "user", "content": [{"type": "tool_result", "content": None}]}],
        [{"role": role, "content": None} for role in ("assistant", "user", "system")],
        [{"role": "user", "content": ["a", None, 3]},
         {"role": "assistant", "content": {"type": "text", "text": None}}],
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": None},
                                           {"type": "tool_use", "name": None}]},
         {"role": "user", "content": [{"type": "tool_result", "content": 4.5},
                                      {"type": "tool_result", "content": [True, None]}]}],
    ],
)  # fmt: skip
@pytest.mark.parametrize("last", [HELLO[0], {"role": "assistant", "content": "So"}])
def test_messages(toy_server: Site, turns: list[Any], last: dict[str, str]) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_1", "name": "b"}]
    body = {"messages": [*HELLO, *turns, last], "tools": tools, "max_tokens": 4}
    body["tool_choice"] = {"type": "tool", "name": "web_search"}
    reply = toy_server.post(MESSAGES, body)
    assert reply.status_code == 200, reply.text
    warned = reply.headers["x-localspec-warnings"]
    assert "web_search_20250305 is not run here" in warned
    assert ("kind image" in warned) == ("'image'" in str(turns))
    assert toy_server.post(COUNT, body).json()["input_tokens"] > 0


@pytest.mark.parametrize(
    "turns",
    [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": None}],
        [{"role": "assistant", "content": None, "function_call": FORMER},
         {"role": "function", "name": "f", "content": "x"}],
        [{"role": "tool", "tool_call_id": "x" * 600, "content": {"rain": 1}}],
        [{"role": "tool", "tool_call_id": 7, "content": ["a", {"type": "text", "text": "b"}]}],
        [{"role": "assistant", "refusal": "No.", "audio": {"id": "a"}, "reasoning": "Hm"}],
        [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Or not."}],
        [{"role": "user", "content": "half \ud83d"}],
        [{"role": "assistant", "tool_calls": [{"index": 0, "id": None, "function": None}, {},
                                              {"function": {"name": None, "arguments": None}}]},
         {"role": "tool", "tool_call_id": 1.5}, {"role": "tool", "content": [1, None, False]}],
        [{"role": role, "content": None} for role in ("user", "system", "assistant", "tool")],
        [{"role": "tool", "content": 7}, {"role": "assistant"}],
        [{"role": "assistant", "content": None, "function_call": {"arguments": "{"}}],
        [{"role": "user", "content": [{"type": "text", "text": None}, None]}],
    ],
)  # fmt: skip
def test_chats(toy_server: Site, turns: list[Any]) -> None:
    reply = toy_server.post(CHAT, {"messages": [*HELLO, *turns, *HELLO], "max_tokens": 4})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"},
         {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"}],
        [{"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
         {"type": "local_shell_call_output", "call_id": "c", "output": "a.py"}],
        [{"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "x"}}],
        [{"type": "tool_search_call", "call_id": "s", "arguments": {"query": "x"}},
         {"type": "tool_search_output", "call_id": "s", "tools": []}],
        [{"type": "compaction", "encrypted_content": "A" * 5000}],
        [{"type": "item_reference", "id": "x"}],
        [{"type": "function_call", "call_id": None, "name": "f", "arguments": "{"},
         {"type": "function_call_output", "output": [{"type": "input_image", "image_url": "x"}]}],
        [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}],
        [{"type": "function_call", "call_id": "c", "name": None},
         {"type": "function_call_output", "call_id": "c"}],
        [{"type": "reasoning", "content": [{"type": "summary_text", "text": "x"}, None]},
         {"type": "reasoning", "content": "x", "encrypted_content": 5}],
        [{"type": "message", "role": "assistant"}, {"role": "user", "content": [None, "a"]}],
    ],
)  # fmt: skip
def test_responses(toy_server: Site, items: list[Any]) -> None:
    for given in (items, [*HELLO, *items, *HELLO]):
        reply = toy_server.post(RESPONSES, {"input": given, "max_output_tokens": 4})
        assert reply.status_code == 200, reply.text
        found = reply.headers.get("x-localspec-warnings", "")
        assert ("were left out" in found) == (
            items[0].get("type") in ("compaction", "item_reference")
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{**FUNCTION, "function": {"name": f"f{i}"}} for i in range(129)]},
        {"stop": [str(i) for i in range(17)]}, {"stop": ""}, {"stop": ["", "x"]},
        {"seed": 2**40}, {"seed": 2**64 - 1}, {"cache_prompt": False},
        {"logprobs": True, "top_logprobs": 30}, {"logprobs": True, "top_logprobs": 5000},
        {"tools": [FUNCTION], "tool_choice": "any"},
        {"tools": [FUNCTION], "response_format": RULE},
    ],
)  # fmt: skip
def test_limits_that_no_server_of_ones_own_needs(toy_server: Site, fields: dict[str, Any]) -> None:
    reply = toy_server.post(CHAT, {"messages": HELLO, "max_tokens": 4, **fields})
    assert reply.status_code == 200, reply.text
    told = toy_server.service.engine.told[-1]  # type: ignore[attr-defined]
    if fields.get("tool_choice") == "any":
        assert told["tool_choice"] == "required"


MARKED = "read as text"


@pytest.mark.parametrize(
    "content",
    [MARKED, [MARKED], {"type": "text", "text": MARKED}, [{"type": "text", "text": MARKED}, None]],
)
def test_content_of_any_form_is_read(toy_server: Site, content: Any) -> None:
    turns = [{"role": role, "content": content} for role in ("user", "assistant", "user")]
    counted = [
        toy_server.post(path, {"messages": given}).json()["input_tokens"]
        for path in (COUNT, f"{CHAT}/input_tokens")
        for given in (turns, [{**turn, "content": MARKED} for turn in turns])
    ]
    assert len({*counted}) == 1


OTHERS = [{"type": "web_search"}, {"type": "custom", "custom": {"name": "patch"}}]


@pytest.mark.parametrize(
    ("tools", "warned"),
    [
        ([FUNCTION, *OTHERS], ["custom", "web_search"]),
        ([{"type": "function", "name": "f", "parameters": {}}], []),
        ([{"function": {"name": "f", "parameters": []}}], []),
    ],
)
def test_tools_of_other_kinds_and_forms(
    toy_server: Site, tools: list[Any], warned: list[str]
) -> None:
    """A chat that offers a server's tool is answered, as Responses and Messages are."""
    reply = toy_server.post(CHAT, {"messages": HELLO, "max_tokens": 4, "tools": tools})
    assert reply.status_code == 200, reply.text
    assert toy_server.service.engine.told[-1]["tools"] == [FUNCTION]  # type: ignore[attr-defined]
    found = reply.json().get("warnings", [])
    assert found == [f"The tool type {k} is not supported here and was ignored." for k in warned]


NAMED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "any"}, "required"), ({"type": "none"}, "none"), ({"type": "auto"}, "auto"),
        ({"type": "tool", "name": "f"}, NAMED), ({"type": "function", "name": "f"}, NAMED),
        ({"function": {"name": "f"}}, NAMED), ({"type": "custom", "custom": {"name": "g"}}, "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": [NAMED]}, "required"),
        ({"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "name": "f"}, *OTHERS]}}, "auto"),
    ],
)  # fmt: skip
def test_tool_choices_of_other_apis(toy_server: Site, choice: Any, told: Any) -> None:
    other = {"type": "function", "function": {"name": "g", "parameters": {}}}
    body = {"messages": HELLO, "max_tokens": 4, "tools": [FUNCTION, other], "tool_choice": choice}
    reply = toy_server.post(CHAT, body)
    assert reply.status_code == 200, reply.text
    known = toy_server.service.engine.told[-1]  # type: ignore[attr-defined]
    assert known["tool_choice"] == told
    offered = [FUNCTION] if choice.get("type") == "allowed_tools" else [FUNCTION, other]
    assert known["tools"] == offered


@pytest.mark.parametrize(
    "choice",
    [{"type": []}, {"type": "function"}, {"type": "allowed_tools", "allowed_tools": "f"},
     {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "function": "f"}, 5]},
     {"type": "function", "function": 5}, [], 5],
)  # fmt: skip
def test_senseless_choices_are_no_crash(toy_server: Site, choice: Any) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "tools": [FUNCTION], "tool_choice": choice}
    assert toy_server.post(CHAT, body).status_code in (200, 400)


def test_responses_repeat_the_tools_that_are_allowed(toy_server: Site) -> None:
    function = {"type": "function", "name": "f", "parameters": {}}
    choice = {"type": "allowed_tools", "mode": "auto"}
    body = {"input": "a", "max_output_tokens": 4, "tools": [function]}
    body["tool_choice"] = {**choice, "tools": [{"type": "function", "name": "f"}, *OTHERS]}
    reply = toy_server.post(RESPONSES, body).json()
    allowed = {**choice, "tools": [{"type": "function", "name": "f"}]}
    assert reply["tool_choice"] == allowed, reply
