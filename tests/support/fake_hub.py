"""A Hub on loopback: model listings, files by range, a content host, and every way to fail.

`FakeHub` serves what `add` gave it, as the Hub does: gated and private repositories, revisions,
tokens, and (with `redirecting`) file content from another host name. `hub.faults` holds what is to
go wrong next; `hub.requests` and `hub.served` tell what was asked and sent. The fixture `hub`
starts one and points the environment at it.
"""

import gzip
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, cast
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

GOOD_TOKEN = "hf_good"
PIECE = 64 << 10
LFS_SUFFIXES = (".gguf", ".bin", ".safetensors")

On = Literal["file", "api", "resolve"]
Kind = Literal[
    "drop", "stall", "short", "long", "flip", "whole", "status", "loop", "html", "garbage", "gzip",
    "other range", "trickle", "answer", "endless headers",
]  # fmt: skip


@dataclass
class Fault:
    """One way to fail, for the next `times` requests that it fits (None: for all of them).

    `on` says which requests: "file" are those for content, "api" those for facts, and "resolve"
    those that a redirecting Hub answers with another address. `path` must be in the request's path.
    """

    kind: Kind
    on: On = "file"
    path: str = ""
    times: int | None = 1
    at: int = 0  # bytes of the answer sent before it happens; for "flip" the offset in the file
    status: int = 500
    retry_after: str | None = None
    code: str | None = None  # the X-Error-Code
    seconds: float = 60.0  # how long a stall lasts, unless the Hub is closed before
    headers: Mapping[str, str] = field(default_factory=dict)  # of an "answer"
    pieces: Iterable[bytes] = ()  # its body, at whose end the connection closes
    hits: int = 0

    def fits(self, on: str, path: str) -> bool:
        spent = self.times is not None and self.hits >= self.times
        return self.on == on and self.path in path and not spent


def drop(at: int, **options: object) -> Fault:
    """The connection breaks after `at` bytes of the answer's body."""
    return Fault("drop", at=at, **options)  # type: ignore[arg-type]


def stall(at: int = 0, **options: object) -> Fault:
    """Nothing more comes after `at` bytes of the answer's body; the connection stays open."""
    return Fault("stall", at=at, **options)  # type: ignore[arg-type]


def flip(at: int, **options: object) -> Fault:
    """The byte at offset `at` of the file is wrong; the length is right."""
    return Fault("flip", at=at, **options)  # type: ignore[arg-type]


def whole(**options: object) -> Fault:
    """A Range request is answered with status 200 and the whole file."""
    return Fault("whole", **options)  # type: ignore[arg-type]


def status(code: int, **options: object) -> Fault:
    """An answer with this status; `retry_after` and the error `code` become headers."""
    return Fault("status", status=code, **options)  # type: ignore[arg-type]


def loop(**options: object) -> Fault:
    """A redirect back to where the request went."""
    return Fault("loop", **{"times": None, **options})  # type: ignore[arg-type]


def trickle(**options: object) -> Fault:
    """The content comes a byte at a time, with a pause before each."""
    return Fault("trickle", **{"times": None, "seconds": 0.01, **options})  # type: ignore[arg-type]


def answer(status: int, headers: Mapping[str, str], *pieces: bytes, on: str = "file") -> Fault:
    """Every request gets this answer, or as much of it as the client reads."""
    return Fault(
        "answer", cast("On", on), times=None, status=status, headers=headers, pieces=pieces
    )


def bomb(on: str = "api") -> Fault:
    """A small answer that gzip makes a thousand times as large."""
    return answer(200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(8 << 20)), on=on)


@dataclass(frozen=True)
class Request:
    """What a client asked: `path` without the query, header names in lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    range: str | None = None


@dataclass
class File:
    """Content, and behind it zeros up to `size`: large models need no memory."""

    data: bytes
    size: int
    oid: str  # sha256 of an LFS file, else git's hash
    lfs: bool

    def read(self, start: int, stop: int) -> bytes:
        found = self.data[start:stop]
        return found + bytes(max(0, min(stop, self.size) - start - len(found)))


@dataclass
class Repo:
    """One model repository; `revisions` maps names to commits, all of them with the same files."""

    name: str
    files: dict[str, File] = field(default_factory=dict)
    license: str | None = None
    tags: list[str] = field(default_factory=list)
    gated: bool | str = False
    private: bool = False
    disabled: bool = False
    revisions: dict[str, str] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        listing = [self.name, *(f"{path} {file.oid}" for path, file in self.files.items())]
        return hashlib.sha1("\n".join(listing).encode()).hexdigest()

    def commit_of(self, revision: str) -> str | None:
        if revision in ("main", self.commit):
            return self.commit
        return self.revisions.get(revision)


class FakeHub:
    """The server: start it with `with FakeHub() as hub`.

    `url` is the endpoint; content comes from `localhost` instead when `redirecting` is set.
    `tokens` are accepted; `granted` are the gated repositories whose terms they accepted.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.served: Counter[str] = Counter()  # bytes of content by "org/name/path"
        self.tokens = {GOOD_TOKEN}
        self.granted: set[str] = set()
        self.redirecting = False
        self.sizes = True  # whether listings have them, which some mirrors leave out
        self.page_size = 1000
        self.extra_listing: list[dict[str, object]] = []  # raw entries, however absurd
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def __enter__(self) -> "FakeHub":
        self._server = _Server(self)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.content_url = f"http://localhost:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the Hub down; its port then refuses connections."""
        if not self.closing.is_set():
            self.closing.set()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def add(
        self,
        repo: str,
        path: str,
        data: bytes,
        *,
        licence: str | None = None,
        gated: bool | str = False,
        size: int | None = None,
    ) -> File:
        """Put a file into a repository; with `size`, zeros follow the data up to it.

        The hash of a file made larger by `size` is made up.
        """
        found = self.repos.setdefault(repo, Repo(repo))
        found.license = licence or found.license
        found.gated = gated or found.gated
        lfs = path.endswith(LFS_SUFFIXES)
        end = b"" if size is None else b"%d" % size
        oid = hashlib.sha256(data + end) if lfs else hashlib.sha1(data + end)
        file = File(data, len(data) if size is None else size, oid.hexdigest(), lfs)
        found.files[path] = file
        return file

    def asked(self, part: str = "", method: str = "") -> list[Request]:
        """The requests so far whose path contains `part`."""
        return [r for r in self.requests if part in r.path and method in ("", r.method)]

    def take_fault(self, on: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.fits(on, path):
                    fault.hits += 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: FakeHub) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients leave in the middle of an answer; that is what is being tested."""


_API = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree|paths-info|refs)(?:/(.+))?)?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_CONTENT = re.compile(r"/cdn/([^/]+/[^/]+)/(.+)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.hub = self.server.hub
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.body = self.rfile.read(int(headers.get("content-length", 0)))
        query = parse_qs(parts.query, keep_blank_values=True)
        asked = Request(self.command, path, query, headers, headers.get("range"))
        with self.hub.lock:
            self.hub.requests.append(asked)
        if self.hub.closing.is_set():
            self.close_connection = True
            return
        moved = self.hub.redirecting and not path.startswith("/cdn/")
        on = "api" if path.startswith("/api/") else "resolve" if moved else "file"
        fault = self.hub.take_fault(on, path)
        if fault is not None and self._fail(fault):
            return
        if found := _API.fullmatch(path):
            self._api(asked, found[1], found[2], found[3])
        elif found := _RESOLVE.fullmatch(parts.path):  # a revision may hold a quoted slash
            repo, revision, wanted = (unquote(group) for group in found.groups())
            self._resolve(asked, repo, revision, wanted, fault)
        elif found := _CONTENT.fullmatch(path):
            file = self.hub.repos[found[1]].files[found[2]]
            self._content(asked, f"{found[1]}/{found[2]}", file, {}, fault)
        else:
            self._error(404, "EntryNotFound", "Sorry, we can't find the page you are looking for.")

    # --- what the Hub knows ---

    def _api(self, asked: Request, name: str, what: str | None, rest: str | None) -> None:
        repo = self._repo(asked, name)
        if repo is None:
            return
        commit = repo.commit_of((rest or "main").split("?")[0])
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {rest}")
        elif what == "tree":
            self._tree(asked, repo)
        elif what == "paths-info":
            wanted = parse_qs(self.body.decode()).get("paths", [])
            self._json([_entry(path, f) for path, f in repo.files.items() if path in wanted])
        elif what == "refs":
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.commit}
            self._json({"branches": [branch], "converts": [], "tags": []})
        else:
            self._json(self._info(asked, repo, commit))

    def _info(self, asked: Request, repo: Repo, commit: str) -> dict[str, object]:
        blobs = "blobs" in asked.query and self.hub.sizes
        siblings: list[dict[str, object]] = [
            _sibling(path, file) if blobs else {"rfilename": path}
            for path, file in repo.files.items()
        ]
        info: dict[str, object] = {
            "id": repo.name,
            "sha": commit,
            "private": repo.private,
            "gated": repo.gated,
            "disabled": repo.disabled,
            "tags": repo.tags + ([f"license:{repo.license}"] if repo.license else []),
            "siblings": siblings + self.hub.extra_listing,
        }
        if repo.license is not None:
            info["cardData"] = {"license": repo.license}
        return info

    def _tree(self, asked: Request, repo: Repo) -> None:
        entries = [_entry(path, file) for path, file in repo.files.items()]
        entries += self.hub.extra_listing
        start = int(asked.query.get("cursor", ["0"])[0])
        stop = start + self.hub.page_size
        link = f'<{self.hub.url}{asked.path}?recursive=true&cursor={stop}>; rel="next"'
        self._json(entries[start:stop], {"Link": link} if stop < len(entries) else {})

    def _repo(self, asked: Request, name: str) -> Repo | None:
        """The repository if this client may see it; else the Hub's own answer was sent."""
        token = asked.headers.get("authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            self._error(401, None, "Invalid credentials in Authorization header")
            return None
        names = {each.lower(): each for each in self.hub.repos}
        repo = self.hub.repos.get(names.get(name.lower(), name))
        if repo is None or (repo.private and not token):
            code = 404 if token else 401
            text = "Repository not found" if token else "Invalid username or password."
            self._error(code, "RepoNotFound" if token else None, text)
            return None
        if repo.disabled:
            self._error(403, None, "Access to this resource is disabled.")
            return None
        return repo

    # --- files ---

    def _resolve(
        self, asked: Request, name: str, revision: str, path: str, fault: Fault | None
    ) -> None:
        repo = self._repo(asked, name)
        if repo is None:
            return
        commit = repo.commit_of(revision)
        token = "authorization" in asked.headers
        if repo.gated and (not token or name not in self.hub.granted):
            text = f"Access to model {name} is restricted."
            self._error(403 if token else 401, "GatedRepo", text)
        elif commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif path not in repo.files:
            self._error(404, "EntryNotFound", "Entry not found")
        else:
            file = repo.files[path]
            headers = {
                "X-Repo-Commit": commit,
                "ETag": f'"{file.oid}"',
                "X-Linked-ETag": f'"{file.oid}"',
                "X-Linked-Size": str(file.size),
            }
            if self.hub.redirecting:
                headers["Location"] = f"{self.hub.content_url}/cdn/{name}/{path}"
                self._send(302, b"", headers)
            else:
                self._content(asked, f"{name}/{path}", file, headers, fault)

    def _content(
        self, asked: Request, name: str, file: File, headers: dict[str, str], fault: Fault | None
    ) -> None:
        start, stop, code = 0, file.size, 200
        kind = None if fault is None else fault.kind
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.range or "")
        if wanted and kind != "whole":
            start = int(wanted[1])
            stop = min(file.size, int(wanted[2]) + 1) if wanted[2] else file.size
            if start >= file.size:
                self._send(416, b"", headers | {"Content-Range": f"bytes */{file.size}"})
                return
            first = start + 1 if kind == "other range" else start
            headers = headers | {"Content-Range": f"bytes {first}-{stop - 1}/{file.size}"}
            code = 206
        length = stop - start + {"short": -1, "long": 1}.get(kind or "", 0)
        headers = headers | {"Accept-Ranges": "bytes", "Content-Length": str(length)}
        if kind == "gzip":
            headers["Content-Encoding"] = "gzip"
        self._start(code, headers)
        if asked.method == "GET":
            self._write(name, file, start, min(stop, start + length), fault)

    def _write(self, name: str, file: File, start: int, stop: int, fault: Fault | None) -> None:
        cut = fault is not None and fault.kind in ("drop", "stall", "long")
        if fault is not None and fault.kind in ("drop", "stall"):
            stop = min(stop, start + fault.at)
        for at in range(start, stop, PIECE):
            data = bytearray(file.read(at, min(stop, at + PIECE)))
            if fault is not None and fault.kind == "flip" and at <= fault.at < at + len(data):
                data[fault.at - at] ^= 1
            with self.hub.lock:  # before the client can have them, and look
                self.hub.served[name] += len(data)
            if fault is not None and fault.kind == "trickle":
                self._trickle(data, fault.seconds)
            else:
                self.wfile.write(data)
        if fault is not None and fault.kind == "stall":
            self.wfile.flush()
            self.hub.closing.wait(fault.seconds)
        if cut:
            self.close_connection = True

    def _trickle(self, data: bytearray, pause: float) -> None:
        for at in range(len(data)):
            if self.hub.closing.wait(pause):
                return
            self.wfile.write(data[at : at + 1])

    # --- answers ---

    def _fail(self, fault: Fault) -> bool:
        """Answer as the fault says; false if it only changes the content that follows."""
        if fault.kind == "status":
            more = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            self._error(fault.status, fault.code, f"Error {fault.status} was asked for", more)
        elif fault.kind == "answer":
            self.close_connection = True
            self._start(fault.status, dict(fault.headers) | {"Connection": "close"})
            self.wfile.writelines(fault.pieces)
        elif fault.kind == "endless headers":
            self.send_response(200)
            self.flush_headers()
            while not self.hub.closing.wait(0.01):
                self.wfile.write(b"X-More: x\r\n")
        elif fault.kind == "loop":
            self._send(302, b"", {"Location": f"{self.hub.url}{self.path}"})
        elif fault.kind == "html":
            self._send(200, b"<!doctype html><p>Welcome", {"Content-Type": "text/html"})
        elif fault.kind == "garbage":
            self._send(200, b'["no", "Hub"]', {"Content-Type": "application/json"})
        elif fault.kind == "stall" and fault.on == "api":
            self.hub.closing.wait(fault.seconds)
            self.close_connection = True
        elif fault.kind == "drop" and fault.on == "api":
            self.close_connection = True
        else:
            return False
        return True

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self._send(200, data, {"Content-Type": "application/json"} | (headers or {}))

    def _error(
        self, code: int, name: str | None, text: str, headers: dict[str, str] | None = None
    ) -> None:
        headers = {"X-Error-Message": text, "Content-Type": "application/json"} | (headers or {})
        if name is not None:
            headers["X-Error-Code"] = name
        self._send(code, json.dumps({"error": text}).encode(), headers)

    def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
        self._start(code, headers | {"Content-Length": str(len(data))})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _start(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _entry(path: str, file: File) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": file.size, "oid": file.oid}
    if file.lfs:
        entry["lfs"] = {"oid": file.oid, "size": file.size, "pointerSize": 135}
    return entry


def _sibling(path: str, file: File) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": path, "size": file.size, "blobId": file.oid[:40]}
    if file.lfs:
        entry["lfs"] = {"sha256": file.oid, "size": file.size, "pointerSize": 135}
    return entry


def point_at(hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process, and those it starts, take `hub` for the Hub, with belongings in `folder`.

    The library reads where its belongings lie when it is imported; so that is changed as well.
    """
    import huggingface_hub
    from huggingface_hub import constants

    for name in (
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
        "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "HF_OIDC_RESOURCE",
        "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_IMPLICIT_TOKEN",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(folder))
    for name in ("TELEMETRY", "XET", "PROGRESS_BARS"):
        monkeypatch.setenv(f"HF_HUB_DISABLE_{name}", "1")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    huggingface_hub.close_session()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running Hub without models, and an environment that leads to it.

    This process waits a minute for each answer: a busy machine is no Hub that is down.
    """
    import huggingface_hub

    for limit in ("ANSWER_SECONDS", "CONNECT_SECONDS", "STALL_SECONDS"):
        monkeypatch.setattr(f"localspec.hub.client.{limit}", 60.0)
    with FakeHub() as running:
        point_at(running, tmp_path / "huggingface", monkeypatch)
        yield running
        huggingface_hub.close_session()
