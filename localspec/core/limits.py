"""Limits of a process, and errors for resources that the system refuses: memory, files, threads."""

import contextlib
import errno
import os
import re
import resource
from typing import overload

from localspec.core.errors import LocalspecError, NotEnoughMemory
from localspec.core.formatting import size

NO_MEMORY = re.compile(
    r"MemoryError|bad_alloc|memory allocation of|[Cc]annot allocate memory|pthread_create failed"
    r"|failed to map segment|can't start new thread"
)
REFUSALS = (OSError, MemoryError, RuntimeError, ImportError, ExceptionGroup)
_NO_THREAD = "can't start new thread"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


@overload
def allowed(name: str, wanted: int) -> int: ...
@overload
def allowed(name: str) -> int | None: ...
def allowed(name: str, wanted: int | None = None) -> int | None:
    """The lowest of ``wanted`` and this process's own limits of this name; None for no limit."""
    limits = resource.getrlimit(getattr(resource, name))
    found = [each for each in limits if each != resource.RLIM_INFINITY]
    return min(found if wanted is None else [*found, wanted], default=None)


def raise_open_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # the system's own limit may be lower
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def refusal(error: BaseException) -> LocalspecError | None:
    """The system's refusal, as an error for the user; None for any other error."""
    while isinstance(error, BaseExceptionGroup):  # of tasks that ran at the same time
        error = error.exceptions[0]
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number in _DISK:
        where = getattr(error, "filename", None) or "The output"
        hint = "Raise the limit of a file's size: ulimit -f unlimited."
        return LocalspecError(
            f"{where} cannot be written: {os.strerror(number)}.",
            hint if number == errno.EFBIG else "Make room on the disk, or name another place.",
        )
    if number == errno.ENODEV and getattr(error, "filename", None) is None:  # of mmap, not of open
        return LocalspecError(
            "A file cannot be mapped into memory: its file system has no mmap.",
            "Copy it to another disk; --no-mmap reads models in place.",
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return _no_more("open no more files", "RLIMIT_NOFILE", "ulimit -n", 1024)
    text = _text(error)
    lacks_memory = isinstance(error, MemoryError) or number == errno.ENOMEM
    if lacks_memory or (_NO_THREAD not in text and NO_MEMORY.search(text)):
        return _no_memory()
    if number == errno.EAGAIN or _NO_THREAD in text:
        if allowed("RLIMIT_AS") is not None:  # the stack of a thread counts towards it
            return _no_memory()
        return _no_more("start no more threads or processes", "RLIMIT_NPROC", "ulimit -u", 4096)
    return None


def _no_memory() -> LocalspecError:
    n_bytes = allowed("RLIMIT_AS")
    if n_bytes is None:
        return NotEnoughMemory(
            "The system has no memory left for this process.",
            "End other programs, or take smaller models or a smaller --ctx-size.",
        )
    return NotEnoughMemory(
        f"This process needs more memory than the {size(n_bytes)} that this shell allows it "
        "(ulimit -v).",
        "Raise the limit: ulimit -v unlimited.",
    )


def _no_more(what: str, name: str, command: str, enough: int) -> LocalspecError:
    most = allowed(name)
    bound = "the system allows no more" if most is None else f"this shell allows {most} ({command})"
    return LocalspecError(
        f"This process can {what}: {bound}.",
        f"End other programs, or raise the limit: {command} {enough}.",
    )


def _text(error: BaseException) -> str:
    """The text of an error that may be a library's, with those of its causes."""
    found = list[str]()
    cause: BaseException | None = error
    while cause is not None and isinstance(cause, ImportError | OSError | RuntimeError):
        found.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return "\n".join(found)
