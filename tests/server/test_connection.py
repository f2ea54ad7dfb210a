"""Connections that say nothing, or say it slowly."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from localspec.server import connection, listen
from tests.support.served import CHAT, HELLO, PATIENCE, Gate, ServedToy, Site, serving

BODY = json.dumps({"messages": HELLO, "max_tokens": 3}).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % CHAT.encode()
HEAD += b"Content-Length: %d\r\n\r\n" % len(BODY)


def opened(site: Site) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Gate]]:
    """A server that waits hardly at all for a request, and answers pass by pass."""
    monkeypatch.setattr(connection, "_RECEIVE_SECONDS", 0.05)
    toy = ServedToy(quirk=None)
    toy.target = gate = Gate()
    with serving(toy) as site:
        yield site, gate
        gate.let(10**6)


@pytest.mark.parametrize("sent", [b"", HEAD[:50], HEAD, HEAD + BODY[:-1]])
def test_what_does_not_come_in_time_is_not_waited_for(
    hasty: tuple[Site, Gate], sent: bytes
) -> None:
    site, _ = hasty
    with opened(site) as slow:
        slow.sendall(sent)
        assert slow.recv(9) == b""
    assert site.get("/health").status_code == 200


def test_the_rest_of_a_second_request_is_not_waited_for(hasty: tuple[Site, Gate]) -> None:
    site, gate = hasty
    gate.let(10**6)
    with opened(site) as slow:
        slow.sendall(HEAD + BODY)
        assert slow.recv(12) == b"HTTP/1.1 200"
        slow.sendall(HEAD)
        while slow.recv(4096):
            pass  # it ends, and not after Uvicorn's five seconds without a word
    assert site.get("/health").status_code == 200


def test_an_answer_may_take_longer(hasty: tuple[Site, Gate]) -> None:
    site, gate = hasty
    with opened(site) as patient, opened(site) as silent:
        patient.sendall(HEAD + BODY)
        assert gate.began.acquire(timeout=PATIENCE)
        assert silent.recv(9) == b""  # the time is over, for both
        gate.let(10**6)
        assert patient.recv(12) == b"HTTP/1.1 200"


def test_more_connections_than_files_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 2)
    with serving(ServedToy()) as site, ExitStack() as stack:
        held = [stack.enter_context(opened(site)) for _ in range(6)]
        for each in held[4:]:
            with suppress(ConnectionResetError):
                assert each.recv(9) == b""
        held[0].close()
        held[1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[1].recv(12) == b"HTTP/1.1 200"


def test_more_connections_than_are_answered_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "MOST_CONNECTIONS", 2)
    with serving(ServedToy()) as site, opened(site), opened(site) as second:
        second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert second.recv(12) == b"HTTP/1.1 503"
