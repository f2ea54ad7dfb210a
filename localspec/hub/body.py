"""Bodies of the Hub's answers: bounded in size and time, and never decompressed."""

import json
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec.core.errors import HubProblem
from localspec.core.formatting import one_line
from localspec.hub import http_errors
from localspec.hub.reference import RemoteFile

if TYPE_CHECKING:
    import httpx2

MAX_JSON_BYTES = 4 << 20  # about 15,000 files of a repository
# Every answer must bring so many bytes in so many seconds, or it counts as broken.
LEAST_BYTES, LEAST_SECONDS = 16 << 10, 16.0

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


def read_json(response: "httpx2.Response") -> dict[str, object]:
    """The JSON object in a body of at most `MAX_JSON_BYTES`; raises HubProblem for another body."""
    require_plain(response, "The list of files")
    text = bytearray()
    for piece in _pieces(response):
        text += piece
        if len(text) > MAX_JSON_BYTES:
            raise HubProblem(
                f"{http_errors.hub_name()} lists more than {MAX_JSON_BYTES // 10**6} MB "
                "of file names.",
                "Choose another repository of the same model.",
            )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise http_errors.no_hub() from None
    if not isinstance(document, dict):
        raise http_errors.no_hub()
    return document


def file_bytes(
    response: "httpx2.Response", file: RemoteFile, start: int, size: int
) -> Iterator[bytes]:
    """The `size` bytes of this file from `start` on; raises HubProblem, DroppedConnection."""
    _require_range(response, file, start)
    left = size
    # Only a body that is read to its end leaves a reusable connection.
    to_the_end = response.headers.get("Content-Length") == str(size)
    for piece in _pieces(response):
        if piece[:left]:
            yield piece[:left]
        left -= len(piece[:left])
        if not left and not to_the_end:
            return
    if left:
        raise http_errors.DroppedConnection(
            f"{one_line(file.path)} ended after {size - left:,} of {size:,} bytes.",
            http_errors.LATER,
        )


def size_of_file(response: "httpx2.Response") -> int | None:
    """Bytes of a whole file, by the answer to a request for its first byte; None if not given."""
    require_plain(response, "The file")
    if response.status_code == 200:
        said = response.headers.get("Content-Length", "")
    else:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        said = found[3] if found else ""
    return int(said) if re.fullmatch(r"\d{1,19}", said) else None


def require_plain(response: "httpx2.Response", what: str) -> None:
    """Raise HubProblem for a compressed body, as a small one may hold gigabytes."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise HubProblem(
            f"{what} was compressed in transfer, although that was declined.",
            "A proxy does this: try another network.",
        )


def _pieces(response: "httpx2.Response") -> Iterator[bytes]:
    """The body as it comes; raises DroppedConnection if it comes too slowly."""
    came, begun = 0, time.monotonic()
    for piece in response.iter_raw():
        yield piece
        came += len(piece)
        now = time.monotonic()
        if now - begun >= LEAST_SECONDS:
            if came < LEAST_BYTES:
                slow = f"sent only {came:,} bytes in {now - begun:.0f} seconds."
                raise http_errors.DroppedConnection(
                    f"{http_errors.hub_name()} {slow}", http_errors.LATER
                )
            came, begun = 0, now


def _require_range(response: "httpx2.Response", file: RemoteFile, start: int) -> None:
    headers, shown = response.headers, one_line(file.path)
    require_plain(response, shown)
    if response.status_code == 200:
        if start:
            raise http_errors.RangeIgnored(
                f"{http_errors.hub_name()} sends all of {shown}, not the requested part.",
                "A proxy may do this: try another network, or download the whole file.",
            )
        if headers.get("Content-Type", "").startswith("text/html"):
            raise HubProblem(
                f"{http_errors.hub_name()} sends a web page instead of {shown}.",
                "Log in to this network in a browser, or try another network.",
            )
        size: str | None = headers.get("Content-Length")
    else:
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if found is None or int(found[1]) != start:
            raise HubProblem(
                f"{http_errors.hub_name()} sends another part of {shown} than requested.",
                "A proxy may do this: try another network.",
            )
        size = found[3]
    if size is not None and size != str(file.size):
        raise http_errors.other_size(file, one_line(size[: http_errors.SHOWN]))
