"""A real pair behind the server: its texts are those of `localspec run`."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Command
from tests.support.served import CHAT, COMPLETIONS, Site, text_of

pytestmark = pytest.mark.llama

PROMPT = "Tell me a story about a list of numbers"
MESSAGES = [{"role": "user", "content": PROMPT}]
SETTINGS = {"temperature": 0.9, "seed": 11, "max_tokens": 48}


@pytest.fixture(scope="module")
def ran(demo_files: tuple[Path, Path]) -> str:
    """What `localspec run` says without a draft."""
    from tests.support.command import process

    flags = ["--temp", "0.9", "--seed", "11", "-n", "48", "-t", "1", "--draft", "off", PROMPT]
    done = process("run", "-m", str(demo_files[0]), *flags)
    assert done.returncode == 0
    return done.stdout.removesuffix("\n")


@pytest.mark.parametrize("length", ["off", 1, 4, "auto"])
def test_texts_are_those_of_run_with_any_draft_length(
    server: Site, ran: str, length: object
) -> None:
    asked = {"messages": MESSAGES, "draft_tokens": length, **SETTINGS}
    reply = server.ask(CHAT, **asked)
    assert reply["choices"][0]["message"]["content"] == ran
    assert text_of(server.stream(CHAT, **asked)) == ran
    if length in (1, 4):
        assert reply["timings"]["draft_n_accepted"] > 0


def test_raw_text_is_continued(
    server: Site, localspec: Command, demo_files: tuple[Path, Path]
) -> None:
    flags = ("--temp", "0", "-n", "20", "-t", "1", "--draft", "off", "--raw", "def main(")
    done = localspec("run", "-m", demo_files[0], *flags)
    reply = server.ask(COMPLETIONS, prompt="def main(", temperature=0, max_tokens=20)
    assert reply["choices"][0]["text"] == done.out.removesuffix("\n")


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "size": {"enum": [1, 2]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}

NAMED = {"name": "a", "schema": SCHEMA, "strict": True}


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": None, **NAMED}},
        {"json_schema": SCHEMA},
    ],
)  # fmt: skip
def test_an_answer_obeys_a_schema(server: Site, form: dict[str, Any]) -> None:
    for path, asked in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": PROMPT})):
        reply = server.ask(path, **asked, **form, temperature=0.8, seed=1)
        assert "warnings" not in reply
        (choice,) = reply["choices"]
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        answer = json.loads(text)
        assert answer.keys() == {"name", "size"} and answer["size"] in (1, 2)
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "form",
    [{"type": "json_schema", **NAMED}, {"type": "json_schema", "json_schema": NAMED}],
)
def test_a_response_obeys_a_schema_in_either_form(server: Site, form: dict[str, Any]) -> None:
    for fields in ({"text": {"format": form}}, {"response_format": form}):
        reply = server.post("/v1/responses", {"input": PROMPT, **fields, "seed": 1}).json()
        answer = json.loads(reply["output"][-1]["content"][0]["text"])
        assert answer.keys() == {"name", "size"}
        assert "text" not in fields or reply["text"]["format"]["schema"] == SCHEMA


@pytest.mark.parametrize("begun", ["{", '{"name": "a', '{"name": "abc", "size": 1}'])
def test_the_beginning_of_an_answer_and_the_rest_obey_together(server: Site, begun: str) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": begun}]
    for length in (0, 4):
        asked = {"messages": turns, "json_schema": SCHEMA, "draft_tokens": length, "seed": 1}
        (choice,) = server.ask(CHAT, **asked)["choices"]
        whole = json.loads(begun + choice["message"]["content"])
        assert whole.keys() == {"name", "size"} and whole["size"] in (1, 2)
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"messages": turns, "output_config": config, "max_tokens": 200}
    content = server.post("/v1/messages", body).json()["content"]
    assert json.loads(begun + "".join([each["text"] for each in content])).keys() == whole.keys()
    refused = [*MESSAGES, {"role": "assistant", "content": "So: "}]
    status, error = server.refused(CHAT, messages=refused, json_schema=SCHEMA)
    assert status == 400 and "grammar" in error["message"]


def test_what_a_schema_cannot_enforce_is_told(server: Site) -> None:
    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True}
    named = {"name": "a", "schema": schema}
    form = {"type": "json_schema", "json_schema": named}
    reply = server.ask(CHAT, messages=MESSAGES, response_format=form)
    assert re.match("Not enforced: .*uniqueItems", reply["warnings"][0])
    events = server.stream(CHAT, messages=MESSAGES, response_format=form)
    assert events[-1]["warnings"] == reply["warnings"]
    strict = form | {"json_schema": named | {"strict": True}}
    assert server.ask(CHAT, messages=MESSAGES, response_format=strict)["warnings"]


def test_what_a_forced_call_cannot_enforce_is_told(server: Site) -> None:
    look_ahead = {"type": "string", "pattern": "^(?!x)[a-z]{1,3}$", "maxLength": 3}
    schema = {"type": "object", "properties": {"a": look_ahead}, "required": ["a"]}
    tool = {"name": "my tool", "strict": True, "parameters": schema}
    given = {"messages": MESSAGES, "tools": [{"type": "function", "function": tool}]}
    (warning,) = server.ask(CHAT, **given, tool_choice="required")["warnings"]
    assert warning.startswith("Not enforced in calls of my tool: the pattern '^(?!x)")
    assert "warnings" not in server.ask(CHAT, **given, max_tokens=1)  # nothing is enforced
    asked = {"messages": MESSAGES, "max_tokens": 40, "tool_choice": {"type": "any"}}
    claude = asked | {"tools": [{"name": "my tool", "input_schema": schema}]}
    assert server.post("/v1/messages", claude).json()["warnings"] == [warning]


def test_an_empty_grammar_is_none(server: Site) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 9, "seed": 1}
    plain = server.ask(COMPLETIONS, **asked)["choices"]
    for fields in ({"grammar": ""}, {"regex": ""}, {"grammar": " \n", "regex": None}):
        for path in (COMPLETIONS, "/completion"):
            reply = server.ask(path, **asked, **fields)
            assert path != COMPLETIONS or reply["choices"] == plain
    (choice,) = server.ask(COMPLETIONS, prompt=PROMPT, grammar="", regex="yes")["choices"]
    assert choice["text"] == "yes"


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= nothing"},
        {"grammar": 'root ::= "a'},
        {"json_schema": {"type": "nonsense"}},
        {"json_schema": {"$ref": "#/nowhere"}},
        {"json_schema": {"\ud800": "\ud800", "type": ["\udfff"]}},
        {"grammar": 'root ::= "a"', "json_schema": {}},
        {"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        {"logit_bias": {"999999999": 1}},
    ],
)
def test_what_no_answer_can_obey(server: Site, fields: dict[str, Any]) -> None:
    status, error = server.refused(CHAT, messages=MESSAGES, **fields)
    assert status == 400 and error["type"] == "invalid_request_error", error


def test_a_grammar_is_obeyed_with_a_draft(server: Site) -> None:
    asked = {"messages": MESSAGES, "grammar": "root ::= [a-c]{9}", "seed": 1}
    texts = {
        server.ask(CHAT, draft_tokens=length, **asked)["choices"][0]["message"]["content"]
        for length in ("off", 4)
    }
    assert len(texts) == 1 and re.fullmatch("[a-c]{9}", texts.pop())


def test_a_template_is_told_and_what_it_ignores_is_said(server: Site) -> None:
    reply = server.ask(
        CHAT, messages=MESSAGES, enable_thinking=True, chat_template_kwargs={"mood": "good"}
    )
    assert any("mood" in warning for warning in reply["warnings"])
    assert any("no switch for thinking" in warning for warning in reply["warnings"])
    status, error = server.refused(CHAT, messages=MESSAGES, chat_template_kwargs={"messages": []})
    assert status == 400 and "messages" in error["message"]


def test_a_template_that_exceeds_a_limit_ends_one_request(
    server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.service.engine
    with monkeypatch.context() as patched:
        hostile = replace(engine.template, source="{{ 'a' | center(5 * 10**9) }}")
        patched.setattr(engine, "template", hostile)
        status, error = server.refused(CHAT, messages=MESSAGES)
        expected = "The chat template of target.gguf needed more than 1.1 GB of memory."
        assert status == 400 and error["message"].startswith(expected)
    assert server.ask(CHAT, messages=MESSAGES, max_tokens=1)["choices"]


@pytest.mark.parametrize("name", ["my tool", "天气", "fetch(url)", 'say "hi"', "🙂"])
def test_a_tool_of_any_name_is_called_by_it(server: Site, name: str) -> None:
    pattern = {"type": "string", "pattern": r"^(?!x)\p{L}+$", "maxLength": 3}  # of no grammar
    odd = {"type": "object", "properties": {"a": pattern}, "required": ["a"]}
    tools = [
        {"type": "function", "function": {"name": each, "parameters": schema}}
        for each, schema in ((name, odd), ("other", {"type": "object"}), ("other", odd))
    ]
    choice = {"type": "function", "function": {"name": name}}
    reply = server.ask(messages=MESSAGES, tools=tools, tool_choice=choice, max_tokens=200)
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == name
    result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
    turn = [*MESSAGES, reply["choices"][0]["message"], result]
    assert server.ask(messages=turn, tools=tools, max_tokens=2)["choices"]


def test_tools_that_the_template_has_no_place_for_are_described(server: Site) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    without = server.ask(messages=MESSAGES, max_tokens=1)["usage"]["prompt_tokens"]
    told = server.ask(messages=MESSAGES, tools=[tool], max_tokens=1)["usage"]["prompt_tokens"]
    assert told > without + 10
