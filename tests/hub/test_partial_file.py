"""Partial files: one process at a time, no byte lost or believed without reason, clear errors."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import DownloadProblem
from localspec.hub import partial_file
from localspec.hub.partial_file import (
    PartialFile,
    TooLong,
    locked_partial,
    partial_path,
    remove_partial,
    size_of,
    writing,
)

DATA = random.Random(0).randbytes(1000)
CONTENT = hashlib.sha256(DATA).hexdigest()


def never(looks: int) -> None:
    raise AssertionError("nobody else has this part")


def opened(
    place: Path, size: int = len(DATA), wait: Callable[[int], None] = never
) -> AbstractContextManager[PartialFile]:
    return locked_partial(partial_path(place, CONTENT), place, size, wait)


def nothing(done: int) -> None:
    """A report that nobody wants."""


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the disk was asked to keep a file; it is not bothered, no power fails here."""
    asked: list[int] = []
    monkeypatch.setattr(os, "fsync", asked.append)
    return asked


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "org" / "model.gguf"


@pytest.fixture
def left(place: Path) -> Path:
    """Where an earlier process may have left something."""
    place.parent.mkdir()
    return partial_path(place, CONTENT)


# --- bytes ---


def test_a_part_lies_hidden_beside_its_place(tmp_path: Path) -> None:
    assert partial_path(tmp_path / "a.gguf", "0123456789abcdef" * 4) == (
        tmp_path / ".a.gguf.0123456789abcdef.part"
    )


def test_what_was_added_is_there_counted_and_hashed(place: Path) -> None:
    with opened(place) as part:
        for at in range(0, len(DATA), 300):
            part.add(DATA[at : at + 300])
            assert part.path.read_bytes() == DATA[: at + 300]  # no buffer holds any of it
            assert part.done == len(DATA[: at + 300])
        assert part.digest.hexdigest() == CONTENT
        with pytest.raises(TooLong):
            part.add(b"!")
        assert part.path.read_bytes() == DATA and not place.exists()
        part.put_in_place()
    assert place.read_bytes() == DATA and not part.path.exists()


@given(data=st.binary(max_size=300), cut=st.integers(0, 300), zeros=st.integers(0, 50))
def test_what_is_there_is_read_again(data: bytes, cut: int, zeros: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.gguf"
        found = data[:cut] + bytes(zeros)
        partial_path(place, CONTENT).write_bytes(found)
        heard: list[int] = []
        with opened(place, len(data)) as part:
            part.recover(heard.append)
            sound = found.rstrip(b"\0") if len(found) <= len(data) else b""
            assert part.done == len(sound) == part.path.stat().st_size
            assert heard == ([part.done] if sound else [])
            part.add(data[part.done :])
            assert part.digest.digest() == hashlib.sha256(data).digest()
            assert part.path.read_bytes() == data


def test_zeros_at_the_end_are_not_believed(
    place: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a file system may give the length, but not the bytes."""
    monkeypatch.setattr(partial_file, "PIECE_BYTES", 64)
    end = len(DATA[:400].rstrip(b"\0"))
    left.write_bytes(DATA[:400] + bytes(500))
    heard: list[int] = []
    with opened(place) as part:
        part.recover(heard.append)
        assert part.done == end == left.stat().st_size
    assert heard == [*range(64, end, 64), end]


def test_only_so_many_zeros_are_looked_at(
    place: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind the last time that the disk was asked to keep it can be lost."""
    monkeypatch.setattr(partial_file, "PIECE_BYTES", 64)
    monkeypatch.setattr(partial_file, "SYNCED_BYTES", 100)
    with opened(place) as part:
        for _ in range(15):
            part.add(bytes(60))
        assert len(synced) == 7  # whenever another 100 bytes are there: each 120
    with opened(place) as part:
        part.recover(nothing)
        assert part.done == 800


@pytest.mark.parametrize("found", [DATA + b"more", b""])
def test_a_part_without_use_begins_at_nothing(found: bytes, place: Path, left: Path) -> None:
    left.write_bytes(found)
    with opened(place) as part:
        part.recover(nothing)
        assert part.done == 0 and left.read_bytes() == b""
        part.add(DATA)
    assert left.read_bytes() == DATA


def test_a_part_that_came_wrong_is_begun_again(place: Path) -> None:
    with opened(place) as part:
        part.add(DATA[::-1])
        part.restart()
        assert part.path.read_bytes() == b""
        part.add(DATA)
        assert part.digest.hexdigest() == CONTENT and part.path.read_bytes() == DATA
        part.remove()
    assert list(place.parent.iterdir()) == []


def test_parts_of_other_versions_are_removed_and_nothing_else(place: Path) -> None:
    with opened(place) as part:
        others = [place.with_name(name) for name in (
            ".model.gguf.origin.json", ".model.gguf.short.part", "model.gguf.0123456789abcdef.part",
            ".other.gguf.0123456789abcdef.part", ".modelXgguf.0123456789abcdef.part",
        )]  # fmt: skip
        for path in (*others, place.with_name(".model.gguf.0123456789abcdef.part")):
            path.write_text("")
        part.add(DATA)
        part.put_in_place()
        part.remove_others()
    assert sorted(place.parent.iterdir()) == sorted([place, *others])


# --- one at a time ---


def test_a_second_one_waits_until_the_first_one_is_done(place: Path) -> None:
    first = opened(place)
    part = first.__enter__()
    waited: list[int] = []

    def wait(looks: int) -> None:
        waited.append(looks)
        part.add(DATA[:100])
        if looks == 3:
            first.__exit__(None, None, None)

    with opened(place, wait=wait) as second:
        second.recover(nothing)
        assert second.done == 300 and waited == [1, 2, 3]


@pytest.mark.parametrize("end", [PartialFile.put_in_place, PartialFile.remove])
def test_a_lock_on_what_lost_its_name_does_not_count(
    end: Callable[[PartialFile], None], place: Path
) -> None:
    first = opened(place)
    part = first.__enter__()
    part.add(DATA)

    def wait(looks: int) -> None:
        end(part)
        first.__exit__(None, None, None)

    with opened(place, wait=wait) as second:
        second.recover(nothing)
        assert second.done == 0 and os.path.samestat(
            os.fstat(second.file.fileno()), second.path.stat()
        )


def test_a_part_is_removed_only_when_nobody_has_it(place: Path) -> None:
    with opened(place) as part:
        remove_partial(part.path)
        assert part.path.exists()
    remove_partial(part.path)
    assert not part.path.exists()
    remove_partial(part.path)  # nor is its absence a matter


def test_a_link_in_place_of_a_part_is_not_followed(place: Path, left: Path) -> None:
    mine = place.with_name("mine")
    mine.write_text("my own")
    left.symlink_to(mine)
    with pytest.raises(DownloadProblem, match="cannot be stored"), opened(place):
        pass
    assert mine.read_text() == "my own"


def test_a_file_system_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(DownloadProblem, match="cannot lock files"), opened(place):
        pass


# As on Windows: neither file locks nor a terminal to set up.
WITHOUT = "import sys; sys.modules.update(fcntl=None, termios=None, readline=None); "
EVERY_MODULE = """
import importlib, pkgutil, localspec
for found in pkgutil.walk_packages(localspec.__path__, "localspec."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print("all there")
"""


def test_every_module_can_be_imported_without_locks() -> None:
    command = [sys.executable, "-c", WITHOUT + EVERY_MODULE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("all there\n", "")


def test_a_system_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(os, "O_NOFOLLOW")
    with pytest.raises(DownloadProblem, match="cannot lock files"), opened(place):
        pass
    remove_partial(partial_path(place, CONTENT))
    assert not place.parent.exists()


# --- disks and folders ---


class FullDisk(FileIO):
    """Takes 350 bytes, the last of them in half a write."""

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        left = 350 - self.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(view[:left])


def test_a_full_disk_keeps_what_came(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(DownloadProblem, match="disk became full"):
        patch.setattr(partial_file, "FileIO", FullDisk)
        with opened(place) as part:
            part.add(DATA[:300])
            part.add(DATA[300:])
    with opened(place) as part:
        part.recover(nothing)
        assert part.done == 350 and part.path.read_bytes() == DATA[:350]


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EACCES, "may not be written"),
        (errno.EPERM, "may not be written"),
        (errno.EROFS, "may not be written"),
        (errno.EFBIG, "no file as large"),
        (errno.ENOSPC, "disk became full"),
        (errno.EDQUOT, "disk became full"),
        (errno.EIO, "cannot be stored"),
    ],
)
def test_each_failure_to_store_is_a_sentence(number: int, sentence: str) -> None:
    with pytest.raises(DownloadProblem, match=sentence) as problem:
        with writing(Path("/models/a\n.gguf")):
            raise OSError(number, os.strerror(number))
    message, hint = problem.value.message, problem.value.hint
    assert message.endswith(".") and hint.endswith(".") and message.isprintable()


def test_a_closed_pipe_behind_the_progress_is_no_full_disk(place: Path, left: Path) -> None:
    def show(done: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    left.write_bytes(DATA[:300])
    with pytest.raises(BrokenPipeError), opened(place) as part:
        part.recover(show)
    assert left.read_bytes() == DATA[:300]


def test_the_size_of_what_is_no_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    assert size_of(tmp_path / "file") == 1000
    assert size_of(tmp_path) is size_of(tmp_path / "none") is None
    assert size_of(tmp_path / "file" / "below") is None
