"""Tools on real llama.cpp: calls told apart, also of control tokens, and forced in any family."""

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.answer import Answer, collect
from localspec.chat.templates.template import ChatTemplate
from localspec.chat.tools.tool import ToolCall
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from tests.support.chat import tool_templates
from tests.support.chat.reciting import reciting, write_reciter
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
    assert plain.finish_reason == "stop"
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


def test_none_tells_no_tools(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "template", ChatTemplate(tool_templates.HERMES))
    untold = engine.encode_chat(TALK)
    prompt = engine.encode_chat(TALK, tools=TOOLS, tool_choice="none")
    assert prompt == untold and prompt.reading.calls is None
    assert engine.encode_chat(TALK, tools=TOOLS) != untold


def test_a_template_without_tools_refuses_them(engine: Engine) -> None:
    with pytest.raises(UsageError, match="no place for tools"):
        engine.encode_chat(TALK, tools=TOOLS)


def test_a_grammar_and_tools_do_not_go_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "template", ChatTemplate(tool_templates.HERMES))
    prompt = engine.encode_chat(TALK, tools=TOOLS)
    with pytest.raises(UsageError, match="keep the model from calling"):
        next(stream_generate(engine, prompt, GenerateOptions(WARM, 0, grammar='root ::= "yes"')))


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
