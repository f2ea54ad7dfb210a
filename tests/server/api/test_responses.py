"""OpenAI's Responses API, with the openai package as its client."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.server.api.messages import UserMessage
from localspec.server.api.replies import WARNINGS_HEADER
from localspec.server.api.responses.stored import StoredResponses
from localspec.server.errors import BadRequest
from localspec.server.guard import Access
from localspec.server.service import Defaults
from tests.server.clients.test_openai import Place, async_client, client
from tests.support.chat.reciting import reciting, write_reciter
from tests.support.chat.tool_templates import HERMES
from tests.support.served import ServedToy, Site, serving

QUESTION = "What is a lock?"
ASKED: dict[str, Any] = {"model": "target", "input": QUESTION, "max_output_tokens": 24}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
# As Codex sends the tools of an MCP server, among those that only OpenAI runs.
TOWN: Any = {"type": "namespace", "name": "mcp__town__", "tools": [WEATHER, {"type": "custom"}]}
CALL = '{"name": "mcp__town__weather", "arguments": {"city": "Rome"}}'
SAID = f"<think>hm, Rome</think>Let me see.\n<tool_call>\n{CALL}\n</tool_call>"
THINKING = HERMES.replace(
    "+ message.content",
    "+ ('<think>' + message.reasoning_content + '</think>' if message.reasoning_content else '')"
    " + message.content",
)
SEED: Any = {"extra_body": {"seed": 1}}


@pytest.fixture
def toy(toy_server: Site) -> Iterator[OpenAI]:
    with client(toy_server) as made:
        yield made


@pytest.fixture
def real(server: Site) -> Iterator[OpenAI]:
    with client(server) as made:
        yield made


@pytest.mark.llama
def test_answers_are_those_of_a_chat(server: Site, real: OpenAI) -> None:
    chat = server.ask(messages=[{"role": "user", "content": QUESTION}], seed=1, max_tokens=24)
    expected = chat["choices"][0]["message"]["content"]
    whole = real.responses.create(**ASKED, **SEED)
    assert whole.output_text == expected and whole.status == "completed"
    with real.responses.stream(**ASKED, **SEED) as stream:
        said = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(said) == final.output_text == expected and len(said) > 1
    assert final.usage is not None and whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens == chat["usage"]["total_tokens"]
    assert final.usage.input_tokens_details.cached_tokens > 0

    async def ask(asking: AsyncOpenAI) -> list[str]:
        async with asking:
            one = await asking.responses.create(**ASKED, **SEED)
            async with asking.responses.stream(**ASKED, **SEED) as stream:
                return [one.output_text, (await stream.get_final_response()).output_text]

    assert asyncio.run(ask(async_client(server))) == [expected, expected]


@pytest.mark.llama
def test_answers_in_json(real: OpenAI) -> None:
    asked = ASKED | {"max_output_tokens": 200}
    parsed = real.responses.parse(**asked, text_format=Place, **SEED)
    assert isinstance(parsed.output_parsed, Place)


def test_events_come_in_order(toy: OpenAI) -> None:
    events = list(toy.responses.create(model="toy", input="hello", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for kind, after in pairwise([*kinds, ""]) if kind != after] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    last: Any = events[-1]
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output == [events[-2].item]  # type: ignore[union-attr]
    assert last.response.usage.output_tokens == 8


@pytest.mark.llama
def test_thoughts_have_a_budget_in_every_api(tmp_path: Path) -> None:
    from localspec.engine.engine import Engine

    file = write_reciter(tmp_path / "reciter.gguf", THINKING)
    turn: Any = {"role": "user", "content": "Rome?"}
    asked: Any = {"messages": [turn], "max_tokens": 400}
    enabled = {"type": "enabled", "budget_tokens": 6}
    with (
        reciting(f"<think>hm {'so ' * 30}</think>It is sunny."),
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults()) as site,
    ):

        def thoughts(path: str = "/v1/chat/completions", **fields: Any) -> str:
            document = site.ask(path, **asked | fields)
            assert "budget" not in str(document.get("warnings"))
            if path == "/v1/chat/completions":
                return str(document["choices"][0]["message"]["reasoning_content"])
            if path == "/v1/responses":
                parts = [part for item in document["output"] for part in item["content"]]
                return next(str(p["text"]) for p in parts if p["type"] == "reasoning_text")
            (found,) = (b["thinking"] for b in document["content"] if b["type"] == "thinking")
            return str(found)

        whole = thoughts()
        names = "reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens"
        named: list[dict[str, Any]] = [{name: 6} for name in names]
        response: Any = {"input": "Rome?", "prompt": None, "messages": None}
        cut = [
            *(thoughts(**fields) for fields in named),
            thoughts("/v1/messages", thinking=enabled),
            thoughts("/v1/responses", **response, reasoning_budget=6),
        ]
        told = thoughts(reasoning_budget=6, reasoning_budget_message=" Stop.")
        free = thoughts(reasoning_budget=-1)
    assert free == whole and len(whole) > 80
    assert len({*cut}) == 1 and whole.startswith(cut[0]) and 0 < len(cut[0]) < 30
    assert told == f"{cut[0]} Stop."


@pytest.mark.llama
def test_a_request_replaces_the_budget_of_the_server(tmp_path: Path) -> None:
    from localspec.engine.engine import Engine

    file = write_reciter(tmp_path / "reciter.gguf", THINKING)
    asked: Any = {"messages": [{"role": "user", "content": "Rome?"}], "max_tokens": 400}
    limit = GenerateOptions(reasoning_budget=6, reasoning_budget_message=" Stop.")
    with (
        reciting(f"<think>hm {'so ' * 30}</think>It is sunny."),
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults(limit)) as site,
    ):

        def thoughts(**fields: Any) -> str:
            (choice,) = site.ask("/v1/chat/completions", **asked, **fields)["choices"]
            return str(choice["message"]["reasoning_content"])

        own, bare, free = (
            thoughts(),
            thoughts(reasoning_budget_message=""),
            thoughts(reasoning_budget=-1),
        )
    assert own == f"{bare} Stop." and len(free) > 80 > len(own)


def test_a_budget_that_changes_nothing_is_reported(toy_server: Site) -> None:
    said = "The reasoning budget was ignored: this prompt has no marks of thoughts."
    hello: Any = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    enabled = {"type": "enabled", "budget_tokens": 6}
    chat = toy_server.ask("/v1/chat/completions", **hello, reasoning_budget=6)
    messages = toy_server.ask("/v1/messages", **hello, thinking=enabled)
    raw = toy_server.ask("/v1/completions", prompt="Hello", max_tokens=4, reasoning_budget=0)
    assert chat["warnings"] == raw["warnings"] == [said]
    assert said in messages["warnings"] and "thinking_budget" not in str(messages["warnings"])
    free = toy_server.ask("/v1/chat/completions", **hello, reasoning_budget=-1)
    assert "warnings" not in free


@pytest.mark.llama
@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_calls_and_their_results(tmp_path: Path, stream: bool) -> None:
    """The next prompt is the same, whether the server stored the conversation or the client."""
    from localspec.engine.engine import Engine

    file = write_reciter(tmp_path / "reciter.gguf", THINKING)
    include = ["reasoning.encrypted_content"]
    asked: Any = {"model": "toy", "tools": [TOWN, {"type": "web_search"}], "include": include}
    with (
        reciting(SAID, "It is sunny.") as prompts,
        Engine.load(LoadOptions(file, threads=1)) as engine,
        serving(engine, defaults=Defaults()) as site,
        client(site) as asking,
    ):
        if stream:
            with asking.responses.stream(input="Rome?", **asked) as events:
                kinds = {event.type for event in events}
                first: Any = events.get_final_response()
            assert "response.reasoning_text.delta" in kinds
            assert "response.function_call_arguments.done" in kinds
        else:
            first = asking.responses.create(input="Rome?", **asked)
        thoughts, message, call = first.output
        assert thoughts.content[0].text == "hm, Rome"
        assert first.usage.output_tokens_details.reasoning_tokens > 0
        assert message.content[0].text.strip() == "Let me see."
        assert (call.namespace, call.name) == ("mcp__town__", "weather")
        assert json.loads(call.arguments) == {"city": "Rome"}
        assert [warning.split()[3] for warning in first.warnings] == ["custom", "web_search"]
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = asking.responses.create(input=[result], previous_response_id=first.id, **asked)
        assert second.output_text == "It is sunny."
        items = [item.to_dict() for item in first.output]
        question: Any = {"role": "user", "content": [{"type": "input_text", "text": "Rome?"}]}
        asking.responses.create(input=[question, *items, result], **asked)
        del items[0]["content"]  # as Codex does
        asking.responses.create(input=[question, *items, result], **asked)
    assert prompts[1] == prompts[2] == prompts[3]
    assert SAID in prompts[1] and "sunny" in prompts[1]


def heard(site: Site, **fields: Any) -> Any:
    """The messages that the engine got."""
    toy: Any = site.service.engine
    with client(site) as asking:
        asking.responses.create(model="toy", input="hello", extra_body=fields)
    return toy.asked[-1]


def test_a_conversation_goes_on_until_it_is_forgotten(toy_server: Site, toy: OpenAI) -> None:
    ask = toy.responses.create
    first = ask(model="toy", input="one", instructions="Be brief.")
    assert toy.responses.retrieve(first.id).output == first.output
    messages = heard(toy_server, input="two", previous_response_id=first.id)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == first.output_text
    toy.responses.delete(first.id)
    unstored = ask(model="toy", input="one", store=False)
    for gone in (first, unstored):
        with pytest.raises(openai.NotFoundError, match="not stored here"):
            toy.responses.retrieve(gone.id)
        with pytest.raises(openai.NotFoundError, match="Send the whole conversation") as refused:
            ask(model="toy", input="two", previous_response_id=gone.id)
        assert refused.value.code == "previous_response_not_found"


def test_a_response_belongs_to_its_key() -> None:
    with serving(ServedToy(), access=Access(keys=("mine", "yours"))) as site:
        with client(site, key="mine") as asking:
            stored = asking.responses.create(model="toy", input="hello")
            assert asking.responses.retrieve(stored.id).id == stored.id
        with client(site, key="yours") as other, pytest.raises(openai.NotFoundError):
            other.responses.delete(stored.id)


def stored_of(stored: StoredResponses, owner: str, names: str) -> str:
    """Which of these responses are stored."""
    found = ""
    for name in names:
        with suppress(BadRequest):
            found += stored.response(owner, name)["id"]
    return found


def test_the_least_recently_used_go_first() -> None:
    message = UserMessage(role="user", content="x" * 100)
    for bounds in ((4, 10_000), (100, 600)):
        stored = StoredResponses(*bounds)
        for name in "abcd":
            stored.add("", {"id": name}, [message])
        assert stored.response("", "a") == {"id": "a"}
        stored.add("", {"id": "e"}, [message])
        with pytest.raises(BadRequest):
            stored.messages("", "b")
        assert stored.messages("", "a") == stored.messages("", "e") == [message]


@pytest.mark.parametrize("bounds", [(8, 100_000), (100, 1300)])
def test_one_client_pushes_out_its_own_responses_only(bounds: tuple[int, int]) -> None:
    message = UserMessage(role="user", content="x" * 100)
    stored = StoredResponses(*bounds)
    for name in "abc":
        stored.add("one", {"id": name}, [message])
    for i in range(50):
        stored.add("other", {"id": f"{i}"}, [message])
    assert stored_of(stored, "one", "abc") == "abc" and not stored_of(stored, "other", "abc")
    assert stored.response("other", "49") == {"id": "49"}
    stored.remove("one", "a")
    assert stored_of(stored, "one", "abc") == "bc"


def test_what_is_larger_than_its_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredResponses.__init__, "__defaults__", (1000, 8000))
    with serving(ServedToy()) as site:
        kept = site.ask("/v1/responses", input="hello", prompt=None)["id"]
        status, error = site.refused("/v1/responses", input="x" * 3000, prompt=None)
        assert (status, error["param"]) == (400, "store")
        assert "Send store: false." in error["message"]
        _, error = site.refused("/v1/responses", input="x" * 3000, prompt=None, store=False)
        assert error["code"] == "context_length_exceeded"  # of this toy: nothing would be stored
        assert site.get(f"/v1/responses/{kept}").status_code == 200
    stored = StoredResponses(10, 4000)
    stored.add("", {"id": "a", "instructions": "x" * 2000}, [])
    assert not stored_of(stored, "", "a")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"background": True}, "background should be"),
        ({"conversation": "conv_1"}, "conversation: Not supported here"),
        ({"tools": [{"type": "function"}]}, "tools.0.name: Field required"),
        ({"input": []}, "input"),
    ],
)
def test_what_is_not_here_is_refused(toy: OpenAI, fields: Any, said: str) -> None:
    asked: Any = {"model": "toy", "input": "hello", **fields}
    with pytest.raises(openai.BadRequestError) as refused:
        toy.responses.create(**asked)
    assert said in refused.value.message


def test_what_no_reply_can_hold_is_left_out(toy_server: Site) -> None:
    metadata = {"a": "\ud800", "b": float("nan")}
    reply = toy_server.post("/v1/responses", {"input": "hello", "metadata": metadata})
    assert reply.json()["metadata"] == {"a": "?", "b": None}


def test_an_answer_that_breaks_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter(b"zzz")
    engine = ServedToy(quirk=None, common=b"z")
    monkeypatch.setattr(engine, "piece", lambda token: bytes([next(said)]))
    with serving(engine) as site, client(site) as asking:
        *_, last = asking.responses.create(model="toy", input="hello", stream=True)
    assert last.type == "response.failed" and last.response.status == "failed"
    assert last.response.error is not None and last.response.error.code == "server_error"


def test_a_header_of_warnings_that_is_cut_at_a_space_is_sent(toy_server: Site) -> None:
    """Such a header is no valid HTTP: the connection would end without a reply."""
    reply = toy_server.post("/v1/responses", {"input": "one", "include": [" " * 60] * 20})
    assert reply.status_code == 200 and reply.headers[WARNINGS_HEADER].endswith("include:")


def test_images_that_are_left_out_are_not_stored(toy_server: Site) -> None:
    """A conversation of many screenshots goes on, and takes no room."""
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 17 * 2**20}
    content = [{"type": "input_text", "text": "one"}, image]
    before = ""
    for _ in range(2):
        asked = {"input": [{"role": "user", "content": content}], "previous_response_id": before}
        first = toy_server.post("/v1/responses", {k: v for k, v in asked.items() if v})
        assert first.status_code == 200 and "image" in first.headers[WARNINGS_HEADER]
        before = first.json()["id"]
    messages = heard(toy_server, input="two", previous_response_id=before)
    assert str(messages).count("image left out") == 2 and "AAAA" not in str(messages)
