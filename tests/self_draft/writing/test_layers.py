"""Layers that may go, by headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import DraftNotMade
from localspec.llama import llama_library
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.writing import kinds, layers, trim
from localspec.self_draft.writing.layers import MOST_LAYERS, Removable, removable, require_removable
from tests.support.gguf_files import Tensor, model_keys, words, write_gguf


def header(
    folder: Path, architecture: str, keys: dict[str, object], tensors: Sequence[str] = ()
) -> ModelHeader:
    """A model of 12 layers, unless its keys say otherwise."""
    own = {f"{architecture}.{key}": value for key, value in ({"block_count": 12} | keys).items()}
    content = model_keys(words(300)) | {"general.architecture": architecture} | own
    listed = [Tensor(name) for name in ("token_embd.weight", *tensors)]
    return read_header(write_gguf(folder / "m.gguf", content, listed))


REFUSED = [  # of these, no layer may go
    ("baichuan", {}, "variants"),
    ("deepseek2", {}, "variants"),
    ("exaone4", {"block_count": 64}, "variants"),
    ("gemma2", {"block_count": 46}, "variants"),
    ("gemma3", {"block_count": 62}, "variants"),
    ("gemma3n", {}, "a part for each layer"),
    ("gemma4", {"embedding_length_per_layer_input": 256}, "a part for each layer"),
    ("gemma4", {"attention.shared_kv_layers": 4}, "keys and values of earlier"),
    ("graniteswitch", {}, "router"),
    ("hrm_text", {}, "two stacks"),
    ("llama4", {"attention.sliding_window": 0}, "last layer"),
    ("minicpm", {}, "follows from their number"),
    ("minimax-01", {}, "depth"),
    ("qwen4exp", {}, "by their numbers"),
    ("smallthinker", {"attention.sliding_window": 4096}, "another kind"),
]
PERIODS = [
    ("llama", {}, 1),
    ("gemma3", {"attention.sliding_window": 512}, 6),
    ("gemma3", {}, 1),
    ("gemma3", {"attention.sliding_window": 512, "attention.sliding_window_pattern": 3}, 3),
    ("gemma3", {"attention.sliding_window": 9, "attention.sliding_window_pattern": [1] * 12}, 1),
    ("gemma2", {}, 2),
    ("qwen35", {}, 4),
    ("qwen35", {"full_attention_interval": 3}, 3),
    ("qwen35", {"attention.recurrent_layers": [1] * 12}, 1),
    ("ernie4_5-moe", {"interleave_moe_layer_step": 2}, 2),
    ("llama4", {"interleave_moe_layer_step": 6}, 12),
    ("rwkv6", {"rescale_every_n_layers": 6}, 6),
    ("smollm3", {}, 4),
    ("exaone4", {}, 1),
]


@pytest.mark.parametrize(("architecture", "keys", "reason"), REFUSED)
def test_what_cannot_be_shortened_is_told_why(
    tmp_path: Path, architecture: str, keys: dict[str, object], reason: str
) -> None:
    model = header(tmp_path, architecture, keys)
    found = removable(model)
    assert found.may_go == "none" and reason in found.reason
    require_removable(model, range(found.n_layers))
    with pytest.raises(DraftNotMade, match=reason) as refused:
        require_removable(model, range(found.n_layers - 1))
    assert "--type" in refused.value.hint


@pytest.mark.parametrize(("architecture", "keys", "group"), PERIODS)
def test_layers_go_by_periods(
    tmp_path: Path, architecture: str, keys: dict[str, object], group: int
) -> None:
    assert removable(header(tmp_path, architecture, keys)).group == group


def test_layers_that_use_what_others_chose_stay_behind_them(tmp_path: Path) -> None:
    found = removable(header(tmp_path, "glm-dsa", {"attention.indexer.types": [1, 0] * 6}))
    assert found.may_go == "last"
    assert found.problem(range(5)) is None
    assert found.problem([0, 1, 3]) == found.reason


def test_prediction_heads_are_no_layers(tmp_path: Path) -> None:
    model = header(tmp_path, "glm4moe", {"nextn_predict_layers": 2}, ["blk.0.attn_norm.weight"])
    assert removable(model).n_layers == 10


def test_a_hybrid_needs_layers_of_both_kinds(tmp_path: Path) -> None:
    names = ["blk.0.ssm_in.weight", "blk.1.attn_q.weight", "blk.2.ssm_in.weight"]
    found = removable(header(tmp_path, "jamba", {"block_count": 3}, names))
    assert "1 must stay" in str(found.problem([0]))
    assert "0, 2 must stay" in str(found.problem([1]))
    assert found.problem([0, 1]) is None and found.problem([1, 2]) is None


@pytest.mark.llama
def test_llama_cpp_knows_the_architectures_of_the_tables() -> None:
    """A name that is spelled in another way would let a model through that is to be refused."""
    by_number = layers._SLIDING.keys() | layers._UNROTATED.keys() | layers._FULL_ATTENTION.keys()
    whole = layers._VARIANTS.keys() | layers._WHOLE.keys()
    names = by_number | whole | {*kinds._FROM_FIRST} | trim._NEED_IDS | trim._SCALED
    texts = Path(llama_library.library()._lib._name).read_bytes()
    assert [name for name in sorted(names) if name.encode() + b"\0" not in texts] == []


@pytest.mark.parametrize("count", [0, MOST_LAYERS + 1, 2**31])
def test_an_absurd_number_of_layers_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(DraftNotMade, match="layers"):
        removable(header(tmp_path, "llama", {"block_count": count}))


@pytest.mark.parametrize("architecture", ["bert", "eagle3", "dream", "gemma4-assistant"])
def test_what_continues_no_text_makes_no_draft(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(DraftNotMade, match="no model that continues a text"):
        removable(header(tmp_path, architecture, {}))


@pytest.mark.parametrize("layers", [[], [12], [-1, 0], [1, 0], [0, 0]])
def test_numbers_that_name_no_layers_are_refused(tmp_path: Path, layers: list[int]) -> None:
    with pytest.raises(DraftNotMade, match="from 0 to 11"):
        require_removable(header(tmp_path, "llama", {}), layers)


@given(st.integers(1, 24), st.integers(1, 6), st.data())
def test_every_layer_keeps_its_place_in_its_period(
    count: int, group: int, data: st.DataObject
) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    allowed = Removable(count, group).problem(kept) is None
    assert allowed == all(old % group == new % group for new, old in enumerate(kept))
