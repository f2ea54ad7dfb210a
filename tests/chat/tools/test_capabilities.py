"""Capabilities: what a template makes of tools is found out by asking it, never guessed."""

from typing import Any

import pytest

from localspec.chat.message import Message, read_messages
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.chat.tools.capabilities import CallsTaken, short_id
from localspec.chat.tools.tool import read_tools
from localspec.core.errors import UsageError
from tests.support.chat import templates, tool_templates

TOOLS = read_tools([{"type": "function", "function": {"name": "f"}}])
QUESTION: Message = {"role": "user", "content": "q"}


def calling(*ids: str, content: str = "", reasoning: str = "") -> dict[str, Any]:
    calls = [
        {"id": each, "type": "function", "function": {"name": f"f{i}", "arguments": '{"a": "b"}'}}
        for i, each in enumerate(ids)
    ]
    told = {"role": "assistant", "content": content, "tool_calls": calls}
    return told | ({"reasoning_content": reasoning} if reasoning else {})


def result(call_id: str, text: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def render(source: str, *messages: dict[str, Any], **told: Any) -> str:
    return ChatTemplate(source).render([QUESTION, *read_messages(messages)], **told)


@pytest.mark.parametrize("family", tool_templates.ALL)
def test_templates_that_take_tools(family: str) -> None:
    template = ChatTemplate(tool_templates.ALL[family])
    assert template.tools.calls_taken == CallsTaken(
        objects="as text" not in family, several=family in tool_templates.SEVERAL
    )
    assert '"name": "f"' in template.render([QUESTION], tools=TOOLS)
    assert '"name": "f"' not in template.render([QUESTION])


@pytest.mark.parametrize("source", [CHATML, *templates.ALL], ids=lambda source: source[:12])
def test_templates_that_take_none_refuse_them(source: str) -> None:
    with pytest.raises(UsageError, match="no place for tools"):
        _ = ChatTemplate(source).tools.form
    for message in (calling("c"), result("c")):
        with pytest.raises(UsageError, match="no place for tool calls"):
            render(source, message)


def test_a_family_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="not known") as caught:
        _ = ChatTemplate("{{ tools | tojson if tools }}{{ messages }}").tools.form
    assert "Hermes" in caught.value.hint


def test_several_calls_where_one_has_a_place() -> None:
    talk = calling("c1", "c2"), result("c2", "second"), result("c1", "first")
    shown = render(tool_templates.LLAMA, *talk)
    parts = ['"f0"', "first", '"f1"', "second"]
    assert sorted(parts, key=shown.index) == parts


def test_thoughts_and_text_before_a_call_of_gpt_oss() -> None:
    answer = calling("c", content="Let me see.", reasoning="They ask.")
    shown = render(tool_templates.HARMONY, answer, result("c"))
    assert "They ask." in shown and "Let me see." not in shown


def test_ids_that_mistral_takes() -> None:
    ids = ["call_0123456789", "abcDEF123", ""]
    for call_id in ids:
        shown = render(tool_templates.MISTRAL_NAMED, calling(call_id), result(call_id))
        assert f"[CALL_ID]{short_id(call_id)}[ARGS]" in shown
        talk = read_messages([calling(call_id), result(call_id)])
        told = ChatTemplate(tool_templates.MISTRAL_NAMED).tools.placed(talk)
        assert told[1]["tool_call_id"] == short_id(call_id)
    assert short_id("abcDEF123") == "abcDEF123"
    assert len({short_id(call_id) for call_id in ids}) == 3


def test_variables_of_one_request_are_told_and_forgotten() -> None:
    template = ChatTemplate("{{ effort }}{{ messages[0].content }}", variables={"effort": "low"})
    assert template.render([QUESTION], variables={"effort": "high"}) == "highq"
    assert template.begin([QUESTION], variables={"effort": "high"})[0] == "highq"
    assert template.render([QUESTION]) == "lowq"
