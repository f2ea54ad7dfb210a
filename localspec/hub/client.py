"""Hub client: resolves a reference to a commit and its files, and streams them by range request.

Listing, tokens, headers and the cache's layout are huggingface_hub's. The transfer is not: the
library waits for minutes on a Hub that is down, and discards what it fetched.
"""

import os
import re
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localspec import __version__
from localspec.core import paths
from localspec.core.errors import HubProblem, UsageError
from localspec.core.formatting import one_line
from localspec.hub import http_errors
from localspec.hub.http_errors import DroppedConnection as DroppedConnection
from localspec.hub.http_errors import RangeIgnored as RangeIgnored
from localspec.hub.provenance import SHA256
from localspec.hub.reference import Reference, RemoteFile, choose_files, is_safe
from localspec.metadata.filenames import PART_NAME_IN_ANY_CASE, heads_kind, how_to_convert

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import ModelInfo

# The library takes long to import and is needed by few commands: functions import it.

# Of the first request, unless HF_HUB_ETAG_TIMEOUT is set: a Hub that is down is known within 5 s.
ANSWER_SECONDS = 4.5
CONNECT_SECONDS = 4.0
STALL_SECONDS = 10.0  # without a byte, unless HF_HUB_DOWNLOAD_TIMEOUT is set
MAX_FILES = 100_000
MAX_BYTES = 1 << 50  # of one file

_QUANTIZED = "base_model:quantized:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_T = TypeVar("_T")
# Called with the failure and the number of requests in a row that brought no byte.
OnFailure = Callable[[DroppedConnection | RangeIgnored, int], None]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """Files of one commit (40 hex digits), part 1 first, and the repository's terms.

    `gated`: whether its terms must be accepted.
    """

    reference: Reference
    commit: str
    files: tuple[RemoteFile, ...]
    license: str | None
    gated: bool

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(file.size for file in self.files)


def offline() -> bool:
    """Offline mode: HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE without it, as of now."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def resolve(reference: Reference) -> RemoteModel:
    """Commit and files of a reference, by one request of at most 5 seconds.

    Raises HubProblem if the Hub is down or refuses, or if no file or several match.
    """
    info, commit = _repository(reference)
    listing = _listing(info, reference)
    if not listing and _holds_safetensors(info):
        raise HubProblem(
            f"{reference.repo} holds only safetensors, and no GGUF file.",
            "Look for a repository of the same model whose name ends in -GGUF, or "
            f"{how_to_convert(reference.repo, on_hub=True)}.",
        )
    return _remote_model(reference, commit, choose_files(reference, listing), info)


def heads_beside(reference: Reference) -> list[RemoteModel]:
    """Files of prediction heads in the repository, by their names; time and errors of `resolve`."""
    info, commit = _repository(reference)
    heads = [
        file
        for file in _listing(info, reference)
        if heads_kind(file.path) is not None and not PART_NAME_IN_ANY_CASE.fullmatch(file.path)
    ]
    return [
        _remote_model(replace(reference, file=file.path, tag=None), commit, (file,), info)
        for file in heads
    ]


def quantized_from(reference: Reference) -> str | None:
    """The repository that this one was quantized from, by the tag base_model:quantized:ORG/NAME.

    None if it names none or several. Time and errors of `resolve`.
    """
    info, _ = _repository(reference)
    tags = [tag for tag in info.tags or [] if isinstance(tag, str)]
    named = {tag.removeprefix(_QUANTIZED) for tag in tags if tag.startswith(_QUANTIZED)}
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
        failures = failures + 1 if done == before else 0
        if done < stop:
            on_failure(failure, failures)


def stream(
    model: RemoteModel, file: RemoteFile, start: int = 0, stop: int | None = None
) -> Generator[bytes]:
    """The bytes of `file` from `start` to `stop` (exclusive; its end by default), by one request.

    Raises HubProblem for a refusal or an unexpected size, RangeIgnored if only a request from 0
    would help, and DroppedConnection if another request, from where it stopped, may succeed.
    """
    import httpx2

    stop = file.size if stop is None else min(stop, file.size)
    if start >= stop:
        return
    _require_network(file.path)
    token = _token()
    try:
        with _ask(model, file, f"bytes={start}-{stop - 1}", token) as response:
            if response.status_code not in (200, 206):
                raise http_errors.of_response(response, model.reference, token, file)
            http_errors.check_answer(response, file, start)
            yield from http_errors.exactly(response, stop - start, file)
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, OSError) as error:
        raise http_errors.trouble(error) from None


def cached(model: RemoteModel, file: RemoteFile) -> Path | None:
    """The complete file in the library's cache: of this commit, or else of the same sha256."""
    from huggingface_hub import try_to_load_from_cache

    folder = paths.hub_cache_folder()
    found = try_to_load_from_cache(model.reference.repo, file.path, folder, model.commit)
    if isinstance(found, str) and _has_size(Path(found), file.size):
        return Path(found)
    if file.sha256 is None:
        return None
    snapshots = folder / "--".join(("models", *model.reference.repo.split("/"))) / "snapshots"
    with suppress(OSError):
        for path in (snapshot / file.path for snapshot in sorted(snapshots.iterdir())):
            # A snapshot links to its content by the content's hash, where the system has links.
            by_hash = os.path.islink(path) and path.readlink().name == file.sha256
            if by_hash and _has_size(path, file.size):
                return path
    return None


# --- requests ---


def _require_network(what: str) -> None:
    if offline():
        raise HubProblem(
            f"{one_line(what)} cannot be looked up: HF_HUB_OFFLINE is set.",
            "Give a file on this disk, or unset HF_HUB_OFFLINE.",
        )


def _repository(reference: Reference) -> "tuple[ModelInfo, str]":
    """The Hub's facts about a repository, and the commit of the reference."""
    _require_network(str(reference))
    info = _facts(reference, _token())
    if not (isinstance(info.sha, str) and _COMMIT.fullmatch(info.sha)):
        raise http_errors.no_hub()
    return info, info.sha


def _quiet() -> None:
    """Turn off the log lines of the library, and its own requests."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    logging.set_verbosity(ERROR)
    constants.HF_HUB_DISABLE_TELEMETRY = True


def _token() -> str | None:
    """The user's access token: HF_TOKEN, or that of `hf auth login`."""
    from huggingface_hub.errors import DeviceCodeError, OIDCError

    _quiet()
    try:
        token = _headers(None).get("authorization", "").removeprefix("Bearer ")
    except (DeviceCodeError, OIDCError, OSError) as error:
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


def _facts(reference: Reference, token: str | None) -> "ModelInfo":
    """The repository's commit, files and licence, by one request."""
    import httpx2
    from huggingface_hub import HfApi  # here, as the import counts for no time limit
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(http_errors.endpoint(), token or False, "localspec", __version__)

    def ask() -> "ModelInfo":
        return api.model_info(
            reference.repo,
            revision=reference.revision,
            files_metadata=True,
            timeout=CONNECT_SECONDS,
        )

    try:
        return _within(_seconds("HF_HUB_ETAG_TIMEOUT", ANSWER_SECONDS), ask)
    except HfHubHTTPError as error:
        raise http_errors.of_response(error.response, reference, token) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise http_errors.trouble(error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise http_errors.no_hub() from None  # what the library could not make sense of


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


def _ask(
    model: RemoteModel, file: RemoteFile, wanted: str, token: str | None
) -> "AbstractContextManager[httpx2.Response]":
    """Request for content; redirects are followed, and other hosts never get the token."""
    import httpx2
    from huggingface_hub import get_session, hf_hub_url

    url = hf_hub_url(
        model.reference.repo, file.path, revision=model.commit, endpoint=http_errors.endpoint()
    )
    headers = _headers(token or False) | {"Range": wanted, "Accept-Encoding": "identity"}
    stall = _seconds("HF_HUB_DOWNLOAD_TIMEOUT", STALL_SECONDS)
    timeout = httpx2.Timeout(stall, connect=CONNECT_SECONDS)
    return get_session().stream("GET", url, headers=headers, timeout=timeout)


def _seconds(variable: str, usual: float) -> float:
    """A time limit: the library's own environment variable, or else the usual one."""
    try:
        return max(0.1, float(os.environ.get(variable, usual)))
    except ValueError:
        return usual


# --- answers ---


def _listing(info: "ModelInfo", reference: Reference) -> list[RemoteFile]:
    """The repository's GGUF files with safe names; raises HubProblem for impossible sizes."""
    siblings = info.siblings or []
    if len(siblings) > MAX_FILES:
        raise HubProblem(
            f"{reference.repo} lists {len(siblings):,} files, over {MAX_FILES:,}.",
            "Choose another repository of the same model.",
        )
    found: dict[str, RemoteFile] = {}
    for sibling in siblings:
        path, size = sibling.rfilename, sibling.size
        if not (isinstance(path, str) and path.lower().endswith(".gguf") and is_safe(path)):
            continue
        if type(size) is not int or not 0 <= size <= MAX_BYTES:
            raise HubProblem(
                f"{http_errors.hub_name()} lists {one_line(path)} with an impossible size.",
                "Try again later, or choose another repository.",
            )
        said = sibling.lfs.sha256 if sibling.lfs else None
        sha256 = said.lower() if isinstance(said, str) else ""
        known = sha256 if SHA256.fullmatch(sha256) else None
        found.setdefault(path, RemoteFile(path, size, known))
    return list(found.values())


def _holds_safetensors(info: "ModelInfo") -> bool:
    names = (sibling.rfilename for sibling in info.siblings or [])
    return any(isinstance(name, str) and name.endswith(".safetensors") for name in names)


def _remote_model(
    reference: Reference, commit: str, files: tuple[RemoteFile, ...], info: "ModelInfo"
) -> RemoteModel:
    return RemoteModel(reference, commit, files, _license(info), bool(info.gated))


def _license(info: "ModelInfo") -> str | None:
    """The licence in the model card, or in the tags."""
    said: object = getattr(info.card_data, "license", None)
    if said == "other":
        said = getattr(info.card_data, "license_name", None) or said
    if not said:
        tags = [tag for tag in info.tags or [] if isinstance(tag, str)]
        said = [tag.removeprefix("license:") for tag in tags if tag.startswith("license:")]
    names = said if isinstance(said, list) else [said]
    text = ", ".join(str(name) for name in names if name)
    return one_line(text[: http_errors.SHOWN]) or None


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False
