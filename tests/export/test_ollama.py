# ruff: noqa: F401, F811  (fixtures are imported)
"""Ollama's Modelfile: heads that it takes, and drafts that it would load as something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.config import ALL_LAYERS
from localspec.core.errors import IncompatiblePair
from localspec.export.facts import DraftLength
from localspec.export.ollama import ollama
from localspec.metadata.header import read_header
from tests.support.exports import Facts, facts, facts_of
from tests.support.head_files import dflash_bytes, header_of, mtp_bytes, target_bytes


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def pair(folder: Path, kind: str) -> list[Path]:
    whole = header_of(folder, target_bytes(heads=int(kind == "own heads")), "big model.gguf")
    if kind == "own heads":
        return [whole.path]
    heads = mtp_bytes() if kind == "mtp" else dflash_bytes()
    return [whole.path, header_of(folder, heads, "heads.gguf").path]


@pytest.mark.parametrize("kind", ["own heads", "mtp", "dflash"])
def test_a_modelfile(tmp_path: Path, kind: str) -> None:
    paths = pair(tmp_path, kind)
    made = ollama(facts_of(*map(read_header, paths)))
    expected = [f"FROM {paths[0]}", *(f"DRAFT {path}" for path in paths[1:])]
    expected += ["PARAMETER draft_num_predict 4", "PARAMETER num_ctx 4096"]
    assert lines(made.text) == expected and not made.executable


def test_without_a_length_it_is_written_all_the_same(tmp_path: Path) -> None:
    (path,) = pair(tmp_path, "own heads")  # Ollama drafts with them only if a length is set
    known = facts_of(read_header(path), length=DraftLength(None, "unknown"))
    assert "PARAMETER draft_num_predict 4" in lines(ollama(known).text)


def test_settings_that_it_has(tmp_path: Path) -> None:
    (path,) = pair(tmp_path, "own heads")
    known = facts_of(
        read_header(path),
        settings={"gpu_layers": ALL_LAYERS, "threads": 2, "flash_attention": "on"},
        sampling={"temperature": 0.5, "repeat_last_n": 32, "xtc_threshold": 0.2},
    )
    made = ollama(known)
    assert lines(made.text)[-4:] == [
        "PARAMETER num_gpu 999",
        "PARAMETER num_thread 2",
        "PARAMETER temperature 0.5",
        "PARAMETER repeat_last_n 32",
    ]
    assert made.notes[-1].endswith("no such setting: flash_attention, xtc_threshold.")


def test_an_ordinary_draft_is_refused_and_nothing_stands_in_for_it(facts: Facts) -> None:
    with pytest.raises(IncompatiblePair) as caught:
        ollama(facts())
    assert caught.value.message == (
        "Ollama cannot run this pair: its DRAFT takes MTP heads and DFlash, not an ordinary draft "
        "model, which it would load as heads."
    )
    assert caught.value.exit_code == 1


def test_heads_that_it_takes_for_others(facts: Facts) -> None:
    with pytest.raises(IncompatiblePair, match="takes every DRAFT but DFlash for MTP heads"):
        ollama(facts("eagle3"))


def test_a_split_model_must_be_joined(tmp_path: Path) -> None:
    known = facts_of(read_header(pair(tmp_path, "own heads")[0]))
    split = replace(known.target, split_count=3)
    with pytest.raises(IncompatiblePair, match="names one file, and big model.gguf has 3 parts"):
        ollama(replace(known, target=split, draft=split))


def test_a_path_that_a_modelfile_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "a\nSYSTEM gotcha.gguf"
    path.write_bytes(target_bytes())
    with pytest.raises(IncompatiblePair, match="a quote or a line break"):
        ollama(facts_of(read_header(path)))
