"""Partial file of a download: locked, hashed as it grows, resumed after an interruption."""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from localspec.core.errors import DownloadProblem
from localspec.core.formatting import one_line, size
from localspec.hub.provenance import PIECE_BYTES

SYNCED_BYTES = 32 << 20  # between two syncs; at most these are lost in a power cut

_ELSEWHERE = "set LOCALSPEC_MODELS to a folder on another disk."


class TooLong(Exception):
    """More bytes were received than the file has."""


class PartialFile:
    """An open and locked partial file at `path`, to be renamed to `place`.

    `done` of `size` bytes are there, and `digest` is their hash. Written without a buffer, so that
    they survive this process. Methods raise DownloadProblem if the disk or the folder fails.
    """

    def __init__(self, path: Path, place: Path, file: FileIO, size: int) -> None:
        self.path = path
        self.place = place
        self.file = file
        self.size = size
        self.done = self.synced = 0
        self.digest = hashlib.sha256()

    def restart(self, length: int = 0) -> None:
        """Truncate the file to `length` bytes, of which none is counted yet."""
        self.done = self.synced = 0
        self.digest = hashlib.sha256()
        with writing(self.place):
            self.file.truncate(length)
            self.file.seek(0)

    def recover(self, report: Callable[[int], None]) -> None:
        """Read and hash what an earlier process left; `report` gets the bytes read."""
        with writing(self.place):
            length = os.fstat(self.file.fileno()).st_size
            self.restart(self._sound(length) if length <= self.size else 0)
            while piece := self.file.read(PIECE_BYTES):
                self._count(piece)
                report(self.done)
        self.synced = self.done

    def add(self, piece: bytes) -> None:
        """Append bytes; raises TooLong for more than `size`."""
        if self.done + len(piece) > self.size:
            raise TooLong
        view = memoryview(piece)
        with writing(self.place):
            while view:
                view = view[self.file.write(view) :]
            self._count(piece)
            if self.done - self.synced >= SYNCED_BYTES:
                os.fsync(self.file.fileno())
                self.synced = self.done

    def put_in_place(self) -> None:
        """Rename the file to its place, synced to the disk before and after."""
        with writing(self.place):
            os.fsync(self.file.fileno())
            os.replace(self.path, self.place)
            _sync_folder(self.place.parent)

    def remove(self) -> None:
        with writing(self.place):
            self.path.unlink()

    def remove_others(self) -> None:
        """Remove partial files of other versions of this file."""
        outdated = re.compile(rf"\.{re.escape(self.place.name)}\.[0-9a-f]{{16}}\.part")
        for other in self.place.parent.iterdir():
            if outdated.fullmatch(other.name):
                remove_partial(other)

    def _count(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.done += len(piece)

    def _sound(self, length: int) -> int:
        """The length without zeros at the end, which a power cut may have left instead of data."""
        floor = max(0, length - SYNCED_BYTES)
        while length > floor:
            start = max(floor, length - PIECE_BYTES)
            self.file.seek(start)
            kept = self.file.read(length - start).rstrip(b"\0")
            if kept:
                return start + len(kept)
            length = start
        return length


def partial_path(place: Path, content: str) -> Path:
    """Path of the partial file for `place`, with the start of the hash of its `content`."""
    return place.with_name(f".{place.name}.{content[:16]}.part")


@contextmanager
def locked_partial(
    path: Path, place: Path, size: int, wait: Callable[[int], None]
) -> Iterator[PartialFile]:
    """Open and lock the partial file at `path`. Raises DownloadProblem.

    While another process has it, `wait` is called with the number of failed tries. The other one
    renames or removes the file at its end, so a lock counts only if `path` is still that file.
    """
    _lock_call()  # before anything is written: a system without locks has no O_NOFOLLOW either
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with writing(place):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            file = FileIO(os.open(path, flags, 0o666), "r+")
        with file:
            looks = 0
            while not _take_lock(file):
                looks += 1
                wait(looks)
            if _leads_to(path, file):
                yield PartialFile(path, place, file, size)
                return


def remove_partial(path: Path) -> None:
    """Remove a partial file, unless a process has locked it."""
    with suppress(OSError, DownloadProblem), path.open("r+b", buffering=0) as file:
        if _take_lock(file) and _leads_to(path, file):
            path.unlink()


def size_of(path: Path) -> int | None:
    """Bytes of an ordinary file; None for anything else."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def check_space(folder: Path, needed: int) -> None:
    """Raise DownloadProblem if the disk of `folder`, which may not exist yet, lacks bytes."""
    with writing(folder):
        place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        free = shutil.disk_usage(place).free
    if needed > free:
        raise DownloadProblem(
            f"The disk of {one_line(str(folder))} lacks {size(needed - free)}: "
            f"{size(needed)} are missing, {size(free)} are free.",
            f"Free that much, or {_ELSEWHERE}",
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing at or beside `path` into a DownloadProblem."""
    try:
        yield
    except BrokenPipeError:  # of the output of progress; files raise none
        raise
    except OSError as error:
        shown, folder = one_line(path.name), one_line(str(path.parent))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sentence = (
                f"The disk became full while {shown} was downloaded; the partial file is kept."
            )
            hint = f"Free some space and run the same command again, or {_ELSEWHERE}"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            sentence = f"The folder {folder} may not be written, so {shown} cannot be stored there."
            hint = "Change its permissions, or set LOCALSPEC_MODELS to a folder of your own."
        elif error.errno == errno.EFBIG:
            sentence = f"The file system of {folder} holds no file as large as {shown}."
            hint = f"FAT drives end at 4 GB: {_ELSEWHERE}"
        else:
            reason = one_line(error.strerror or str(error))
            sentence = f"{shown} cannot be stored in {folder}: {reason}."
            hint = "Look at that folder, or set LOCALSPEC_MODELS to another one."
        raise DownloadProblem(sentence, hint) from error


def _lock_call() -> Callable[[FileIO], None]:
    """The call that locks a file or raises BlockingIOError; DownloadProblem without one."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        raise DownloadProblem(
            "This system cannot lock files as localspec does, so two downloads could mix.",
            "Download the file in another way, and give its path; on Windows, use WSL.",
        ) from None
    return lambda file: flock(file, LOCK_EX | LOCK_NB)


def _take_lock(file: FileIO) -> bool:
    lock = _lock_call()
    try:
        lock(file)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DownloadProblem(
            "The file system of the models folder cannot lock files, so two downloads could mix "
            f"({error.strerror}).",
            f"To download, {_ELSEWHERE}",
        ) from error
    return True


def _leads_to(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, if the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
