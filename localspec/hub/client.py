"""Hub client: resolves a reference to a commit and its files, and streams them by range request.

Tokens, addresses, connections and the cache's layout are huggingface_hub's. Its downloads are not
used: they compare no hash, remove the partial file when they are interrupted, decompress
compressed bodies, and read a listing of any size.
"""

import os
import re
import shlex
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from localspec import __version__
from localspec.core import paths
from localspec.core.errors import HubProblem, UsageError
from localspec.core.files import size_of
from localspec.core.formatting import one_line
from localspec.hub import body, http_errors
from localspec.hub.http_errors import DroppedConnection as DroppedConnection
from localspec.hub.http_errors import RangeIgnored as RangeIgnored
from localspec.hub.provenance import SHA256
from localspec.hub.reference import Reference, RemoteFile, choose_files, is_safe, same_repo
from localspec.metadata.filenames import (
    PART_NAME,
    cut_from,
    heads_kind,
    how_to_convert,
    how_to_join,
)

if TYPE_CHECKING:
    import httpx2

# The library takes long to import and is needed by few commands: functions import it.

# Of the first request, unless HF_HUB_ETAG_TIMEOUT is set: a Hub that is down is known within 5 s.
ANSWER_SECONDS = 4.5
CONNECT_SECONDS = 4.0
STALL_SECONDS = 10.0  # without a byte, unless HF_HUB_DOWNLOAD_TIMEOUT is set
MAX_SECONDS = 86_400.0  # of either variable
HEADER_SECONDS = 60.0  # of an answer with a file, over all redirects
MAX_BYTES = 1 << 50  # of one file
_UNKNOWN = -1  # the size of a file that a mirror lists without it

_QUANTIZED = "base_model:quantized:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_T = TypeVar("_T")
_Facts = dict[str, object]  # the Hub's reply about a repository
# Called with the failure and the number of requests in a row that brought next to nothing.
OnFailure = Callable[[DroppedConnection | RangeIgnored, int], None]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """Files of one commit (40 hex digits), part 1 first, and the repository's licence."""

    reference: Reference
    commit: str
    files: tuple[RemoteFile, ...]
    license: str | None

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def offline() -> bool:
    """Offline mode: HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE without it, as of now."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def resolve(reference: Reference) -> RemoteModel:
    """Commit and files of a reference, by one request of at most 5 seconds; raises HubProblem."""
    facts, commit = _repository(reference)
    reference = _as_the_hub_writes_it(reference, facts)
    listing = _listing(facts, reference)
    names = [str(entry.get("rfilename")) for entry in _entries(facts)]
    if not listing and any(name.endswith(".safetensors") for name in names):
        raise HubProblem(
            f"{reference.repo} holds only safetensors, and no GGUF file.",
            "Look for a repository of the same model whose name ends in -GGUF, or "
            f"{how_to_convert(reference.repo, on_hub=True)}.",
        )
    try:
        chosen = choose_files(reference, listing)
    except HubProblem:
        _refuse_cut_files(reference, facts)
        raise
    return _remote_model(reference, commit, chosen, facts)


def heads_beside(reference: Reference) -> list[RemoteModel]:
    """Files of prediction heads in the repository, by their names; time and errors of `resolve`."""
    facts, commit = _repository(reference)
    reference = _as_the_hub_writes_it(reference, facts)
    heads = [
        file
        for file in _listing(facts, reference)
        if heads_kind(file.path) is not None and not PART_NAME.fullmatch(file.path)
    ]
    return [
        _remote_model(replace(reference, file=file.path, tag=None), commit, (file,), facts)
        for file in heads
    ]


def quantized_from(reference: Reference) -> str | None:
    """The one repository that this one was quantized from, by the tag base_model:quantized:."""
    facts, _ = _repository(reference)
    named = set(_tags(facts, _QUANTIZED))
    try:
        return Reference(named.pop()).repo if len(named) == 1 else None
    except UsageError:
        return None


def stream_resuming(
    model: RemoteModel, file: RemoteFile, start: int, stop: int, on_failure: OnFailure
) -> Generator[bytes]:
    """The bytes of `file` from `start` to `stop`, each once, over as many requests as it takes.

    After a failure `on_failure` waits before the next request, or raises. Of a server that ignores
    ranges the file is read from its beginning. Raises HubProblem for a refusal.
    """
    done, failures, ranges = start, 0, True
    while done < stop:
        before, at = done, done if ranges else 0
        failure = DroppedConnection("The connection ended early.")
        try:
            with closing(stream(model, file, at, stop)) as pieces:
                for piece in pieces:
                    new = piece[done - at :]
                    at += len(piece)
                    if new:
                        done = at
                        yield new
        except RangeIgnored as ignored:
            if not ranges:
                raise
            ranges = False
            on_failure(ignored, failures)
            continue
        except DroppedConnection as dropped:
            failure = dropped
        failures = failures + 1 if done - before < body.LEAST_BYTES else 0
        if done < stop:
            on_failure(failure, failures)


def stream(
    model: RemoteModel, file: RemoteFile, start: int = 0, stop: int | None = None
) -> Generator[bytes]:
    """The bytes of `file` from `start` to `stop` (exclusive; its end by default), by one request.

    Raises HubProblem for a refusal or an unexpected size, RangeIgnored if only a request from 0
    would help, and DroppedConnection if another request, from where it stopped, may succeed.
    """
    stop = file.size if stop is None else min(stop, file.size)
    if start >= stop:
        return
    with _ask_for_file(model, file, f"bytes={start}-{stop - 1}") as response:
        yield from body.file_bytes(response, file, start, stop - start)


def cached(model: RemoteModel, file: RemoteFile) -> Path | None:
    """The complete file in the library's cache: of this commit, or else of the same sha256."""
    by_hash = []
    with suppress(OSError):
        for snapshots in _cached_snapshots(model.reference.repo):
            path = snapshots / model.commit / file.path
            if size_of(path) == file.size:
                return path
            for path in (snapshot / file.path for snapshot in sorted(snapshots.iterdir())):
                # A snapshot links to its content by the content's hash, if links exist.
                linked = os.path.islink(path) and path.readlink().name == file.sha256
                if linked and size_of(path) == file.size:
                    by_hash.append(path)
    return next(iter(by_hash), None)


def _cached_snapshots(repo: str) -> list[Path]:
    """The folders of a repository's commits in the library's cache, its name in any case."""
    name = "--".join(("models", *repo.split("/")))
    folders = [each for each in paths.hub_cache_folder().iterdir() if same_repo(each.name, name)]
    return [each / "snapshots" for each in sorted(folders, key=lambda each: each.name != name)]


def _require_network(what: str) -> None:
    if offline():
        raise HubProblem(
            f"{one_line(what)} cannot be looked up: HF_HUB_OFFLINE is set.",
            "Give a file on this disk, or unset HF_HUB_OFFLINE.",
        )


def _repository(reference: Reference) -> tuple[_Facts, str]:
    """The Hub's reply about a repository, and the commit of the reference."""
    _require_network(str(reference))
    token = _token()
    limit = _seconds("HF_HUB_ETAG_TIMEOUT", ANSWER_SECONDS)
    with http_errors.of_connection():
        facts = _within(limit, lambda: _ask_for_facts(reference, token, limit))
    commit = facts.get("sha")
    if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise http_errors.no_hub()
    return facts, commit


def _ask_for_facts(reference: Reference, token: str | None, limit: float) -> _Facts:
    revision = quote(reference.revision, safe="")
    path = f"api/models/{reference.repo}/revision/{revision}?blobs=true"
    url = f"{http_errors.endpoint()}/{path}"
    with _ask(url, token, CONNECT_SECONDS, limit) as response:
        if response.status_code != 200:
            raise http_errors.of_response(response, reference, token)
        return body.read_json(response)


def _import_library() -> None:
    """Import huggingface_hub, and turn off its log lines and its own requests."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import logging

    logging.set_verbosity(ERROR)
    constants.HF_HUB_DISABLE_TELEMETRY = True
    get_session()  # which imports most of it


def _token() -> str | None:
    """The user's access token: HF_TOKEN, or that of `hf auth login`."""
    with http_errors.of_connection():
        _import_library()  # here, as this counts for no time limit
    from huggingface_hub.errors import DeviceCodeError, OIDCError

    try:
        token = _headers(None).get("authorization", "").removeprefix("Bearer ")
    except (DeviceCodeError, OIDCError, OSError, UnicodeDecodeError) as error:
        raise HubProblem(
            f"The access token cannot be read: {http_errors.message_of(error)}.",
            "Set HF_TOKEN, or save a token with `hf auth login`.",
        ) from None
    if not re.fullmatch(r"[!-~]*", token):
        raise HubProblem(
            "The access token holds invalid characters.",
            "Set HF_TOKEN to a token that begins with hf_.",
        )
    return token or None


def _headers(token: str | bool | None) -> dict[str, str]:
    """Headers of a request; None stands for the user's own token, and False for none."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers: dict[str, str] = build_hf_headers(
        token=token, library_name="localspec", library_version=__version__
    )
    return headers


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """The call's result. Raises DroppedConnection if it takes longer.

    The client's own limit holds for each address of the Hub, and not for the DNS.
    """
    future: Future[_T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # raised again in the thread that waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="asking the Hub").start()
    try:
        return future.result(seconds)
    except TimeoutError:
        raise http_errors.no_answer() from None


@contextmanager
def _ask_for_file(
    model: RemoteModel, file: RemoteFile, byte_range: str
) -> "Iterator[httpx2.Response]":
    """The answer with a range of a file; raises HubProblem for a refusal."""
    _require_network(file.path)
    token = _token()
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(
        model.reference.repo, file.path, revision=model.commit, endpoint=http_errors.endpoint()
    )
    stall = _seconds("HF_HUB_DOWNLOAD_TIMEOUT", STALL_SECONDS)
    with (
        http_errors.of_connection(),
        _ask(url, token, stall, HEADER_SECONDS, byte_range) as response,
    ):
        if response.status_code not in (200, 206):
            raise http_errors.of_response(response, model.reference, token, file)
        yield response


@contextmanager
def _ask(
    url: str, token: str | None, stall: float, limit: float, byte_range: str | None = None
) -> "Iterator[httpx2.Response]":
    """The answer to a request, its headers read within `limit` seconds.

    Redirects are followed, and other hosts never get the token.
    """
    import httpx2
    from huggingface_hub import get_session

    headers = _headers(token or False) | {"Accept-Encoding": "identity"}
    if byte_range is not None:
        headers["Range"] = byte_range
    timeout = httpx2.Timeout(stall, connect=CONNECT_SECONDS)
    session = get_session()
    request = session.build_request("GET", url, headers=headers, timeout=timeout)
    with closing(_within(limit, lambda: session.send(request, stream=True))) as response:
        yield response


def _seconds(variable: str, usual: float) -> float:
    """A time limit: the library's own environment variable, or else the usual one."""
    try:
        return min(max(0.1, float(os.environ.get(variable, usual))), MAX_SECONDS)
    except ValueError:
        return usual


def _as_the_hub_writes_it(reference: Reference, facts: _Facts) -> Reference:
    """The reference with the repository's name in the Hub's own case."""
    name = facts.get("id")
    if isinstance(name, str) and same_repo(reference.repo, name):
        return replace(reference, repo=name)
    return reference


def _listing(facts: _Facts, reference: Reference) -> list[RemoteFile]:
    """The repository's GGUF files with safe names; raises HubProblem for impossible sizes."""
    found: dict[str, RemoteFile] = {}
    for entry in _entries(facts):
        path, size = entry.get("rfilename"), entry.get("size")
        if not (isinstance(path, str) and path.lower().endswith(".gguf") and is_safe(path)):
            continue
        if size is None:
            size = _UNKNOWN
        elif type(size) is not int or not 0 <= size <= MAX_BYTES:
            raise _impossible_size(path)
        found.setdefault(path, RemoteFile(path, size, _sha256(entry.get("lfs"))))
    return list(found.values())


def _entries(facts: _Facts) -> list[dict[str, object]]:
    listed = facts.get("siblings")
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _sha256(lfs: object) -> str | None:
    said = lfs.get("sha256") if isinstance(lfs, dict) else None
    return said.lower() if isinstance(said, str) and SHA256.fullmatch(said.lower()) else None


def _refuse_cut_files(reference: Reference, facts: _Facts) -> None:
    """Raise HubProblem if the reference means a file that another tool cut into parts."""
    names = [name for each in _entries(facts) if isinstance(name := each.get("rfilename"), str)]
    wholes = dict.fromkeys(whole for name in names if (whole := cut_from(name)) and is_safe(whole))
    try:
        whole = choose_files(reference, [RemoteFile(name, 0, None) for name in wholes])[0].path
    except HubProblem:
        return
    raise HubProblem(
        f"{reference.repo} has {one_line(whole)} only in parts that another tool cut.",
        f"Get them: `hf download {reference.repo} --include {shlex.quote(f'{one_line(whole)}*')} "
        f"--local-dir .`, then join them: {how_to_join(whole, filter(is_safe, names))}.",
    )


def _remote_model(
    reference: Reference, commit: str, files: tuple[RemoteFile, ...], facts: _Facts
) -> RemoteModel:
    bare = RemoteModel(reference, commit, files, _license(facts))
    return replace(bare, files=tuple(_with_size(bare, file) for file in files))


def _with_size(model: RemoteModel, file: RemoteFile) -> RemoteFile:
    """The file; of one that was listed without its size, the first byte is requested for it."""
    if file.size >= 0:
        return file
    with _ask_for_file(model, file, "bytes=0-0") as response:
        size = body.size_of_file(response)
    if size is None or size > MAX_BYTES:
        raise _impossible_size(file.path)
    return replace(file, size=size)


def _impossible_size(path: str) -> HubProblem:
    return HubProblem(
        f"{http_errors.hub_name()} lists {one_line(path)} with an impossible size.",
        "Try again later, or choose another repository.",
    )


def _license(facts: _Facts) -> str | None:
    card = facts.get("cardData")
    said = card.get("license") if isinstance(card, dict) else None
    if isinstance(card, dict) and said == "other":
        said = card.get("license_name") or said
    said = said or _tags(facts, "license:")
    names = said if isinstance(said, list) else [said]
    text = ", ".join(str(name) for name in names if name)
    return one_line(text[: http_errors.SHOWN]) or None


def _tags(facts: _Facts, prefix: str) -> list[str]:
    """The repository's tags that begin with a prefix, without it."""
    tags = facts.get("tags")
    texts = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    return [tag.removeprefix(prefix) for tag in texts if tag.startswith(prefix)]
