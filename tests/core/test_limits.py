"""What the system refuses a process, in words."""

import errno
import sys

import pytest

from localspec.core import limits
from localspec.core.limits import allowed, refusal


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "", "a/b"), "a/b cannot be written: No space left"),
        (OSError(errno.EFBIG, ""), "The output cannot be written: File too large"),
        (ExceptionGroup("tasks", [OSError(errno.ENOSPC, "")]), "The output cannot be written"),
        (
            OSError(errno.EMFILE, "", "a"),
            "can open no more files: this shell allows 64 (ulimit -n)",
        ),
        (OSError(errno.ENODEV, ""), "its file system has no mmap"),
        (MemoryError(), "the 67 MB that this shell allows it (ulimit -v)"),
        (OSError(errno.ENOMEM, ""), "(ulimit -v)"),
        (caused(ImportError("numpy"), ImportError("failed to map segment")), "(ulimit -v)"),
        (RuntimeError("can't start new thread"), "(ulimit -v)"),
    ],
)
def test_what_was_refused(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    monkeypatch.setattr(limits, "allowed", lambda name: 64 if name == "RLIMIT_NOFILE" else 64 << 20)
    found = refusal(error)
    assert found is not None and words in found.message and found.hint.endswith(".")


def test_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "allowed", lambda name: None)
    texts = [
        refusal(error) for error in (MemoryError(), BlockingIOError(errno.EAGAIN, ""), KeyError())
    ]
    assert "no memory left" in str(texts[0])
    assert "no more threads or processes: the system allows no more" in str(texts[1])
    assert texts[2] is None


@pytest.mark.skipif(sys.platform != "linux", reason="limits of other systems differ")
def test_the_lowest_limit_counts() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (allowed("RLIMIT_NOFILE"), allowed("RLIMIT_NOFILE", 3)) == (soft, 3)
