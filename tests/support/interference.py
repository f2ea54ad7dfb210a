"""What another program may do to a file while it is downloaded."""

import os
import shutil
from pathlib import Path


def flip(path: Path) -> None:
    if path.is_file() and (size := path.stat().st_size):
        with path.open("r+b") as file:
            file.seek(size // 2)
            file.write(b"flip")
        # The clock of a file system may stand still for 4 ms.
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))


def cut(path: Path) -> None:
    if path.is_file():
        os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    if path.is_file():
        os.truncate(path, path.stat().st_size + 1000)


def swap(path: Path) -> None:
    """Another file of the same size."""
    size = path.stat().st_size if path.is_file() else 100
    remove(path)
    path.write_bytes(bytes(size))


def link(path: Path) -> None:
    """A link to a file of the user's own beside it."""
    path.with_name("mine").write_bytes(b"my own")
    remove(path)
    path.symlink_to(path.with_name("mine"))


def fifo(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


ALL = (flip, cut, grow, swap, link, fifo, folder, remove)
