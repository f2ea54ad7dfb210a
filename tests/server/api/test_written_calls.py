"""Tool calls stay in the prompt as the model wrote them: only the new turn is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.core.options.load_options import LoadOptions
from localspec.server.guard import Access
from localspec.server.service import Defaults
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.served import CHAT, Site, serving

pytestmark = pytest.mark.llama

# As that of Qwen2.5-Coder, whose model fences its calls all the same.
TEMPLATE = """\
{%- if tools -%}{{- '<|im_start|>system\n' -}}
{%- for tool in tools -%}{{- tool | tojson -}}{%- endfor -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
    {%- else -%}
        {{- '<|im_start|>' + message.role -}}
        {%- if message.content -%}{{- '\n' + message.content -}}{%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- call.function.arguments | tojson + '}\n</tool_call>' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
THINKING = TEMPLATE.replace(
    "{%- if message.content",
    "{%- if message.reasoning_content -%}"
    "{{- '\n<think>\n' + message.reasoning_content + '\n</think>' -}}{%- endif -%}"
    "{%- if message.content",
)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Tells it", "parameters": PARAMETERS}
FENCED = '```json\n{\n  "name": "weather",\n  "arguments": {"city": "Oslo"}\n}\n```'
ODD = 'I look.\n\n<tool_call>{"name":"weather","arguments":{"city":"Os\\u006co"}}</tool_call>\n'
CALL = '<tool_call>{"arguments": {"city": "Rome"}, "name": "weather"}</tool_call>'


@contextmanager
def site(tmp_path: Path, *said: str, template: str = TEMPLATE, **more: Any) -> Iterator[Any]:
    """A server whose model says these answers, and the prompts that it has read."""
    from localspec.engine.engine import Engine

    file = write_reciter(tmp_path / "reciter.gguf", template)
    with (
        reciting(*said, "It is sunny.") as prompts,
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults(), **more) as served,
    ):
        yield served, prompts


def chat(served: Site, turns: list[Any], **headers: str) -> tuple[list[Any], int, int]:
    """The messages of the answer and of the result, the tokens read so far, those cached."""
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"messages": turns, "tools": tools}
    reply = served.post(CHAT, body, **headers).json()
    message, usage = reply["choices"][0]["message"], reply["usage"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        for call in message.get("tool_calls", [])
    ]
    return (
        [message, *results],
        usage["total_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def messages(served: Site, turns: list[Any], **headers: str) -> tuple[list[Any], int, int]:
    tool = {"name": "weather", "description": "Tells it", "input_schema": PARAMETERS}
    body = {"messages": turns, "tools": [tool], "max_tokens": 400}
    reply = served.post("/v1/messages", body, **headers).json()
    usage, content = reply["usage"], reply["content"]
    results = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "sunny"}
        for each in content
        if each["type"] == "tool_use"
    ]
    cached = usage["cache_read_input_tokens"]
    total = usage["input_tokens"] + cached + usage["output_tokens"]
    answered = [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    return answered, total, cached


def responses(served: Site, turns: list[Any], **headers: str) -> tuple[list[Any], int, int]:
    body = {"input": turns, "tools": [{"type": "function", **FUNCTION}]}
    reply = served.post("/v1/responses", body, **headers).json()
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"}
        for item in reply["output"]
        if item["type"] == "function_call"
    ]
    usage = reply["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return [*reply["output"], *results], usage["total_tokens"], cached


ASKED = [{"role": "user", "content": "Weather?"}]


@pytest.mark.parametrize("api", [chat, messages, responses])
@pytest.mark.parametrize(
    "said", [FENCED, ODD, f"{CALL}\n\n{CALL}", f"<think>\nHm.\n</think>\n{CALL}"]
)
def test_only_the_new_turn_is_read(tmp_path: Path, api: Any, said: str) -> None:
    template = THINKING if "<think>" in said else TEMPLATE
    with site(tmp_path, said, said, template=template) as (served, prompts):
        turns: list[Any] = list(ASKED)
        total = 0
        for _ in range(3):
            answered, now, cached = api(served, turns)
            assert cached >= total - 1  # all but the token that ended the answer
            turns, total = turns + answered, now
        assert prompts[-1].count(said) == 2


def test_calls_that_the_client_changed_are_the_client_s(tmp_path: Path) -> None:
    with site(tmp_path, FENCED) as (served, prompts):
        (message, result), _, _ = chat(served, ASKED)
        (call,) = message["tool_calls"]
        other = {**call, "function": {**call["function"], "arguments": '{"city": "Rome"}'}}
        for changed in (
            {**message, "tool_calls": [other]},
            {**message, "content": "Something else"},
            {**message, "tool_calls": [{**call, "id": "other"}]},
        ):
            chat(served, [*ASKED, changed, result])
            assert "```" not in prompts[-1] and '"arguments": {"city":' in prompts[-1]
        chat(served, [*ASKED, message, result])
        assert FENCED in prompts[-1]


def test_another_client_s_text_is_not_found(tmp_path: Path) -> None:
    access = Access(keys=("a", "b"))
    with site(tmp_path, FENCED, access=access) as (served, prompts):
        answered, _, _ = chat(served, ASKED, **{"x-api-key": "a"})
        chat(served, [*ASKED, *answered], **{"x-api-key": "b"})
        assert "```" not in prompts[-1]
        chat(served, [*ASKED, *answered], **{"x-api-key": "a"})
        assert FENCED in prompts[-1]
        body = {"messages": [*ASKED, *answered]}
        counts = [
            served.post(f"{CHAT}/input_tokens", body, **{"x-api-key": key}).json()["input_tokens"]
            for key in "ab"
        ]
        assert counts[0] != counts[1]


def test_a_template_that_takes_no_text_in_place_of_calls_writes_them(tmp_path: Path) -> None:
    refusing = TEMPLATE.replace(
        "{%- if message.role == 'tool' -%}",
        "{%- if message.role == 'tool' -%}"
        "{%- if not messages[loop.index0 - 1].tool_calls -%}{{ raise_exception('No call') }}"
        "{%- endif -%}",
    )
    with site(tmp_path, FENCED, template=refusing) as (served, prompts):
        answered, _, _ = chat(served, ASKED)
        chat(served, [*ASKED, *answered])
        assert "```" not in prompts[-1] and "<tool_call>" in prompts[-1]
