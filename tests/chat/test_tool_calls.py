"""Tools on real llama.cpp: calls told apart, also of control tokens, and forced in any family."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.answer import Answer, collect
from localspec.chat.templates.template import ChatTemplate
from localspec.chat.tools.forms import GENERIC
from localspec.chat.tools.tool import ToolCall
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from tests.support.chat import tool_templates
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.chat.templates import DEEPSEEK_R1
from tests.support.real_pair import options

pytestmark = pytest.mark.llama

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
TALK = [{"role": "user", "content": "Weather in Oslo?"}]
NAMED = {"type": "function", "function": {"name": "weather"}}
WARM = SamplingParams(temperature=0.8, seed=3)


def answer(engine: Engine, length: int = 0, **told: Any) -> Answer:
    prompt = engine.encode_chat(TALK, tools=TOOLS, **told)
    return collect(stream_generate(engine, prompt, GenerateOptions(WARM, length, max_tokens=400)))


@pytest.mark.parametrize("family", [each for each in tool_templates.ALL if each != "Gemma 4"])
def test_a_call_is_forced_in_the_familys_own_marks(
    engine: Engine, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "template", ChatTemplate(tool_templates.ALL[family]))
    plain = answer(engine, tool_choice=NAMED)
    (call,) = plain.tool_calls
    arguments = json.loads(call.arguments)
    assert call.name == "weather" and plain.text == plain.reasoning == ""
    assert plain.finish_reason == "tool_calls"
    assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9
    assert arguments.keys() <= WEATHER["properties"].keys()  # type: ignore[attr-defined]
    drafted = answer(engine, 4, tool_choice=NAMED)
    assert (drafted.tool_calls, drafted.tokens) == (plain.tool_calls, plain.tokens)
    assert drafted.stats.drafted > 0
    assert answer(engine, tool_choice="required").tool_calls[0].name in ("weather", "now")


def test_thoughts_that_the_template_opens_are_closed_before_a_forced_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = "<|assistant|>{%- endif -%}"
    source = tool_templates.HERMES.replace(opening, "<|assistant|><think>\n{%- endif -%}")
    monkeypatch.setattr(engine, "template", ChatTemplate(source))
    said = answer(engine, tool_choice=NAMED)
    assert [call.name for call in said.tool_calls] == ["weather"]
    assert said.text == said.reasoning == ""


@pytest.mark.parametrize("length", [0, 4])
def test_a_forced_call_comes_without_the_message_of_a_budget(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    opening = "<|assistant|>{%- endif -%}"
    source = tool_templates.HERMES.replace(opening, "<|assistant|><think>\n{%- endif -%}")
    monkeypatch.setattr(engine, "template", ChatTemplate(source))
    prompt = engine.encode_chat(TALK, tools=TOOLS, tool_choice=NAMED)
    limit: Any = {"reasoning_budget": 0, "reasoning_budget_message": " Enough."}
    said = collect(stream_generate(engine, prompt, GenerateOptions(WARM, length, **limit)))
    assert [call.name for call in said.tool_calls] == ["weather"] and said.reasoning == ""


@pytest.mark.parametrize("length", [0, "auto"])
def test_a_budget_ends_thoughts_within_a_call(tmp_path: Path, length: DraftTokens) -> None:
    """Its grammar, which holds among the thoughts too, begins again in the answer."""
    call = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
    )
    limit = GenerateOptions(WARM, length, max_tokens=400, reasoning_budget=40)
    with (
        reciting(f"I could {call}{' and so on' * 3}. Well: {call}"),
        Engine.load(options(write_reciter(tmp_path / "reciter.gguf", DEEPSEEK_R1))) as engine,
    ):
        prompt = engine.encode_chat(TALK, tools=TOOLS)
        assert prompt.output.calls is GENERIC
        said = collect(stream_generate(engine, prompt, limit))
    assert said.reasoning.startswith("I could <tool_call>") and len(said.reasoning) < 50
    (found,) = said.tool_calls
    assert json.loads(found.arguments) == {"city": "Rome", "days": 2}


def test_none_tells_no_tools(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "template", ChatTemplate(tool_templates.HERMES))
    untold = engine.encode_chat(TALK)
    prompt = engine.encode_chat(TALK, tools=TOOLS, tool_choice="none")
    assert prompt == untold and prompt.output.calls is None
    assert engine.encode_chat(TALK, tools=TOOLS) != untold


def test_a_template_without_tools_is_given_a_description(engine: Engine) -> None:
    prompt = engine.encode_chat(TALK, tools=TOOLS)
    assert prompt.output.calls is GENERIC and prompt.output.grammar is not None
    shown = b"".join(engine.target.piece(token, special=True) for token in prompt).decode()
    assert '"name": "weather"' in shown and "<tool_call>" in shown
    said = answer(engine, tool_choice=NAMED)
    assert [call.name for call in said.tool_calls] == ["weather"]


def test_a_grammar_beside_tools_is_that_of_the_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "template", ChatTemplate(tool_templates.HERMES))
    asked = GenerateOptions(WARM, 0, max_tokens=40, grammar='root ::= "yes" | "no"')
    found = collect(stream_generate(engine, engine.encode_chat(TALK, tools=TOOLS), asked))
    assert found.text in ("yes", "no") or found.text.startswith("<tool_call>") or found.tool_calls
    forced = engine.encode_chat(TALK, tools=TOOLS, tool_choice=NAMED)
    called = collect(stream_generate(engine, forced, replace(asked, max_tokens=400)))
    assert [call.name for call in called.tool_calls] == ["weather"] and not called.text


def test_a_complete_call_in_the_thoughts_is_one_if_nothing_follows(tmp_path: Path) -> None:
    file = write_reciter(tmp_path / "model.gguf", tool_templates.HERMES + "{# </think> #}")
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    cut = call.removesuffix('"}}\n</tool_call>')
    said = [f"<think>Hm.\n{call}", f"<think>{call}</think>\n", f"<think>{call}</think>No.",
            f"<think>{cut}"]  # fmt: skip
    with Engine.load(options(file)) as engine, reciting(*said):
        found = [answer(engine) for _ in said]
    assert [len(each.tool_calls) for each in found] == [1, 1, 0, 0]
    assert found[0].tool_calls == [ToolCall("weather", '{"city": "Oslo"}')]
    assert [each.text for each in found] == ["", "", "No.", ""]


def test_a_fenced_call_that_is_all_of_an_answer(tmp_path: Path) -> None:
    file = write_reciter(tmp_path / "model.gguf", tool_templates.HERMES)
    call = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    said = [f"```json\n{call}\n```", call, f"```json\n{call}\n```\nThat is it."]
    with Engine.load(options(file)) as engine, reciting(*said):
        found = [answer(engine) for _ in said]
    assert [len(each.tool_calls) for each in found] == [1, 1, 0]
    assert [each.text for each in found] == ["", "", said[2]]


@pytest.mark.parametrize(
    "opening",
    [" to=functions.weather<|channel|>commentary json<|message|>",
     "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.weather <|constrain|>json<|message|>",
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.weather"
     "<|channel|>commentary <|constrain|>json<|message|>"],
)  # fmt: skip
def test_calls_of_control_tokens(tmp_path: Path, opening: str) -> None:
    file = write_reciter(tmp_path / "model.gguf", tool_templates.HARMONY)
    said = opening + '{"city": "Oslo", "days": 2}'
    with Engine.load(options(file)) as engine, reciting(f"{said}<|call|>", said, said):
        found = answer(engine)
        assert found.tool_calls == [ToolCall("weather", '{"city": "Oslo", "days": 2}')]
        assert found.reasoning == ("Hm." if "analysis" in said else "")
        assert found.text == ("I look." if "I look." in said else "")
        untold = collect(
            stream_generate(engine, engine.encode_chat(TALK), GenerateOptions(WARM, 0))
        )
        assert untold.tool_calls == [] and "Oslo" in untold.reasoning


def test_a_call_that_is_cut_off_has_the_arguments_so_far(tmp_path: Path) -> None:
    file = write_reciter(tmp_path / "model.gguf", tool_templates.HERMES)
    said = 'So:\n<tool_call>\n{"name": "weather", "arguments": {"city": "Os'
    with Engine.load(options(file)) as engine, reciting(said):
        found = answer(engine)
        assert (found.text, found.tool_calls) == ("So:", [ToolCall("weather", '{"city": "Os')])
