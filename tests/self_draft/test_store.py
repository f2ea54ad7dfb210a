"""The store of self-drafts: one file for each target, found again."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localspec.core.errors import FileProblem, IncompatiblePair
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from tests.support.real_pair import TinyFiles


@pytest.fixture
def target(tiny: TinyFiles) -> ModelHeader:
    return read_header(tiny.target)


@pytest.fixture
def made(tiny: TinyFiles) -> Callable[[], Path]:
    """A draft on its way into the store."""

    def make() -> Path:
        store.folder().mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(tiny.draft, store.folder() / "made.gguf"))

    return make


def test_a_draft_is_found_with_its_content(target: ModelHeader, made: Callable[[], Path]) -> None:
    assert store.find(target) is None and store.files_of(target) == []
    draft = made()
    content = draft.read_bytes()
    kept = store.store_draft(target, draft)
    assert not draft.exists() and kept.read_bytes() == content
    assert store.find(target) == kept and store.files_of(target) == [kept]


def test_a_later_draft_takes_the_place_of_an_earlier_one(
    target: ModelHeader, made: Callable[[], Path]
) -> None:
    store.store_draft(target, made())
    other = made()
    other.write_bytes(b"another")
    assert store.store_draft(target, other).read_bytes() == b"another"
    assert len(store.files_of(target)) == 1


def test_what_earlier_versions_stored_can_be_removed(
    target: ModelHeader, made: Callable[[], Path]
) -> None:
    kept = store.store_draft(target, made())
    old = [kept.with_suffix(".json"), kept.with_name(f"{kept.stem}-0123.gguf")]
    for path in old:
        path.write_text("")
    assert store.files_of(target) == sorted([kept, *old])


def test_a_stored_draft_is_named_and_a_missing_one_is_an_error(
    target: ModelHeader, made: Callable[[], Path]
) -> None:
    with pytest.raises(IncompatiblePair, match="No draft was made of"):
        store.require_stored(target.path)
    kept, said = store.store_draft(target, made()), list[str]()
    assert store.require_stored(target.path, said.append) == kept
    assert said == [f"Draft: {kept}, made of the target."]


@pytest.mark.parametrize("place", [2**20 + 300_000, -5])
def test_another_model_with_the_same_header_and_size_is_another(
    tmp_path: Path, tiny: TinyFiles, place: int
) -> None:
    """As a fine-tune is: only its weights differ, far behind the beginning."""
    content = np.frombuffer(tiny.target.read_bytes() + bytes(2**20), np.uint8).copy()
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path in paths:
        content.tofile(path)
        content[place - 2**19 if place > 0 else place :] ^= 1
    a, b = map(read_header, paths)
    assert store._path(a) != store._path(b)
    again = Path(shutil.copy(paths[0], tmp_path / "c.gguf"))
    assert store._path(read_header(again)) == store._path(a)


def test_a_workplace_vanishes_with_what_was_abandoned(tmp_path: Path) -> None:
    with store.work_folder() as first, store.work_folder() as second:
        (first / "draft.gguf").write_bytes(b"x")
        assert first != second
    assert list(store.folder().iterdir()) == []
    killed = (
        "import os, signal; from localspec.self_draft import store\n"
        "with store.work_folder() as made:\n"
        "    (made / 'draft.gguf').write_bytes(b'x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    (store.folder() / ".making-old").mkdir()  # of an earlier version
    left = {path.name for path in store.folder().iterdir()}
    assert len(left) == 3
    with store.work_folder() as first, store.work_folder():
        assert first.exists()
        assert left.isdisjoint(path.name for path in store.folder().iterdir())


def test_another_process_may_remove_its_workplace_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.folder().mkdir(parents=True)
    gone = store.folder() / ".making-gone"
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [gone])
    with store.work_folder() as place:
        assert place.is_dir()


def test_a_folder_that_cannot_be_made_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: ModelHeader, tiny: TinyFiles
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(FileProblem, match="Nothing can be written"), store.work_folder():
        pass
    with pytest.raises(FileProblem, match="cannot be stored"):
        store.store_draft(target, tiny.draft)
    assert store.find(target) is None
