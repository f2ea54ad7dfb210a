"""Requests that mean harm: refused at once, and the next one is answered."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from localspec.core.errors import GrammarError
from localspec.engine.grammar import process, source
from tests.support.served import CHAT, HELLO, PATIENCE, Site, error_of


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


SCHEMAS: dict[str, dict[str, Any]] = {
    "deep": deep(150),
    "a file": {"$ref": "file:///etc/passwd"},
    "a site": {"$ref": "http://127.0.0.1/schema.json"},
    "wide": {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(20_000)}},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_that_no_grammar_holds(toy_server: Site, name: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMAS[name]}}
    status, error = toy_server.refused(response_format=form)
    assert status == 400 and error["message"]
    assert toy_server.ask()


def test_grammars_that_take_long_hold_up_no_other_request(
    toy_server: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, go_on = threading.Semaphore(0), threading.Event()

    def slow(self: process.GrammarProcess, *values: object) -> tuple[str, list[str]]:
        waiting.release()
        assert go_on.wait(PATIENCE)
        raise GrammarError("It is slow.")

    monkeypatch.setattr(source, "_reading", threading.BoundedSemaphore(source.MOST_WAITING))
    monkeypatch.setattr(process.GrammarProcess, "ask", slow)
    form = {"type": "json_object"}
    with ThreadPoolExecutor(source.MOST_WAITING) as clients:
        slow_ones = [
            clients.submit(toy_server.refused, response_format=form)
            for _ in range(source.MOST_WAITING)
        ]
        try:
            assert all(waiting.acquire(timeout=PATIENCE) for _ in slow_ones)
            assert toy_server.ask()
            status, error = toy_server.refused(response_format=form)
            assert status == 503 and "are being read already" in error["message"]
        finally:
            go_on.set()
        assert {each.result()[0] for each in slow_ones} == {400}


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, 'root ::= "a', 'other ::= "a"',
    ],
)  # fmt: skip
def test_grammars_that_cannot_be_read(toy_server: Site, grammar: str) -> None:
    status, error = toy_server.refused(grammar=grammar)
    assert status == 400 and "grammar" in error["message"]


@pytest.mark.parametrize("text", ["word " * 200_000, "a" * 10**6, "\U0001f600" * 10**5, "\0" * 999])
def test_prompts_that_fit_no_context(toy_server: Site, text: str) -> None:
    status, error = toy_server.refused(messages=[{"role": "user", "content": text}])
    assert status == 400 and error["code"] == "context_length_exceeded"


def test_a_template_in_a_message_is_text(toy_server: Site) -> None:
    text = "{{ 7 * 7 }}{% for i in range(10**9) %}{% endfor %}"
    toy_server.ask(messages=[{"role": "user", "content": text}])
    assert toy_server.service.engine.asked[-1][0]["content"] == text  # type: ignore[attr-defined]


def raw(site: Site, head: bytes, body: bytes = b"{}") -> bytes:
    """What comes back until the connection is closed."""
    kind = b"Content-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE) as connection:
        connection.sendall(head + kind + b"\r\n" + body)
        told = b""
        while part := connection.recv(65_536):
            told += part
    return told


LINE = b"POST %s HTTP/1.1\r\n" % CHAT.encode()
LOCAL = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (LINE, 400),  # no Host
        (LINE + LOCAL + b"Host: evil.example\r\n", 400),
        (LINE.replace(b"1.1", b"1.0"), 400),  # no body: without Host as HTTP/1.0 has it
        (LINE + LOCAL + b"Content-Length: 2\r\nContent-Length: 3\r\n", 400),
        (LINE + LOCAL + b"Content-Length: -2\r\n", 400),
        (LINE + LOCAL + b"Content-Length: \xb2\r\n", 400),
        (LINE + LOCAL + b"Content-Length: " + b"9" * 5000 + b"\r\n", 400),
        (LINE + LOCAL + b"Transfer-Encoding: gzip\r\n", 400),
        (LINE.replace(b"HTTP", b"http\r\n"), 400),
    ],
)
def test_heads_that_are_read_in_two_ways(toy_server: Site, head: bytes, status: int) -> None:
    told = raw(toy_server, head)
    assert told.startswith(b"HTTP/1.1 %d " % status), told[:80]
    assert told.count(b"HTTP/1.1") == 1
    assert toy_server.get("/health").status_code == 200


def test_a_path_ends_no_line_of_the_log_and_no_header(toy_server: Site) -> None:
    reply = toy_server.get("/v1/models/a%0d%0aset-cookie:%20b%0aGET%20/%20200%1b%5b31m")
    assert reply.status_code == 404 and "set-cookie" not in reply.headers
    assert error_of(reply)["type"] == "not_found_error"
    assert toy_server.line_with("set-cookie").isprintable()


def test_a_head_without_end(toy_server: Site) -> None:
    with socket.create_connection(("127.0.0.1", toy_server.port), timeout=PATIENCE) as connection:
        with pytest.raises(OSError):
            while True:
                connection.sendall(LINE + b"X: " + b"a" * 65_536)
                if connection.recv(65_536) == b"":
                    raise ConnectionResetError
    assert toy_server.ask(messages=HELLO)
