"""Files: complete or not there, whatever happens in between."""

import os
from pathlib import Path

import pytest

from localspec.core.errors import FileProblem
from localspec.core.files import appearing_when_complete, read_at_most, read_text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


def test_a_file_appears_at_the_end(folder: Path) -> None:
    path = folder / "result.json"
    path.write_text("old")
    with appearing_when_complete(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old" and partial.parent == folder
    assert path.read_text() == "new"
    assert os.listdir(folder) == ["result.json"]


def test_nothing_is_left_of_a_failure(folder: Path) -> None:
    path = folder / "result.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), appearing_when_complete(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(folder) == ["result.json"]


def test_two_may_write_at_once(folder: Path) -> None:
    path = folder / "result.json"
    with appearing_when_complete(path) as one, appearing_when_complete(path) as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"


def test_links_are_followed_and_permissions_kept(folder: Path) -> None:
    real, link = folder / "real.json", folder / "link.json"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    with appearing_when_complete(link) as partial:
        partial.write_text("new")
    assert link.is_symlink() and real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600


def test_a_stream_is_written_in_place(folder: Path) -> None:
    path = folder / "out.txt"
    with (
        path.open("w") as stream,
        appearing_when_complete(Path(f"/proc/self/fd/{stream.fileno()}")) as partial,
    ):
        partial.write_text("new")
    assert path.read_text() == "new" and os.listdir(folder) == ["out.txt"]


def test_a_device_is_written_in_place() -> None:
    with appearing_when_complete(Path(os.devnull)) as partial:
        assert partial == Path(os.devnull)
    assert Path(os.devnull).is_char_device()


def test_no_more_is_read_than_is_allowed(folder: Path) -> None:
    path = folder / "data"
    path.write_bytes(b"12345")
    assert read_at_most(path, 5) == b"12345"
    with pytest.raises(ValueError, match="larger than 4 bytes"):
        read_at_most(path, 4)
    with pytest.raises(FileNotFoundError):
        read_at_most(folder / "none", 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"\xff", "invalid start byte"), (b"x" * 9, "larger than 8 bytes")],
)
def test_a_text_that_cannot_be_read_is_told(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FileProblem, match=f"The plan {path} cannot be read: .*{reason}") as raised:
        read_text(path, 8, what="The plan ", expected="a plan")
    assert raised.value.hint == "Give a plan in UTF-8."


def test_a_text_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfwords")
    assert read_text(tmp_path / "text", 8) == "words"
