"""curl as a client."""

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from localspec.server.guard import Access
from tests.support.served import CHAT, PATIENCE, ServedToy, Site, events_of, serving, text_of

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

ASKED = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6})
JSON = ("-H", "Content-Type: application/json")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A server with a key, and room for a thousand bytes."""
    with serving(ServedToy(), access=Access(keys=("key",)), max_body=1000) as made:
        yield made


def curl(
    site: Site, *arguments: str, key: str = "key", body: str = "", path: str = CHAT
) -> tuple[int, str]:
    """Status and body of what is asked for; ``body`` is piped in, which curl sends in chunks."""
    command = ["curl", "--silent", "--noproxy", "*", "--write-out", "\n%{http_code}"]
    command += ["-H", f"Authorization: Bearer {key}", site.url + path, *arguments]
    done = subprocess.run(
        command, input=body, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    told, _, status = done.stdout.rpartition("\n")
    return int(status), told


def test_an_answer_whole_and_streamed(site: Site) -> None:
    status, whole = curl(site, *JSON, "--data", ASKED)
    content = json.loads(whole)["choices"][0]["message"]["content"]
    assert status == 200 and len(content) == 6
    asked = json.dumps(json.loads(ASKED) | {"stream": True})
    status, told = curl(site, *JSON, "--no-buffer", "--data", asked)
    *events, last = events_of(told)
    assert status == 200 and last == "[DONE]"
    assert text_of([*map(json.loads, events)]) == content


def test_a_wrong_key(site: Site) -> None:
    status, told = curl(site, *JSON, "--data", ASKED, key="other")
    assert status == 401 and json.loads(told)["error"]["code"] == "invalid_api_key"


def test_a_body_that_is_too_large(site: Site) -> None:
    status, told = curl(site, *JSON, "--data", ASKED + " " * 2000)
    assert status == 413 and "--max-body" in told


def test_a_body_in_chunks(site: Site) -> None:
    chunked = (*JSON, "-H", "Transfer-Encoding: chunked", "--data-binary", "@-")
    status, told = curl(site, *chunked, body=ASKED)
    assert status == 200 and json.loads(told)["choices"]
    status, told = curl(site, *chunked, body=ASKED + " " * 2000)
    assert status == 413 and json.loads(told)["error"]


def test_curl_s_own_content_type_is_read_as_json(site: Site) -> None:
    status, told = curl(site, "--data", ASKED)
    assert status == 200 and json.loads(told)["choices"]
    status, told = curl(site, "--data", ASKED, path="/api/generate")
    assert status == 404 and "Ollama" in told
