"""Errors in OpenAI's form, whatever a request holds."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localspec.core.errors import EngineError, PromptTooLong
from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.engine.engine import Engine
from localspec.engine.session.limits import AnswerTimeout, Closing, Limits, QueueFull, QueueTimeout
from localspec.server.errors import describe, error_body
from tests.support.files.tiny_models import with_bad_token
from tests.support.real_pair import TinyFiles, options
from tests.support.served import (
    CHAT,
    COMPLETIONS,
    HELLO,
    PATIENCE,
    ServedToy,
    Site,
    error_of,
    events_of,
    gated_toy,
    serving,
)


def test_each_kind_has_its_status() -> None:
    status, body, headers = describe(QueueFull(3, 7), "id")
    assert status == 429 and headers == {"Retry-After": "7"}
    assert body["error"]["type"] == "rate_limit_error"
    status, body, _ = describe(PromptTooLong("Too long.", "Shorten it."), "id")
    assert status == 400 and body["error"]["message"] == "Too long. Shorten it."
    assert body["error"]["code"] == "context_length_exceeded"
    assert describe(QueueTimeout(5, 7), "id")[::2] == (503, {"Retry-After": "7"})
    for ended in (AnswerTimeout(5), Closing()):
        status, body, headers = describe(ended, "id")
        assert (status, headers) == (503, {}) and body["error"]["type"] == "server_error"


def test_who_waits_too_long_is_told_when_to_ask_again() -> None:
    toy, gate = gated_toy()
    limits = Limits(waiting=2, queue_seconds=0.01)
    with serving(toy, limits=limits) as site, ThreadPoolExecutor() as other:
        first = other.submit(site.ask)
        assert gate.began.acquire(timeout=PATIENCE)
        reply = site.post(CHAT, {"messages": HELLO, "n": 2})
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0
        assert "No slot was free" in error_of(reply)["message"]
        gate.let(10**6)
        assert first.result()


def test_internals_are_told_to_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    status, body, _ = describe(EngineError("decode of /home/somebody failed"), "abc")
    assert status == 500 and "somebody" not in str(body) and "abc" in body["error"]["message"]
    assert "somebody" in caplog.text and "abc" in caplog.text


@pytest.mark.llama
@pytest.mark.parametrize("parallel", [1, 2])
def test_logits_that_are_not_numbers_end_one_request(
    tiny: TinyFiles, tmp_path: Path, parallel: int
) -> None:
    bad = with_bad_token(tiny.target, tmp_path / "bad.gguf", 200)
    given = options(bad, parallel=parallel, ctx_size=512)
    asked = {"prompt": [5] * 70, "max_tokens": 4, "seed": 1, "logit_bias": {"200": -100}}
    with Engine.load(given, trial=False) as engine, serving(engine) as site:
        first = site.ask(COMPLETIONS, **asked)
        for prompt in ([5] * 70 + [200], [5] * 70 + [200, 5]):
            reply = site.post(COMPLETIONS, asked | {"prompt": prompt})
            assert reply.status_code == 500 and "not numbers" in error_of(reply)["message"]
            assert str(tmp_path) not in reply.text
            stream = site.post(COMPLETIONS, asked | {"prompt": prompt, "stream": True}).text
            assert "not numbers" in stream and "[DONE]" not in stream
            for _ in range(parallel):
                assert site.ask(COMPLETIONS, **asked)["choices"] == first["choices"]
        assert site.get("/health").status_code == 200


def test_messages_are_text_of_bounded_length() -> None:
    message = error_body(400, "a\ud800b" + "c" * 9999)["error"]["message"]
    assert message.startswith("a?b") and len(message) < 1100


@pytest.mark.parametrize("path", ["/nothing", "/v1/chat", "/page/nothing.js", "/v1/models/none"])
def test_what_is_not_there(toy_server: Site, path: str) -> None:
    reply = toy_server.get(path)
    assert reply.status_code == 404
    assert error_of(reply)["type"] == "not_found_error"


def test_another_method(toy_server: Site) -> None:
    reply = toy_server.get(CHAT)
    assert reply.status_code == 405 and reply.headers["allow"] == "POST"
    assert "GET" in error_of(reply)["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"text"', b"{]", b"\xff\xfe", b'{"messages": ' + b"9" * 9999,
        b'{"messages": [' + b"[" * 200_000 + b"]" * 200_000 + b"]}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"messages": [], "seed": ' + b"9" * 9999 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_request(toy_server: Site, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    reply = toy_server.client.post(CHAT, content=body, headers=headers)
    assert reply.status_code == 400, reply.text
    assert error_of(reply)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []), ("messages", "hello"), ("messages", [{"role": "user"}, 1]),
        ("messages", [{"role": "nobody", "content": "a"}]),
        ("max_tokens", -2), ("max_tokens", 2**31), ("max_tokens", 1.5), ("max_tokens", "9"),
        ("max_tokens", True), ("n", 0), ("n", 9),
        ("temperature", -0.1), ("temperature", 101), ("temperature", "hot"),
        ("top_p", 1.1), ("top_k", -2), ("min_p", -1), ("presence_penalty", 2.1),
        ("repeat_penalty", 0), ("logit_bias", {"": 1}), ("logit_bias", {"1": 101}),
        ("logit_bias", {str(i): 1 for i in range(2000)}),
        ("stop", ["a"] * 1025), ("stop", "a" * 1001),
        ("draft_tokens", -1), ("draft_tokens", MAX_DRAFT_TOKENS + 1), ("draft_tokens", "on"),
        ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"}),
        ("stream", "yes"), ("stream_options", {"include_usage": 1}),
        ("modalities", ["text", "audio"]), ("top_logprobs", 3), ("model", 5), ("model", "a" * 501),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be(toy_server: Site, field: str, value: object) -> None:
    status, error = toy_server.refused(**{field: value})
    assert status == 400, error
    assert field in (error["param"] or "") and field in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a", 1]}, "stop.1"),
        ({"messages": [HELLO[0], {"role": "user", "content": 1}]}, "messages.1.content"),
        ({"messages": [{"content": "a"}]}, "messages.0"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools.0.function.name"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"logit_bias": {"7": "a"}}, "logit_bias.7"),
    ],
)
def test_the_place_of_a_fault(toy_server: Site, fields: dict[str, object], param: str) -> None:
    status, error = toy_server.refused(**fields)
    assert status == 400 and error["param"] == param and param in error["message"]


def test_whole_numbers_may_be_written_with_a_point(toy_server: Site) -> None:
    assert toy_server.ask(max_tokens=3.0)["usage"]["completion_tokens"] == 3


def test_numbers_that_json_has_not(toy_server: Site) -> None:
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        body = json.dumps({"messages": HELLO}).replace("}]", "}], ", 1)[:-1]
        text = f'{body}"temperature": {number}}}'
        headers = {"content-type": "application/json"}
        reply = toy_server.client.post(CHAT, content=text, headers=headers)
        assert reply.status_code == 400, text
        assert error_of(reply)["param"] == "temperature"


def test_a_prompt_without_room(toy_server: Site) -> None:
    status, error = toy_server.refused(messages=[{"role": "user", "content": "long " * 500}])
    assert status == 400 and error["code"] == "context_length_exceeded"
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == toy_server.service.engine.target.n_ctx
    assert "exceeds the available context size" in error["message"]
    messages = {"messages": [{"role": "user", "content": "long " * 500}], "max_tokens": 5}
    anthropic = toy_server.post("/v1/messages", messages).json()["error"]
    assert anthropic["type"] == "invalid_request_error"
    assert anthropic["message"].startswith("prompt is too long")


def test_another_model(toy_server: Site) -> None:
    for name in ("toy", "other name", None):
        assert toy_server.ask(model=name)["model"] == "toy"
    for path in (CHAT, "/v1/responses", "/v1/messages"):
        body = {"messages": HELLO, "input": "hello", "max_tokens": 2, "model": "gpt-9"}
        reply = toy_server.post(path, body)
        assert reply.status_code == 200 and reply.json()["model"] == "toy"
        assert "There is no model 'gpt-9' here: toy answers." in reply.json()["warnings"]


def test_a_model_may_be_named_as_ollama_spells_it() -> None:
    with serving(ServedToy(), names=("qwen3-14b",)) as site:
        for name, warned in (("qwen3:14b", False), ("qwen3-14b", False), ("qwen3:8b", True)):
            reply = site.post(CHAT, {"messages": HELLO, "max_tokens": 1, "model": name})
            assert ("warnings" in reply.json()) == warned


def test_what_breaks_says_nothing_of_the_inside(toy_server: Site) -> None:
    reply = toy_server.post(COMPLETIONS, {"prompt": "break"})
    assert reply.status_code == 500
    error = error_of(reply)
    assert error["type"] == "server_error" and "secret" not in error["message"]
    assert reply.headers["x-request-id"] in error["message"]
    assert toy_server.ask()  # and the next one is answered


@pytest.fixture
def frail() -> Iterator[tuple[Site, ServedToy]]:
    """A server whose engine breaks at what its piece of "z" is asked for."""
    toy = ServedToy(quirk=None, common=b"z")
    with serving(toy) as site:
        yield site, toy


def test_an_answer_that_breaks_in_the_middle(
    frail: tuple[Site, ServedToy], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, toy = frail
    said = 0

    def piece(token: int) -> bytes:
        nonlocal said
        said += 1
        if said > 3:
            raise RuntimeError("the secret of /home/somebody")
        return bytes([token % 128])

    monkeypatch.setattr(toy, "piece", piece)
    reply = site.post(CHAT, {"messages": HELLO, "stream": True})
    assert reply.status_code == 200
    *events, last = map(json.loads, events_of(reply.text))
    assert len(events) == 1 + 3  # the role, and what was said
    assert last["error"]["type"] == "server_error" and "secret" not in reply.text
    said = 9
    assert site.post(CHAT, {"messages": HELLO}).status_code == 500
    (only,) = events_of(site.post(CHAT, {"messages": HELLO, "stream": True}).text)
    assert json.loads(only)["error"]["type"] == "server_error"


def post(site: Site, body: object, **headers: str) -> tuple[int, bytes]:
    """A request whose body is sent in chunks where it is an iterable of bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    headers = {"content-type": "application/json"} | headers
    try:
        connection.request("POST", CHAT, body, headers)  # type: ignore[arg-type]
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def test_a_body_of_bounded_size() -> None:
    with serving(ServedToy(), max_body=1000) as site:
        fitting = json.dumps({"messages": HELLO}).encode()
        assert post(site, fitting)[0] == 200
        assert post(site, fitting + b" " * (1000 - len(fitting)))[0] == 200
        status, told = post(site, fitting + b" " * 1000)
        assert status == 413 and b"--max-body" in told and json.loads(told)["error"]
        assert post(site, iter([fitting]))[0] == 200  # in chunks
        status, told = post(site, iter([fitting, b" " * 600, b" " * 600]))
        assert status == 413 and json.loads(told)["error"]
        status, told = post(site, b"", **{"content-length": "999999999999"})
        assert status == 413
