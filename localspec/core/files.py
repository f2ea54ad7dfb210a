"""Atomic writes, and reading with a limit on the size."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from localspec.core.errors import FileProblem, LocalspecError


def read_at_most(path: Path, most: int) -> bytes:
    """All bytes of a file or stream; raises ValueError for more than ``most``."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes, too large")
    return data


def read_text(path: Path, most: int, *, what: str = "", expected: str = "a text file") -> str:
    """Text of a UTF-8 file of at most ``most`` bytes; raises FileProblem.

    ``what``, such as "The chat template ", begins the message; ``expected`` is in the hint.
    """
    try:
        return read_at_most(path, most).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileProblem(
            f"{what}{path} cannot be read: {reason}.", f"Give {expected} in UTF-8."
        ) from error


def read_stream(stream: TextIO, most: int) -> str:
    """All of a text stream, which may have no end; raises ValueError for more than ``most``."""
    text = stream.read(most + 1)
    if len(text) > most:
        raise ValueError(f"there are more than {most:,} characters")
    return text


def require_disk_space(folder: Path, needed: int, what: str, elsewhere: str) -> None:
    """Raise LocalspecError if ``what``, of ``needed`` bytes, does not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"{what} needs {needed / 1e6:.0f} MB, and {folder} has {free / 1e6:.0f} MB left.",
            f"Make room there. {elsewhere}",
        )


@contextmanager
def appearing_when_complete(destination: Path) -> Iterator[Path]:
    """Atomic write: a temporary path beside `destination`, renamed to it if the block succeeds.

    Several processes may write at once. Links are followed, and a replaced file passes on its
    permissions. A device or an open stream is written in place.
    """
    place = Path(os.path.realpath(destination))
    is_stream = str(destination).startswith(("/dev/", "/proc/"))  # a rename would replace it
    if is_stream or (place.exists() and not place.is_file()):
        yield destination
        return
    destination = place
    partial = destination.with_name(f".{destination.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield partial
        if destination.exists():
            shutil.copymode(destination, partial)
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: Path, document: object) -> None:
    """Save a document that can be made again; a failure to write is ignored."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_text(json.dumps(document) + "\n")
