"""Copies of models with another header: every other byte is the source's."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from localspec.core.errors import NotAGGUF
from localspec.metadata.gguf_file import Value
from localspec.metadata.gguf_writer import NewTensor, copied, write_copy
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from tests.support.files.gguf_files import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    U8,
    U64,
    Tensor,
    Typed,
    write_gguf,
)

KEPT = ("token_embd.weight", "blk.1.ffn.weight")
Rows = dict[str, Sequence[int]]


def copy(
    model: Path, values: Mapping[str, Value | None], rows: Rows | None = None, name: str = "copy"
) -> Path:
    """A copy of some tensors, or some of their rows."""
    part, path, rows = read_part(model), model.with_name(name), rows or {}
    tensors = [copied(part, t, rows.get(t.name)) for t in part.tensors if t.name in KEPT]
    write_copy(path, part, values, tensors)
    return path


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


def test_what_is_not_changed_is_the_same(model: Path) -> None:
    before, after = read_part(model), read_part(copy(model, {"llama.block_count": 1}))
    gone = {"split.count", "general.alignment", "llama.block_count"}
    kept = {key: value for key, value in before.values.items() if key not in gone}
    assert after.values == {**kept, "llama.block_count": 1}
    assert after.values["llama.none"] == ()
    assert after.arrays == before.arrays
    assert after.types.items() <= before.types.items()
    assert list(after.spans)[0] == "llama.block_count"  # what differs is at the beginning


def test_tensors_keep_their_bytes(model: Path) -> None:
    source = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    made = GGUFReader(copy(model, {})).tensors
    assert [tensor.name for tensor in made] == list(KEPT)
    for tensor, old in zip(made, KEPT, strict=True):
        assert tensor.data.tobytes() == source[old].data.tobytes()
        assert tensor.tensor_type == source[old].tensor_type
        assert tensor.shape.tolist() == source[old].shape.tolist()


def test_of_some_tensors_only_rows_are_written(model: Path) -> None:
    source = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    table, other = GGUFReader(copy(model, {}, {"token_embd.weight": [2, 0]})).tensors
    assert table.shape.tolist() == [7, 2]
    np.testing.assert_array_equal(table.data, source["token_embd.weight"].data[[2, 0]])
    assert other.data.tobytes() == source["blk.1.ffn.weight"].data.tobytes()
    every = copy(model, {}, {"token_embd.weight": range(3)}, "every")
    assert every.read_bytes() == copy(model, {}).read_bytes()


def test_values_keep_the_type_they_had(model: Path) -> None:
    values: dict[str, Value | None] = {
        "llama.block_count": 1,
        "llama.flags": (False,),
        "llama.sizes": (-4,),
    }
    fields = GGUFReader(copy(model, values)).fields
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


def test_keys_come_and_go(model: Path) -> None:
    values = {"llama.small": None, "ours.list": (1, 2), "ours.name": "näme", "ours.no": None}
    made = read_header(copy(model, values)).values
    assert made["ours.list"] == (1, 2) and made["ours.name"] == "näme"
    assert "llama.small" not in made and "ours.no" not in made


def test_a_source_that_shrinks_is_noticed(model: Path, tmp_path: Path) -> None:
    whole = read_part(model)
    os.truncate(model, model.stat().st_size - 80)
    with pytest.raises(NotAGGUF, match="became shorter"):
        write_copy(tmp_path / "copy", whole, {}, [copied(whole, each) for each in whole.tensors])


def test_arrays_are_tensors_too(model: Path, tmp_path: Path) -> None:
    part, rows = read_part(model), np.arange(21, dtype=np.float32).reshape(3, 7)
    info = part.tensors[0]
    write_copy(tmp_path / "new", part, {}, [NewTensor(info, [rows[:1], rows[1:]])])
    np.testing.assert_array_equal(GGUFReader(tmp_path / "new").tensors[0].data, rows)
