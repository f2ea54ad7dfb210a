"""Files: complete or not there, whatever happens in between; bounded and never waited for."""

import errno
import functools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from localspec.core.errors import FileProblem
from localspec.core.files import (
    appearing_when_complete,
    did_you_mean,
    file_problem,
    lock,
    read_at_most,
    read_text,
    remove_abandoned,
    save_json,
    size_of,
)


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


def test_the_nearest_name_beside_a_missing_file(folder: Path) -> None:
    long = "coder-1.5b-instruct-q4_k_m.gguf"
    for name in ("target.gguf", "prompts.jsonl", "other.txt", "coder-1.5b-it-q4_0.gguf", long):
        (folder / name).touch()
    misspelt = (
        ("taget.gguf", "target"),
        ("target", "target"),
        ("coder-1.5b-it", "coder-1.5b-it-q4_0"),
        ("coder-1.5b-ins.gguf", "coder-1.5b-instruct-q4_k_m"),
    )
    for name, near in [(name, f"{near}.gguf") for name, near in misspelt]:
        assert did_you_mean(folder / name) == f"Did you mean {folder / near}? "
    for name in ("target.gguf", "taget.txt", "none.gguf", "absent/target.gguf"):
        assert did_you_mean(folder / name) == ""


def test_nothing_is_near_a_name_that_no_file_can_have(folder: Path) -> None:
    assert did_you_mean(folder / ("9" * 300)) == did_you_mean(folder / "\0") == ""


def test_nothing_is_left_of_a_failure(folder: Path) -> None:
    path = folder / "result.json"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), appearing_when_complete(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert os.listdir(folder) == ["result.json"]


def failing(error: BaseException, *names: object) -> None:
    raise error


def test_a_new_file_is_whole_when_its_name_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed then leaves no empty file."""
    path = folder / "result.json"
    monkeypatch.setattr(Path, "replace", functools.partial(failing, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), appearing_when_complete(path, new=True) as partial:
        partial.write_text("whole")
    assert path.read_text() == "whole" and os.listdir(folder) == ["result.json"]


@pytest.mark.parametrize("linked", [True, False])
def test_one_of_two_takes_a_new_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    if not linked:
        monkeypatch.setattr(os, "link", functools.partial(failing, OSError(1, "no")))
    path = folder / "result.json"
    for text in ("first", "second"):
        taken = path.exists()
        with pytest.raises(FileExistsError) if taken else nullcontext():
            with appearing_when_complete(path, new=True) as partial:
                partial.write_text(text)
    assert path.read_text() == "first" and os.listdir(folder) == ["result.json"]


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


def test_a_killed_process_leaves_a_file_and_the_next_write_removes_it(folder: Path) -> None:
    path = folder / "result.[json]"
    killed = (
        "import os, signal, sys; from pathlib import Path\n"
        "from localspec.core.files import appearing_when_complete\n"
        "with appearing_when_complete(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half'); os.kill(os.getpid(), signal.SIGTERM)"
    )
    code = subprocess.run([sys.executable, "-c", killed, str(path)]).returncode
    assert code == -15 and len(os.listdir(folder)) == 1
    others = [
        folder / f".{path.name}.99999999-0123abcd",  # in use, whatever its number
        folder / f".{path.name}.99999999-0123abcg",  # not our pattern
        folder / f".{path.name}.99999999-0123abcd.part",
        folder / f".other.{os.getpid()}-0123abcd",  # of another file
    ]
    for other in others:
        other.touch()
    with others[0].open("r+") as used:
        assert lock(used)
        with appearing_when_complete(path) as partial:
            partial.write_text("new")
        assert sorted(folder.iterdir()) == sorted([path, *others])
        remove_abandoned(path, all_names=True)
        assert sorted(folder.iterdir()) == sorted([path, *others[:-1]])
    remove_abandoned(path)
    assert sorted(folder.iterdir()) == sorted([path, *others[1:-1]])


SAVING = (
    "import sys; from pathlib import Path\n"
    "from localspec.core.files import appearing_when_complete\n"
    "for _ in range(150):\n"
    "    with appearing_when_complete(Path(sys.argv[1])) as partial:\n"
    "        partial.write_text('new')\n"
)
REMOVING = (
    "import sys; from pathlib import Path; from localspec.core.files import remove_abandoned\n"
    "remove_abandoned(Path(sys.argv[1]), all_names=True)"
)
CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def container() -> Sequence[str]:
    """The beginning of a command that gives its process a namespace of process ids."""
    if not shutil.which("unshare") or subprocess.run([*CONTAINER, "true"]).returncode:
        pytest.skip("no namespaces can be made here")
    return CONTAINER


def test_another_container_removes_no_save_under_way(
    folder: Path, container: Sequence[str]
) -> None:
    """Where the number of this process is unknown."""
    with appearing_when_complete(folder / "slot") as partial:
        partial.write_text("new")
        command = [*container, sys.executable, "-c", REMOVING, str(folder / "slot")]
        assert subprocess.run(command).returncode == 0
        assert partial.exists()
    assert list(folder.iterdir()) == [folder / "slot"]


def test_two_containers_save_at_once(folder: Path, container: Sequence[str]) -> None:
    command = [sys.executable, "-c", SAVING, str(folder / "slot")]
    both = [subprocess.Popen(each) for each in (command, [*container, *command])]
    assert [each.wait() for each in both] == [0, 0]
    assert list(folder.iterdir()) == [folder / "slot"]


def test_a_file_that_cannot_be_locked_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = folder / ".data.99999999-0123abcd"
    left.touch()

    def refused(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("localspec.core.files.flock", refused)
    with appearing_when_complete(folder / "data") as partial:
        partial.write_text("new")
    assert sorted(folder.iterdir()) == sorted([left, folder / "data"])


def test_remains_of_killed_processes_are_removed_behind_a_link(folder: Path) -> None:
    real, link = folder / "real", folder.parent / "link"
    link.symlink_to(real)
    for name in (".real.99999999-0123abcd", f".real.{10**30}-0123abcd"):
        (folder / name).touch()
    (folder / ".real.99999999-0000ffff").mkdir()  # no file of ours
    remove_abandoned(link)
    assert os.listdir(folder) == [".real.99999999-0000ffff"]
    remove_abandoned(folder / "no folder" / "file")


@pytest.fixture(params=["pipe", "device", "folder", "socket"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path to what is no regular file."""
    path = tmp_path / "x"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    elif request.param == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    return path


def test_what_is_no_regular_file_is_not_read(no_file: Path) -> None:
    with pytest.raises(OSError, match="not a regular file|Is a directory|No such device"):
        read_at_most(no_file, 100)
    assert size_of(no_file) is None


def test_what_is_no_regular_file_is_not_waited_for_by_a_write(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"), appearing_when_complete(path) as partial:
        partial.write_text("new")
    save_json(path, {})
    assert path.is_fifo()


def test_a_pipe_with_a_reader_is_written(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with appearing_when_complete(path) as partial:
        partial.write_text("new")
    assert os.read(reading, 9) == b"new"
    os.close(reading)


def test_a_stream_that_a_user_names_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"words")
    os.close(writing)
    assert read_text(Path(f"/dev/fd/{reading}"), 8) == "words"
    os.close(reading)


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


def test_an_error_of_the_system_becomes_a_problem_with_its_reason(tmp_path: Path) -> None:
    hint = "Name another."
    with pytest.raises(FileProblem, match="It failed: No such file or directory.") as raised:
        with file_problem("It failed", hint):
            (tmp_path / "none").read_bytes()
    assert raised.value.hint == hint
