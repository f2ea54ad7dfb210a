"""Where a server listens, how it ends, and connections that send nothing, or send slowly."""

import asyncio
import errno
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h11
import httpx2
import pytest

from localspec.core import limits
from localspec.core.errors import LocalspecError
from localspec.server import listen as listen_module
from localspec.server.listen import Connection, Tls, bind, bound, listen, url
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


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_an_offer_of_another_protocol_is_answered_without_a_word(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2-Settings": "AAMA"}
    with serving(ServedToy()) as site:
        assert site.get("/health", **offer).json() == {"status": "ok"}
        assert site.post(CHAT, {"messages": HELLO}, **offer).json()["choices"]
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_several_addresses_have_one_port() -> None:
    with bound(("127.0.0.1", "127.0.0.2"), 0) as sockets:
        (first, port), (second, other) = (each.getsockname() for each in sockets)
        assert (first, second, port) == ("127.0.0.1", "127.0.0.2", other)
    assert {each.fileno() for each in sockets} == {-1}  # closed


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
    with serving(toy, grace=PATIENCE) as site:
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
    assert "answers under way (1) have 60 s to complete" in site.line_with("Shutting down")


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
from localspec.core.options.generate_options import GenerateOptions
from localspec.engine.text_stream import Prompt, OutputFormat
from localspec.server.app import make_app
from localspec.server.listen import Server, bind, listen
from localspec.engine.session.session import Session
from localspec.server.service import Service
from tests.support.served import gated_toy

toy, gate = gated_toy()
session = Session([toy])
app = make_app(Service(toy, session))
server = Server(app, session, lambda line: print(line, flush=True), grace=0.0)
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
session.close()
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


PARTS = [HEAD[:50], HEAD, HEAD + BODY[:-1]]


def test_a_request_is_not_waited_for(hasty: tuple[Site, Gate]) -> None:
    site, _ = hasty
    with opened(site) as silent:
        assert silent.recv(9) == b""
    assert site.get("/health").status_code == 200


@pytest.mark.parametrize("sent", PARTS)
def test_what_does_not_come_in_time_is_not_waited_for(
    hasty: tuple[Site, Gate], sent: bytes
) -> None:
    site, _ = hasty
    with opened(site) as slow:
        slow.sendall(sent)
        assert told(slow) == (408, "The request did not arrive within 0.05 s.")
    assert site.get("/health").status_code == 200


def told(connection: socket.socket) -> tuple[int, str]:
    """Status and reason of a reply, after which the connection is closed."""
    reply = http.client.HTTPResponse(connection)
    reply.begin()
    message: str = json.loads(reply.read())["error"]["message"]
    assert connection.recv(9) == b""
    return reply.status, message


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


def test_a_new_connection_takes_the_place_of_the_one_that_has_waited_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 3)
    with serving(ServedToy()) as site, ExitStack() as stack:
        first, slow, third = (connected(site, stack, i) for i in range(1, 4))
        slow.sendall(HEAD)
        third.sendall(HEAD[:9])
        wait_until(lambda: begun(site) == 2)
        fourth = connected(site, stack, 3)
        assert first.recv(9) == b""
        fifth = connected(site, stack, 3)
        assert told(slow) == (503, "There are too many connections. Ask again in a few seconds.")
        assert site.get("/health").status_code == 200
        assert told(third)[0] == 503
        for each in (fourth, fifth):
            each.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert each.recv(12) == b"HTTP/1.1 200"


def test_an_idle_connection_is_kept_for_a_slow_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until another needs its place, which it leaves before one that waits for its request."""
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 2)
    with serving(ServedToy()) as site, ExitStack() as stack:
        waiting = connected(site, stack, 1)
        idle = connected(site, stack, 2)
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: any(each.timeout_keep_alive_task for each in open_connections(site)))
        (end,) = [
            each.timeout_keep_alive_task.when() - each.loop.time()
            for each in open_connections(site)
            if each.timeout_keep_alive_task
        ]
        assert end > 60
        connected(site, stack, 2)
        while idle.recv(4096):
            pass  # the rest of the reply, then the end
        waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert waiting.recv(12) == b"HTTP/1.1 200"


def test_the_address_with_the_most_connections_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 3)
    with serving(ServedToy()) as site, ExitStack() as stack:
        one = connected(site, stack, 1, "127.0.0.2")
        second = connected(site, stack, 2)
        connected(site, stack, 3)
        connected(site, stack, 3)
        assert second.recv(9) == b""
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(12) == b"HTTP/1.1 200"


def test_a_connection_whose_answer_is_under_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 1)
    toy, gate = gated_toy()
    with serving(toy) as site, ExitStack() as stack:
        asking = connected(site, stack, 1)
        asking.sendall(HEAD + BODY)
        assert gate.began.acquire(timeout=PATIENCE)
        with opened(site) as other:
            assert other.recv(12) == b"HTTP/1.1 503"
        gate.let(10**6)
        assert asking.recv(12) == b"HTTP/1.1 200"


def stalled(site: Site, stack: ExitStack) -> socket.socket:
    """A connection whose client asks for much and reads nothing."""
    made = connected(site, stack, 1)
    made.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
    wait_until(lambda: any(each.flow.write_paused for each in open_connections(site)))
    return made


def test_a_client_that_does_not_read_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 1)
    with serving(ServedToy()) as site, ExitStack() as stack:
        stalled(site, stack)
        assert site.get("/health").status_code == 200
        wait_until(lambda: len(open_connections(site)) == 1)


def test_at_the_end_a_client_that_does_not_read_is_not_waited_for() -> None:
    with serving(ServedToy()) as site, ExitStack() as stack:
        stalled(site, stack)
        site.server.end()
        wait_until(lambda: not site.server.server_state.tasks)


def connected(site: Site, stack: ExitStack, count: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection that the server has accepted, after which it has so many."""
    address, origin = ("127.0.0.1", site.port), (source, 0)
    try:
        made = socket.create_connection(address, timeout=PATIENCE, source_address=origin)
    except OSError:
        pytest.skip(f"this machine has no {source}")
    name = made.getsockname()
    wait_until(lambda: name in [each.client for each in open_connections(site)])
    wait_until(lambda: len(open_connections(site)) == count)
    return stack.enter_context(made)


def open_connections(site: Site) -> list[Connection]:
    """Those that are made: an accepted one is not yet."""
    connections = tuple(site.server.server_state.connections)
    return [each for each in connections if isinstance(each, Connection) and each.transport]


def begun(site: Site) -> int:
    """On how many connections part of a request has come."""
    connections = [each.conn for each in open_connections(site)]
    return sum(
        each.their_state is h11.SEND_BODY or bool(each.trailing_data[0]) for each in connections
    )


def wait_until(state: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not state():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_at_the_end_nothing_is_waited_for_but_answers() -> None:
    toy, gate = gated_toy()
    with serving(toy, grace=PATIENCE) as site, ExitStack() as stack:
        asking = connected(site, stack, 1)
        asking.sendall(HEAD + BODY)
        assert gate.began.acquire(timeout=PATIENCE)
        silent = connected(site, stack, 2)
        parts = [connected(site, stack, 3 + i) for i in range(len(PARTS))]
        for each, part in zip(parts, PARTS, strict=True):
            each.sendall(part)
        wait_until(lambda: begun(site) == len(PARTS))
        site.server.end()
        assert silent.recv(9) == b""
        for each in parts:
            assert told(each) == (503, "The server is shutting down.")
        gate.let(10**6)
        assert asking.recv(12) == b"HTTP/1.1 200"


def test_a_client_that_takes_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "_TAKE_SECONDS", 0.05)
    with serving(ServedToy()) as site:
        site.service.about = {**site.service.about, "chat_template": "x" * 2**24}  # in /props
        with socket.create_connection(("127.0.0.1", site.port), PATIENCE) as connection:
            connection.sendall(b"GET /props HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until = time.monotonic() + PATIENCE
            while not site.server.server_state.connections and time.monotonic() < until:
                time.sleep(0.01)
            while site.server.server_state.connections and time.monotonic() < until:
                time.sleep(0.01)
            assert not site.server.server_state.connections
        assert len(site.get("/props").json()["chat_template"]) == 2**24


NEW_KEY = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=x"
FEW_FILES = 200
IDLE = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
address = "127.0.0.1", int(sys.argv[1])
made = [socket.create_connection(address, timeout=60) for _ in range(500)]
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(NEW_KEY.split(), cwd=folder, check=True, capture_output=True)
    return Tls(folder / "cert", folder / "key")


@pytest.fixture
def few_files() -> Iterator[None]:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def idle_clients(site: Site) -> Iterator[None]:
    """500 connections of another process, which send nothing."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", IDLE, str(site.port)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        yield
        process.communicate()


@pytest.mark.parametrize("with_tls", [True, False], ids=["TLS", "plain"])
def test_idle_connections_are_bounded_by_open_files(
    with_tls: bool,
    certificate: Tls,
    few_files: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(limits, "raise_open_files", lambda wanted: None)
    with serving(ServedToy(), tls=certificate if with_tls else None) as site, idle_clients(site):
        assert site.get("/health").status_code == 200
        assert len(site.server.server_state.connections) <= FEW_FILES - 128
    assert [line for line in site.lines if "accepted" in line] == caplog.messages == []


def test_a_handshake_has_a_time_limit(certificate: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "_TLS_SECONDS", 0.05)
    with serving(ServedToy(), tls=certificate) as site, opened(site) as silent:
        assert silent.recv(9) == b""
        wait_until(lambda: not site.server.server_state.connections)


def test_connections_that_do_not_end_tls_are_counted(
    certificate: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_module, "MOST_CONNECTIONS", 3)
    context = ssl._create_unverified_context()
    with serving(ServedToy(), tls=certificate) as site, ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(context.wrap_socket(opened(site))).sendall(HEAD)
        assert site.get("/health").status_code == 200
        assert len(site.server.server_state.connections) <= 4


def test_errors_of_accept_are_reported_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen_module, "_RETRY_SECONDS", 0.001)
    accept, failures = asyncio.SelectorEventLoop.sock_accept, list(range(9))

    async def failing(loop: asyncio.SelectorEventLoop, listening: socket.socket) -> Any:
        if failures:
            failures.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await accept(loop, listening)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_accept", failing)
    with serving(ServedToy()) as site:
        assert site.get("/health").status_code == 200
        assert site.lines == ["A connection cannot be accepted: Too many open files."]


def test_more_open_files_are_asked_for(few_files: None) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for wanted, given in ((9, FEW_FILES), (FEW_FILES + 1, FEW_FILES + 1), (2**60, hard)):
        limits.raise_open_files(wanted)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == given
