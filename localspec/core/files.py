"""Atomic writes, and reading that neither blocks nor exceeds a limit."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from glob import escape
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, TextIO

from localspec.core.errors import FileProblem, LocalspecError
from localspec.core.formatting import one_line, size

UNWRITABLE = "Check that the folder exists, is writable and has room."
_COMPARED_FILES = 1000  # of a folder, with the name of one that is missing
_SAMPLES, _SAMPLE, _BEGINNING = 256, 4096, 2**20  # of each file of a model
MAX_KEYS, MAX_KEY_BYTES = 500, 2**17  # of one file


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file for reading; raises OSError at once for a folder, pipe, socket or device."""
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for its other end
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file", path)


def read_toml(path: Path) -> dict[str, Any]:
    """A table of this program, in a file next to the module that needs it."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def size_of(path: Path) -> int | None:
    """Bytes of a regular file; None for anything else."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def did_you_mean(missing: Path) -> str:
    """The file next to a missing one whose name is nearest to it, as a question; "" for none.

    The shortest that begins as it does, or else a similar one.
    """
    if os.path.exists(missing):
        return ""
    # The part after "1." in 1.5B is not a suffix.
    suffix = missing.suffix if missing.suffix[1:].isalpha() else ""
    try:
        some = islice(missing.parent.iterdir(), _COMPARED_FILES)
        there = {each.stem: each for each in some if suffix in ("", each.suffix)}
    except OSError:
        return ""
    wanted = missing.name.removesuffix(suffix)
    begun = sorted((each for each in there if len(wanted) > 2 and each.startswith(wanted)), key=len)
    near = begun or get_close_matches(wanted, there, 1, 0.75)
    return f"Did you mean {one_line(str(there[near[0]]))}? " if near else ""


def read_at_most(path: Path, most: int) -> bytes:
    """All bytes of a regular file; raises ValueError for more than ``most``."""
    with open_regular(path) as file:
        return _read(file, most)


def _read(file: BufferedReader, most: int) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it is larger than {most} bytes, too large")
    return data


def read_text(path: Path, most: int, *, what: str = "", expected: str = "a text file") -> str:
    """Text of a file or stream of at most ``most`` bytes; raises FileProblem about ``what``."""
    try:
        with path.open("rb") as file:
            return _read(file, most).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        hint = f"{did_you_mean(path)}Give {expected} in UTF-8."
        raise FileProblem(f"{what}{path} cannot be read: {reason_of(error)}.", hint) from error


def read_stream(stream: TextIO, most: int) -> str:
    """All of a text stream without its byte order mark; raises ValueError beyond ``most``."""
    text = stream.read(most + 1).removeprefix("\ufeff")
    if len(text) > most:
        raise ValueError(f"there are more than {most:,} characters")
    return text


def require_disk_space(folder: Path, needed: int, what: str, elsewhere: str) -> None:
    """Raise LocalspecError if ``what``, of ``needed`` bytes, does not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LocalspecError(
            f"{what} needs {size(needed)}, and {folder} has {size(free)} left.",
            f"Make room there. {elsewhere}",
        )


def reason_of(error: Exception) -> str:
    """The system's reason for an error, else its text."""
    return getattr(error, "strerror", None) or str(error)


@contextmanager
def file_problem(what: str, hint: str, *also: type[Exception]) -> Iterator[None]:
    """Turn an OSError in the block, or ``also`` others, into FileProblem: ``what``, and why."""
    turned: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except LocalspecError:
        raise
    except turned as error:
        raise FileProblem(f"{what}: {reason_of(error)}.", hint) from error


def require_kind(path: Path, magic: bytes, refusal: FileProblem) -> None:
    """Raise ``refusal`` for a path that holds anything but a file that begins with ``magic``.

    An empty file, and a missing one, are accepted. Remains of a killed process's save are removed.
    """
    remove_abandoned(path)
    with file_problem(f"{path} cannot be read", "Name another."):
        if not path.exists():
            return
        ours = path.is_file()
        if ours:
            with open_regular(path) as file:
                ours = file.read(len(magic)) in (magic, b"")
    if not ours:
        raise refusal


def fingerprint(paths: Sequence[Path]) -> str:
    """A digest of a model's files by samples: hashing gigabytes would take as long as reading.

    Models of one family may have the same size and the same beginning, which is the vocabulary;
    their weights differ in most places. Raises OSError.
    """
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(b"%d " % size + file.read(_BEGINNING))
            for i in range(1, _SAMPLES + 1):  # the last sample is the end
                file.seek(max(0, size * i // _SAMPLES - _SAMPLE))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


@contextmanager
def appearing_when_complete(
    destination: Path, *, new: bool = False, itself: bool = False, private: bool = False
) -> Iterator[Path]:
    """Atomic write: a new file in the folder of `destination`, renamed to it if the block succeeds.

    With ``new``, raises FileExistsError for a name that is taken by then. With ``itself``, a link
    or a pipe of this name is replaced, not written to. Only the user may read a ``private`` one.

    Several processes may write at once. Links are followed, and a replaced file passes on its
    permissions. A device or an open stream is written in place; a pipe without a reader is an
    OSError. Remains of writes to `destination` by killed processes are removed.
    """
    place = destination if itself else Path(os.path.realpath(destination))
    is_stream = str(destination).startswith(("/dev/", "/proc/"))  # a rename would replace it
    if is_stream or (not itself and place.exists() and not place.is_file()):
        # Open until its writer has it open.
        stream = os.open(destination, os.O_WRONLY | os.O_NONBLOCK)
        try:
            yield destination
        finally:
            os.close(stream)
        return
    remove_abandoned(place)
    with temporary_beside(place, 0o600 if private else 0o666) as partial:
        yield partial
        if new:
            _claim(partial, place)
        elif place.exists() and not itself:
            shutil.copymode(place, partial)
        partial.replace(place)


@contextmanager
def temporary_beside(destination: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new empty file next to `destination`, locked until it is deleted at the end."""
    while True:
        name = f".{destination.name}.{os.getpid()}-{secrets.token_hex(4)}"
        path = destination.with_name(name)
        with FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "r+") as file:
            if not lock(file):
                continue  # another process is about to remove it
            try:
                if os.fstat(file.fileno()).st_nlink:  # else one has removed it
                    yield path
                    return
            finally:
                path.unlink(missing_ok=True)


def _claim(partial: Path, destination: Path) -> None:
    """Give the file its name, which only one of several processes gets; raises FileExistsError."""
    try:
        os.link(partial, destination)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; a process that is killed here leaves it empty
        os.close(os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def remove_abandoned(destination: Path, *, all_names: bool = False) -> None:
    """Remove the files of `temporary_beside` that no process has locked.

    With ``all_names`` also those of other files in the folder.
    """
    place = Path(os.path.realpath(destination))
    name, pattern = (".+", "*") if all_names else (re.escape(place.name), escape(place.name))
    ours = re.compile(rf"\.{name}\.[0-9]+-[0-9a-f]{{8}}", re.DOTALL)
    for path in place.parent.glob(f".{pattern}.*-*"):
        if ours.fullmatch(path.name):
            with suppress(OSError), open_regular(path) as file:
                if lock(file, sure=True):
                    path.unlink()


def lock(file: IO[Any], *, sure: bool = False) -> bool:
    """Lock an open file until it is closed; False if another process, or handle, has locked it.

    True also if files cannot be locked here, unless the lock must be ``sure``.
    """
    try:
        flock(file, (LOCK_EX if file.writable() else LOCK_SH) | LOCK_NB)  # as NFS demands
    except BlockingIOError:
        return False
    except OSError:
        return not sure
    return True


def save_json(path: Path, document: object) -> None:
    """Save a document that can be made again; a failure to write is ignored."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_text(json.dumps(document) + "\n")


def read_keys(path: Path) -> list[str]:
    """The keys that `add_keys` stored, the newest last; none without a valid file."""
    try:
        document = json.loads(read_at_most(path, MAX_KEY_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    return [key for key in document if isinstance(key, str)] if isinstance(document, list) else []


def add_keys(path: Path, *keys: str) -> None:
    """Remember keys; the oldest are forgotten, and a failure to write is ignored."""
    others = (key for key in read_keys(path) if key not in keys)
    save_json(path, [*others, *keys][-MAX_KEYS:])


def or_stream(path: Path, stream: Literal["stdin", "stdout"]) -> Path:
    """The file, or if it is called "-", a standard stream of this process."""
    return Path("/dev", stream) if str(path) == "-" else path
