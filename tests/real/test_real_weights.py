"""A matched pair of real weights: pairing, equal texts, tool calls, infill, JSON schemas."""

import json
from pathlib import Path

import pytest

from localspec.bench.plan import BenchPlan, Variant
from localspec.chat.answer import Answer
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.text_stream import Prompt
from tests.support.command import Command
from tests.support.llama.audit import shortfalls
from tests.support.llama.rounding import rounding
from tests.support.served import Site

pytestmark = [pytest.mark.llama, pytest.mark.real]
LENGTHS: tuple[DraftTokens, ...] = (0, 3, "auto")
PLAN = BenchPlan(SamplingParams(temperature=0), (0, "auto"), 1, max_tokens=32)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, today.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def answers(engine: Engine, prompt: Prompt) -> list[Answer]:
    """One for each of the lengths."""
    return [Variant(str(length), engine, PLAN, length).answer(prompt) for length in LENGTHS]


def test_the_pair_is_accepted(localspec: Command, real_files: tuple[Path, Path]) -> None:
    done = localspec("check", *real_files)
    assert done.code == 0, done.err


def test_answers_are_sensible(real_engine: Engine) -> None:
    prompt = real_engine.encode_chat(asked("What is the capital of France? Answer in one word."))
    for answer in answers(real_engine, prompt):
        assert answer.text.strip(" .") == "Paris"
        assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    "question",
    [
        "Write a Python function that merges two sorted lists into one sorted list.",
        "Why is the sky blue, in simple words?",
    ],
)
def test_texts_differ_by_no_more_than_rounding(real_engine: Engine, question: str) -> None:
    prompt = real_engine.encode_chat(asked(question))
    plain, fixed, auto = answers(real_engine, prompt)
    assert fixed.stats.drafted
    for answer in (fixed, auto):
        if answer.tokens != plain.tokens:
            short = max(shortfalls(real_engine, prompt, PLAN.params, answer.tokens))
            assert short <= 2 * rounding(real_engine, prompt, answer.tokens)


def test_a_tool_is_called(real_site: Site) -> None:
    messages = asked("What is the weather in Oslo?")
    body = {"tools": [WEATHER], "tool_choice": "required", "temperature": 0, "max_tokens": 48}
    reply = real_site.ask(messages=messages, **body)
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_a_gap_in_code_is_filled(real_site: Site) -> None:
    body = {
        "input_prefix": "def add(a, b):\n    return ",
        "input_suffix": "\n\nprint(add(1, 2))\n",
        "n_predict": 8,
        "temperature": 0,
    }
    reply = real_site.post("/infill", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["content"].startswith("a + b")


def test_an_answer_obeys_a_schema(real_site: Site) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    reply = real_site.ask(
        messages=asked("Extract the person: Anna Weber, 34, is a baker."),
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": schema}},
        temperature=0,
        max_tokens=48,
    )
    found = json.loads(reply["choices"][0]["message"]["content"])
    assert found == {"name": "Anna Weber", "age": 34}
