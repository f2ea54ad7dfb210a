"""Files written beside their place and renamed when complete; bounds on reading and writing."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.core.errors import FileProblem, LocalspecError


def read_at_most(path: Path, most: int) -> bytes:
    """All bytes of a file; raises ValueError for more than ``most``, also where it has no size."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes, too large")
    return data


def read_text(path: Path, most: int, *, what: str = "", expected: str = "a text file") -> str:
    """A file of the user's, in UTF-8; raises FileProblem for another, or over ``most`` bytes.

    ``what`` it is, such as "The chat template ", begins the message; ``expected`` is in the hint.
    """
    try:
        return read_at_most(path, most).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileProblem(
            f"{what}{path} cannot be read: {reason}.", f"Give {expected} in UTF-8."
        ) from error


def require_room(folder: Path, needed: int, what: str, elsewhere: str) -> None:
    """Raise LocalspecError where ``needed`` bytes do not fit; ``what`` would be written there."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"{what} needs {needed / 1e6:.0f} MB, and {folder} has {free / 1e6:.0f} MB left.",
            f"Make room there. {elsewhere}",
        )


@contextmanager
def appearing_when_complete(destination: Path) -> Iterator[Path]:
    """A path beside `destination`, renamed to it at the end, removed if there is no end.

    Its name is this process's own, so two may write at once, and whoever has the earlier file open
    keeps it. Links are followed, and a replaced file hands its permissions on. What is no ordinary
    file, such as a device or an open stream, is written in place.
    """
    if str(destination).startswith(("/dev/", "/proc/")):  # a rename would replace the stream
        yield destination
        return
    destination = Path(os.path.realpath(destination))
    if destination.exists() and not destination.is_file():
        yield destination
        return
    partial = destination.with_name(f".{destination.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        yield partial
        if destination.exists():
            shutil.copymode(destination, partial)
        partial.replace(destination)
    finally:
        partial.unlink(missing_ok=True)


def save_json(path: Path, document: object) -> None:
    """Keep what may be found out again; a folder that cannot be written is no reason to fail."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_text(json.dumps(document) + "\n")
