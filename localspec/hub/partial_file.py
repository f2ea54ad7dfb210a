"""Partial file of a download: locked, resumed after an interruption, hashed as it is stored."""

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from io import FileIO
from pathlib import Path

from localspec.core.errors import DownloadProblem, LocalspecError
from localspec.core.formatting import one_line, size
from localspec.hub.provenance import hash_of

_ELSEWHERE = "set LOCALSPEC_MODELS to a folder on another disk."


class PartialFile:
    """An open and locked partial file at `path`, to be renamed to `place`.

    `done` of `size` bytes are stored. Written without a buffer, so that they survive this process.
    Methods raise DownloadProblem if the disk or the folder fails, or another program interferes.
    """

    def __init__(self, path: Path, place: Path, file: FileIO, size: int) -> None:
        self.path = path
        self.place = place
        self.file = file
        self.size = size
        with writing(place):
            self.done = file.seek(0, os.SEEK_END)
        self._hashed: tuple[int, ...] = ()  # stamp of the file as it was hashed
        if self.done > size:
            self.restart()

    def restart(self) -> None:
        self.done = 0
        with writing(self.place):
            self.file.truncate(0)
            self.file.seek(0)

    def add(self, piece: bytes) -> None:
        view = memoryview(piece)
        with writing(self.place):
            while view:
                written = self.file.write(view)
                self.done += written
                view = view[written:]

    def sha256(self, report: Callable[[int], None]) -> str:
        """Hash of the stored bytes in lower-case hex; `report` gets the bytes read.

        The file is hashed again if another program writes to it meanwhile.
        """
        with writing(self.place):
            os.fsync(self.file.fileno())
            for _ in range(2):
                self._hashed = _stamp(os.fstat(self.file.fileno()))
                found = hash_of(self.file, report)
                if self._hashed == _stamp(os.fstat(self.file.fileno())):
                    return found
        raise self._interference()

    def put_in_place(self) -> None:
        """Rename the file to its place, which then holds the bytes that were hashed."""
        with writing(self.place):
            self._require_hashed(self.path)
            os.replace(self.path, self.place)
            _sync_folder(self.place.parent)
            self._require_hashed(self.place)

    def remove(self) -> None:
        with writing(self.place):
            self.path.unlink()

    def remove_others(self) -> None:
        """Remove partial files of other versions of this file."""
        for other in partials_of(self.place):
            remove_partial(other)

    def _require_hashed(self, path: Path) -> None:
        """Raise DownloadProblem unless `path` is the file that was hashed, without a change."""
        with suppress(FileNotFoundError):
            found = path.stat(follow_symlinks=False)
            if _stamp(found) == self._hashed and found.st_size == self.size:
                return
        raise self._interference()

    def _interference(self) -> DownloadProblem:
        return DownloadProblem(
            f"Another program changed or replaced the partial file of {one_line(self.place.name)}, "
            "so it was not stored.",
            "Run the same command again, with no other program at work in "
            f"{one_line(str(self.place.parent))}.",
        )


def partial_path(place: Path, content: str) -> Path:
    """Path of the partial file for `place`, with the start of the hash of its `content`."""
    return place.with_name(f".{place.name}.{content[:16]}.part")


def partials_of(place: Path) -> list[Path]:
    return [path for path in place.parent.glob(".*.part") if place_of(path) == place]


def place_of(partial: Path) -> Path | None:
    """The place of the file that a partial file becomes; None for any other name."""
    found = re.fullmatch(r"\.(.+)\.[0-9a-f]{16}\.part", partial.name, re.DOTALL)
    return partial.with_name(found[1]) if found else None


@contextmanager
def locked_partial(
    path: Path, place: Path, size: int, wait: Callable[[int], None]
) -> Iterator[PartialFile]:
    """Open and lock the partial file at `path`. Raises DownloadProblem.

    While another process has it, `wait` is called with the number of failed tries. The other one
    renames or removes the file at its end, so a lock counts only if `path` is still that file.
    """
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with _opened(path, place) as file:
            looks = 0
            while not _take_lock(file):
                looks += 1
                wait(looks)
            if _leads_to(path, file):
                yield PartialFile(path, place, file, size)
                return


def _opened(path: Path, place: Path) -> FileIO:
    """The file at `path`, made if it is missing; no link is followed, no FIFO is waited for."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    mode = stat.S_IFREG
    with writing(place), suppress(FileNotFoundError):
        mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise DownloadProblem(
            f"{one_line(str(path))} is not an ordinary file, so nothing can be downloaded to it.",
            "Remove it, then run the same command again.",
        )
    with writing(place):
        return FileIO(os.open(path, flags, 0o666), "r+")


def remove_partial(path: Path) -> None:
    """Remove a partial file, unless a process has locked it."""
    with suppress(OSError, DownloadProblem), path.open("r+b", buffering=0) as file:
        if _take_lock(file) and _leads_to(path, file):
            path.unlink()


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
    """Turn an OSError of writing at or next to `path` into a DownloadProblem."""
    try:
        yield
    except (LocalspecError, BrokenPipeError):  # a pipe: of the output of progress
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


def _take_lock(file: FileIO) -> bool:
    """Lock a file; False if another process has locked it."""
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        reason = one_line(error.strerror or str(error))
        raise DownloadProblem(
            f"The models folder cannot lock files, so two downloads could mix: {reason}.",
            f"To download, {_ELSEWHERE}",
        ) from error
    return True


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    """A stamp that differs if a file is replaced, cut or written to."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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
