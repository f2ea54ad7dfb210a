"""Each reason why the Hub does not give something is one clean sentence with a next step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import HubProblem
from localspec.hub import http_errors
from localspec.hub.http_errors import DroppedConnection
from localspec.hub.reference import Reference, RemoteFile

REFERENCE = Reference("org/model-GGUF", revision="v9")
FILE = RemoteFile("sub/x.gguf", 1000, None)
TEXTS = st.text(max_size=300)


@dataclass
class Answer:
    """As much of an answer as `http_errors` looks at."""

    status_code: int = 206
    headers: Mapping[str, str] = field(default_factory=dict)


def answer(status: int = 206, **headers: str) -> httpx2.Response:
    return httpx2.Response(
        status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def sentence(error: HubProblem) -> str:
    assert error.message.endswith(".") and error.message.isprintable()
    assert error.hint.endswith(".") and error.hint.isprintable()
    assert len(error.message) < 700
    return error.message


@pytest.fixture(autouse=True)
def usual_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


# --- what an answer other than success means ---


@pytest.mark.parametrize(
    ("status", "code", "token", "says"),
    [
        (401, "GatedRepo", None, "org/model-GGUF is gated: its terms must be accepted"),
        (403, "GatedRepo", "hf_x", "gated, and your access token may not read it"),
        (401, None, "hf_x", "The Hub refuses your access token"),
        (401, None, None, "no public repository org/model-GGUF"),
        (404, "RepoNotFound", None, "no public repository org/model-GGUF"),
        (404, "RepoNotFound", "hf_x", "no repository org/model-GGUF that your access token may"),
        (404, "RevisionNotFound", None, "org/model-GGUF has no revision v9"),
        (404, "EntryNotFound", None, "org/model-GGUF no longer has sub/x.gguf"),
        (416, None, None, "sub/x.gguf has fewer bytes on the Hub, not the 1,000 of its listing"),
        (403, None, None, "The Hub forbids access to org/model-GGUF"),
        (418, None, None, "The Hub does not answer like a Hub: status 418"),
        (302, None, None, "The Hub does not answer like a Hub: status 302"),
    ],
)
def test_what_is_final(status: int, code: str | None, token: str | None, says: str) -> None:
    headers = {} if code is None else {"X_Error_Code": code}
    error = http_errors.of_response(answer(status, **headers), REFERENCE, token, FILE)
    assert says in sentence(error) and not isinstance(error, DroppedConnection)


def test_a_disabled_repository() -> None:
    said = answer(403, X_Error_Message="Access to this resource is disabled.")
    assert "was disabled" in sentence(http_errors.of_response(said, REFERENCE, None))


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 7 "}, 7.0),
        ({"Retry-After": "99999999"}, http_errors.MAX_PAUSE),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({"RateLimit": '"resolvers";r=0;t=55'}, 55.0),
        ({"RateLimit": '"resolvers";r=9;t=55'}, None),
        ({"RateLimit": "x"}, None),
        ({}, None),
    ],
)
def test_how_long_the_hub_wants_to_be_left_alone(
    headers: dict[str, str], pause: float | None
) -> None:
    error = http_errors.of_response(
        cast("httpx2.Response", Answer(429, httpx2.Headers(headers))), REFERENCE, None
    )
    assert isinstance(error, DroppedConnection) and error.retry_after == pause


def test_text_from_the_hub_is_escaped() -> None:
    said = {"X-Error-Message": "\x1b]0;owned\x07" + "long" * 1000}
    refused = cast("httpx2.Response", Answer(403, said))
    error = http_errors.of_response(refused, REFERENCE, None)
    assert "\\x1b]0;owned" in sentence(error) and len(error.message) < 400


@given(st.integers(100, 599), TEXTS, TEXTS, TEXTS, st.sampled_from([None, "hf_x"]))
def test_any_refusal_is_one_clean_sentence(
    status: int, code: str, said: str, pause: str, token: str | None
) -> None:
    headers = {"X-Error-Code": code, "X-Error-Message": said, "Retry-After": pause}
    refused = cast("httpx2.Response", Answer(status, headers))
    for file in (None, FILE):
        sentence(http_errors.of_response(refused, REFERENCE, token, file))


# --- what kept an answer from coming ---


@pytest.mark.parametrize(
    ("error", "says", "again"),
    [
        (httpx2.ReadTimeout("x"), "The Hub does not answer", True),
        (httpx2.ConnectTimeout("x"), "The Hub does not answer", True),
        (httpx2.TooManyRedirects("x"), "redirects without end", False),
        (httpx2.UnsupportedProtocol("x"), "The Hub leads to no web address", False),
        (
            httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] x"),
            "has no valid certificate",
            False,
        ),
        (httpx2.ConnectError("refused\n"), "The Hub cannot be reached: refused\\n", True),
        (httpx2.ProxyError("x"), "The Hub cannot be reached: x", True),
        (httpx2.RemoteProtocolError("x"), "The connection to the Hub broke: x", True),
        (ConnectionError(), "The connection to the Hub broke: ConnectionError", True),
    ],
)
def test_trouble(error: Exception, says: str, again: bool) -> None:
    found = http_errors.trouble(error)
    assert says in sentence(found) and isinstance(found, DroppedConnection) == again


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("", "The Hub"),
        ("https://huggingface.co/", "The Hub"),
        ("http://mirror:80/", "The Hub at http://mirror:80"),
        ("http://me:secret@mirror", "The Hub at mirror"),
        ("x\n" * 200, "The Hub at " + "x\\n" * 100),
    ],
)
def test_the_hub_by_its_name(monkeypatch: pytest.MonkeyPatch, address: str, name: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    assert http_errors.hub_name() == name
    for error in (http_errors.no_answer(), http_errors.no_hub(), http_errors.no_hub("status 418")):
        assert sentence(error).startswith(name)
