"""Hub client: resolves a reference to a commit and its files, and streams them by range request.

Listing, tokens, headers and the cache's layout come from huggingface_hub, which nothing else
imports; the transfer does not, because the library waits for minutes on a Hub that is down and
forgets what it fetched. No request is repeated, and no file is written.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localspec import __version__
from localspec.core import paths
from localspec.core.errors import HubProblem, UsageError
from localspec.core.formatting import one_line
from localspec.hub import http_errors
from localspec.hub.http_errors import DroppedConnection as DroppedConnection  # for those that ask
from localspec.hub.http_errors import RangeIgnored as RangeIgnored
from localspec.hub.provenance import SHA256
from localspec.hub.reference import Reference, RemoteFile, choose_files, is_safe
from localspec.metadata.filenames import (
    PART_NAME_IN_ANY_CASE,
    heads_kind,
    how_to_convert,
)

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi, ModelInfo

# The library takes long to import and is needed by few commands: functions import it.

# For all of the first answer, unless HF_HUB_ETAG_TIMEOUT says otherwise: a Hub that is down is told
# within 5 seconds.
ANSWER_SECONDS = 4.5
CONNECT_SECONDS = 4.0
STALL_SECONDS = 10.0  # without a byte, unless HF_HUB_DOWNLOAD_TIMEOUT says otherwise
MAX_FILES = 100_000
MAX_BYTES = 1 << 50  # of one file

_QUANTIZED = "base_model:quantized:"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What a reference means today: files of one commit (40 hex digits), part 1 first.

    `license` is what the repository states; `gated` whether its terms must be accepted.
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
    """Whether the user forbids the network: HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE without it."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def resolve(reference: Reference) -> RemoteModel:
    """Ask the Hub which commit and which files `reference` means.

    Takes 5 seconds at most. Raises HubProblem when the Hub is down or refuses, and when the
    reference fits no file or several.
    """
    info, commit = _repository(reference)
    listing = _listing(info, reference)
    if not listing and _holds_safetensors(info):
        raise HubProblem(
            f"{reference.repo} holds only safetensors, and no GGUF file.",
            "Look for a repository of the same model whose name ends in -GGUF, or "
            f"{how_to_convert(reference.repo, on_hub=True)}.",
        )
    files = choose_files(reference, listing)
    return RemoteModel(reference, commit, files, _license(info), bool(info.gated))


def heads_beside(reference: Reference) -> list[RemoteModel]:
    """Files of heads that draft, in the repository of a reference, in its order; known by name.

    Takes as long as `resolve`, and raises what that raises.
    """
    info, commit = _repository(reference)
    return [
        RemoteModel(
            Reference(reference.repo, file.path, None, reference.revision),
            commit,
            (file,),
            _license(info),
            bool(info.gated),
        )
        for file in _listing(info, reference)
        if heads_kind(file.path) is not None and not PART_NAME_IN_ANY_CASE.fullmatch(file.path)
    ]


def quantized_from(reference: Reference) -> str | None:
    """The repository that the reference's says it was quantized from; None where it names no one.

    By the Hub's tag base_model:quantized:ORG/NAME. Takes as long as `resolve`, and raises what that
    raises.
    """
    info, _ = _repository(reference)
    tags = [tag for tag in info.tags or [] if isinstance(tag, str)]
    named = {tag.removeprefix(_QUANTIZED) for tag in tags if tag.startswith(_QUANTIZED)}
    try:
        return Reference(named.pop()).repo if len(named) == 1 else None
    except UsageError:
        return None


def stream(
    model: RemoteModel, file: RemoteFile, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """The bytes of `file` from `start` to `stop` (exclusive; its end by default), as they come.

    One request. Raises HubProblem for a refusal or a file of another size than promised,
    RangeIgnored when only a start at 0 would help, and DroppedConnection for what asking again,
    from where it stopped, may mend.
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
    """The complete file in the library's cache, under its own name; None when it is not there.

    Known by the commit, or in snapshots of other commits by its sha256.
    """
    from huggingface_hub import try_to_load_from_cache

    folder = paths.hub_cache_folder()
    found = try_to_load_from_cache(model.reference.repo, file.path, folder, model.commit)
    if isinstance(found, str) and _has_size(Path(found), file.size):
        return Path(found)
    if file.sha256 is None:
        return None
    name = "--".join(("models", *model.reference.repo.split("/")))
    for snapshot in _folders(folder / name / "snapshots"):
        path = snapshot / file.path
        # A snapshot links to its content by the content's hash, where the system has links.
        if (
            os.path.islink(path)
            and path.readlink().name == file.sha256
            and _has_size(path, file.size)
        ):
            return path
    return None


# --- asking ---


def _require_network(what: str) -> None:
    if offline():
        raise HubProblem(
            f"{one_line(what)} cannot be looked up: HF_HUB_OFFLINE forbids to ask the Hub.",
            "Give a file on this disk, or unset HF_HUB_OFFLINE.",
        )


def _repository(reference: Reference) -> "tuple[ModelInfo, str]":
    """What the Hub says of a repository, and the commit that the reference means."""
    _require_network(str(reference))
    info = _facts(reference, _token())
    if not (isinstance(info.sha, str) and _COMMIT.fullmatch(info.sha)):
        raise http_errors.no_hub()
    return info, info.sha


def _quiet() -> None:
    """No log lines of the library, and none of its requests besides those that we make."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging

    logging.set_verbosity(ERROR)
    constants.HF_HUB_DISABLE_TELEMETRY = True


def _token() -> str | None:
    """The user's access token: HF_TOKEN, or what `hf auth login` saved."""
    from huggingface_hub.errors import DeviceCodeError, OIDCError

    _quiet()
    try:
        token = _headers(None).get("authorization", "").removeprefix("Bearer ")
    except (DeviceCodeError, OIDCError, OSError) as error:
        raise HubProblem(
            f"No access token could be had: {http_errors.told(error)}.",
            "Set HF_TOKEN, or save a token with `hf auth login`.",
        ) from None
    if not re.fullmatch(r"[!-~]*", token):
        raise HubProblem(
            "The access token holds characters that no token has.",
            "Set HF_TOKEN to a token that begins with hf_.",
        )
    return token or None


def _headers(token: str | bool | None) -> dict[str, str]:
    """Who we are, and who the user is: by None the user's own token, which False leaves out."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers: dict[str, str] = build_hf_headers(
        token=token, library_name="localspec", library_version=__version__
    )
    return headers


def _api(token: str | None) -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi(
        endpoint=http_errors.endpoint(),
        token=token or False,
        library_name="localspec",
        library_version=__version__,
    )


def _facts(reference: Reference, token: str | None) -> "ModelInfo":
    """The repository's commit, files and licence by one request, which is never repeated."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    api = _api(token)  # outside the time limit: it imports much

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
    """The call's result. Raises DroppedConnection when it takes longer, whatever it waits for.

    The client's own limit holds for each address that the Hub has, and not for finding them.
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
    """One request for content, its redirects followed; other hosts never get the token."""
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
    """A time limit, as the library's own variable for it says, or the usual one."""
    try:
        return max(0.1, float(os.environ.get(variable, usual)))
    except ValueError:
        return usual


# --- what it said ---


def _listing(info: "ModelInfo", reference: Reference) -> list[RemoteFile]:
    """The repository's GGUF files, as far as their names are safe and their sizes possible."""
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


def _license(info: "ModelInfo") -> str | None:
    """What the model's card says; its own name for a licence that is none of the usual ones."""
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


def _folders(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()
