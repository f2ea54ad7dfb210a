"""The anthropic package as a client, on a real socket."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic, beta_tool
from pydantic import BaseModel

from localspec.core.options.load_options import LoadOptions
from localspec.engine.session.limits import Limits
from localspec.server.guard import Access
from localspec.server.service import Defaults
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.chat.templates import QWEN3, SPOKEN
from tests.support.chat.tool_templates import HERMES
from tests.support.served import HELLO, PATIENCE, ServedToy, Site, gated_toy, serving

MESSAGES: Any = [{"role": "user", "content": "What is a list?"}]
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 3}
WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


class Place(BaseModel):
    """What the model is asked to tell."""

    kind: Literal["town", "village"]
    river: bool


def client(site: Site, key: str = "none") -> Any:
    """A client that asks no proxy; its types are the subject of none of these tests."""
    http = httpx2.Client(trust_env=False)
    return Anthropic(
        base_url=site.url, api_key=key, max_retries=0, timeout=PATIENCE, http_client=http
    )


@pytest.fixture
def toy(toy_server: Site) -> Iterator[Any]:
    with client(toy_server) as made:
        yield made


@pytest.fixture
def real(server: Site) -> Iterator[Any]:
    with client(server) as made:
        yield made


@contextmanager
def telling(path: Path, template: str, *answers: str) -> Iterator[tuple[Any, list[str]]]:
    """A client of a model that says these answers, and its prompts."""
    from localspec.engine.engine import Engine

    file = write_reciter(path / "reciter.gguf", template)
    with (
        reciting(*answers) as prompts,
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults()) as site,
        client(site) as asking,
    ):
        yield asking, prompts


def text_of(message: Any) -> str:
    return "".join([block.text for block in message.content if block.type == "text"])


@pytest.mark.llama
def test_an_answer_is_that_of_openais_path(server: Site, real: Any) -> None:
    system = {"role": "system", "content": "Be brief."}
    theirs = server.ask(messages=[system, *MESSAGES], max_tokens=24, **SAMPLED)
    expected = theirs["choices"][0]["message"]["content"]
    told: dict[str, Any] = {"model": "target", "system": "Be brief.", "messages": MESSAGES}
    asked = told | {"max_tokens": 24, "extra_body": SAMPLED}
    whole = real.messages.create(**asked)
    assert text_of(whole) == expected and whole.stop_reason in ("end_turn", "max_tokens")
    with real.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == expected
        final = stream.get_final_message()
    assert text_of(final) == expected and final.stop_reason == whole.stop_reason
    counted = real.messages.count_tokens(**told).input_tokens
    for usage in (whole.usage, final.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
        assert usage.output_tokens == theirs["usage"]["completion_tokens"]
    assert final.usage.cache_read_input_tokens  # the same prompt again

    async def both() -> list[str]:
        http = httpx2.AsyncClient(trust_env=False)
        async with AsyncAnthropic(base_url=server.url, api_key="x", http_client=http) as asking:
            message = await asking.messages.create(**asked)
            async with asking.messages.stream(**asked) as events:
                return [text_of(message), text_of(await events.get_final_message())]

    assert asyncio.run(both()) == [expected] * 2


@pytest.mark.llama
def test_a_stop_sequence_is_named(real: Any) -> None:
    asked: dict[str, Any] = {"model": "target", "messages": MESSAGES}
    asked["extra_body"] = {"temperature": 0}
    text = text_of(real.messages.create(**asked, max_tokens=24))
    stop = text[4:7]
    message = real.messages.create(**asked, max_tokens=24, stop_sequences=["nothing", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == text[: text.index(stop)]


@pytest.mark.llama
def test_an_answer_is_parsed(real: Any) -> None:
    asked: dict[str, Any] = {"model": "target", "messages": MESSAGES, "max_tokens": 200}
    parsed = real.messages.parse(**asked, output_format=Place)
    assert isinstance(parsed.parsed_output, Place)


@pytest.mark.llama
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_call_obeys_its_schema(tool_user: Site, choice: Any) -> None:
    asked: dict[str, Any] = {"model": "toy", "tools": [WEATHER], "max_tokens": 200}
    with client(tool_user) as asking:
        with asking.messages.stream(**asked, messages=MESSAGES, tool_choice=choice) as stream:
            made = stream.get_final_message()
        whole = asking.messages.create(**asked, messages=MESSAGES, tool_choice=choice)
        for message in (made, whole):
            (block,) = message.content
            assert block.type == "tool_use" and message.stop_reason == "tool_use"
            assert block.name == "weather" and block.input["city"] in ("Oslo", "Rome")


@pytest.mark.llama
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_run_and_its_result_answered(tmp_path: Path, stream: bool) -> None:
    @beta_tool
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: Its name.
        """
        return f"Sunny in {city}."

    with telling(tmp_path, HERMES, f"I look.\n{CALL}", "It is sunny.") as (asking, prompts):
        tools: Any = {"tools": [weather], "messages": MESSAGES}
        runner: Any = asking.beta.messages.tool_runner(
            model="toy", max_tokens=300, stream=stream, **tools
        )
        last = runner.until_done()
    assert text_of(last) == "It is sunny." and last.stop_reason == "end_turn"
    assert f"<|assistant|>I look.\n{CALL}" in prompts[1]
    assert "<|tool|>Sunny in Rome.<|turn_end|><|assistant|>" in prompts[1]


@pytest.mark.llama
def test_thoughts_are_blocks_of_their_own(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"model": "toy", "max_tokens": 300, "messages": MESSAGES}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    with telling(tmp_path, QWEN3, SPOKEN[QWEN3]) as (asking, prompts):
        whole = asking.messages.create(**asked)
        with asking.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        assert [each.type for each in final.content] == [each.type for each in whole.content]
        asking.messages.create(**asked | {"messages": [*MESSAGES, whole.to_param(), *MESSAGES]})
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert text_of(whole) in prompts[-1]
    assert not whole.model_extra  # the limit holds, though this template does not know one


# -- over toys -----------------------------------------------------------------------------------


def ask(asking: Any, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "toy", "max_tokens": 8, "messages": HELLO, **fields}
    return asking.messages.create(**given)


def test_errors_have_the_client_s_own_types(toy: Any) -> None:
    assert "'claude-other'" in ask(toy, model="claude-other").warnings[0]
    with serving(ServedToy(), access=Access(keys=("right",)), max_body=500) as site:
        with client(site, "right") as asking:
            assert ask(asking, extra_body={"odd": 1}).warnings == [
                "Unknown fields were ignored: odd."
            ]
            with pytest.raises(anthropic.RequestTooLargeError):
                ask(asking, system="long " * 500)
        with client(site, "wrong") as asking, pytest.raises(anthropic.AuthenticationError):
            ask(asking)
        reply = site.post("/v1/messages", {"messages": HELLO}, **{"x-api-key": "right"})
        assert reply.status_code == 200
    engine, gate = gated_toy()
    with serving(engine, limits=Limits(waiting=0)) as site, client(site) as asking:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(ask, asking)
            assert gate.began.acquire(timeout=PATIENCE)
            with pytest.raises(anthropic.RateLimitError):
                ask(asking)
            gate.let(10**6)
            assert first.result().stop_reason == "max_tokens"


def test_an_error_in_the_middle_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ServedToy(quirk=None, common=b"z")
    said = iter(b"zzz")
    monkeypatch.setattr(engine, "piece", lambda token: bytes([next(said)]))
    with serving(engine) as site, client(site) as asking:
        stream = ask(asking, stream=True)
        with pytest.raises(anthropic.APIStatusError) as broken:
            list(stream)
        assert broken.value.type == "api_error" and "request_id" in str(broken.value.body)
