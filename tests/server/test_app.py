"""The server's paths, and clients that go away."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from localspec import __version__
from localspec.chat.stats import GenerationStats
from localspec.engine.session.job import Job
from localspec.engine.session.limits import Limits
from localspec.server import log
from localspec.server.api import replies
from localspec.server.log import figures
from localspec.server.metrics import RequestMetrics
from localspec.speculative.loop import DraftStatus
from tests.support.served import (
    CHAT,
    COMPLETIONS,
    HELLO,
    PATIENCE,
    Gate,
    ServedToy,
    Site,
    error_of,
    gated_toy,
    serving,
)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Gate, threading.Event]]:
    """A server that answers one at a time, pass by pass; the event tells of a cancelled job."""
    cancelled = threading.Event()
    cancel = Job.cancel

    def told(job: Job, reason: Exception | None = None) -> None:
        cancel(job, reason)  # type: ignore[arg-type]
        cancelled.set()

    monkeypatch.setattr(Job, "cancel", told)
    toy, gate = gated_toy()
    with serving(toy, limits=Limits(waiting=1)) as site:
        yield site, gate, cancelled
        gate.let(10**6)


def asking(site: Site, **fields: object) -> socket.socket:
    """A connection over which an endless answer was asked for."""
    body = json.dumps({"messages": HELLO, "max_tokens": -1, **fields}).encode()
    connection = socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("passes", [0, 3])
def test_a_client_that_goes_away_frees_the_engine(
    gated: tuple[Site, Gate, threading.Event], stream: bool, passes: int
) -> None:
    site, gate, cancelled = gated
    with asking(site, stream=stream) as connection:
        gate.let(passes)
        for _ in range(passes + 1):
            assert gate.began.acquire(timeout=PATIENCE)
        if stream and passes:
            assert connection.recv(12) == b"HTTP/1.1 200"
        assert not cancelled.is_set()
    assert cancelled.wait(PATIENCE)
    before = gate.passes
    gate.let(10**6)
    assert site.ask(max_tokens=3)["usage"]["completion_tokens"] == 3
    assert gate.passes - before <= 1 + 4  # the one under way, and those of the second answer
    assert site.line_with(", the client left", "")


def test_a_client_that_goes_away_leaves_the_queue(
    gated: tuple[Site, Gate, threading.Event],
) -> None:
    site, gate, cancelled = gated
    with asking(site):
        assert gate.began.acquire(timeout=PATIENCE)
        with asking(site, stream=True):
            while site.service.session.waiting == 0:
                site.get("/health")
            refused = site.post(CHAT, {"messages": HELLO})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert error_of(refused)["type"] == "rate_limit_error"
        assert cancelled.wait(PATIENCE)
        assert site.service.session.waiting == 0


def test_what_cannot_be_answered_waits_for_nothing(
    gated: tuple[Site, Gate, threading.Event],
) -> None:
    site, gate, _ = gated
    with asking(site):
        assert gate.began.acquire(timeout=PATIENCE)
        assert site.refused(logit_bias={"99999": 1})[0] == 400
        assert site.refused(messages=[{"role": "user", "content": "long " * 30_000}])[0] == 400
        assert site.service.session.running == 1  # the first, still at its first pass


def test_several_choices_are_queued_together_or_not_at_all(
    gated: tuple[Site, Gate, threading.Event],
) -> None:
    site, gate, _ = gated
    status, error = site.refused(n=5)
    assert status == 400 and "5 answers" in error["message"]
    gate.let(10**6)
    assert len(site.ask(n=2)["choices"]) == 2


def test_health(toy_server: Site) -> None:
    for path in ("/health", "/v1/health"):
        assert toy_server.get(path).json() == {"status": "ok"}
    assert not any("/health" in line for line in toy_server.lines)


def test_models(toy_server: Site) -> None:
    listed = toy_server.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["toy", "other name"]
    assert listed["data"][0]["meta"] == {"n_ctx": 512, "n_vocab": 129}
    assert toy_server.get("/v1/models/other name").json() == listed["data"][1]


def test_props_tell_what_holds_where_a_request_is_silent(toy_server: Site) -> None:
    props = toy_server.get("/props").json()
    assert props["model_alias"] == "toy" and props["n_ctx"] == 512 and props["has_draft"]
    defaults = props["default_generation_settings"]
    assert defaults["params"]["temperature"] == 0 and defaults["params"]["seed"] is None
    assert defaults["max_tokens"] == 8 and defaults["draft_tokens"] == "auto"


def test_embeddings_are_refused_with_a_sentence(toy_server: Site) -> None:
    reply = toy_server.post("/v1/embeddings", {"input": "a", "model": "b"})
    assert reply.status_code == 404 and "embeddings" in error_of(reply)["message"]


def test_metrics_count_what_was_answered() -> None:
    with serving(ServedToy()) as site:
        told = [site.ask(max_tokens=20, draft_tokens=4)["timings"] for _ in range(2)]
        site.refused(n=0)
        site.post("/tokenize", {"content": "a"})
        site.post("/slots/7?action=erase", {})
        site.get("/nothing")
        text = site.get("/metrics").text
        metrics = dict(re.findall(r"^localspec_(\S+) (\S+)$", text, re.MULTILINE))
        theirs = dict(re.findall(r"^llamacpp:(\S+) (\S+)$", text, re.MULTILINE))
        vllm = dict(re.findall(r"^vllm:spec_decode_num_(\S+) (\S+)$", text, re.MULTILINE))
    for name, key in (
        ("tokens_predicted_total", "predicted_n"),
        ("prompt_tokens_total", "prompt_n"),
        ("prompt_tokens_cached_total", "cache_n"),
        ("spec_decode_num_draft_tokens_total", "draft_n"),
        ("spec_decode_num_accepted_tokens_total", "draft_n_accepted"),
        ('accepted_tokens_total{source="draft"}', "draft_n_accepted"),
    ):
        assert float(metrics[name]) == sum(each[key] for each in told) > 0
        assert theirs.get(name, metrics[name]) == metrics[name]
    assert theirs["n_decode_total"] == metrics["rounds_total"]
    assert 0 < float(theirs["spec_decode_num_drafts_total"]) <= float(theirs["n_decode_total"])
    assert {
        f"spec_decode_num_{name}": value for name, value in vllm.items()
    }.items() <= metrics.items()
    by_position = [
        float(vllm[f'accepted_tokens_per_pos_total{{position="{i}"}}']) for i in range(4)
    ]
    assert sum(by_position) == float(vllm["accepted_tokens_total"])
    assert by_position == sorted(by_position, reverse=True) and len(vllm) == 3 + 4
    longest = max(each["cache_n"] + each["prompt_n"] + each["predicted_n"] for each in told)
    assert float(theirs["n_tokens_max"]) == longest
    assert theirs["n_busy_slots_per_decode"] == "1.0"  # one after the other
    speed = float(theirs["tokens_predicted_total"]) / float(
        theirs["tokens_predicted_seconds_total"]
    )
    assert float(theirs["predicted_tokens_seconds"]) == pytest.approx(speed)
    assert "\n# TYPE llamacpp:tokens_predicted_total counter\n" in text and "_created" not in theirs
    assert metrics['requests_total{path="/v1/chat/completions",status="200"}'] == "2.0"
    assert metrics['requests_total{path="/v1/chat/completions",status="400"}'] == "1.0"
    counted = [name for name in metrics if name.startswith("requests_total")]
    assert metrics['requests_total{path="/tokenize",status="200"}'] == "1.0"
    assert any('path="/slots/{slot}"' in name for name in counted)
    assert metrics['requests_total{path="other",status="404"}'] == "1.0"
    assert metrics["requests_processing"] == metrics["requests_deferred"] == "0.0"
    assert metrics["time_to_first_token_seconds_count"] == "2.0"
    assert metrics['request_seconds_count{path="/v1/chat/completions"}'] == "3.0"


def test_requests_have_names_and_lines() -> None:
    with serving(ServedToy()) as site:
        first, second = (site.post(COMPLETIONS, {"prompt": "a b c"}) for _ in range(2))
        assert first.headers["x-request-id"] != second.headers["x-request-id"]
        site.get("/%1b[31mred")
        site.get("/page/page.js")  # one of many for each load of the page
        site.get("/page/none.js")
    assert re.fullmatch(
        r"POST /v1/completions 200 [\d.]+ s, prompt 5 \+ 8 tokens at [\d.]+ tok/s(, .*)?",
        site.lines[0],
    )
    assert "prompt 5 (4 cached) + 8 tokens" in site.lines[1]
    assert re.fullmatch(r"GET /\\x1b\[31mred 404 [\d.]+ s", site.lines[2])
    assert re.fullmatch(r"GET /page/none.js 404 [\d.]+ s", site.lines[3])


def test_the_page_needs_no_network_and_runs_nothing_else(toy_server: Site) -> None:
    for path in ("/", "/page/index.html"):
        page = toy_server.get(path)
        assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"


def test_the_log_says_why_a_request_was_refused_or_an_answer_ended(toy_server: Site) -> None:
    status, error = toy_server.refused(messages=[{"role": "user", "content": "much " * 5000}])
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert " 400 context_length_exceeded " in toy_server.line_with("context_length")
    toy_server.ask(max_tokens=3)
    assert toy_server.line_with("+ 3 tokens").endswith(", ended by length")


def test_the_log_says_how_far_a_prompt_was_read() -> None:
    toy, gate = gated_toy()
    with serving(toy) as site:
        with asking(site):
            assert gate.began.acquire(timeout=PATIENCE)  # the pass that reads the prompt
        gate.let(10**6)
        line = site.line_with("the client left")
    found = re.search(r" 499 .*, the client left, (\d+) of (\d+) prompt tokens read$", line)
    assert found is not None and int(found[1]) < int(found[2])


def test_the_log_says_what_drafting_gained_and_whose_key_it_was() -> None:
    stats = GenerationStats(answers=1, tokens=64, drafted=40, accepted=30, seconds=2.0)
    stats.plain_seconds = 3.0
    drafting = DraftStatus.DRAFTING
    line = figures(stats, drafting)
    assert line.endswith(", about 1.5x plain") and "other prompts" not in line
    stats.others_prompts_seconds = 1.2
    assert " at 32.0 tok/s, 60% of that time for other prompts, " in figures(stats, drafting)
    stats.drafter, stats.rounds, reason = "draft model", 9, DraftStatus.ANSWER_TOO_SHORT
    assert figures(stats, reason).endswith(
        ", draft model off (reading the prompt costs more than it would gain)"
    )
    said = list[str]()
    answers = partial(log.AccessLog, routes=(), say=said.append, metrics=RequestMetrics())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["key"] = "anna"
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(answers(app)(scope, None, send))  # type: ignore[arg-type]
    assert said[0].endswith(" s, key anna")


def test_the_schema_names_paths_and_version(toy_server: Site) -> None:
    schema = toy_server.get("/openapi.json").json()
    assert schema["info"]["version"] == __version__
    assert {CHAT, COMPLETIONS, "/v1/models", "/v1/embeddings", "/health"} <= schema["paths"].keys()
    for path in ("/docs", "/redoc"):  # which would load scripts from elsewhere
        assert toy_server.get(path).status_code == 404


def test_the_schema_bounds_numbers(toy_server: Site) -> None:
    schemas = toy_server.get("/openapi.json").json()["components"]["schemas"]
    fields = schemas["ChatRequest"]["properties"]
    n, _ = fields["n"]["anyOf"]
    assert n == {"type": "integer", "minimum": 1, "maximum": 8}


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/messages", "/v1/completions", "/v1/responses", "/completion"]
)
def test_a_stream_is_not_silent_before_its_first_token(
    gated: tuple[Site, Gate, threading.Event], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "SIGN_SECONDS", 0.01)
    site, gate, _ = gated
    field = {"/v1/responses": "input", CHAT: "messages", "/v1/messages": "messages"}.get(path)
    question = HELLO if field == "messages" else "hello"
    body = {field or "prompt": question, "stream": True, "max_tokens": 2}
    with asking(site, stream=True), site.client.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200  # though it is queued behind the other
        lines = reply.iter_lines()
        begins = [next(lines) for _ in range(15)][-6:]  # a response's first events go before
    if path == "/v1/messages":  # Anthropic's own
        assert begins == ["event: ping", 'data: {"type":"ping"}', ""] * 2
    elif path == "/v1/responses":  # Codex gives up a stream of comments
        assert begins[::3] == ["event: response.in_progress"] * 2
        numbers = [json.loads(line[6:])["sequence_number"] for line in begins[1::3]]
        assert numbers == [3, 4]
    else:  # without an empty line, which clients take for the end of an event
        assert {line[:2] for line in begins} == {": "}


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"verbose": True}])
def test_the_text_of_a_prompt_is_not_made_in_the_event_loop(
    toy_server: Site, fields: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(engine: object, ids: object) -> str:
        began.set()
        assert may_end.wait(PATIENCE)
        return "the prompt"

    monkeypatch.setattr(replies, "prompt_text", slow)
    path = COMPLETIONS if "verbose" in fields else "/completion"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(toy_server.post, path, {"prompt": "hello", **fields})
        try:
            assert began.wait(PATIENCE)
            assert toy_server.get("/health").status_code == 200  # meanwhile
        finally:
            may_end.set()
        assert "the prompt" in asked.result().text
