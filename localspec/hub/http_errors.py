"""HTTP errors of the Hub as sentences: refused, unreachable, rate limited, not what was asked."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from localspec.core.errors import HubProblem
from localspec.core.formatting import one_line
from localspec.hub.reference import Reference, RemoteFile

if TYPE_CHECKING:
    import httpx2

HUGGING_FACE = "https://huggingface.co"
MAX_PAUSE = 3600.0  # seconds that a Hub may ask us to wait
SHOWN = 200  # characters of a text from the Hub

LATER = "Try again later; https://status.huggingface.co tells more."
CHECK_ENDPOINT = "Check HF_ENDPOINT and the network; behind a proxy, HTTPS_PROXY as well."

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_NOTHING_LEFT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})")  # requests left, seconds


class DroppedConnection(HubProblem):
    """A transfer that ended early: asking again from where it stopped may mend it.

    `retry_after` is how many seconds the Hub wants to be left alone, or None.
    """

    def __init__(self, message: str, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class RangeIgnored(HubProblem):
    """The answer to a request for a later part was the whole file: only a start at 0 helps."""


def endpoint() -> str:
    """The Hub's address: HF_ENDPOINT, else the usual one."""
    return (os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")


def hub_name() -> str:
    """The Hub's name in a sentence; its address where it is not the usual one."""
    address = endpoint()
    if address == HUGGING_FACE:
        return "The Hub"
    return f"The Hub at {one_line(address.rpartition('@')[2][:SHOWN])}"  # no password shown


def of_response(
    response: "httpx2.Response",
    reference: Reference,
    token: str | None,
    file: RemoteFile | None = None,
) -> HubProblem:
    """What an answer other than success means (the Hub names the reason in a header)."""
    status, headers = response.status_code, response.headers
    code = headers.get("X-Error-Code")
    said = one_line(headers.get("X-Error-Message", "")[:SHOWN]).rstrip(".")
    if code == "GatedRepo":
        return _gated(reference, token)
    if "resource is disabled" in said:
        return HubProblem(
            f"{reference.repo} was disabled by the Hub.",
            "Choose another repository of the same model.",
        )
    if status == 401 and token:
        return HubProblem(
            f"{hub_name()} refuses your access token.",
            f"Check HF_TOKEN, or make a new token at {HUGGING_FACE}/settings/tokens.",
        )
    if code == "RepoNotFound" or status == 401:
        return _missing(reference, token)
    if code == "RevisionNotFound":
        return HubProblem(
            f"{reference.repo} has no revision {one_line(reference.revision)}.",
            "Check the branch, tag or commit behind '@', or leave it out.",
        )
    if code == "EntryNotFound" and file is not None:
        return HubProblem(
            f"{reference.repo} no longer hands out {one_line(file.path)}.",
            f"See what it has now at {_page(reference)}.",
        )
    if status == 416 and file is not None:
        return _other_size(file, "fewer")
    return _by_status(status, said, headers, reference)


def _by_status(
    status: int, said: str, headers: Mapping[str, str], reference: Reference
) -> HubProblem:
    if status == 429:
        pause = _pause(headers)
        wait = "a few minutes" if pause is None else f"{pause:.0f} seconds"
        more = "" if os.environ.get("HF_TOKEN") else " With HF_TOKEN set more requests are allowed."
        return DroppedConnection(
            f"{hub_name()} had too many requests from here.", f"Try again in {wait}.{more}", pause
        )
    if status >= 500 or status == 408:
        return DroppedConnection(
            f"{hub_name()} is in trouble: status {status}.", LATER, _pause(headers)
        )
    if status == 403:
        return HubProblem(
            f"{hub_name()} forbids access to {reference.repo}{f': {said}' if said else ''}.",
            "Check what your token may do; `hf auth whoami` shows whose it is.",
        )
    return no_hub(f"status {status}")


def _gated(reference: Reference, token: str | None) -> HubProblem:
    page = _page(reference)
    if token:
        return HubProblem(
            f"{reference.repo} is gated, and your access token may not read it.",
            f"Accept the terms at {page}, and allow the token to read gated repositories.",
        )
    return HubProblem(
        f"{reference.repo} is gated: its terms must be accepted first.",
        f"Accept the terms at {page}, then set HF_TOKEN to a token of yours.",
    )


def _missing(reference: Reference, token: str | None) -> HubProblem:
    if token:
        return HubProblem(
            f"There is no repository {reference.repo} that your access token may see.",
            f"Check the name at {_page(reference)}.",
        )
    return HubProblem(
        f"There is no public repository {reference.repo} on the Hub.",
        f"Check the name at {_page(reference)}; for a private one set HF_TOKEN.",
    )


def _page(reference: Reference) -> str:
    return f"{HUGGING_FACE}/{reference.repo}"


def _pause(headers: Mapping[str, str]) -> float | None:
    """The seconds that the Hub wants to be left alone, as it says in one of two headers."""
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", said):
        return min(float(said), MAX_PAUSE)
    limit = _NOTHING_LEFT.search(headers.get("RateLimit", ""))
    return min(float(limit[1]), MAX_PAUSE) if limit else None


def _other_size(file: RemoteFile, size: str) -> HubProblem:
    return HubProblem(
        f"{one_line(file.path)} has {size} bytes on the Hub, not the {file.size:,} of its listing.",
        "It was replaced in the meantime, or a proxy interferes: ask again.",
    )


def no_hub(found: str = "") -> HubProblem:
    """Something answered that makes no sense as a Hub."""
    return HubProblem(
        f"{hub_name()} does not answer like a Hub{f': {found}' if found else ''}.", CHECK_ENDPOINT
    )


def no_answer() -> HubProblem:
    """Nothing came in the time it may take."""
    return DroppedConnection(f"{hub_name()} does not answer.", CHECK_ENDPOINT)


def trouble(error: Exception) -> HubProblem:
    """What kept an answer from coming at all."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return HubProblem(
            "Offline mode was on when localspec started.", "Start again without HF_HUB_OFFLINE."
        )
    if isinstance(error, httpx2.TimeoutException):
        return no_answer()
    if isinstance(error, httpx2.TooManyRedirects):
        return HubProblem(f"{hub_name()} redirects without end.", CHECK_ENDPOINT)
    if isinstance(
        error, httpx2.UnsupportedProtocol | httpx2.InvalidURL | httpx2.LocalProtocolError
    ):
        return HubProblem(
            f"'{one_line(endpoint().rpartition('@')[2][:SHOWN])}' is no address of a Hub.",
            f"Set HF_ENDPOINT to one such as {HUGGING_FACE}, or unset it.",
        )
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return HubProblem(
            f"{hub_name()} cannot prove who it is: {told(error)}.",
            "Check this machine's clock; behind a proxy set SSL_CERT_FILE to its certificate.",
        )
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return DroppedConnection(f"{hub_name()} cannot be reached: {told(error)}.", CHECK_ENDPOINT)
    return DroppedConnection(f"The connection to the Hub broke: {told(error)}.", LATER)


def told(error: Exception) -> str:
    """What an error says of itself, on one line."""
    return one_line(str(error)[:SHOWN]).rstrip(".") or type(error).__name__


def check_answer(response: "httpx2.Response", file: RemoteFile, start: int) -> None:
    """Whether the bytes that follow are those of this file, from `start` on, as they are."""
    headers, shown = response.headers, one_line(file.path)
    if headers.get("Content-Encoding", "identity") != "identity":
        raise HubProblem(
            f"{shown} was compressed on its way, although that was declined.",
            "A proxy does this: try another network.",
        )
    if response.status_code == 200:
        if start:
            raise RangeIgnored(
                f"{hub_name()} sends all of {shown} where a part was asked for.",
                "A proxy may do this: try another network, or download the whole file.",
            )
        if headers.get("Content-Type", "").startswith("text/html"):
            raise HubProblem(
                f"{hub_name()} sends a web page in place of {shown}.",
                "Log in to this network in a browser, or try another network.",
            )
        size: str | None = headers.get("Content-Length")
    else:
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise HubProblem(
                f"{hub_name()} sends another part of {shown} than was asked for.",
                "A proxy may do this: try another network.",
            )
        size = found[3]
    if size is not None and size != str(file.size):
        raise _other_size(file, one_line(size[:SHOWN]))


def exactly(response: "httpx2.Response", size: int, file: RemoteFile) -> Iterator[bytes]:
    """The first `size` bytes of the body; raises DroppedConnection when there are fewer."""
    left = size
    # Only a body that was read to its end leaves a connection that can be used again.
    to_the_end = response.headers.get("Content-Length") == str(size)
    for piece in response.iter_raw():
        if piece[:left]:
            yield piece[:left]
        left -= len(piece[:left])
        if not left and not to_the_end:
            return
    if left:
        raise DroppedConnection(
            f"{one_line(file.path)} ended after {size - left:,} of {size:,} bytes.", LATER
        )
