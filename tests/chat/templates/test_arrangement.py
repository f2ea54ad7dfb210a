"""Arrangement: no conversation of an agent is refused, and each of its texts is written once."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.message import Message, read_messages
from localspec.chat.templates.arrangement import made_up, paired, texts_in
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.chat.tools.tool import Tool, read_tools
from tests.support.chat import strict_templates, templates, tool_templates

# A folder of templates such as llama.cpp's models/templates, which is in the source distribution
# of llama-cpp-python. Nothing of it is copied here.
FOLDER = os.environ.get("LOCALSPEC_TEMPLATES", "")
OURS = {
    "ChatML": CHATML,
    **{f"thinking {i}": source for i, source in enumerate(templates.ALL)},
    **tool_templates.ALL,
    **strict_templates.STRICT,
}
TOOLS = read_tools([{"type": "function", "function": {"name": "made_up_tool"}}])

# Letters as in `made_up`.
SHAPES = (
    "su", "ssu", "suasu", "uasu", "suaus", "us",  # system messages anywhere
    "uu", "suauuu", "aau", "uaau", "sua", "au", "s", "sas",  # one speaker twice, nobody asks
    "sucr", "sucrau", "sucru", "sucrs", "sucsr", "scr", "scra",  # calls and results
    "ur", "ru", "ucrru", "ucu", "uc", "ucau",  # results and calls without the other
    "utr", "utrau", "uhr", "uhrau", "sucrtraucr",  # text, thoughts and calls
)  # fmt: skip


def written(template: ChatTemplate, messages: list[Message], tools: tuple[Tool, ...]) -> list[str]:
    """The texts of a conversation that are not in its prompt just once."""
    prompt, _ = template.begin(messages, tools=tools)
    assert all(tool.name in prompt for tool in tools)
    return [text for text in texts_in(messages) if prompt.count(text) != 1]


@pytest.mark.parametrize("name", OURS)
def test_each_text_is_written_once(name: str) -> None:
    template = ChatTemplate(OURS[name], "<s>", "</s>")
    for tools in ((), TOOLS):
        lost = {shape: written(template, made_up(shape), tools) for shape in SHAPES}
        assert {shape: texts for shape, texts in lost.items() if texts} == {}


@pytest.mark.skipif(not FOLDER, reason="LOCALSPEC_TEMPLATES names no folder of templates")
def test_templates_of_others() -> None:
    files = sorted(Path(FOLDER).glob("*.jinja"))
    assert files
    for file in files:
        template = ChatTemplate(file.read_text("utf-8"), "<s>", "</s>")
        for tools in ((), TOOLS):
            lost = {shape: written(template, made_up(shape), tools) for shape in SHAPES}
            assert (file.name, {s: texts for s, texts in lost.items() if texts}) == (file.name, {})


@given(st.sampled_from([*OURS]), st.text("suacthr", min_size=1, max_size=9))
def test_any_conversation(name: str, shape: str) -> None:
    template = ChatTemplate(OURS[name], "<s>", "</s>")
    assert written(template, made_up(shape), ()) == []


def call(name: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": "{}"}}


def test_results_stand_behind_their_calls() -> None:
    talk = read_messages(
        [
            {"role": "assistant", "tool_calls": [call("f", "c1"), call("g", "c2"), call("h", "")]},
            {"role": "user", "content": "Wait."},
            {"role": "tool", "content": "2", "tool_call_id": "c2"},
            {"role": "tool", "content": "3", "tool_call_id": "c9"},
            {"role": "tool", "content": "1", "tool_call_id": "c1"},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
            {"role": "assistant", "tool_calls": [call("f", "c1")]},
        ]
    )
    turns = paired(talk)
    assert [(each["role"], each["content"], each.get("name", "")) for each in turns] == [
        ("assistant", "", ""),
        ("tool", "1", "f"),
        ("tool", "2", "g"),
        ("tool", "3", "h"),
        ("user", "Wait.", ""),
        ("user", "4", ""),
        ("assistant", "", ""),
        ("tool", "No result.", "f"),
    ]
    assert turns[3]["tool_call_id"] == turns[0]["tool_calls"][2]["id"] != ""
    assert paired(talk, closes_last=False) == turns[:-1]


def test_empty_messages_are_taken() -> None:
    empty = read_messages([{"role": role, "content": ""} for role in ("system", "user")])
    for source in OURS.values():
        template = ChatTemplate(source, "<s>", "</s>")
        for messages in (empty, empty[1:], [*empty, {"role": "assistant", "content": ""}]):
            assert isinstance(template.begin(messages)[0], str)  # type: ignore[arg-type]
