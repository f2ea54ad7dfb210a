"""Partial files: one process at a time, no byte lost or believed without reason, clear errors."""

import errno
import hashlib
import os
import random
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
    locked_partial,
    partial_path,
    remove_partial,
    writing,
)
from tests.support import interference

DATA = random.Random(0).randbytes(1000)
CONTENT = hashlib.sha256(DATA).hexdigest()


def never(looks: int) -> None:
    raise AssertionError("nobody else has this part")


def opened(
    place: Path, size: int = len(DATA), wait: Callable[[int], None] = never
) -> AbstractContextManager[PartialFile]:
    return locked_partial(partial_path(place, CONTENT), place, size, wait)


def nothing(done: int) -> None:
    """Progress is not shown."""


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is not bothered, as no power fails here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


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


def test_what_was_added_is_stored(place: Path) -> None:
    with opened(place) as part:
        for at in range(0, len(DATA), 300):
            part.add(DATA[at : at + 300])
            assert part.path.read_bytes() == DATA[: at + 300]  # no buffer holds any of it
            assert part.done == len(DATA[: at + 300])
        assert part.sha256(nothing) == CONTENT
        assert part.path.read_bytes() == DATA and not place.exists()
        part.put_in_place()
    assert place.read_bytes() == DATA and not part.path.exists()


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_a_left_part_is_gone_on_with(data: bytes, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.gguf"
        partial_path(place, CONTENT).write_bytes(data[:cut])
        heard: list[int] = []
        with opened(place, len(data)) as part:
            assert part.done == len(data[:cut])
            part.add(data[part.done :])
            assert part.sha256(heard.append) == hashlib.sha256(data).hexdigest()
            assert part.path.read_bytes() == data and heard == ([len(data)] if data else [])


def test_the_hash_is_of_what_is_stored(place: Path) -> None:
    with opened(place) as part:
        part.add(DATA)
        part.path.write_bytes(DATA[::-1])
        assert part.sha256(nothing) == hashlib.sha256(DATA[::-1]).hexdigest()


def test_a_part_longer_than_the_file_begins_at_nothing(place: Path, left: Path) -> None:
    left.write_bytes(DATA + b"more")
    with opened(place) as part:
        assert part.done == 0 and left.read_bytes() == b""
        part.add(DATA)
    assert left.read_bytes() == DATA


def test_a_wrong_part_is_begun_again(place: Path) -> None:
    with opened(place) as part:
        part.add(DATA[::-1])
        part.restart()
        assert part.path.read_bytes() == b""
        part.add(DATA)
        assert part.sha256(nothing) == CONTENT and part.path.read_bytes() == DATA
        part.remove()
    assert list(place.parent.iterdir()) == []


# --- interference ---


@pytest.mark.parametrize("interfere", interference.ALL)
def test_only_the_hashed_file_gets_the_name(interfere: Callable[[Path], None], place: Path) -> None:
    with opened(place) as part:
        part.add(DATA)
        assert part.sha256(nothing) == CONTENT
        interfere(part.path)
        with pytest.raises(DownloadProblem, match="changed or replaced the partial file") as caught:
            part.put_in_place()
    assert caught.value.hint.endswith(".") and not os.path.lexists(place)


def test_a_replacement_at_the_last_moment_is_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def too_late(source: Path, target: Path) -> None:
        interference.swap(source)
        rename(source, target)

    monkeypatch.setattr(os, "replace", too_late)
    with opened(place) as part:
        part.add(DATA)
        part.sha256(nothing)
        with pytest.raises(DownloadProblem, match="changed or replaced"):
            part.put_in_place()


def test_a_file_that_changes_while_it_is_hashed_is_hashed_again(place: Path) -> None:
    heard: list[int] = []

    def flip_once(done: int) -> None:
        if not heard:
            interference.flip(part.path)
        heard.append(done)

    with opened(place) as part:
        part.add(DATA)
        assert (
            part.sha256(flip_once) == hashlib.sha256(DATA[:500] + b"flip" + DATA[504:]).hexdigest()
        )
        assert heard == [1000, 1000]
        with pytest.raises(DownloadProblem, match="changed or replaced"):
            part.sha256(lambda done: interference.flip(part.path))


def test_a_file_that_grows_for_ever_is_not_hashed_for_ever(place: Path) -> None:
    def grow(done: int) -> None:
        with part.path.open("ab") as file:
            file.write(DATA)

    with opened(place) as part:
        part.add(DATA)
        with pytest.raises(DownloadProblem, match="changed or replaced"):
            part.sha256(grow)
        assert part.path.stat().st_size == 3 * len(DATA)


@pytest.mark.parametrize("interfere", [interference.link, interference.fifo, interference.folder])
def test_a_part_must_be_an_ordinary_file(
    interfere: Callable[[Path], None], place: Path, left: Path
) -> None:
    interfere(left)
    with pytest.raises(DownloadProblem, match="is not an ordinary file"), opened(place):
        pass
    assert interfere is not interference.link or left.read_bytes() == b"my own"


def test_parts_of_other_versions_are_removed_and_nothing_else(place: Path) -> None:
    with opened(place) as part:
        others = [place.with_name(name) for name in (
            ".model.gguf.origin.json", ".model.gguf.short.part", "model.gguf.0123456789abcdef.part",
            ".other.gguf.0123456789abcdef.part", ".modelXgguf.0123456789abcdef.part",
        )]  # fmt: skip
        for path in (*others, place.with_name(".model.gguf.0123456789abcdef.part")):
            path.write_text("")
        part.add(DATA)
        part.sha256(nothing)
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
        assert second.done == 300 and waited == [1, 2, 3]


def finished(part: PartialFile) -> None:
    part.sha256(nothing)
    part.put_in_place()


@pytest.mark.parametrize("end", [finished, PartialFile.remove])
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


def test_a_file_system_without_locks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(partial_file, "flock", fail)
    with pytest.raises(DownloadProblem, match="cannot lock files"), opened(place):
        pass


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


def test_a_closed_pipe_behind_the_progress_is_no_full_disk(place: Path) -> None:
    def show(done: int) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with opened(place) as part:
        part.add(DATA[:300])
        with pytest.raises(BrokenPipeError):
            part.sha256(show)
        assert part.path.read_bytes() == DATA[:300]
