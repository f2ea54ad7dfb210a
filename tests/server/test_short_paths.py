"""Paths without /v1."""

import pytest

from tests.support.served import HELLO, Site


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
