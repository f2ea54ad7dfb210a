"""Kinds of layers of which one must stay, by headers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.metadata.header import read_header
from localspec.self_draft.writing.kinds import needed_layers
from tests.support.gguf_files import Tensor, model_keys, words, write_gguf

CASES: list[tuple[str, dict[str, object], Sequence[str], list[set[int]]]] = [
    ("jamba", {}, ["0.ssm_in", "1.attn_q", "2.shortconv.conv", "1.attn_k"], [{0, 2}, {1}]),
    ("jamba", {}, ["0.ssm_in", "0.attn_norm", "1.attn_norm_2"], []),
    ("qwen35", {}, ["0.ssm_in", "0.attn_qkv", "1.attn_q"], [{0}, {1}]),
    ("jamba", {}, ["0.attn_q", "7.ssm_in"], []),  # beyond the last layer
    ("rwkv7", {}, [], [{0}]),
    ("gemma4", {"attention.sliding_window_pattern": [True, True, False]}, [], [{2}]),
    ("gemma4", {"attention.sliding_window_pattern": [True, True, True]}, [], []),
    ("llama", {}, ["0.attn_q", "1.attn_q"], []),
]


@pytest.mark.parametrize(("architecture", "keys", "tensors", "expected"), CASES)
def test_what_llama_cpp_cannot_do_without(
    tmp_path: Path,
    architecture: str,
    keys: dict[str, object],
    tensors: Sequence[str],
    expected: list[set[int]],
) -> None:
    own = {f"{architecture}.{key}": value for key, value in ({"block_count": 3} | keys).items()}
    content = model_keys(words(300)) | {"general.architecture": architecture} | own
    names = ["token_embd.weight", *(f"blk.{name}.weight" for name in tensors)]
    path = write_gguf(tmp_path / "m.gguf", content, [Tensor(name) for name in names])
    assert [set(kind) for kind in needed_layers(read_header(path))] == expected
