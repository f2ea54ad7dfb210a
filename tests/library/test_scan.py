"""The scan: no folder is too odd, too deep or too full for it, and what it leaves out is said."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from localspec.library import scan, tool_caches
from localspec.library.local_models import LocalModel, find_models
from localspec.library.removal import removals_of
from localspec.library.resolve import Resolver
from tests.support.library import zoo
from tests.support.library.model_folders import MODEL, found, names, some_model

# Which files


NO_MODELS = """
mmproj-model-f16.gguf X-BF16-MMPROJ.gguf model.imatrix.gguf .hidden.gguf .trash/a.gguf
a.gguf.incomplete a.gguf.downloadInProgress a.gguf.part a.bin
""".split()
HEADS = """
mtp-gemma-4-E4B-it.gguf MTP/gemma-4-E4B-it.gguf ggml-org_gemma_mtp-gemma-4-E4B-it.gguf
eagle3-gpt-oss-20b-Q8_0.gguf Qwen3-8B-DFlash.Q8_0.gguf dspark-x.gguf
""".split()
# The first is a whole model with its heads inside.
MODELS = """
Qwen3.6-35B-A3B-MTP-IQ4_XS-Q8nextn.gguf a/b/c/d.GGUF spark-7b.gguf eagle-7b.gguf
x-00001-of-00001.gguf x-00000-of-00000.gguf x-1-of-3.gguf
""".split()


@pytest.mark.parametrize("name", [*NO_MODELS, *HEADS, *MODELS])
def test_a_file_is_a_model_or_heads_by_its_name(ours: Path, name: str) -> None:
    zoo.put(ours / name, MODEL)
    inventory = find_models()
    model = LocalModel(ours / name, "localspec", name, len(MODEL), (ours / name,))
    assert inventory.models == ((model,) if name in MODELS else ())
    assert inventory.sidecars == ((model,) if name in HEADS else ())
    assert inventory.files == inventory.models + inventory.sidecars and inventory.notes == ()


def test_names_are_made_fit_to_be_shown(ours: Path) -> None:
    zoo.put(ours / "a\x1b[2J\nb.gguf", MODEL)
    zoo.put(ours / os.fsdecode(b"\xff.gguf"), some_model(21))
    zoo.put(ours / "\x1b.gguf", b"no model")
    inventory = find_models()
    for text in (*names(inventory), *inventory.notes):
        assert text.isprintable()
        text.encode()
    assert all(model.path.is_file() for model in inventory.models)


def test_a_pipe_named_like_a_model_does_not_hold_the_search_up(ours: Path) -> None:
    os.mkfifo(ours / "pipe.gguf")
    assert found() == []


# Folders that are odd


def test_links_to_files_anywhere_are_followed(ours: Path, tmp_path: Path) -> None:
    model = tmp_path / "outside" / "a.gguf"
    zoo.put(model, MODEL)
    (ours / "file.gguf").symlink_to(model)
    (ours / "same.gguf").symlink_to(ours / "file.gguf")
    inventory = find_models()
    assert names(inventory) == ["file.gguf"] and inventory.notes == ()
    assert inventory.models[0].path == ours / "file.gguf"
    assert inventory.models[0].n_bytes == len(MODEL)
    (removal,) = removals_of("file.gguf", Resolver())
    removal.delete()
    assert model.is_file() and names(find_models()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_links_to_what_may_not_be_read(ours: Path, tmp_path: Path) -> None:
    zoo.put(tmp_path / "outside" / "a.gguf", MODEL)
    (tmp_path / "outside" / "a.gguf").chmod(0)
    (ours / "file.gguf").symlink_to(tmp_path / "outside" / "a.gguf")
    inventory = find_models()
    assert inventory.models == () and "see its permissions" in inventory.notes[0]


def test_links_to_folders_pipes_nowhere_or_round_are_left_out(ours: Path, tmp_path: Path) -> None:
    zoo.put(tmp_path / "outside" / "a.gguf", MODEL)
    os.mkfifo(tmp_path / "pipe")
    (ours / "pipe.gguf").symlink_to(tmp_path / "pipe")
    (ours / "null.gguf").symlink_to(os.devnull)
    (ours / "folder").symlink_to(tmp_path / "outside")
    (ours / "round").symlink_to(ours)
    (ours / "loop.gguf").symlink_to(ours / "pool.gguf")
    (ours / "pool.gguf").symlink_to(ours / "loop.gguf")
    (ours / "gone.gguf").symlink_to(ours / "nothing")
    inventory = find_models()
    assert inventory.models == ()
    every = "\n".join(inventory.notes)
    pipes = f"{ours / 'null.gguf'}, {ours / 'pipe.gguf'}."
    assert f"no regular file (link to a .gguf file): {pipes}" in every
    assert f"{ours / 'folder'}, {ours / 'round'}." in every
    assert all(name in every for name in ("loop.gguf", "pool.gguf", "gone.gguf"))


def test_a_folder_may_itself_be_behind_a_link(tmp_path: Path) -> None:
    zoo.put(tmp_path / "disk" / "a.gguf", MODEL)
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    assert found("localspec") == ["a.gguf"]


def test_very_deep_folders_are_left_out(ours: Path) -> None:
    zoo.put(ours.joinpath(*"abcdefghijkl") / "deep.gguf", some_model(20))
    zoo.put(ours.joinpath(*"abcdefghijklm") / "deeper.gguf", some_model(21))
    inventory = find_models()
    assert names(inventory) == ["a/b/c/d/e/f/g/h/i/j/k/l/deep.gguf"]
    assert inventory.notes == (
        f"Left out of localspec, folders too deep down: {ours.joinpath(*'abcdefghijklm')}.",
    )


def test_the_number_of_files_is_bounded(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_FILES", 5)
    for number in range(9):
        zoo.put(ours / f"{number}.gguf", some_model(20 + number))
    inventory = find_models()
    assert len(inventory.models) == 5
    assert "files after the first" in inventory.notes[0] and str(ours) in inventory.notes[0]


def test_what_may_not_be_read_is_named(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service folder of Ollama, say; the tests may run as a user who may read everything."""
    closed = tmp_path / "home" / "service" / "manifests"
    scandir = os.scandir
    zoo.put(ours / "a.gguf", MODEL)

    def refusing(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    def refusing_one(folder: Path) -> Iterator[os.DirEntry[str]]:
        return refusing() if Path(folder) == closed else scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing_one)
    monkeypatch.setattr(scan, "open_regular", refusing)
    inventory = find_models()
    assert inventory.models == ()
    assert inventory.notes == (
        f"Left out of localspec, {scan.UNREADABLE}: {ours / 'a.gguf'}.",
        f"Left out of ollama, {scan.UNREADABLE}: {closed}.",
    )


def test_a_file_that_vanishes_meanwhile_is_forgotten(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.gguf", "b.gguf"):
        zoo.put(ours / name, some_model(ord(name[0])))

    def vanishing(path: Path) -> None:
        (ours / "b.gguf").unlink(missing_ok=True)

    monkeypatch.setattr(tool_caches, "_origin", vanishing)
    inventory = find_models()
    assert (names(inventory), inventory.notes) == (["a.gguf"], ())
