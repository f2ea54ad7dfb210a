"""Bounds of bodies: counted while they arrive, whatever their parts, and together."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.server import body as body_module
from localspec.server.body import JsonShape
from localspec.server.errors import BodyRefused
from tests.support.served import (
    CHAT,
    HELLO,
    PATIENCE,
    ServedToy,
    Site,
    error_of,
    gated_toy,
    serving,
)

TEXTS = st.text(st.sampled_from('a"\\[]{},:\n\U0001f600\u2222'), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


def size_of(document: object) -> tuple[int, int]:
    """How many levels deep, and how many values: containers, and what is behind a comma."""
    if not isinstance(document, (list, dict)):
        return 0, 0
    inner = [size_of(e) for e in (document.values() if isinstance(document, dict) else document)]
    depth = 1 + max((each for each, _ in inner), default=0)
    return depth, 1 + max(0, len(inner) - 1) + sum(each for _, each in inner)


def counted(data: bytes, parts: list[int]) -> None:
    shape = JsonShape()
    for part in parts:
        shape.add(data[:part])
        data = data[part:]
    shape.add(data)


@given(DOCUMENTS, st.booleans(), st.lists(st.integers(0, 20)))
def test_the_shape_is_that_of_the_parsed_document(
    document: object, ascii_only: bool, parts: list[int]
) -> None:
    data = json.dumps(document, ensure_ascii=ascii_only).encode()
    depth, values = size_of(document)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(body_module, "_MOST_DEPTH", depth)
        patched.setattr(body_module, "_MOST_VALUES", values)
        counted(data, parts)
        for name, value in (("_MOST_DEPTH", depth), ("_MOST_VALUES", values)):
            if value:
                with pytest.MonkeyPatch.context() as less:
                    less.setattr(body_module, name, value - 1)
                    with pytest.raises(BodyRefused):
                        counted(data, parts)


def sent(site: Site, data: bytes) -> tuple[int, str]:
    reply = site.client.post(CHAT, content=data, headers={"content-type": "application/json"})
    return reply.status_code, error_of(reply)["message"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"messages": ' + b"[" * 100_000, "nested more than 200 levels deep"),
        (b'{"messages": [' + b"[]," * 200_000, "holds more than 200,000 values"),
        (b"{" + b",".join(b'"%d":0' % i for i in range(200_001)) + b"}", "more than 200,000"),
        (b'{"metadata": [' + b"0," * 200_000 + b"0]}", "holds more than 200,000 values"),
        (b"{" + b",".join(b'"%d":0' % i for i in range(1025)) + b"}", "more than 1024 entries"),
        (json.dumps({"messages": HELLO}).encode("utf-16"), "is not JSON in UTF-8"),
    ],
)
def test_what_would_hold_up_all_others_is_not_parsed(
    toy_server: Site, data: bytes, reason: str
) -> None:
    status, message = sent(toy_server, data)
    assert status == 400 and reason in message


def test_brackets_in_a_text_are_text(toy_server: Site) -> None:
    text = '[{",\\"]' * 300_000
    status, error = toy_server.refused(messages=[{"role": "user", "content": text}])
    assert status == 400 and error["code"] == "context_length_exceeded"


def test_requests_under_way_are_bounded_and_health_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MOST_REQUESTS", 1)
    toy, gate = gated_toy()
    with serving(toy) as site, ThreadPoolExecutor() as other:
        first = other.submit(site.ask)
        assert gate.began.acquire(timeout=PATIENCE)
        reply = site.post(CHAT, {"messages": HELLO})
        assert reply.status_code == 503 and reply.headers["retry-after"] == "5"
        assert "busy" in error_of(reply)["message"]
        assert site.get("/health").status_code == site.get("/v1/models").status_code == 200
        gate.let(10**6)
        assert first.result() and site.ask()


def test_large_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "_SMALL", 1000)
    monkeypatch.setattr(body_module, "_MOST_LARGE", 1)
    toy, gate = gated_toy()
    large = {"messages": HELLO, "user": "x" * 3000}
    with serving(toy, max_body=4000) as site, ThreadPoolExecutor() as other:
        first = other.submit(site.ask, user="x" * 3000)
        assert gate.began.acquire(timeout=PATIENCE)
        reply = site.post(CHAT, large)
        assert reply.status_code == 503 and reply.headers["retry-after"] == "5"
        small = other.submit(site.ask)
        gate.let(10**6)
        assert first.result() and small.result()
        assert site.post(CHAT, large).status_code == 200  # what is answered counts no more


def test_the_next_request_on_a_connection_is_counted_anew() -> None:
    with serving(ServedToy()) as site:
        for _ in range(3):
            site.ask(metadata=[0] * 150_000)
