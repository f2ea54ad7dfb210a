"""The store of self-drafts: found again whole, and made again when anything is amiss."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.core import machine
from localspec.core.errors import FileProblem
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.recipe import Recipe
from tests.support.llama.self_drafts import LOSES, PAYS
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama  # which tells of the machine's devices

RECIPE = Recipe(1)


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


def document_of(target: ModelHeader) -> Path:
    return store._document_path(target)


def test_what_pays_is_found_with_its_file(target: ModelHeader, made: Callable[[], Path]) -> None:
    assert store.find(target) is None
    draft = made()
    content = draft.read_bytes()
    kept = store.store_draft(target, RECIPE, draft, PAYS)
    assert not draft.exists()
    assert kept.path is not None and kept.path.read_bytes() == content
    assert store.find(target) == kept == store.StoredDraft(kept.path, RECIPE, PAYS)


def test_what_does_not_pay_is_known_without_its_file(
    target: ModelHeader, made: Callable[[], Path]
) -> None:
    store.store_draft(target, RECIPE, made(), PAYS)
    kept = store.store_draft(target, RECIPE, made(), LOSES)
    assert kept == store.find(target) == store.StoredDraft(None, RECIPE, LOSES)
    assert list(store.folder().glob("*-*.gguf")) == []


def test_what_was_not_measured_is_kept(target: ModelHeader, made: Callable[[], Path]) -> None:
    kept = store.store_draft(target, RECIPE, made(), None)
    assert kept.path is not None and store.find(target) == kept


def test_only_one_draft_of_a_target_is_kept(target: ModelHeader, made: Callable[[], Path]) -> None:
    first = store.store_draft(target, RECIPE, made(), PAYS)
    second = store.store_draft(target, Recipe(2, "Q4_0"), made(), PAYS)
    assert first.path is not None and not first.path.exists()
    assert second.path is not None and second.path.exists() and store.find(target) == second


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"machine": {"cpu": "another", "devices": []}},
        {"recipe": {"layers": [], "type": "keep"}},
        {"recipe": {"layers": [0], "type": "keep", "vocab": None}},
        {"recipe": {"layers": [1], "type": "keep", "vocab": None, "heads": False}},
        {"recipe": {"layers": [0], "type": "keep", "vocab": 64, "heads": True}},
        {"recipe": {"layers": ["0"], "type": "keep"}},
        {"recipe": None},
        {"verdict": {}},
        {"verdict": 3},
        {"recipe": {"layers": [0], "type": "keep", "vocab": float("inf"), "heads": False}},
        {"file": None},
        {"file": {"name": "x.gguf", "bytes": 3}},
        {"file": []},
    ],
)
def test_what_is_stale_or_damaged_counts_as_nothing(
    target: ModelHeader, made: Callable[[], Path], change: dict[str, Any]
) -> None:
    store.store_draft(target, RECIPE, made(), PAYS)
    path = document_of(target)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | change))
    assert store.find(target) is None
    path.write_text(json.dumps(document))
    assert store.find(target) is not None


def test_no_draft_is_found_whose_verdict_is_no(
    target: ModelHeader, made: Callable[[], Path]
) -> None:
    store.store_draft(target, RECIPE, made(), PAYS)
    path = document_of(target)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"verdict": LOSES.as_json()}))
    assert store.find(target) == store.StoredDraft(None, RECIPE, LOSES)


def test_layers_that_the_target_lacks_count_as_nothing(
    target: ModelHeader, made: Callable[[], Path]
) -> None:
    store.store_draft(target, RECIPE, made(), LOSES)  # of which no file could tell
    path = document_of(target)
    document = json.loads(path.read_text())
    document["recipe"]["layers"] = list(range((target.block_count or 0) + 1))
    path.write_text(json.dumps(document))
    assert store.find(target) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 60_000, b"1" * (2**16 + 1)])
def test_no_json_of_ours_counts_as_nothing(
    target: ModelHeader, made: Callable[[], Path], content: bytes
) -> None:
    store.store_draft(target, RECIPE, made(), PAYS)
    document_of(target).write_bytes(content)
    assert store.find(target) is None


def test_a_missing_file_or_another_machine_counts_as_nothing(
    target: ModelHeader, made: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store.store_draft(target, RECIPE, made(), PAYS)
    assert kept.path is not None
    with monkeypatch.context() as patched:
        patched.setattr(machine, "cpu_name", lambda: "another")
        assert store.find(target) is None
    assert store.find(target) is not None
    kept.path.unlink()
    assert store.find(target) is None


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
    assert document_of(a) != document_of(b)
    again = Path(shutil.copy(paths[0], tmp_path / "c.gguf"))
    assert document_of(read_header(again)) == document_of(a)


def test_two_processes_may_keep_at_once(target: ModelHeader, tiny: TinyFiles) -> None:
    store.folder().mkdir(parents=True)
    begin = threading.Barrier(2)

    def keep(number: int) -> None:
        for i in range(20):
            draft = Path(shutil.copy(tiny.draft, store.folder() / f"{number}.gguf"))
            begin.wait()
            store.store_draft(target, Recipe(1 + number if i % 2 else 1), draft, PAYS)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.find(target)  # of the last round, in which the recipes differ
    assert found is None or (found.path is not None and found.path.exists())


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
        store.store_draft(target, RECIPE, tiny.draft, PAYS)
    assert store.find(target) is None
