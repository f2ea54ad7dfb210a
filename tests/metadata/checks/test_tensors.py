# ruff: noqa: F401, F811  (`make` is a fixture)
"""Types of tensors by their role, and the heads that attention's matrices must hold."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.core.errors import NotAGGUF
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME, MAX_TAIL_BYTES
from localspec.metadata.gguf_writer import NewTensor, copied, described, write_copy
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from localspec.pairing import check_model, check_usable
from tests.support.files.architectures.specs import MODELS, NUMBERED, SIDECARS
from tests.support.files.gguf_files import Tensor, model_keys, model_tensors, words, write_gguf
from tests.support.files.headers import Make, make, rules

FITTING = (
    ("blk.0.attn_norm.weight", (64,), "F32"),
    ("blk.0.attn_q.weight", (64, 64), "BF16"),
    ("blk.0.attn_q.weight", (64, 64), "Q2_0"),
    ("blk.0.ffn_gate_inp_shexp.weight", (64,), "F16"),
    ("blk.0.ffn_gate_tid2eid.weight", (2, 64), "I32"),
    ("blk.0.ssm_dt.weight", (64, 64), "F16"),
    ("blk.0.shortconv.in_proj.weight", (64, 64), "Q8_0"),
    ("masked_embd_ordering", (64,), "I64"),
)
UNFIT = (
    ("blk.0.attn_norm.weight", (64,), "F16"),
    ("blk.0.attn_norm_2.weight", (64,), "BF16"),
    ("blk.0.ssm_norm.weight", (64, 2), "Q8_0"),
    ("blk.0.attn_q.bias", (64,), "BF16"),
    ("blk.0.ffn_up_exps.bias", (64, 4), "F16"),
    ("blk.0.ssm_conv1d.weight", (4, 64), "F16"),
    ("blk.0.shortconv.conv.weight", (4, 64), "BF16"),
    ("blk.0.ssm_a", (1, 64), "F16"),
    ("blk.0.time_mix_lerp_fused.weight", (64, 1, 1, 5), "F16"),
    ("rope_freqs.weight", (32,), "F16"),
    ("output.weight", (64, 64), "Q8_1"),
    ("blk.0.ffn_gate_inp_shexp.weight", (64,), "I32"),
    ("blk.0.ffn_gate_tid2eid.weight", (2, 64), "I64"),
    *(("token_embd.weight", (64, 300), f"I{bits}") for bits in (8, 16, 32, 64)),
    ("blk.0.attn_q.weight", (64, 64), "F64"),
)


@pytest.mark.parametrize(("name", "shape", "type_name"), FITTING + UNFIT)
def test_types_by_role(make: Make, name: str, shape: tuple[int, ...], type_name: str) -> None:
    tensor = Tensor(name, shape, GGML_TYPES_BY_NAME[type_name.lower()].type_id)
    found = [f for f in check_model(make(tensors=[tensor])) if f.level == "error"]
    expected = ["error tensor-type"] if (name, shape, type_name) in UNFIT else []
    assert rules(found) == expected
    assert not found or f"'{name}' in {type_name}" in found[0].message


HEADS: dict[str, tuple[dict[str, object], list[tuple[str, tuple[int, int]]], bool]] = {
    "by the width": ({}, [("attn_k", (256, 256)), ("attn_output", (256, 256))], True),
    "of a given length": (
        {"attention.key_length": 32, "attention.value_length": 16},
        [("attn_k", (256, 128)), ("attn_v", (256, 64)), ("attn_output", (64, 256))],
        True,
    ),
    "shared": ({"attention.head_count_kv": 2}, [("attn_k", (256, 128))], True),
    "by layer": ({"attention.head_count_kv": [2]}, [("attn_k", (256, 128))], True),
    "another number": ({"attention.head_count": 3}, [("attn_output", (256, 256))], False),
    "another length of keys": ({"attention.key_length": 65}, [("attn_k", (256, 256))], False),
    "another length of values": ({"attention.value_length": 16}, [("attn_v", (256, 256))], False),
    "latent": (
        {"attention.key_length_mla": 48, "attention.key_length": 80},
        [("attn_kv_a_mqa", (256, 80)), ("attn_output", (128, 256))],
        True,
    ),
    "latent, and another length": (
        {"attention.key_length_mla": 48, "attention.key_length": 16},
        [("attn_kv_a_mqa", (256, 80))],
        False,
    ),
}


@pytest.mark.parametrize("case", HEADS)
def test_heads_that_attention_holds(make: Make, case: str) -> None:
    values, matrices, fits = HEADS[case]
    tensors = [Tensor(f"blk.0.{name}.weight", shape) for name, shape in matrices]
    header = make(keys={f"llama.{key}": value for key, value in values.items()}, tensors=tensors)
    found = [f for f in check_model(header) if f.level == "error"]
    assert rules(found) == ([] if fits else ["error tensor-shape"])


@pytest.mark.llama
@pytest.mark.parametrize("name", MODELS | SIDECARS | NUMBERED)
def test_files_that_run_are_accepted(architecture: Callable[[str], Path], name: str) -> None:
    header = read_header(architecture(name))
    assert not [finding for finding in check_usable(header) if finding.level == "error"]


@pytest.mark.llama
@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_with_norms_in_half_precision(
    architecture: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    part = read_part(architecture(name))
    output, tensors = tmp_path / "sidecar.gguf", []
    for tensor in part.tensors:
        info = described(tensor.name, tensor.shape, "F16")
        halved = tensor.name.endswith("norm.weight")
        tensors.append(NewTensor(info, [bytes(info.n_bytes)]) if halved else copied(part, tensor))
    write_copy(output, part, {}, tensors)
    errors = [f for f in check_usable(read_header(output)) if f.level == "error"]
    assert rules(errors) == ["error tensor-type"]


def test_a_file_may_not_go_on_behind_its_tensors(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "long.gguf", model_keys(words(300)), model_tensors())
    size = path.stat().st_size
    os.truncate(path, size + MAX_TAIL_BYTES)
    read_header(path)
    os.truncate(path, size + (40 << 30))
    with pytest.raises(NotAGGUF, match="but its tensors end at byte"):
        read_header(path)
