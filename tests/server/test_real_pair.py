"""A real pair behind the server: its texts are those of `localspec run`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.core.generate_options import GenerateOptions
from tests.support.command import Command
from tests.support.served import CHAT, COMPLETIONS, Site, serving, text_of
from tests.support.tool_templates import HERMES

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


def test_the_second_choice_has_the_next_seed(server: Site) -> None:
    asked = {"messages": MESSAGES, **SETTINGS}
    both = [c["message"] for c in server.ask(CHAT, n=2, **asked)["choices"]]
    alone = server.ask(CHAT, **asked | {"seed": 12})["choices"][0]["message"]
    assert both[1] == alone != both[0]


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


def test_what_a_schema_cannot_enforce_is_told_or_refused(server: Site) -> None:
    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True}
    named = {"name": "a", "schema": schema}
    form = {"type": "json_schema", "json_schema": named}
    reply = server.ask(CHAT, messages=MESSAGES, response_format=form)
    assert re.match("Not enforced: .*uniqueItems", reply["warnings"][0])
    events = server.stream(CHAT, messages=MESSAGES, response_format=form)
    assert events[-1]["warnings"] == reply["warnings"]
    strict = form | {"json_schema": named | {"strict": True}}
    status, error = server.refused(CHAT, messages=MESSAGES, response_format=strict)
    assert status == 400 and "uniqueItems" in error["message"]


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


def test_a_bias_bans_a_token(server: Site) -> None:
    asked = {"messages": MESSAGES, "temperature": 0, "max_tokens": 1, "logprobs": True}
    first = server.ask(CHAT, top_logprobs=2, **asked)["choices"][0]["logprobs"]["content"][0]
    assert [each["token"] for each in first["top_logprobs"]][0] == first["token"]
    assert bytes(first["bytes"]).decode() == first["token"]
    engine: Any = server.service.engine
    banned = engine.target.tokenize(first["token"], add_special=False, parse_special=False)
    bias = {str(token): -100 for token in banned}
    other = server.ask(CHAT, logit_bias=bias, **asked)["choices"][0]["message"]["content"]
    assert other != first["token"]


def test_a_template_is_told_and_what_it_ignores_is_said(server: Site) -> None:
    reply = server.ask(
        CHAT, messages=MESSAGES, enable_thinking=True, chat_template_kwargs={"mood": "good"}
    )
    assert any("mood" in warning for warning in reply["warnings"])
    assert any("no switch for thinking" in warning for warning in reply["warnings"])
    status, error = server.refused(CHAT, messages=MESSAGES, chat_template_kwargs={"messages": []})
    assert status == 400 and "messages" in error["message"]


def test_tools_that_the_template_has_no_place_for_are_refused(server: Site) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    status, error = server.refused(CHAT, messages=MESSAGES, tools=[tool])
    assert status == 400 and "tool" in error["message"]


@pytest.fixture(scope="module")
def calling(demo_files: tuple[Path, Path]) -> Iterator[Site]:
    """A server whose template tells the model of tools."""
    from dataclasses import replace

    from localspec.core.config import LoadOptions
    from localspec.engine.engine import Engine
    from localspec.server.service import Defaults

    target, draft = (LoadOptions(path, threads=1) for path in demo_files)
    with Engine.load(target, draft) as engine:
        engine.template = replace(engine.template, source=HERMES)
        with serving(engine, defaults=Defaults(GenerateOptions(max_tokens=200))) as site:
            yield site


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["here", "there"]}},
            "required": ["where"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
def test_a_call_that_is_forced(calling: Site, choice: object) -> None:
    asked = {"tools": [LOOK], "tool_choice": choice, "seed": 3}
    (told,) = calling.ask(CHAT, **asked)["choices"]
    assert told["finish_reason"] == "tool_calls" and told["message"]["content"] is None
    (call,) = told["message"]["tool_calls"]
    assert call["type"] == "function" and call["function"]["name"] == "look" and call["id"]
    assert json.loads(call["function"]["arguments"])["where"] in ("here", "there")
    events = calling.stream(CHAT, draft_tokens=3, **asked)
    deltas = [c["delta"] for e in events for c in e["choices"] if "tool_calls" in c["delta"]]
    (streamed,) = deltas[0]["tool_calls"]
    assert streamed["function"] == call["function"] and streamed["index"] == 0
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    answered = [
        {"role": "user", "content": "look"},
        told["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "a tree"},
    ]
    assert calling.ask(CHAT, messages=answered, tools=[LOOK], max_tokens=3)


def test_tools_beside_a_grammar_are_refused(calling: Site) -> None:
    status, error = calling.refused(CHAT, tools=[LOOK], grammar='root ::= "a"')
    assert status == 400 and "tool_choice" in error["message"]
    status, error = calling.refused(CHAT, tools=[LOOK], tool_choice={
        "type": "function", "function": {"name": "other"},
    })  # fmt: skip
    assert status == 400 and "other" in error["message"]
    status, error = calling.refused(CHAT, tool_choice="required")
    assert status == 400 and "no tools" in error["message"]
