"""Names and values of a draft's header, by those of its target alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.writing.renumbering import new_names, new_values
from tests.support.gguf_files import Tensor, model_keys, words, write_gguf

KEPT = (0, 2, 3)  # of four layers


def header(
    folder: Path, keys: dict[str, object], tensors: Sequence[str] = ("token_embd.weight",)
) -> ModelHeader:
    """A model of four layers, unless its keys say otherwise."""
    own = {f"step35.{key}": value for key, value in ({"block_count": 4} | keys).items()}
    content = model_keys(words(300)) | {"general.architecture": "step35"} | own
    return read_header(write_gguf(folder / "m.gguf", content, [Tensor(name) for name in tensors]))


def changed(folder: Path, keys: dict[str, object]) -> dict[str, object]:
    """What becomes of these keys, where the number of layers is left out."""
    values = dict(new_values(header(folder, keys), KEPT))
    assert values.pop("step35.block_count") == 3
    return {key.removeprefix("step35."): value for key, value in values.items()}


def test_tensors_of_layers_that_go_are_left_out_and_others_move_up(tmp_path: Path) -> None:
    names = ["token_embd.weight", *(f"blk.{i}.a.b.weight" for i in range(5)), "blk.x.weight"]
    assert new_names(header(tmp_path, {}, names), KEPT) == {
        "token_embd.weight": "token_embd.weight",
        "blk.0.a.b.weight": "blk.0.a.b.weight",
        "blk.2.a.b.weight": "blk.1.a.b.weight",
        "blk.3.a.b.weight": "blk.2.a.b.weight",
        "blk.x.weight": "blk.x.weight",
    }


def test_values_by_layer_are_those_of_the_layers_that_stay(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "attention.head_count_kv": [1, 2, 3, 4],
        "flags": [True, False, True, False],
        "scales": [0.5, 1.5, 2.5, 3.5],
        "attention.compress_ratios": [4, 5, 6, 7, 8, 9],
    }
    assert changed(tmp_path, keys) == {
        "attention.head_count_kv": (1, 3, 4),
        "flags": (True, True, False),
        "scales": (0.5, 2.5, 3.5),
        "attention.compress_ratios": (4, 6, 7),
    }


def test_what_is_not_by_layer_stays(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "rope.dimension_sections": [1, 2, 3, 4],
        "target_layers": [1, 2, 3, 4],
        "names": ["a", "b", "c", "d"],
        "three": [1, 2, 3],
        "one": 4,
    }
    assert changed(tmp_path, keys) == {}


def test_heads_go_and_lists_may_count_them(tmp_path: Path) -> None:
    keys: dict[str, object] = {"block_count": 6, "nextn_predict_layers": 2, "own": [1, 2, 3, 4]}
    found = changed(tmp_path, keys | {"every": [1, 2, 3, 4, 5, 6]})
    assert found == {"nextn_predict_layers": 0, "own": (1, 3, 4), "every": (1, 3, 4)}


def test_leading_layers_are_counted_among_those_that_stay(tmp_path: Path) -> None:
    keys: dict[str, object] = {"leading_dense_block_count": 2, "hash_layer_count": 3}
    assert changed(tmp_path, keys) == {"leading_dense_block_count": 1, "hash_layer_count": 2}
