"""Errors of requests to the Hub: refused, unreachable, rate limited, unexpected content."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.core.errors import HubProblem, LocalspecError
from localspec.core.formatting import one_line
from localspec.hub.reference import Reference, RemoteFile

if TYPE_CHECKING:
    import httpx2

HUGGING_FACE = "https://huggingface.co"
MAX_PAUSE = 3600.0  # seconds; the most that a Hub may ask for
SHOWN = 200  # characters of a text from the Hub

LATER = "Try again later; see https://status.huggingface.co."
CHECK_ENDPOINT = "Check HF_ENDPOINT and the network; with a proxy, HTTPS_PROXY as well."
_CHECK_VARIABLES = (
    "Check HF_ENDPOINT, HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and HF_HUB_*, "
    "or unset them."
)

_NOTHING_LEFT = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})")  # requests left, seconds


class DroppedConnection(HubProblem):
    """A temporary failure: a request from where the transfer stopped may succeed.

    `retry_after`: the pause in seconds that the Hub asks for, or None.
    """

    def __init__(self, message: str, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class RangeIgnored(HubProblem):
    """A range request was answered with the whole file."""


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")


def hub_name() -> str:
    """The Hub's name in a sentence, with the address if it is not the usual one."""
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
    """The error of an unsuccessful response, by the Hub's headers and else by its status."""
    status, headers = response.status_code, response.headers
    code = headers.get("X-Error-Code")
    said = one_line(headers.get("X-Error-Message", "")[:SHOWN]).rstrip(".")
    refused = _refusal(status, code, said, reference, token)
    if refused is None and file is not None and code == "EntryNotFound":
        refused = (
            f"{reference.repo} no longer has {one_line(file.path)}.",
            f"See what it has now at {HUGGING_FACE}/{reference.repo}.",
        )
    if refused is not None:
        return HubProblem(*refused)
    if status == 416 and file is not None:
        return other_size(file, "fewer")
    if status == 429:
        pause = _pause(headers)
        wait = "a few minutes" if pause is None else f"{pause:.0f} seconds"
        more = "" if os.environ.get("HF_TOKEN") else " With HF_TOKEN set more requests are allowed."
        return DroppedConnection(
            f"{hub_name()} got too many requests from here.", f"Try again in {wait}.{more}", pause
        )
    if status >= 500 or status == 408:
        return DroppedConnection(
            f"{hub_name()} has a problem: status {status}.", LATER, _pause(headers)
        )
    if status == 403:
        return HubProblem(
            f"{hub_name()} forbids access to {reference.repo}{f': {said}' if said else ''}.",
            "Check the permissions of your token; `hf auth whoami` shows whose it is.",
        )
    return no_hub(f"status {status}")


def _refusal(
    status: int, code: str | None, said: str, reference: Reference, token: str | None
) -> tuple[str, str] | None:
    """Sentence and hint if a repository or a revision cannot be read."""
    repo, page = reference.repo, f"{HUGGING_FACE}/{reference.repo}"
    if code == "GatedRepo" and token:
        hint = f"Accept the terms at {page}, and allow the token to read gated repositories."
        return f"{repo} is gated, and your access token may not read it.", hint
    if code == "GatedRepo":
        hint = f"Accept the terms at {page}, then set HF_TOKEN to a token of yours."
        return f"{repo} is gated: its terms must be accepted first.", hint
    if "resource is disabled" in said:
        return f"{repo} was disabled by the Hub.", "Choose another repository of the same model."
    if status == 401 and token:
        hint = f"Check HF_TOKEN, or make a new token at {HUGGING_FACE}/settings/tokens."
        return f"{hub_name()} refuses your access token.", hint
    if code == "RepoNotFound" and token:
        hint = f"Check the name at {page}."
        return f"There is no repository {repo} that your access token may see.", hint
    if code == "RepoNotFound" or status == 401:
        hint = f"Check the name at {page}; for a private one set HF_TOKEN."
        return f"There is no public repository {repo} on the Hub.", hint
    if code == "RevisionNotFound":
        hint = "Check the branch, tag or commit after '@', or leave it out."
        return f"{repo} has no revision {one_line(reference.revision)}.", hint
    return None


def _pause(headers: Mapping[str, str]) -> float | None:
    """The pause in seconds that the Hub asks for in one of two headers."""
    said = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}", said):
        return min(float(said), MAX_PAUSE)
    limit = _NOTHING_LEFT.search(headers.get("RateLimit", ""))
    return min(float(limit[1]), MAX_PAUSE) if limit else None


def other_size(file: RemoteFile, size: str) -> HubProblem:
    """The file has another size than in the listing."""
    return HubProblem(
        f"{one_line(file.path)} has {size} bytes on the Hub, not the {file.size:,} of its listing.",
        "It was replaced in the meantime, or a proxy alters it: try again.",
    )


def no_hub(found: str = "") -> HubProblem:
    """An answer that no Hub gives."""
    return HubProblem(
        f"{hub_name()} does not answer like a Hub{f': {found}' if found else ''}.", CHECK_ENDPOINT
    )


def no_answer() -> HubProblem:
    """The Hub did not answer in time."""
    return DroppedConnection(f"{hub_name()} does not answer.", CHECK_ENDPOINT)


@contextmanager
def of_connection() -> Iterator[None]:
    """Turn errors of the HTTP library into a HubProblem, also for an unusable variable."""
    import httpx2

    try:
        yield
    except LocalspecError:
        raise
    except (httpx2.HTTPError, httpx2.StreamError, ConnectionError) as error:
        raise trouble(error) from None
    except ImportError as error:  # of SOCKS proxies, which need a package
        raise HubProblem(one_line(str(error)), _CHECK_VARIABLES) from None
    except (httpx2.InvalidURL, ValueError, OSError) as error:
        # A proxy may have a password: its address is not shown.
        said = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise HubProblem(
            f"An environment variable of the HTTP library cannot be used{said}.", _CHECK_VARIABLES
        ) from None


def trouble(error: Exception) -> HubProblem:
    """The error of a request that got no answer."""
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
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return HubProblem(f"{hub_name()} leads to no web address.", CHECK_ENDPOINT)
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return HubProblem(
            f"{hub_name()} has no valid certificate: {message_of(error)}.",
            "Check this machine's clock; with a proxy set SSL_CERT_FILE to its certificate.",
        )
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return DroppedConnection(
            f"{hub_name()} cannot be reached: {message_of(error)}.", CHECK_ENDPOINT
        )
    return DroppedConnection(f"The connection to the Hub broke: {message_of(error)}.", LATER)


def message_of(error: Exception) -> str:
    return one_line(str(error)[:SHOWN]).rstrip(".") or type(error).__name__
