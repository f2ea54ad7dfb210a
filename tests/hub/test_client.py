# ruff: noqa: F401, F811  (`hub` is a fixture)
"""The door to the Hub: what it says, byte ranges, the cache, and each refusal as one sentence."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.core import paths
from localspec.core.errors import HubProblem
from localspec.hub import body, client
from localspec.hub.client import DroppedConnection, RangeIgnored, RemoteModel
from localspec.hub.reference import Reference, RemoteFile, parse_reference
from tests.support.fake_hub import (
    GOOD_TOKEN,
    FakeHub,
    Fault,
    answer,
    bomb,
    drop,
    flip,
    hub,
    loop,
    stall,
    status,
    trickle,
    whole,
)

REPO = "org/model-GGUF"
DATA = bytes(range(256)) * 1000
NAME = "sub/model-Q4_K_M.gguf"


@pytest.fixture
def model(hub: FakeHub) -> RemoteModel:
    hub.add(REPO, NAME, DATA, licence="mit")
    hub.add(REPO, "README.md", b"# Model")
    found = client.resolve(Reference(REPO))
    hub.requests.clear()
    return found


def read(model: RemoteModel, start: int = 0, stop: int | None = None) -> bytes:
    return b"".join(client.stream(model, model.files[0], start, stop))


def sentence(error: HubProblem) -> str:
    """The message, which must be one clean sentence with a next step."""
    assert error.message.endswith(".") and error.message.isprintable()
    assert error.hint.endswith(".") and error.hint.isprintable()
    return error.message


def refused(call: Callable[[], object], kind: type[HubProblem] = HubProblem) -> HubProblem:
    with pytest.raises(HubProblem) as caught:
        call()
    sentence(caught.value)
    assert type(caught.value) is kind
    return caught.value


@pytest.mark.parametrize(
    ("tags", "repo"),
    [
        (["gguf", "base_model:quantized:org/Big", "base_model:org/Big"], "org/Big"),
        (["base_model:org/Big", "base_model:finetune:org/Big"], None),
        (["base_model:quantized:org/Big", "base_model:quantized:org/Other"], None),
        (["base_model:quantized:../x"], None),
        ([], None),
    ],
)
def test_what_a_repository_was_quantized_from(
    hub: FakeHub, model: RemoteModel, tags: list[str], repo: str | None
) -> None:
    hub.repos[REPO].tags += tags
    assert client.quantized_from(Reference(REPO)) == repo


def test_a_repository_of_safetensors_names_the_converter(hub: FakeHub) -> None:
    hub.add("org/Original", "model.safetensors", b"{}")
    problem = refused(lambda: client.resolve(Reference("org/Original")))
    assert problem.message == "org/Original holds only safetensors, and no GGUF file."
    assert problem.hint.endswith(
        "or convert it in llama.cpp's source folder with "
        "`python convert_hf_to_gguf.py --remote org/Original --outfile Original.gguf`."
    )
    hub.add("org/Original", "small-Q8_0.gguf", b"GGUF")
    assert client.resolve(Reference("org/Original")).files[0].path == "small-Q8_0.gguf"


# --- what a reference means ---


def test_a_reference_becomes_files_of_a_commit(hub: FakeHub) -> None:
    file = hub.add(REPO, NAME, DATA, licence="apache-2.0")
    hub.add(REPO, "mmproj-model-Q4_K_M.gguf", b"x")
    hub.add(REPO, "README.md", b"x")
    found = client.resolve(Reference(REPO, tag="q4_k_m"))
    assert found == RemoteModel(
        Reference(REPO, tag="q4_k_m"),
        hub.repos[REPO].commit,
        (RemoteFile(NAME, len(DATA), file.oid),),
        "apache-2.0",
    )
    assert found.size == len(DATA)
    assert [request.path for request in hub.requests] == [f"/api/models/{REPO}/revision/main"]


def test_split_models_add_up(hub: FakeHub) -> None:
    for part in (2, 1):
        hub.add(REPO, f"x-0000{part}-of-00002.gguf", DATA[:part])
    found = client.resolve(Reference(REPO))
    assert [file.size for file in found.files] == [1, 2] and found.size == 3


def test_revisions(hub: FakeHub) -> None:
    hub.add(REPO, NAME, DATA)
    hub.repos[REPO].revisions["refs/pr/1"] = "b" * 40
    assert client.resolve(Reference(REPO, revision="refs/pr/1")).commit == "b" * 40
    commit = hub.repos[REPO].commit
    assert client.resolve(Reference(REPO, revision=commit)).commit == commit
    error = refused(lambda: client.resolve(Reference(REPO, revision="v9")))
    assert error.message == f"{REPO} has no revision v9."


@pytest.mark.parametrize(
    ("stated", "expected"),
    [("mit", "mit"), (None, None), ("a\nb", "a\\nb"), ("x" * 999, "x" * 200)],
)
def test_the_licence(hub: FakeHub, stated: str | None, expected: str | None) -> None:
    hub.add(REPO, NAME, DATA, licence=stated)
    assert client.resolve(Reference(REPO)).license == expected


def test_a_hash_is_64_hex_digits_or_unknown(hub: FakeHub) -> None:
    for said in ("A" * 64, "z" * 64, "a" * 63, "", "a" * 65, "../" + "a" * 61):
        hub.repos.clear()
        hub.add(REPO, NAME, DATA).oid = said
        expected = "a" * 64 if said == "A" * 64 else None
        assert client.resolve(Reference(REPO)).files[0].sha256 == expected


def entry(path: object, size: object = 1, **more: object) -> dict[str, object]:
    return {"rfilename": path, "size": size, "blobId": "a" * 40, **more}


def test_a_listing_is_not_trusted(hub: FakeHub) -> None:
    hub.add(REPO, NAME, DATA)
    hub.extra_listing = [entry(path) for path in ("../x.gguf", "/x.gguf", "a" * 2000 + ".gguf")]
    hub.extra_listing += [entry(".hidden.gguf"), entry(5), entry("README.md", None)]
    hub.extra_listing += [entry(NAME, 7)]  # a second time
    assert client.resolve(Reference(REPO)).files[0].size == len(DATA)
    for size in (-1, 1 << 60, True, "1", 0.5):
        hub.extra_listing = [entry("x.gguf", size)]
        error = refused(lambda: client.resolve(Reference(REPO)))
        assert "lists x.gguf with an impossible size" in error.message


@pytest.mark.parametrize("kind", ["206", "whole"])
def test_a_mirror_that_lists_no_sizes(hub: FakeHub, kind: str) -> None:
    hub.add(REPO, NAME, DATA)
    hub.sizes = False
    hub.faults = [whole()] if kind == "whole" else []
    found = client.resolve(Reference(REPO))
    assert found.size == len(DATA) and read(found) == DATA


@pytest.mark.parametrize("name", ["x-Q8_0.gguf.part1of2", "x-Q8_0.gguf", ":Q8_0"])
def test_a_file_that_another_tool_cut_is_to_be_joined(hub: FakeHub, name: str) -> None:
    for number in (1, 2):
        hub.add(REPO, f"x-Q8_0.gguf.part{number}of2", DATA)
    reference = parse_reference(f"hf:{REPO}{name if name[0] == ':' else f'/{name}'}")
    assert reference is not None
    for _ in range(2):
        error = refused(lambda: client.resolve(reference))
        assert error.message == f"{REPO} has x-Q8_0.gguf only in parts that another tool cut."
        assert f"`hf download {REPO} --include 'x-Q8_0.gguf*' --local-dir .`" in error.hint
        assert "`cat x-Q8_0.gguf.part1of2 x-Q8_0.gguf.part2of2 > x-Q8_0.gguf`" in error.hint
        hub.add(REPO, "x-Q4_K_M.gguf", DATA)  # another one is whole


@pytest.mark.parametrize("lfs", [{}, [], "x", {"sha256": 5, "size": "x", "pointerSize": []}])
def test_an_absurd_listing(hub: FakeHub, lfs: object) -> None:
    hub.add(REPO, NAME, DATA)
    hub.extra_listing = [entry("x.gguf", 1, lfs=lfs)]
    try:
        client.resolve(Reference(REPO))
    except HubProblem as error:
        assert "does not answer like a Hub" in sentence(error)


# --- refusals ---


def test_a_missing_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(lambda: client.resolve(Reference(REPO)))
    assert "no public repository org/model-GGUF" in error.message and "HF_TOKEN" in error.hint
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    error = refused(lambda: client.resolve(Reference(REPO)))
    assert "that your access token may see" in error.message


def test_a_private_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, NAME, DATA)
    hub.repos[REPO].private = True
    refused(lambda: client.resolve(Reference(REPO)))
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    assert read(client.resolve(Reference(REPO))) == DATA


def test_a_gated_repository(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, NAME, DATA, gated="manual")
    found = client.resolve(Reference(REPO))  # what it holds is public
    error = refused(lambda: read(found))
    assert error.message == f"{REPO} is gated: its terms must be accepted first."
    assert f"Accept the terms at https://huggingface.co/{REPO}, then set HF_TOKEN" in error.hint
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    error = refused(lambda: read(found))
    assert "your access token may not read it" in error.message and REPO in error.hint
    hub.granted.add(REPO)
    assert read(found) == DATA


def test_a_wrong_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, model: RemoteModel) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    for call in (lambda: client.resolve(Reference(REPO)), lambda: read(model)):
        error = refused(call)
        assert "refuses your access token" in error.message and "HF_TOKEN" in error.hint
    monkeypatch.setenv("HF_TOKEN", "hf_geheim\u00e4")
    assert "invalid characters" in refused(lambda: read(model)).message


def test_a_saved_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.add(REPO, NAME, DATA, gated="auto")
    hub.granted.add(REPO)
    found = client.resolve(Reference(REPO))
    refused(lambda: read(found))
    folder = tmp_path / "huggingface"
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(f"{GOOD_TOKEN}\n")
    assert read(found) == DATA


def test_a_file_that_was_removed(hub: FakeHub, model: RemoteModel) -> None:
    commit = hub.repos[REPO].commit
    del hub.repos[REPO].files[NAME]
    hub.repos[REPO].revisions[commit] = commit
    assert f"no longer has {NAME}" in refused(lambda: read(model)).message


@pytest.mark.parametrize(
    ("code", "retry_after", "pause"),
    [(429, "7", 7.0), (429, None, None), (429, "99999999", 3600.0), (500, None, None),
     (503, "2", 2.0), (503, "soon", None), (408, None, None)],
)  # fmt: skip
def test_a_pause(
    hub: FakeHub,
    model: RemoteModel,
    code: int,
    retry_after: str | None,
    pause: float | None,
) -> None:
    for on in ("file", "api"):
        hub.faults = [status(code, on=on, retry_after=retry_after)]
        call = (lambda: read(model)) if on == "file" else lambda: client.resolve(Reference(REPO))
        error = refused(call, DroppedConnection)
        assert isinstance(error, DroppedConnection) and error.retry_after == pause
        assert ("too many requests" if code == 429 else f"status {code}") in error.message
    assert len(hub.requests) == 2  # the library's own retries are not used


@pytest.mark.parametrize("kind", ["html", "garbage"])
def test_an_endpoint_that_is_no_hub(hub: FakeHub, kind: str) -> None:
    hub.faults = [Fault(kind, on="api")]  # type: ignore[arg-type]
    error = refused(lambda: client.resolve(Reference(REPO)))
    assert f"The Hub at {hub.url} does not answer like a Hub." == error.message
    assert "HF_ENDPOINT" in error.hint


def test_a_commit_must_look_like_one(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, NAME, DATA)
    for commit in ("../x", "A" * 40, 5, None):
        hub.repos[REPO].revisions["dev"] = commit  # type: ignore[assignment]
        refused(lambda: client.resolve(Reference(REPO, revision="dev")))


@pytest.mark.parametrize("address", ["huggingface.co", "ftp://x", "http://", "http://x:y"])
def test_an_endpoint_that_is_no_address(
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    error = refused(lambda: client.resolve(Reference(REPO)))
    assert "HF_ENDPOINT" in error.hint


def test_a_password_in_the_endpoint_is_not_shown(
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.stop()
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:secret@127.0.0.1:{hub.port}")
    error = refused(lambda: client.resolve(Reference(REPO)), DroppedConnection)
    assert "secret" not in error.message + error.hint


# --- a Hub that is down, or slow ---


def test_a_hub_that_is_down(hub: FakeHub, model: RemoteModel) -> None:
    hub.stop()
    huggingface_hub.close_session()
    for call in (lambda: client.resolve(Reference(REPO)), lambda: read(model)):
        error = refused(call, DroppedConnection)
        assert f"The Hub at {hub.url} cannot be reached: " in error.message


def test_a_hub_that_is_down_is_told_within_five_seconds() -> None:
    assert client.CONNECT_SECONDS < client.ANSWER_SECONDS < 5


@pytest.mark.parametrize("limit", ["ANSWER_SECONDS", "CONNECT_SECONDS"])
def test_a_hub_that_stays_silent(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(client, limit, 0.2)
    hub.faults = [stall(on="api")]
    error = refused(lambda: client.resolve(Reference(REPO)), DroppedConnection)
    assert "does not answer" in error.message and "HF_ENDPOINT" in error.hint


def test_the_wait_for_an_answer_ends_whatever_it_waits_for() -> None:
    ended = threading.Event()
    with pytest.raises(DroppedConnection):
        client._within(0.05, lambda: ended.wait(60))
    ended.set()
    assert client._within(60, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        client._within(60, lambda: 1 // 0)


def test_offline_mode(hub: FakeHub, model: RemoteModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said, expected in (
        ("HF_HUB_OFFLINE", "1", True), ("HF_HUB_OFFLINE", "yes", True),
        ("HF_HUB_OFFLINE", "0", False),
        ("TRANSFORMERS_OFFLINE", "True", True), ("TRANSFORMERS_OFFLINE", "", False),
    ):  # fmt: skip
        with monkeypatch.context() as environment:
            environment.setenv(name, said)
            assert client.offline() is expected
            for call in (lambda: client.resolve(Reference(REPO)), lambda: read(model)):
                if expected:
                    assert "HF_HUB_OFFLINE is set" in refused(call).message
                else:
                    call()
    hub.requests.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for call in (lambda: client.resolve(Reference(REPO)), lambda: read(model)):
        assert "Offline mode was on when localspec started" in refused(call).message
    assert not hub.requests


# --- bytes ---


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.integers(0, len(DATA) + 5), st.integers(0, len(DATA) + 5))
def test_any_range(hub: FakeHub, model: RemoteModel, start: int, stop: int) -> None:
    hub.served.clear()
    assert read(model, start, stop) == DATA[start:stop]
    assert hub.served[f"{REPO}/{NAME}"] == len(DATA[start:stop])


def test_the_whole_file_and_its_request(hub: FakeHub, model: RemoteModel) -> None:
    assert read(model) == DATA
    (request,) = hub.requests
    assert request.path == f"/{REPO}/resolve/{model.commit}/{NAME}"
    assert request.range == f"bytes=0-{len(DATA) - 1}"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["user-agent"].startswith("localspec/")
    assert "authorization" not in request.headers


def test_connections_are_used_again(
    hub: FakeHub, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    accept = hub._server.get_request

    def count() -> tuple[socket.socket, Any]:
        opened.append(1)
        return accept()

    monkeypatch.setattr(hub._server, "get_request", count)
    huggingface_hub.close_session()
    for start in range(0, 5000, 1000):
        read(model, start, start + 1000)
    assert len(opened) < 5  # one, unless the machine is so slow that it was given up in between


def test_the_token_never_goes_to_another_host(
    hub: FakeHub,
    model: RemoteModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    hub.redirecting = True
    assert read(model, 100, 70_000) == DATA[100:70_000]
    first, second = hub.requests
    assert first.headers["authorization"] == f"Bearer {GOOD_TOKEN}"
    assert second.path.startswith("/cdn/") and second.headers["host"].startswith("localhost")
    assert "authorization" not in second.headers
    assert second.range == first.range == "bytes=100-69999"
    assert second.headers["accept-encoding"] == "identity"


def test_an_empty_file(hub: FakeHub) -> None:
    hub.add(REPO, NAME, b"")
    assert read(client.resolve(Reference(REPO))) == b""


def test_names_are_quoted(hub: FakeHub) -> None:
    name = "a b/50% #1?x=y+\u00e4.gguf"
    hub.add(REPO, name, DATA)
    assert read(client.resolve(Reference(REPO)), 5, 10) == DATA[5:10]


@pytest.mark.parametrize("at", [0, 1, 1000, 200_000])
def test_a_connection_that_drops(hub: FakeHub, model: RemoteModel, at: int) -> None:
    hub.faults = [drop(at)]
    got = bytearray()
    with pytest.raises(DroppedConnection) as caught:
        for piece in client.stream(model, model.files[0], 10):
            got += piece
    sentence(caught.value)
    assert bytes(got) == DATA[10 : 10 + at] and caught.value.retry_after is None
    assert bytes(got) + read(model, 10 + at) == DATA[10:]


def test_a_connection_that_stalls(
    hub: FakeHub, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("0.2", "2", "20"):  # longer where nothing came because this machine is busy
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", seconds)
        hub.faults = [stall(1000)]
        got = bytearray()
        with pytest.raises(DroppedConnection):
            for piece in client.stream(model, model.files[0]):
                got += piece
        if got:
            break
    assert bytes(got) == DATA[:1000]


def test_how_long_a_stall_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, seconds in (("5", 5.0), ("-1", 0.1), ("x", 10.0), ("nan", 0.1), ("9" * 20, 86_400.0)):
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", said)
        assert client._seconds("HF_HUB_DOWNLOAD_TIMEOUT", 10.0) == seconds


def test_a_body_shorter_than_the_range(hub: FakeHub, model: RemoteModel) -> None:
    hub.faults = [Fault("short")]
    error = refused(lambda: read(model, 10), DroppedConnection)
    assert f"{NAME} ended after 255,989 of 255,990 bytes" in error.message
    hub.faults = [Fault("long")]  # says more than it sends
    assert read(model, 10) == DATA[10:]


def test_a_range_that_is_ignored(hub: FakeHub, model: RemoteModel) -> None:
    hub.faults = [whole()]
    assert read(model, 0, 1000) == DATA[:1000]  # from the start that does no harm
    hub.faults = [whole()]
    error = refused(lambda: read(model, 1), RangeIgnored)
    assert "sends all of sub/model-Q4_K_M.gguf" in error.message
    hub.faults = [whole()]
    assert read(model) == DATA


def test_a_file_of_another_size(hub: FakeHub, model: RemoteModel) -> None:
    hub.repos[REPO].files[NAME].size += 5
    for call in (lambda: read(model), lambda: read(model, 10)):
        error = refused(call)
        assert "has 256005 bytes on the Hub, not the 256,000 of its listing" in error.message
    hub.repos[REPO].files[NAME].size = 5
    assert "fewer bytes" in refused(lambda: read(model, 10)).message


def test_what_is_not_read_is_not_waited_for(hub: FakeHub) -> None:
    hub.add(REPO, NAME, DATA, size=1 << 40)
    found = client.resolve(Reference(REPO))
    pieces = client.stream(found, found.files[0])
    assert next(pieces)[:10] == DATA[:10]
    pieces.close()
    assert read(found, 1 << 39, (1 << 39) + 5) == bytes(5)


# --- a hostile Hub ---


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "ftp://x/y",
        "javascript:1",
        "data:,x",
        "http://",
        "http://[",
        "//",
        "x\0",
    ],
)
def test_a_redirect_to_no_web_address(hub: FakeHub, model: RemoteModel, address: str) -> None:
    hub.faults = [answer(302, {"Location": address}, on=on) for on in ("api", "file")]
    for call in (lambda: client.resolve(Reference(REPO)), lambda: read(model)):
        with pytest.raises(HubProblem) as caught:
            call()
        assert sentence(caught.value)


def test_no_redirect_gets_the_token(
    hub: FakeHub, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
    with FakeHub() as other:
        other.repos = hub.repos
        for on in ("api", "file"):
            path = (
                f"/{REPO}/resolve/main/{NAME}" if on == "file" else f"/api/models/{REPO}?blobs=true"
            )
            hub.faults += [answer(307, {"Location": f"{other.content_url}{path}"}, on=on)]
        client.resolve(Reference(REPO))
        assert read(model) == DATA
        assert len(other.requests) == 2
        assert all("authorization" not in request.headers for request in other.requests)


def test_a_compressed_listing_is_not_read(hub: FakeHub) -> None:
    hub.faults = [bomb()]
    assert "was compressed" in refused(lambda: client.resolve(Reference(REPO))).message


def test_gigabytes_instead_of_a_listing(hub: FakeHub) -> None:
    hub.faults = [answer(200, {}, *[bytes(1 << 20)] * 100, on="api")]
    assert "more than 4 MB" in refused(lambda: client.resolve(Reference(REPO))).message


@pytest.mark.parametrize("on", ["api", "file"])
def test_headers_without_end(
    hub: FakeHub, model: RemoteModel, monkeypatch: pytest.MonkeyPatch, on: str
) -> None:
    """Each byte comes in time, but the answer does not."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(client, "HEADER_SECONDS", 0.3)
    hub.faults = [Fault("endless headers", on)]  # type: ignore[arg-type]
    call = (lambda: read(model)) if on == "file" else lambda: client.resolve(Reference(REPO))
    assert "does not answer" in refused(call, DroppedConnection).message


def test_a_byte_at_a_time(
    hub: FakeHub, model: RemoteModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "LEAST_SECONDS", 0.05)
    hub.faults = [trickle()]
    got = bytearray()
    with pytest.raises(DroppedConnection, match=r"sent only [\d,]+ bytes in \d+ seconds"):
        for piece in client.stream(model, model.files[0]):
            got += piece
    assert got and DATA.startswith(got)


# --- the library's cache ---


def put(folder: Path, commit: str, oid: str, data: bytes, link: bool = True) -> Path:
    """A file in the cache as the library lays it out."""
    root = folder / "models--org--model-GGUF"
    path = root / "snapshots" / commit / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    blob = root / "blobs" / oid
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(data)
    if link:
        path.symlink_to(blob)
    else:
        blob.rename(path)
    return path


@pytest.mark.parametrize("link", [True, False])
def test_a_cached_file_of_this_commit(
    hub: FakeHub,
    model: RemoteModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    link: bool,
) -> None:
    (file,) = model.files
    assert client.cached(model, file) is None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    path = put(tmp_path / "cache", model.commit, str(file.sha256), DATA, link)
    assert client.cached(model, file) == path
    path.resolve().write_bytes(DATA[:-1])
    assert client.cached(model, file) is None
    assert not hub.requests


def test_a_cached_file_of_another_commit(hub: FakeHub, model: RemoteModel, tmp_path: Path) -> None:
    (file,) = model.files
    cache = tmp_path / "huggingface" / "hub"
    assert paths.hub_cache_folder() == cache
    put(cache, "c" * 40, "0" * 64, DATA)  # other content of the same size
    assert client.cached(model, file) is None
    path = put(cache, "d" * 40, str(file.sha256), DATA)
    assert client.cached(model, file) == path
    path.resolve().unlink()
    assert client.cached(model, file) is None


def test_a_repository_in_another_case(hub: FakeHub, model: RemoteModel, tmp_path: Path) -> None:
    """The Hub ignores the case of names, and the cache keeps the one that was asked for."""
    again = client.resolve(Reference(REPO.upper(), tag="q4_k_m"))
    assert again.reference.repo == REPO and again.files == model.files
    put(tmp_path / "huggingface" / "hub", model.commit, str(model.files[0].sha256), DATA)
    for repo in (REPO.lower(), REPO.upper()):
        asked = replace(model, reference=Reference(repo))
        assert client.cached(asked, model.files[0]) is not None
    assert client.cached(replace(model, reference=Reference("org/model")), model.files[0]) is None


def test_a_file_that_the_library_downloaded(hub: FakeHub, model: RemoteModel) -> None:
    path = huggingface_hub.hf_hub_download(
        REPO, NAME, endpoint=hub.url, cache_dir=paths.hub_cache_folder()
    )
    assert client.cached(model, model.files[0]) == Path(path)


def test_where_the_cache_is(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.delenv("HF_HOME")
    assert paths.hub_cache_folder() == home / ".cache/huggingface/hub"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert paths.hub_cache_folder() == Path("/xdg/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert paths.hub_cache_folder() == home / "hf/hub"
    monkeypatch.setenv("HF_HUB_CACHE", "$HOME/c")
    assert paths.hub_cache_folder() == home / "c"


def test_importing_the_client_imports_no_library() -> None:
    code = "import sys, localspec.hub.client; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert (
        "localspec.hub.client" in loaded and "huggingface" not in loaded and "httpx" not in loaded
    )
