"""Messages: OpenAI's form is read, parts joined, and what cannot be told is refused."""

import json
from typing import Any

import pytest

from localspec.chat.message import Message, read_messages
from localspec.core.errors import UsageError

DEEP = json.loads('{"a":' * 500 + "{}" + "}" * 500)


def call(name: str, arguments: Any = "{}", call_id: str = "c1") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}),
        ({"role": "developer", "content": "Be"}, {"role": "system", "content": "Be"}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"},
                                         {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "t", "refusal": None},
            {"role": "assistant", "content": "x", "reasoning_content": "t"},
        ),
        (
            {"role": "tool", "content": "rain", "tool_call_id": "c1", "name": "f"},
            {"role": "tool", "content": "rain", "tool_call_id": "c1", "name": "f"},
        ),
        (
            {"role": "assistant", "tool_calls": [call("f", '{"a": [1]}')]},
            {"role": "assistant", "content": "", "tool_calls": [call("f", {"a": [1]})]},
        ),
        (
            {"role": "assistant", "tool_calls": [call("f", "")]},
            {"role": "assistant", "content": "", "tool_calls": [call("f", {})]},
        ),
    ],
)  # fmt: skip
def test_openais_form(entry: dict[str, Any], message: Message) -> None:
    assert read_messages([entry]) == [message]
    assert read_messages([message]) == [message]  # which is our own too


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"role": "robot", "content": "Hi"}, "messages[0] has no known role"),
        ({"content": "Hi"}, "messages[0] has no known role"),
        ({"role": "user"}, "messages[0] has no content"),
        ({"role": "tool", "content": None}, "messages[0] has no content"),
        ({"role": "user", "content": 3}, "messages[0] has no content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0] is of type image_url",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "messages[0].content[0] is not a text",
        ),
        ({"role": "user", "content": ["Hi"]}, "messages[0].content[0] is not a text"),
        ({"role": "user", "content": "Hi", "tool_calls": [call("f")]}, "tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": call("f")}, "tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": [call("f")] * 129}, "tool_calls is not a list"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c"}]},
            "tool_calls[0] is not a function",
        ),
        ({"role": "assistant", "tool_calls": ["f"]}, "tool_calls[0] is not a function"),
        ({"role": "assistant", "tool_calls": [call("f", [1])]}, "arguments is no JSON object"),
        ({"role": "assistant", "tool_calls": [call("f", DEEP)]}, "arguments is no JSON object"),
        ({"role": "assistant", "tool_calls": [call(3)]}, "function.name is not a string"),  # type: ignore[arg-type]
        ({"role": "tool", "content": "x", "tool_call_id": 3}, "tool_call_id is not a string"),
    ],
)
def test_what_is_refused(entry: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_messages([entry])
    assert said in caught.value.message and caught.value.hint.startswith("Expected ")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"a": "Os', {"a": "Os"}), ('{"a": [1, 2', {"a": [1, 2]}),
        ('{"a": "\\ud800"}', {"a": "\ud800"}),
        ("{'a': 1}", {}), ("[1]", {}), ("[" * 9999, {}), ('{"a": NaN}', {}),
    ],
)  # fmt: skip
def test_broken_arguments_are_those_before_the_break(text: str, arguments: object) -> None:
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call("f", text)]}])
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_calls_one_by_one_keep_their_results() -> None:
    talk: list[Message] = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "AnswerStyle.",
            "tool_calls": [call("f", {}, "c1"), call("g", {}, "c2")],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "lost", "tool_call_id": "c9"},
        {"role": "assistant", "content": "Done."},
    ]
    assert [
        (each["role"], each["content"], [call["id"] for call in each.get("tool_calls", [])])
        for each in one_call_each(talk)
    ] == [
        ("user", "q", []),
        ("assistant", "AnswerStyle.", ["c1"]),
        ("tool", "1", []),
        ("assistant", "", ["c2"]),
        ("tool", "2", []),
        ("tool", "lost", []),
        ("assistant", "Done.", []),
    ]
