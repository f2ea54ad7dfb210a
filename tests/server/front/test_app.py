"""The front between clients and model processes, which are replaced by a small HTTP server."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from localspec.server import BUILD
from localspec.server.api import replies
from localspec.server.front import relay
from localspec.server.front.app import FrontServer, make_front
from localspec.server.front.models import FrontModel, Models
from localspec.server.front.process import ModelFailed, ModelProcess
from localspec.server.guard import LOOPBACK, OWNER_HEADER, Access
from localspec.server.listen import bind, listen, url
from tests.support.served import COMPLETIONS, PATIENCE, error_of

LARGE = 8 * 2**20  # bytes of a reply that no buffer of the system holds
OWN = {"authorization": "Bearer own"}


@dataclass
class Seen:
    """A request that reached a model's process."""

    line: str
    headers: dict[str, str]


class Upstream(BaseHTTPRequestHandler):
    """Replies to any request, with a cookie; to one that wants ``large`` with many events.

    One that is ``wrong`` is refused.
    """

    seen: list[Seen]

    def _reply(self) -> None:
        if self.path not in (
            "/metrics",
            "/props",
        ):  # which the front asks for when it unloads a model
            self.seen.append(
                Seen(self.requestline, {k.lower(): v for k, v in self.headers.items()})
            )
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        large = b"large" in data
        self.send_response(400 if b"wrong" in data else 200)
        self.send_header("Content-Type", "text/event-stream" if large else "application/json")
        self.send_header("Set-Cookie", "secret=1")
        self.end_headers()
        for _ in range(LARGE // 2**16 if large else 0):
            self.wfile.write(b"x" * 2**16)
        self.wfile.write(b"" if self.path == "/metrics" else b"{}")

    do_GET = do_POST = do_DELETE = _reply

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Stand(ModelProcess):
    """A process that is the server of ``port``."""

    def __init__(self, names: tuple[str, ...], port: int) -> None:
        super().__init__(names, (), lambda line: None)
        self._port = port
        self._over = asyncio.Event()

    async def start(self) -> None:
        """Nothing is loaded."""

    async def ended(self, told: object = None) -> ModelFailed:
        await self._over.wait()
        return self._unloaded()

    async def stop(self) -> None:
        self._over.set()


@dataclass
class Site:
    """A running front, and what reached its models and a service that is none of them."""

    port: int
    client: httpx2.Client
    seen: list[Seen]
    inner_port: int
    inner: list[Seen]
    lines: list[str] = field(default_factory=list)

    def raw(self, request: bytes) -> bytes:
        """The reply to the bytes of a request."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            parts = []
            while part := connection.recv(2**16):
                parts.append(part)
            return b"".join(parts)

    def ask(self, name: str) -> int:
        return self.client.post(COMPLETIONS, json={"model": name}).status_code


@contextmanager
def upstream() -> Iterator[tuple[int, list[Seen]]]:
    seen: list[Seen] = []
    handler = type("Handler", (Upstream,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], seen
        finally:
            server.shutdown()


class Slow(Stand):
    """A process that is loaded once ``may_load`` is set, or fails where its name is b."""

    may_load: threading.Event

    async def start(self) -> None:
        while not self.may_load.is_set():
            await asyncio.sleep(0.01)
        if self.name == "b":
            raise ModelFailed("b is broken.")


@contextmanager
def fronting(
    access: Access = LOOPBACK, stand: type[Stand] = Stand, **options: Any
) -> Iterator[Site]:
    """A front of the models a and b, of which one is loaded at a time."""
    lines: list[str] = []
    with upstream() as (port, seen), upstream() as (inner_port, inner):
        found = [FrontModel((name,), name) for name in "ab"]
        models = Models(
            found, lambda model: stand(model.names, port), lines.append, most=1, **options
        )
        app = make_front(models, access, say=lines.append)
        server = FrontServer(app, models, lines.append, grace=0)
        listening = bind("127.0.0.1", 0)
        listen(listening)
        address = url(listening)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with httpx2.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client:
                yield Site(int(address.rpartition(":")[2]), client, seen, inner_port, inner, lines)
        finally:
            server.end()
            thread.join()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with fronting() as site:
        yield site


TARGETS = (
    "%2Fslots%2F@127.0.0.1:{port}/latest/meta-data?model=a",
    "@127.0.0.1:{port}/slots/?model=a",
    "http://127.0.0.1:{port}/props?model=a",
    "http://127.0.0.1:{port}/slots/0?model=a",
    "//127.0.0.1:{port}/slots/0?model=a",
    "/slots/..%2F@127.0.0.1:{port}/?model=a",
    "/slots/%5C@127.0.0.1:{port}/?model=a",
    "/slots/0%0d%0aHost:%20127.0.0.1:{port}?model=a",
    "/v1/responses/resp_%0d%0a@127.0.0.1:{port}?model=a",
    "/v1/responses/../../latest/meta-data?model=a",
    "/slots/%00?model=a",
    "/slots/%ff?model=a",
    "/slots/0:99999999?model=a",
    "/slots/" + "x" * 3000 + "?model=a",
    ":{port}/slots/?model=a",
    "*",
)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_request_reaches_models_only(site: Site, method: str, target: str) -> None:
    line = f"{method} {target.format(port=site.inner_port)} HTTP/1.1\r\n"
    rest = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    reply = site.raw((line + rest).encode())
    assert int(reply.split(b" ")[1]) in (400, 404, 405), reply
    assert not site.inner and not site.seen
    assert not any("Traceback" in line for line in site.lines)


def test_a_host_header_changes_no_path() -> None:
    with fronting(Access(keys=("own",))) as site:
        for host in ("x/slots/0?y=", "[", "a@b", "x/v1/responses/y#"):
            line = f"POST /latest/meta-data?model=a HTTP/1.1\r\nHost: {host}\r\n"
            rest = "Authorization: Bearer own\r\nContent-Type: application/json\r\n"
            reply = site.raw((line + rest + "Content-Length: 2\r\n\r\n{}").encode())
            assert reply.startswith(b"HTTP/1.1 404"), reply
        assert not site.seen


@pytest.mark.parametrize("value", [b"caf\xc3\xa9", b"\xff"])
def test_a_header_that_is_not_ascii_is_refused(
    value: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with fronting(Access(keys=("own", "Schlüssel"))) as site:
        head = {b"x-title": value, **{k.encode(): v.encode() for k, v in OWN.items()}}
        reply = site.client.post(COMPLETIONS, json={"model": "a"}, headers=list(head.items()))
        assert reply.status_code == 400 and "x-title is not ASCII" in error_of(reply)["message"]
        assert not site.seen
        keyed = [(b"authorization", "Bearer Schlüssel".encode())]  # which is not sent on
        assert site.client.post(COMPLETIONS, json={}, headers=keyed).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_nothing_of_one_exchange_is_in_another() -> None:
    with fronting(Access(keys=("own", "other"))) as site:
        given = {
            "cookie": "mine=1", "proxy-authorization": "Basic eA==", "x-private": "1",
            "connection": "keep-alive, X-Private", OWNER_HEADER: "somebody", "x-kept": "1",
        }  # fmt: skip
        first = site.client.post(COMPLETIONS, json={}, headers=OWN | given)
        assert first.status_code == 200 and "set-cookie" not in first.headers
        second = site.client.post(COMPLETIONS, json={}, headers={"x-api-key": "other"})
        assert second.status_code == 200
        one, other = (seen.headers for seen in site.seen)
        assert one["x-kept"] == "1" and one["host"].startswith("127.0.0.1:")
        for headers in (one, other):
            assert not headers.keys() & {"cookie", "proxy-authorization", "x-private", "x-api-key"}
            assert headers["authorization"] not in ("Bearer own", "Bearer other")
        assert len({one[OWNER_HEADER], other[OWNER_HEADER], "somebody", "own", "other", ""}) == 6


def test_paths_and_queries_arrive_as_they_were_checked(site: Site) -> None:
    site.seen.clear()
    kind = {"content-type": "application/json"}
    assert site.client.post("/slots%2F0?model=a&action=x%26y", content=b"{}", headers=kind)
    assert [seen.line for seen in site.seen] == ["POST /slots/0?model=a&action=x%26y HTTP/1.1"]
    site.seen.clear()


POLLED = ("/props?model=a", "/slots?model=a", "/props", "/health", "/metrics", "/v1/models")


def states(site: Site) -> dict[str, str]:
    found: dict[str, str] = site.client.get("/health").json()["models"]
    return found


def test_what_is_polled_loads_no_model() -> None:
    with fronting() as site:
        for path in POLLED:
            assert site.client.get(path).status_code == 200
        assert states(site) == {"a": "unloaded", "b": "unloaded"} and not site.seen
        assert site.client.get("/slots?model=a").json() == []
        assert site.client.get("/props?model=a").json() == {
            "model_alias": "a", "build_info": BUILD, "is_sleeping": True,
        }  # fmt: skip
        router = {"role": "router", "max_instances": 1, "models_autoload": True}
        assert site.client.get("/props").json() == router | {"build_info": BUILD}


def test_what_is_polled_keeps_no_model_loaded() -> None:
    with fronting(idle_seconds=0.3) as site:
        assert site.ask("a") == 200
        asked: set[str] = set()
        while states(site)["a"] == "loaded":  # not for ever
            for path in POLLED:
                assert site.client.get(path).status_code == 200
                asked.add(path)
        assert asked == set(POLLED)


def test_models_are_loaded_by_a_request_of_their_own_where_that_is_wanted() -> None:
    with fronting(autoload=False) as site:
        reply = site.client.post(COMPLETIONS, json={"model": "a"})
        assert reply.status_code == 400 and "POST /models/load" in error_of(reply)["message"]
        site.client.post("/models/load", json={"model": "a"}).raise_for_status()
        while states(site)["a"] != "loaded":
            time.sleep(0.01)
        assert site.ask("a") == 200 and site.ask("b") == 400


@pytest.mark.parametrize(
    ("asked", "events"),
    [
        ({"model": "a"}, b"{}"),
        ({"model": "a", "prompt": "wrong"}, b"event: error\ndata: {}\n\n"),
        ({"model": "b"}, b'"b is broken.'),
    ],
)
def test_a_stream_that_waits_for_its_model_begins_with_comments(
    asked: dict[str, str], events: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "SIGN_SECONDS", 0.05)
    may_load = threading.Event()
    with fronting(stand=type("Stand", (Slow,), {"may_load": may_load})) as site:
        body = {**asked, "stream": True}
        with site.client.stream("POST", COMPLETIONS, json=body) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            parts = reply.iter_raw()
            assert next(parts).startswith(b": ") and next(parts).startswith(b": ")
            may_load.set()
            rest = b"".join(parts)
        assert events in rest and (rest.count(b"event: error\ndata: ") == (events != b"{}"))
        whole = site.client.post(COMPLETIONS, json=asked)  # which has a status
        assert whole.status_code == {b"{}": 200, b'"b is broken.': 503}.get(events, 400)


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with upstream() as (port, seen):
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{port}")
        with fronting() as site:
            assert site.ask("a") == 200
        assert not seen


@contextmanager
def unread(site: Site, name: str) -> Iterator[socket.socket]:
    """A client that takes nothing of a large reply."""
    body = json.dumps({"model": name, "prompt": "large"})
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", site.port))
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while not site.seen:
            time.sleep(0.01)
        yield connection


def test_a_model_is_free_when_it_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_MOST_HELD", 2 * LARGE)
    with fronting() as site, unread(site, "a") as connection:
        assert site.ask("a") == site.ask("b") == site.ask("a") == 200
        got = 0
        while part := connection.recv(2**16):  # nothing of it is lost
            got += len(part)
            if part.endswith(b"0\r\n\r\n"):
                break
        assert got > LARGE


def test_a_client_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_TAKING_SECONDS", 0.2)
    with fronting() as site, unread(site, "a"):
        assert site.ask("a") == site.ask("b") == 200


def test_unloading_says_how_many_requests_it_ends() -> None:
    with fronting() as site, unread(site, "a"):
        reply = site.client.post("/models/unload", json={"model": "a"})
        assert reply.json() == {"success": True, "requests": 1}
        assert site.client.post("/models/unload", json={"model": "a"}).status_code == 400
