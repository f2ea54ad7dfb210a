"""The state of a recurrent layer, against what llama.cpp allocates for headers of these sizes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.memory.layer_cache import is_recurrent, state_bytes
from localspec.metadata.header import ModelHeader
from tests.support.files.head_files import WIDTH, header_of, target_bytes

# Bytes that llama.cpp logs for one layer and one sequence (width 64, four heads).
STATES: dict[str, tuple[str, dict[str, object], int]] = {
    "delta net": (
        "qwen35",
        {"ssm.inner_size": 64, "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2},
        4 * (3 * (64 + 2 * 2 * 32) + 32 * 64),
    ),
    "mamba": ("mamba", {"ssm.inner_size": 128, "ssm.conv_kernel": 4, "ssm.state_size": 16}, 9728),
    "rwkv": ("rwkv7", {"wkv.head_size": 64}, 4 * 64 * (2 + 64)),
    "rwkv of one shift": ("rwkv7", {"wkv.head_size": 64, "token_shift_count": 1}, 4 * 64 * 65),
    "short convolution": ("lfm2", {"shortconv.l_cache": 3}, 4 * 64 * 2),
    "kda": ("kimi-linear", {"kda.head_dim": 16, "ssm.conv_kernel": 4}, 4 * 4 * 16 * (9 + 16)),
    "kda, no kernel named": ("kimi-linear", {"kda.head_dim": 16}, 4 * 4 * 16 * (9 + 16)),
    "kda, heads by layer": (
        "kimi-linear",
        {"kda.head_dim": 16, "attention.head_count": [2, 0, 2, 0]},
        4 * 2 * 16 * (9 + 16),
    ),
    "lightning attention": ("minimax-01", {"attention.key_length": 16}, 4 * 4 * 16 * 16),
    "nothing": ("llama", {}, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", STATES)
def test_states(case: str, tmp_path: Path) -> None:
    architecture, keys, expected = STATES[case]
    assert state_bytes(header_of(tmp_path, target_bytes(architecture, keys=keys))) == expected


def test_layers_that_keep_a_state(tmp_path: Path) -> None:
    def header(architecture: str) -> ModelHeader:
        return header_of(tmp_path, target_bytes(architecture))

    assert is_recurrent(header("qwen35"), ["attn_qkv.weight", "ssm_a"])
    assert is_recurrent(header("rwkv7"), ["time_mix_w0.weight"])
    assert is_recurrent(header("lfm2"), ["shortconv.conv.weight"])
    assert not is_recurrent(header("qwen35"), ["attn_q.weight", "ffn_up.weight"])
    assert is_recurrent(header("minimax-01"), ["attn_qkv.weight", "attn_norm_2.weight"])
    assert not is_recurrent(header("falcon"), ["attn_qkv.weight", "attn_norm_2.weight"])


SIZES = st.one_of(st.none(), st.integers(0, 2**32 - 1), st.booleans(), st.just("word"))
KEYS = ("wkv.head_size", "shortconv.l_cache", "kda.head_dim", "ssm.conv_kernel", "ssm.inner_size")


@given(st.dictionaries(st.sampled_from(KEYS), SIZES))
def test_no_value_makes_less_than_nothing(
    tmp_path_factory: pytest.TempPathFactory, keys: dict[str, object]
) -> None:
    header = header_of(tmp_path_factory.mktemp("state"), target_bytes(keys=keys))
    assert state_bytes(header) >= 0 and header.embedding_length == WIDTH
