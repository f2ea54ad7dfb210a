"""Tools: OpenAI's form is read, and what could not be called is refused."""

import re
from typing import Any

import pytest

from localspec.chat.tools.tool import (
    ToolChoice,
    as_json,
    forced_tools,
    parsed,
    read_tools,
    with_known_names,
)
from localspec.core.errors import UsageError


def tool(name: object = "f", **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def test_tools_are_told_with_all_that_templates_read() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    plain, described = read_tools([tool(), tool("g", description="G", parameters=schema, x=1)])
    assert plain.definition["function"] == {
        "name": "f", "description": "", "parameters": {"type": "object", "properties": {}},
    }  # fmt: skip
    assert described.definition["function"] == {
        "name": "g", "description": "G", "parameters": schema, "x": 1,
    }  # fmt: skip
    assert described.parameters == schema


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"type": "web_search"}], "tools[0] is not a function"),
        ([{"type": "function"}], "tools[0] is not a function"),
        ([tool(None)], "tools[0] has no name"),
        ([tool(""), tool()], "tools[0] has no name"),
        ([tool(parameters=[1])], "parameters of f are not a JSON schema"),
        ([tool(str(i)) for i in range(4097)], "4097 tools"),
    ],
)
def test_what_is_no_tool_is_refused(entries: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_tools(entries)
    assert said in caught.value.message and caught.value.hint


def test_names_that_no_notation_has_room_for_are_changed_for_the_model() -> None:
    given = ["my tool", "天气", "fetch(url)", "🙂", 'say "hi"', "x" * 129, "my_tool", "a.b:c/d-e"]
    tools = read_tools([tool(each) for each in [*given, *given]])
    known = [each.name for each in tools]
    assert known[:3] == ["my_tool_2", "天气", "fetch_url"] and known[6:] == given[6:]
    assert len({*known}) == len(given) and all(re.fullmatch(r"[\w.:/-]{1,128}", n) for n in known)
    assert [each.given or each.name for each in tools] == given
    assert [each.definition["function"]["name"] for each in tools] == known
    two = read_tools([tool(), tool(parameters={"type": "object"})])
    assert [(each.name, each.given) for each in two] == [("f", ""), ("f_2", "f")]
    assert forced_tools(named("my tool"), tools) == tools[:1]
    assert forced_tools(named("f"), two) == two


def test_the_history_has_the_names_that_the_model_knows() -> None:
    tools = read_tools([tool("my tool"), tool(), tool(parameters={"type": "object"})])
    call: dict[str, Any] = {"id": "a", "type": "function"}
    call["function"] = {"name": "my tool", "arguments": {}}
    own = {**call, "function": {"name": "f", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [call, own]},
        {"role": "tool", "content": "r", "name": "my tool", "tool_call_id": "a"},
    ]
    answer, result = with_known_names(messages, tools)
    assert [each["function"]["name"] for each in answer["tool_calls"]] == ["my_tool", "f"]
    assert result["name"] == "my_tool" and call["function"]["name"] == "my tool"


def named(name: object) -> ToolChoice:
    return {"type": "function", "function": {"name": name}}


def test_which_tools_are_forced() -> None:
    tools = read_tools([tool("f"), tool("g")])
    assert forced_tools("auto", tools) == forced_tools("none", tools) == ()
    assert forced_tools("required", tools) == tools
    assert forced_tools(named("g"), tools) == tools[1:]


@pytest.mark.parametrize(
    "choice", [named("h"), named(3), {}, {"function": "f"}, "sometimes", None, ["f"]]
)
def test_no_choice_that_is_known(choice: Any) -> None:
    with pytest.raises(UsageError, match="^tool_choice"):
        forced_tools(choice, read_tools([tool()]))


def test_a_call_cannot_be_required_of_no_tools() -> None:
    with pytest.raises(UsageError, match="no tools are offered"):
        forced_tools("required", ())


@pytest.mark.parametrize("text", ["", "{", "NaN", "[" * 99_999, "9" * 9999])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


def test_json_is_always_unicode() -> None:
    assert as_json({"a": "\u00e9"}) == '{"a": "\u00e9"}'
    assert as_json({"a": "\ud800"}) == '{"a": "\\ud800"}'
