"""Paths without /v1, with a slash behind, of other servers; HEAD."""

import socket

import pytest

from tests.support.served import CHAT, HELLO, PATIENCE, Site, error_of


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/chat/completions", {"messages": HELLO}, "chat.completion"),
        ("/responses", {"input": "hello"}, "response"),
        ("/responses/input_tokens", {"input": "hello"}, "response.input_tokens"),
    ],
)
def test_requests_without_v1(
    toy_server: Site, path: str, body: dict[str, object], kind: str
) -> None:
    for begin in ("", "/v1"):
        reply = toy_server.post(begin + path, body)
        assert (reply.status_code, reply.json()["object"]) == (200, kind)


def test_questions_without_v1(toy_server: Site) -> None:
    assert toy_server.get("/models").json() == toy_server.get("/v1/models").json()
    assert toy_server.get("/models/other name").json()["id"] == "other name"
    stored = toy_server.post("/responses", {"input": "hello"}).json()
    assert toy_server.get(f"/responses/{stored['id']}").json()["id"] == stored["id"]


def test_a_text_completion_without_v1_is_llama_servers(toy_server: Site) -> None:
    assert "choices" in toy_server.post("/v1/completions", {"prompt": "a"}).json()
    assert "choices" not in toy_server.post("/completions", {"prompt": "a"}).json()


def test_tokens_are_counted(toy_server: Site) -> None:
    counted = toy_server.post("/chat/completions/input_tokens", {"messages": HELLO}).json()
    assert counted == {"input_tokens": toy_server.ask()["usage"]["prompt_tokens"]}


def test_a_slash_behind_a_path_leads_nowhere_else(toy_server: Site) -> None:
    for path in (f"{CHAT}/", "/chat/completions/"):
        assert toy_server.post(path, {"messages": HELLO}).status_code == 200
    assert toy_server.get("/v1/models/").json() == toy_server.get("/v1/models").json()
    assert toy_server.get("/v1/nothing/").status_code == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/v1/chat/completions", "expected /v1/chat/completions"),
        ("//v1/chat/completions", "expected /v1/chat/completions"),
        ("/v1//v1/models", "expected /v1/models"),
        ("/api/chat", "base URL http://127.0.0.1:"),
        ("/api/tags", "base URL http://127.0.0.1:"),
        ("/api/show", "base URL http://127.0.0.1:"),
    ],
)
def test_a_wrong_base_url_is_answered_with_the_right_one(
    toy_server: Site, path: str, said: str
) -> None:
    for reply in (
        toy_server.client.get(f"{toy_server.url}{path}"),
        toy_server.client.post(f"{toy_server.url}{path}", json={}),
    ):
        assert reply.status_code == 404 and said in error_of(reply)["message"]


def test_checks_of_load_balancers(toy_server: Site) -> None:
    for path in ("/", "/health", "/v1/health", "/v1/models", "/page/page.js"):
        reply = toy_server.client.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
        assert reply.headers["content-length"] == toy_server.get(path).headers["content-length"]
    for line in (b"GET /health", b"HEAD /health"):
        with socket.create_connection(("127.0.0.1", toy_server.port), PATIENCE) as made:
            made.sendall(line + b" HTTP/1.0\r\n\r\n")  # without Host
            assert made.recv(12) == b"HTTP/1.1 200"
