"""Access control: Host, Origin, API keys, content types."""

import gzip
import re
from collections.abc import Iterator

import pytest

from localspec.core.errors import UsageError
from localspec.server.guard import Access, is_loopback
from tests.support.served import CHAT, HELLO, ServedToy, Site, error_of, serving

PAGE = "http://localhost:3000"


@pytest.fixture(scope="module")
def locked() -> Iterator[Site]:
    """A server with two keys that lets pages of one origin ask."""
    with serving(
        ServedToy(), access=Access(keys=("first", "zweiter Schlüssel"), origins=(PAGE,))
    ) as site:
        yield site


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("my-machine", False),
    ],
)  # fmt: skip
def test_what_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_loopback(host) == local


def test_other_machines_need_a_key() -> None:
    Access(("127.0.0.1", "::1")).check()
    Access(("127.0.0.1", "0.0.0.0"), keys=("k",)).check()
    with pytest.raises(UsageError, match=re.escape("On 0.0.0.0 other machines")):
        Access(("127.0.0.1", "0.0.0.0")).check()


def test_all_pages_need_a_key_and_origins_must_be_some() -> None:
    Access(origins=(PAGE, "https://a.example")).check()
    Access(origins=("*",), keys=("k",)).check()
    with pytest.raises(UsageError, match="every web page"):
        Access(origins=("*",)).check()
    spelt = ("https://*.a.example", "http://a:*", "*://a", "https://A.example", "https://a:443")
    Access(origins=("http://[::1]:3000", "app://a.example", "http://a:443")).check()
    for wrong in ("localhost:3000", PAGE + "/", PAGE + "/chat", "null", "", "http://[", *spelt):
        with pytest.raises(UsageError, match="is not an origin"):
            Access(origins=(wrong,)).check()


@pytest.mark.parametrize(
    ("header", "is_one"),
    [
        ("localhost", True), ("LOCALHOST:8080", True), ("127.0.0.1:1", True), ("[::1]:80", True),
        ("[::1]", True), ("127.0.0.2", True), ("evil.example", False), ("", False),
        ("localhost.evil.example", False), ("127.0.0.1.evil.example:80", False), ("::1", False),
        ("evil.example:80:localhost", False), ("localhost:", False), ("localhost:8x", False),
    ],
)  # fmt: skip
def test_names_of_a_loopback_server(header: str, is_one: bool) -> None:
    assert Access(("127.0.0.2", "::1")).is_host(header) == is_one
    for host in ("0.0.0.0", "127.0.0.1"):  # behind a key, any name may be the server's
        assert Access((host,), keys=("k",)).is_host(header)


def test_a_proxy_s_page_may_ask_who_has_the_key(locked: Site) -> None:
    proxied = {"host": "chat.example", "origin": "https://chat.example"}
    assert locked.get("/", **proxied).status_code == 200
    assert locked.post(CHAT, {"messages": HELLO}, **proxied).status_code == 401
    keyed = proxied | {"authorization": "Bearer first"}
    assert locked.post(CHAT, {"messages": HELLO}, **keyed).status_code == 200


def test_a_page_whose_name_leads_here_is_refused(toy_server: Site) -> None:
    reply = toy_server.get("/v1/models", host="evil.example")
    assert reply.status_code == 403 and "evil.example" in error_of(reply)["message"]
    assert toy_server.get("/health", host="evil.example").status_code == 403
    assert toy_server.get("/health", host="localhost:9").status_code == 200


def test_pages_of_this_machine_may_be_allowed() -> None:
    access = Access(origins=("localhost",))
    access.check()
    with serving(ServedToy(), access=access) as site:
        for local in (
            "http://localhost",
            "http://localhost:3000",
            "http://127.0.0.1:5",
            "http://[::1]:1",
        ):
            asking = {"origin": local, "access-control-request-method": "POST"}
            reply = site.client.options(CHAT, headers=asking)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, local)
            assert reply.headers["access-control-allow-credentials"] == "true"
            reply = site.post(CHAT, {"messages": HELLO}, origin=local)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, local)
        for other in (
            "http://localhost.evil.com",
            "http://notlocalhost",
            "null",
            "http://localhost:1/x",
        ):
            assert site.post(CHAT, {"messages": HELLO}, origin=other).status_code == 403
            asking = {"origin": other, "access-control-request-method": "POST"}
            refused = site.client.options(CHAT, headers=asking).headers
            assert "access-control-allow-origin" not in refused


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", ""])
def test_pages_of_other_origins_are_refused(toy_server: Site, origin: str) -> None:
    reply = toy_server.post(CHAT, {"messages": HELLO}, origin=origin)
    assert reply.status_code == 403
    assert "--cors" in error_of(reply)["message"]
    assert "access-control-allow-origin" not in reply.headers


def test_the_server_s_own_page_may_ask(toy_server: Site) -> None:
    assert toy_server.post(CHAT, {"messages": HELLO}, origin=toy_server.url).status_code == 200


def test_a_page_that_is_allowed_asks_first_and_reads_the_reply(locked: Site) -> None:
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    first = locked.client.options(CHAT, headers=asked)  # without a key, as browsers do
    assert first.status_code == 200
    assert first.headers["access-control-allow-origin"] == PAGE
    reply = locked.post(CHAT, {"messages": HELLO}, origin=PAGE, authorization="Bearer first")
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "x-localspec-warnings" in reply.headers["access-control-expose-headers"]
    other = locked.client.options(CHAT, headers=asked | {"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first"},
        {"authorization": "bearer  first"},
        {"x-api-key": "first"},
        {"authorization": b"Bearer zweiter Schl\xc3\xbcssel"},
    ],
)
def test_a_key_opens(locked: Site, headers: dict[str, str]) -> None:
    reply = locked.client.post(CHAT, json={"messages": HELLO}, headers=headers)
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"authorization": "Bearer firs"}, {"authorization": "Bearer first2"},
        {"authorization": "Bearer"}, {"authorization": "first"}, {"authorization": "Basic first"},
        {"x-api-key": "other"}, {"authorization": b"Bearer \xff\xfe"},
    ],
)  # fmt: skip
def test_without_a_key_everything_is_closed(locked: Site, headers: dict[str, str]) -> None:
    for path in ("/v1/models", "/metrics", "/props", "/openapi.json", "/nothing"):
        reply = locked.client.get(path, headers=headers)
        assert reply.status_code == 401, path
        assert error_of(reply)["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
    assert locked.client.post(CHAT, json={"messages": HELLO}, headers=headers).status_code == 401
    assert locked.client.post("/health", json={}, headers=headers).status_code == 401


def test_health_and_the_page_are_open(locked: Site) -> None:
    assert locked.get("/health").json() == {"status": "ok"}
    assert locked.get("/").status_code == 200
    assert locked.get("/page/../v1/models").status_code == 401


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", ""]
)
def test_a_page_must_send_json_and_curl_need_not_say_so(toy_server: Site, kind: str) -> None:
    # Browsers send these without asking first, with one of both headers.
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    own = {"origin": str(toy_server.client.base_url).rstrip("/")}
    for sent in (own, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "none"}):
        reply = toy_server.client.post(CHAT, content=body, headers={"content-type": kind, **sent})
        assert reply.status_code == 415
        assert "application/json" in error_of(reply)["message"]
    reply = toy_server.client.post(CHAT, content=body, headers={"content-type": kind})
    assert reply.status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity, gzip"])
def test_an_encoded_body_is_refused_by_the_name_of_its_encoding(
    toy_server: Site, encoding: str
) -> None:
    body = gzip.compress(b'{"messages": [{"role": "user", "content": "hello"}]}')
    headers = {"content-type": "application/json", "content-encoding": encoding}
    for path in (CHAT, "/v1/messages"):
        reply = toy_server.client.post(path, content=body, headers=headers)
        assert reply.status_code == 415 and reply.headers["accept-encoding"] == "identity"
        assert f"A body in {encoding} is not read" in reply.json()["error"]["message"]
    headers["content-encoding"] = "identity"
    body = gzip.decompress(body)
    assert toy_server.client.post(CHAT, content=body, headers=headers).status_code == 200


def test_json_has_several_names(toy_server: Site) -> None:
    body = b'{"messages": [{"role": "user", "content": "hello"}]}'
    for kind in ("application/json", "APPLICATION/JSON; charset=utf-8", "application/x+json"):
        reply = toy_server.client.post(CHAT, content=body, headers={"content-type": kind})
        assert reply.status_code == 200


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [("slots", "/slots", 501), ("metrics", "/metrics", 501), ("ui", "/", 404)],
)
def test_what_is_off_is_not_shown(name: str, path: str, status: int) -> None:
    with serving(ServedToy(), access=Access(off=(name,))) as site:
        reply = site.get(path)
        assert reply.status_code == status and f"--no-{name}" in error_of(reply)["message"]
        assert site.get("/page/page.js").status_code == (404 if name == "ui" else 200)
        assert site.post("/slots/0?action=erase", {}).status_code == 200
        assert [site.get(each).status_code for each in ("/slots", "/metrics", "/")].count(200) == 2
