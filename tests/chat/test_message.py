"""Messages: OpenAI's form is read, parts joined, and what cannot be told is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.message import Message, media_left_out, read_messages
from localspec.chat.tools.tool import arguments_of
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


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        ({"role": "user", "content": None}, ""),
        ({"role": "tool", "content": None}, ""),
        ({"role": "function", "name": "f", "content": {"rain": 3}}, '{"rain": 3}'),
        ({"role": "user", "content": 3}, "3"),
        ({"role": "user", "content": ["Hi", {"type": "text", "text": "there"}]}, "Hi\nthere"),
        ({"role": "user", "content": [IMAGE]}, "[image left out: this model reads text only]"),
        ({"role": "user", "content": "half \ud83d"}, "half \ufffd"),
        ({"role": "user", "content": "Hi", "tool_calls": [call("f")]}, "Hi"),
        ({"role": "assistant", "content": None, "refusal": "No."}, "No."),
    ],
)
def test_what_agents_keep_is_taken(entry: dict[str, Any], content: str) -> None:
    (message,) = read_messages([entry])
    assert message["content"] == content
    assert bool(media_left_out([entry])) == ("image" in content)


@pytest.mark.parametrize("call_id", [None, 3, "x" * 999])
def test_ids_of_any_kind(call_id: object) -> None:
    (message,) = read_messages([{"role": "tool", "content": "x", "tool_call_id": call_id}])
    assert message["tool_call_id"] == ("" if call_id is None else str(call_id))


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"function_call": {"name": "f", "arguments": '{"a": 1}'}}, {"a": 1}),
        ({"tool_calls": [{"custom": {"name": "f", "input": "a b"}}]}, {"arguments": "a b"}),
        ({"tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, {"arguments": [1]}),
        ({"tool_calls": [{"id": None, "function": {"name": "f"}}]}, {}),
    ],
)
def test_calls_of_other_forms(given: dict[str, Any], arguments: object) -> None:
    (message,) = read_messages([{"role": "assistant", **given}])
    (found,) = message["tool_calls"]
    assert found == call("f", arguments, "")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"role": "robot", "content": "Hi"}, "messages[0] has no known role"),
        ({"content": "Hi"}, "messages[0] has no known role"),
        ({"role": "assistant", "tool_calls": call("f")}, "tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": [call("f")] * 1025}, "tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": ["f"]}, "tool_calls[0] is not a function"),
        ({"role": "assistant", "tool_calls": [call("f", DEEP)]}, "arguments is not a JSON object"),
        ({"role": "assistant", "tool_calls": [call(3)]}, "tool_calls[0] is not a function"),  # type: ignore[arg-type]
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
        ('{"a": "\\ud800"}', {"a": "\ufffd"}), ('{"a": "b\nc"}', {"a": "b\nc"}),
        ("{'a': True}", {"a": True}), ("[1]", {"arguments": "[1]"}),
        ("[" * 999, {"arguments": "[" * 999}), ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": "b" c}', {"arguments": '{"a": "b" c}'}), ("  ", {}), ("{}", {}),
    ],
)  # fmt: skip
def test_broken_arguments_are_not_lost(text: str, arguments: object) -> None:
    (message,) = read_messages([{"role": "assistant", "tool_calls": [call("f", text)]}])
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_of_arguments_becomes_an_empty_object(text: str) -> None:
    found = arguments_of(text)
    assert found or not text.strip() or text.split() in (["{}"], ["{", "}"])
