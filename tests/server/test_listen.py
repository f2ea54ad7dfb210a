"""Where a server listens, how it ends, and connections that send nothing, or send slowly."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from localspec.core.errors import LocalspecError
from localspec.server import listen as listen_module
from localspec.server.listen import bind, listen, url
from tests.support.served import (
    CHAT,
    HELLO,
    PATIENCE,
    Gate,
    ServedToy,
    Site,
    events_of,
    gated_toy,
    serving,
)


def test_port_0_is_a_free_one() -> None:
    with bind("127.0.0.1", 0) as first, bind("localhost", 0) as second:
        assert url(first) != url(second)
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", url(second))


def test_an_address_of_the_newer_kind() -> None:
    try:
        made = bind("::1", 0)
    except LocalspecError:
        pytest.skip("this machine has no IPv6")
    with made:
        assert url(made).startswith("http://[::1]:")


def test_a_port_that_another_has() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(LocalspecError, match=f"port {port}: .* in use") as caught:
            bind("127.0.0.1", port)
        assert "--port 0" in caught.value.hint


def test_a_port_that_another_took_meanwhile() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with bind("127.0.0.1", port) as second:
            first.listen()
            with pytest.raises(LocalspecError, match=f"port {port}"):
                listen(second)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.1.1.1", "a" * 300, "192.0.2.1"])
def test_an_address_that_is_none(host: str) -> None:
    with pytest.raises(LocalspecError) as caught:
        bind(host, 0)
    assert caught.value.hint


def test_what_is_under_way_may_be_completed_and_nothing_begins() -> None:
    toy, gate = gated_toy()
    heard: list[str] = []
    with serving(toy) as site:
        site.server._say = heard.append
        site.server._grace = PATIENCE
        got: list[httpx2.Response] = []

        def ask() -> None:
            body = {"messages": HELLO, "stream": True, "max_tokens": 5}
            got.append(httpx2.post(site.url + CHAT, json=body, timeout=PATIENCE))

        asking = threading.Thread(target=ask)
        asking.start()
        gate.let(2)
        for _ in range(3):
            assert gate.began.acquire(timeout=PATIENCE)
        site.server.end()
        refuses(site)
        gate.let(9)
        asking.join()
        *_, last, done = events_of(got[0].text)
        assert json.loads(last)["choices"][0]["finish_reason"] == "length" and done == "[DONE]"
    (note,) = heard
    assert "answers under way (1) have 60 s to complete" in note


def test_what_takes_too_long_ends_with_an_error() -> None:
    toy, gate = gated_toy()
    gate.let(2)
    with serving(toy) as site:
        with site.client.stream(
            "POST", CHAT, json={"messages": HELLO, "stream": True, "max_tokens": -1}
        ) as reply:
            for _ in range(3):
                assert gate.began.acquire(timeout=PATIENCE)
            site.server.end()  # without grace
            refuses(site)
            gate.let(9)
            *_, last = events_of(reply.read().decode())
        error = json.loads(last)["error"]
        assert error["type"] == "server_error" and "shutting down" in error["message"]


STUCK = """
import os, signal, threading, time
from localspec.core.generate_options import GenerateOptions
from localspec.engine.text_stream import Prompt, Reading
from localspec.server.app import make_app
from localspec.server.listen import Server, bind, listen
from localspec.server.queue.scheduler import Scheduler
from localspec.server.service import Service
from tests.support.served import gated_toy

toy, gate = gated_toy()
scheduler = Scheduler([toy])
app = make_app(Service(toy, scheduler))
server = Server(app, scheduler, lambda line: print(line, flush=True), grace=0.0)
made = bind("127.0.0.1", 0)
listen(made)

def end_while_answering():
    gate.began.acquire()
    os.kill(os.getpid(), signal.SIGTERM)

def ask():
    import httpx2
    host, port = made.getsockname()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    httpx2.post(f"http://{host}:{port}/v1/chat/completions", json=body, timeout=600)

for act in (end_while_answering, ask):
    threading.Thread(target=act, daemon=True).start()
server.run([made])
scheduler.close()
"""


def test_a_slot_that_never_returns_does_not_keep_the_process() -> None:
    """The first signal is enough, also where native code runs for good."""
    folder = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, cwd=folder, timeout=PATIENCE
    )
    assert done.returncode == 1, done.stderr
    assert "A slot did not end in time" in done.stdout


def refuses(site: Site) -> None:
    """Wait until nobody listens any more."""
    while True:
        try:
            httpx2.get(f"{site.url}/health", timeout=PATIENCE)
        except httpx2.TransportError:
            return


BODY = json.dumps({"messages": HELLO, "max_tokens": 3}).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % CHAT.encode()
HEAD += b"Content-Length: %d\r\n\r\n" % len(BODY)


def opened(site: Site) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Gate]]:
    """A server that waits hardly at all for a request, and answers pass by pass."""
    monkeypatch.setattr(listen_module, "_RECEIVE_SECONDS", 0.05)
    toy, gate = gated_toy()
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


def test_more_connections_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 2)
    with serving(ServedToy()) as site, ExitStack() as stack:
        held = [stack.enter_context(opened(site)) for _ in range(6)]
        for each in held[4:]:  # they would need too many files
            with suppress(ConnectionResetError):
                assert each.recv(9) == b""
        held[1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[1].recv(12) == b"HTTP/1.1 503"
        stack.close()
        while site.get("/health").status_code != 200:
            pass
