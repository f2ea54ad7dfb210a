"""Copies of models with another header: every other byte is the source's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from localspec.core.errors import NotAGGUF
from localspec.metadata.gguf_file import Value
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from localspec.self_draft.writing.writer import write_copy
from tests.support.gguf_files import ARRAY, BOOL, I32, STRING, U8, U64, Tensor, Typed, write_gguf

ALL = {"token_embd.weight": "token_embd.weight", "blk.1.ffn.weight": "blk.0.ffn.weight"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with values of many types, and tensors of several sizes."""
    keys = {
        "general.architecture": "llama",
        "general.alignment": 64,
        "llama.block_count": Typed(U64, 2),
        "llama.small": Typed(U8, 7),
        "llama.flags": Typed(ARRAY, [True, False], BOOL),
        "llama.sizes": Typed(ARRAY, [3, -4], I32),
        "llama.none": Typed(ARRAY, [], I32),
        "tokenizer.ggml.tokens": Typed(ARRAY, [b"\xff", "b"], STRING),
        "split.count": 1,
    }
    tensors = [
        Tensor("token_embd.weight", (7, 3)),
        Tensor("blk.0.ffn.weight", (5,)),
        Tensor("blk.1.ffn.weight", (32,), 8),
    ]
    rng = np.random.default_rng(0)
    path = write_gguf(tmp_path / "m.gguf", keys, tensors, alignment=64)
    start = read_part(path).data_start
    data = path.read_bytes()
    path.write_bytes(data[:start] + rng.bytes(len(data) - start))
    return path


def test_what_is_not_changed_is_the_same(model: Path, tmp_path: Path) -> None:
    copy, told = tmp_path / "copy.gguf", list[int]()
    write_copy([model], copy, ALL, {"llama.block_count": 1}, told.append)
    before, after = read_part(model), read_part(copy)
    gone = {"split.count", "general.alignment", "llama.block_count"}
    kept = {key: value for key, value in before.values.items() if key not in gone}
    assert after.values == {**kept, "llama.block_count": 1}
    assert after.values["llama.none"] == ()
    assert after.arrays == before.arrays
    assert after.types.items() <= before.types.items()
    assert told == [1, 2]
    assert list(after.spans)[0] == "llama.block_count"  # what differs is at the beginning


def test_tensors_keep_their_bytes_under_new_names(model: Path, tmp_path: Path) -> None:
    write_copy([model], tmp_path / "copy.gguf", ALL, {})
    source = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    made = GGUFReader(tmp_path / "copy.gguf").tensors
    assert [tensor.name for tensor in made] == list(ALL.values())
    for tensor, old in zip(made, ALL, strict=True):
        assert tensor.data.tobytes() == source[old].data.tobytes()
        assert tensor.tensor_type == source[old].tensor_type
        assert tensor.shape.tolist() == source[old].shape.tolist()


def test_of_some_tensors_only_rows_are_written(model: Path, tmp_path: Path) -> None:
    source = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    rows = {"token_embd.weight": [2, 0], "not.there": [1]}
    write_copy([model], tmp_path / "copy.gguf", ALL, {}, rows=rows)
    table, other = GGUFReader(tmp_path / "copy.gguf").tensors
    assert table.shape.tolist() == [7, 2]
    np.testing.assert_array_equal(table.data, source["token_embd.weight"].data[[2, 0]])
    assert other.data.tobytes() == source["blk.1.ffn.weight"].data.tobytes()
    write_copy([model], tmp_path / "all.gguf", ALL, {}, rows={"token_embd.weight": range(3)})
    write_copy([model], tmp_path / "same.gguf", ALL, {})
    assert (tmp_path / "all.gguf").read_bytes() == (tmp_path / "same.gguf").read_bytes()


def test_values_keep_the_type_they_had(model: Path, tmp_path: Path) -> None:
    values: dict[str, Value | None] = {
        "llama.block_count": 1,
        "llama.flags": (False,),
        "llama.sizes": (-4,),
    }
    write_copy([model], tmp_path / "copy.gguf", ALL, values)
    fields = GGUFReader(tmp_path / "copy.gguf").fields
    kinds = {key: [int(kind) for kind in fields[key].types] for key in values}
    assert kinds == {
        "llama.block_count": [U64],
        "llama.flags": [ARRAY, BOOL],
        "llama.sizes": [ARRAY, I32],
    }
    assert {key: fields[key].contents() for key in values} == {
        "llama.block_count": 1,
        "llama.flags": [False],
        "llama.sizes": [-4],
    }


def test_keys_come_and_go(model: Path, tmp_path: Path) -> None:
    values = {"llama.small": None, "ours.list": (1, 2), "ours.name": "näme", "ours.no": None}
    write_copy([model], tmp_path / "copy.gguf", ALL, values)
    made = read_header(tmp_path / "copy.gguf").values
    assert made["ours.list"] == (1, 2) and made["ours.name"] == "näme"
    assert "llama.small" not in made and "ours.no" not in made


def test_a_source_that_shrinks_is_noticed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_part(model)
    monkeypatch.setattr("localspec.self_draft.writing.writer.read_part", lambda path: whole)
    os.truncate(model, model.stat().st_size - 80)
    with pytest.raises(NotAGGUF, match="became shorter"):
        write_copy([model], tmp_path / "copy.gguf", ALL, {})
