# ruff: noqa: F401, F811  (`hub` is a fixture)
"""A variable that the HTTP library cannot use is named in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from localspec.core.errors import HubProblem
from localspec.hub import client
from localspec.hub.reference import Reference
from tests.support.fake_hub import FakeHub, hub

REPO = "org/model-GGUF"


def problem_of(hub: FakeHub, reference: Reference) -> HubProblem:
    hub.add(REPO, "model-Q4_K_M.gguf", b"GGUF")
    huggingface_hub.close_session()
    with pytest.raises(HubProblem) as caught:
        client.resolve(reference)
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:7890"),
        ("all_proxy", "socks4://127.0.0.1:7890"),
        ("HTTPS_PROXY", "http://user:secret@proxy:80a"),
        ("http_proxy", "http://[::1"),
        ("HTTP_PROXY", "http://a..b:80"),
        ("NO_PROXY", "good.example,xn--a"),
        ("SSL_CERT_FILE", "/nonexistent/ca.pem"),
        ("SSL_CERT_FILE", __file__),
        ("HF_ENDPOINT", "http://a..b"),
        ("HF_ENDPOINT", "http://hub:80a"),
    ],
)
def test_a_variable_of_requests(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(name, value)
    problem = problem_of(hub, Reference(REPO))
    assert "environment variable" in problem.message and "secret" not in problem.message
    assert name.upper() in problem.hint and problem.hint.endswith(".")


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_socks_needs_a_package(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "socksio", None)
    problem = problem_of(hub, Reference(REPO))
    assert "SOCKS" in problem.message and "[socks]" in problem.message
    assert "ALL_PROXY" in problem.hint


def test_a_token_file_that_is_no_text(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    assert "access token cannot be read" in problem_of(hub, Reference(REPO)).message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_ETAG_TIMEOUT", "4.5"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", ""),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "30s"),
        ("HF_ENDPOINT", "http://[::1"),
        ("HF_HUB_USER_AGENT_ORIGIN", "é"),
    ],
)
def test_a_variable_that_the_library_reads_when_it_is_imported(name: str, value: str) -> None:
    code = (
        "from localspec.core.errors import HubProblem\n"
        "from localspec.hub import client\n"
        "from localspec.hub.reference import Reference\n"
        "try:\n    client.resolve(Reference('org/model'))\n"
        "except HubProblem as problem:\n    print(problem.message)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", name: value},
        capture_output=True,
        text=True,
    )
    assert ran.stderr == "" and ran.stdout.count("\n") == 1
