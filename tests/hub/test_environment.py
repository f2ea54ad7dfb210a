# ruff: noqa: F401, F811  (`hub` is a fixture)
"""A variable that the HTTP library cannot use is named in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import httpcore2
import huggingface_hub
import pytest

from localspec.core.errors import HubProblem
from localspec.hub import client
from localspec.hub.environment import unusable_variable
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
    ("name", "value", "message"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:7890", "ALL_PROXY is no address of a proxy."),
        ("all_proxy", "socks4://127.0.0.1:7890", "all_proxy is no address of a proxy."),
        ("HTTPS_PROXY", "http://user:secret@proxy:80a", "HTTPS_PROXY is no address of a proxy."),
        ("http_proxy", "http://[::1", "http_proxy is no address of a proxy."),
        ("HTTP_PROXY", "http://a..b:80", "HTTP_PROXY is no address of a proxy."),
        ("NO_PROXY", "good.example,xn--a", "NO_PROXY is no list of hosts."),
        ("SSL_CERT_FILE", "/nonexistent/ca.pem", "SSL_CERT_FILE leads to no certificates."),
        ("SSL_CERT_FILE", __file__, "SSL_CERT_FILE leads to no certificates."),
        ("HF_ENDPOINT", "http://a..b", "HF_ENDPOINT is no address of a Hub."),
        ("HF_ENDPOINT", "http://hub:80a", "HF_ENDPOINT is no address of a Hub."),
    ],
)
def test_a_variable_of_requests(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    assert unusable_variable() is None
    monkeypatch.setenv(name, value)
    problem = problem_of(hub, Reference(REPO))
    assert problem.message == message and problem.hint.endswith(".")


def test_a_key_log_that_cannot_be_written(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(  # which opens the log as it is made
        "huggingface_hub.get_session", lambda: open("/nonexistent/keys")
    )
    monkeypatch.setenv("SSLKEYLOGFILE", "/nonexistent/keys")
    problem = problem_of(hub, Reference(REPO))
    assert problem.message == "SSLKEYLOGFILE names a file that cannot be written."


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
def test_socks_works_where_its_package_is_installed(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", f"{scheme}://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "socksio", None)
    problem = problem_of(hub, Reference(REPO))
    assert problem.message.startswith("ALL_PROXY names a SOCKS proxy")
    assert "pip install 'httpx2[socks]'" in problem.hint
    monkeypatch.setitem(sys.modules, "socksio", os)  # any module: nothing is sent
    monkeypatch.setattr("httpcore2.SOCKSProxy", httpcore2.HTTPProxy)
    assert unusable_variable() is None


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
    assert ran.stderr == "" and ran.stdout.startswith((f"{name} is no ", f"{name} holds "))
