"""The openai package as a client, on a real socket."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from localspec.chat.answer import collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.engine.session.limits import Limits
from localspec.server.guard import Access
from localspec.server.service import Defaults
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.chat.tool_templates import HERMES
from tests.support.served import HELLO, PATIENCE, Gate, ServedToy, Site, gated_toy, serving

QUESTION = "What is a list?"
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 24}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Place(BaseModel):
    """What the model is asked to tell."""

    kind: Literal["town", "village"]
    people: int
    river: bool


def client(site: Site, *, key: str = "none", retries: int = 0) -> OpenAI:
    """A client that asks no proxy."""
    return OpenAI(
        base_url=f"{site.url}/v1",
        api_key=key,
        max_retries=retries,
        timeout=PATIENCE,
        http_client=httpx2.Client(trust_env=False),
    )


def async_client(site: Site) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{site.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=PATIENCE,
        http_client=httpx2.AsyncClient(trust_env=False),
    )


@pytest.fixture
def toy(toy_server: Site) -> Iterator[OpenAI]:
    with client(toy_server) as made:
        yield made


@pytest.fixture
def real(server: Site) -> Iterator[OpenAI]:
    with client(server) as made:
        yield made


@pytest.fixture(scope="module")
def alone(demo_files: tuple[Path, Path]) -> Iterator[Callable[[int], str]]:
    """What the bundled target says to the question by itself, for a seed."""
    from localspec.engine.engine import Engine

    with Engine.load(LoadOptions(demo_files[0], threads=1)) as engine:

        def text(seed: int) -> str:
            params = SamplingParams(seed=seed, temperature=0.9, top_p=0.95)
            prompt = engine.encode_chat([{"role": "user", "content": QUESTION}])
            return collect(
                stream_generate(engine, prompt, GenerateOptions(params, 0, max_tokens=24))
            ).text

        yield text


# -- the bundled pair ----------------------------------------------------------------------------


@pytest.mark.llama
def test_whole_answers(real: OpenAI, alone: Callable[[int], str]) -> None:
    reply = real.chat.completions.create(model="target", messages=MESSAGES, seed=3, n=2, **SAMPLED)
    assert [choice.message.content for choice in reply.choices] == [alone(3), alone(4)]
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


@pytest.mark.llama
@pytest.mark.parametrize("length", [0, 3, "auto", "off"])
def test_streamed_answers(real: OpenAI, alone: Callable[[int], str], length: object) -> None:
    stream = real.chat.completions.create(
        model="target",
        messages=MESSAGES,
        seed=3,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"draft_tokens": length},
        **SAMPLED,
    )
    *chunks, last = stream
    texts, reasons = ["", ""], ["", ""]
    for chunk in chunks:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] += choice.finish_reason or ""
        assert chunk.usage is None
    assert texts == [alone(3), alone(4)] and set(reasons) <= {"stop", "length"}
    assert last.choices == [] and last.usage is not None
    assert last.usage.prompt_tokens > 0 and last.usage.completion_tokens > 24


@pytest.mark.llama
def test_asynchronous_clients_at_the_same_time(server: Site, alone: Callable[[int], str]) -> None:
    async def ask(asking: AsyncOpenAI, seed: int) -> str:
        if seed % 2:
            whole = await asking.chat.completions.create(
                model="target", messages=MESSAGES, seed=seed, **SAMPLED
            )
            return whole.choices[0].message.content or ""
        stream = await asking.chat.completions.create(
            model="target", messages=MESSAGES, seed=seed, stream=True, **SAMPLED
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with async_client(server) as asking:
            return await asyncio.gather(*(ask(asking, seed) for seed in range(8)))

    assert asyncio.run(ask_all()) == [alone(seed) for seed in range(8)]


@pytest.mark.llama
def test_the_stream_helper_puts_an_answer_together(
    real: OpenAI, alone: Callable[[int], str]
) -> None:
    with real.chat.completions.stream(
        model="target", messages=MESSAGES, seed=3, **SAMPLED
    ) as stream:
        said = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(said) == final.choices[0].message.content == alone(3)


@pytest.mark.llama
def test_the_older_api(real: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "target", "temperature": 0, "max_tokens": 9}
    asked["prompt"] = "def add(a, b):"
    reply = real.completions.create(**asked)
    stream = real.completions.create(**asked, stream=True)
    (choice,) = reply.choices
    assert choice.text == "".join([part.choices[0].text for part in stream]) != ""
    several = real.completions.create(**(asked | {"prompt": ["def add(a, b):", "import"]}))
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text.startswith(choice.text[:5])


@pytest.mark.llama
def test_log_probabilities(real: OpenAI) -> None:
    reply = real.chat.completions.create(
        model="target", messages=MESSAGES, temperature=0, max_tokens=6, logprobs=True,
        top_logprobs=3,
    )  # fmt: skip
    (choice,) = reply.choices
    assert choice.logprobs is not None and choice.logprobs.content is not None
    entries = choice.logprobs.content
    data = b"".join(bytes(entry.bytes or ()) for entry in entries)
    assert data.decode() == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy: the likeliest
        assert entry.top_logprobs[0].token == entry.token


@pytest.mark.llama
def test_a_bias_bans_a_token(real: OpenAI, server: Site) -> None:
    def said(**more: Any) -> str:
        reply = real.chat.completions.create(
            model="target", messages=MESSAGES, temperature=0, max_tokens=1, **more
        )
        return reply.choices[0].message.content or ""

    first = said()
    token = server.service.engine.encode_text(first)[-1]
    assert said(logit_bias={str(token): -100}) != first


@pytest.mark.llama
def test_answers_in_json(real: OpenAI) -> None:
    parsed = real.chat.completions.parse(
        model="target", messages=MESSAGES, response_format=Place, seed=1, max_tokens=200
    )
    place = parsed.choices[0].message.parsed
    assert isinstance(place, Place)
    free = real.chat.completions.create(
        model="target", messages=MESSAGES, response_format={"type": "json_object"}, seed=1,
        max_tokens=300,
    )  # fmt: skip
    (choice,) = free.choices
    assert choice.finish_reason == "length" or isinstance(
        json.loads(choice.message.content or ""), dict
    )


# -- tools ---------------------------------------------------------------------------------------


@pytest.mark.llama
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_obeys_its_schema(tool_user: Site, choice: Any, stream: bool) -> None:
    asked: dict[str, Any] = {
        "model": "toy", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice, "seed": 2,
        "max_tokens": 200,
    }  # fmt: skip
    with client(tool_user) as asking:
        if stream:
            with asking.chat.completions.stream(**asked, extra_body={"draft_tokens": 3}) as events:
                whole: Any = events.get_final_completion()
        else:
            whole = asking.chat.completions.create(**asked)
        (made,) = whole.choices
        assert made.finish_reason == "tool_calls" and made.message.content == (
            "" if stream else None
        )
        (call,) = made.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
        # The result goes back with the answer as the client has it.
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        more = [*MESSAGES, made.message, result]
        after = asking.chat.completions.create(
            model="toy", messages=more, tools=[WEATHER], max_tokens=3
        )
        assert after.choices[0].finish_reason in ("length", "stop")


@pytest.mark.llama
def test_choices_of_tools_that_cannot_be_obeyed_are_refused(tool_user: Site) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("other", {"tools": [WEATHER], "tool_choice": other}),
        ("no tools", {"tool_choice": "required"}),
    ]
    for said, fields in cases:
        status, error = tool_user.refused(**fields)
        assert status == 400 and said in error["message"]


@pytest.mark.llama
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_model_chose(tmp_path: Path, stream: bool) -> None:
    from localspec.engine.engine import Engine

    call = '{"name": "weather", "arguments": {"city": "Rome"}}'
    said = f"Let me see.\n<tool_call>\n{call}\n</tool_call>"
    file = write_reciter(tmp_path / "reciter.gguf", HERMES)
    asked: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "tools": [WEATHER]}
    with (
        reciting(said),
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults()) as site,
        client(site) as asking,
    ):
        if stream:
            with asking.chat.completions.stream(**asked) as events:
                whole: Any = events.get_final_completion()
        else:
            whole = asking.chat.completions.create(**asked)
    (made,) = whole.choices
    assert made.finish_reason == "tool_calls"
    assert made.message.content.strip() == "Let me see."
    (found,) = made.message.tool_calls
    assert found.function.name == "weather" and found.id and found.type == "function"
    assert json.loads(found.function.arguments) == {"city": "Rome"}


# -- what goes wrong, over toys ------------------------------------------------------------------


def ask(asking: OpenAI, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "toy", "messages": HELLO, **fields}
    return asking.chat.completions.create(**given)


def test_errors_have_the_client_s_own_types(toy: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        ask(toy, temperature=-1)
    assert bad.value.param == "temperature" and bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        toy.models.retrieve("gpt-9")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        ask(toy, messages=[{"role": "user", "content": "long " * 500}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="makes no embeddings"):
        toy.embeddings.create(model="toy", input="hello")
    with pytest.raises(openai.InternalServerError) as broken:
        toy.completions.create(model="toy", prompt="break")
    assert broken.value.request_id is not None and broken.value.request_id in broken.value.message


def test_models_and_keys() -> None:
    with serving(ServedToy(), access=Access(keys=("right",))) as site:
        with client(site, key="wrong") as asking, pytest.raises(openai.AuthenticationError):
            ask(asking)
        with client(site, key="right") as asking:
            assert [model.id for model in asking.models.list()] == ["toy", "other name"]
            assert asking.models.retrieve("other name").owned_by == "localspec"
            assert ask(asking).choices[0].finish_reason == "length"


@pytest.fixture
def gated() -> Iterator[tuple[Site, Gate]]:
    """A server whose target is let pass by pass, with room for one request that waits."""
    toy, gate = gated_toy()
    with serving(toy, limits=Limits(waiting=1)) as site:
        yield site, gate
        gate.let(10**6)


def test_a_full_queue_is_asked_again_when_it_says(
    gated: tuple[Site, Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, gate = gated
    waits: list[float] = []
    with client(site) as asking, client(site, retries=1) as patient, ThreadPoolExecutor() as pool:
        first = pool.submit(ask, asking, max_tokens=3)
        assert gate.began.acquire(timeout=PATIENCE)
        second = pool.submit(ask, asking, max_tokens=3)
        while not site.service.session.waiting:
            site.get("/health")
        with pytest.raises(openai.RateLimitError) as full:
            ask(asking)
        assert full.value.code == "queue_full"

        def wait(seconds: float) -> None:
            waits.append(seconds)
            gate.let(10**6)
            for asked in (first, second):
                assert asked.result(PATIENCE).usage.completion_tokens == 3

        monkeypatch.setattr("openai._base_client.time.sleep", wait)
        assert ask(patient, max_tokens=2).usage.completion_tokens == 2
    assert waits == [float(full.value.response.headers["retry-after"])]


def test_a_stream_that_is_closed_frees_the_engine(gated: tuple[Site, Gate]) -> None:
    site, gate = gated
    gate.let(3)
    with client(site) as asking:
        with ask(asking, stream=True, max_tokens=10_000) as stream:
            # Tokens that a reader has not taken yet come in one event.
            said = [next(stream).choices[0].delta.content for _ in range(2)]
        assert said[0] == "" and said[1]
        for _ in range(200):  # far fewer passes than the answer may have
            if not site.service.session.running:
                break
            gate.let()
            time.sleep(0.05)
        assert not site.service.session.running, site.lines
        passes = gate.passes
        gate.let(10**6)
        assert ask(asking, max_tokens=3).usage.completion_tokens == 3
    assert gate.passes - passes <= 1 + 4  # the one under way, and those of the second answer
