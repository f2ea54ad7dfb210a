# ruff: noqa: F401, F811  (`make` is a fixture)
"""Values at which llama.cpp's assertions end the process, each edge from both sides."""

import pytest

from localspec.pairing import check_model, check_pair
from tests.support.files.gguf_files import Tensor, model_tensors
from tests.support.files.headers import Make, make, rules

EXPERTS: dict[str, object] = {"expert_count": 8, "expert_used_count": 2}
GROUPS: dict[str, object] = {**EXPERTS, "expert_group_count": 4, "expert_group_used_count": 2}
ATTENTION = [*model_tensors(64), Tensor("blk.0.attn_q.weight", (64, 64))]

FAULTS: dict[str, tuple[str, dict[str, object]]] = {
    "no layers": ("llama", {"block_count": 0}),
    "too many layers": ("llama", {"block_count": 513}),
    "an epsilon of nothing": ("llama", {"attention.layer_norm_rms_epsilon": float("nan")}),
    "a negative epsilon": ("llama", {"attention.layer_norm_rms_epsilon": -1.0}),
    "a negative epsilon of LayerNorm": ("rwkv7", {"attention.layer_norm_epsilon": -1.0}),
    "an odd number rotated": ("llama", {"rope.dimension_count": 33}),
    "an odd number rotated in a window": ("gemma4", {"rope.dimension_count_swa": 3}),
    "more rotated than there is": (
        "gemma4",
        {"rope.dimension_count_swa": 64, "attention.key_length_swa": 32},
    ),
    "nothing rotated": ("llama", {"rope.dimension_count": 0}),
    "unknown scaling": ("llama", {"rope.scaling.type": "\x1b"}),
    "no sections": ("qwen35", {"rope.dimension_sections": [0, 0, 0, 0]}),
    "three sections": ("qwen2vl", {"rope.dimension_sections": [16, 24, 24]}),
    "wide sections": (
        "qwen35",
        {"rope.dimension_sections": [65, 65, 65, 0], "attention.key_length": 64},
    ),
    "experts without any used": ("llama", {"expert_count": 8}),
    "no experts, but used": ("llama", {"expert_used_count": 2}),
    "more experts used": ("llama", {**EXPERTS, "expert_used_count": 9}),
    "none of the experts used": ("llama", {**EXPERTS, "expert_used_count": 0}),
    "a million experts": ("llama", {**EXPERTS, "expert_count": 1 << 20}),
    "an unknown gate": ("llama", {**EXPERTS, "expert_gating_func": 16}),
    "odd groups": ("llama", {**GROUPS, "expert_group_count": 3}),
    "all groups": ("llama", {**GROUPS, "expert_group_used_count": 4}),
    "groups of nothing": ("llama", {"expert_group_count": 1}),
    "a state of another width": ("jamba", {"ssm.inner_size": 513}),
    "heads that divide no state": ("rwkv7", {"wkv.head_size": 3}),
    "no shifts": ("rwkv7", {"token_shift_count": 0}),
    "keys of no layer": ("gemma4", {"attention.shared_kv_layers": 3}),
    "no heads": ("llama", {"attention.head_count": 0}),
}
SOUND: tuple[tuple[str, dict[str, object]], ...] = (
    ("llama", EXPERTS),
    ("llama", {**EXPERTS, "expert_used_count": [2, 0, 8]}),
    ("llama", GROUPS),
    ("llama", {"expert_count": 0, "expert_used_count": 0, "expert_group_count": 0}),
    ("hunyuan-dense", {"expert_count": 1, "expert_used_count": 1}),
    ("llama", {"rope.scaling.type": "yarn", "rope.dimension_count": 64}),
    ("nemotron_h", {"rope.dimension_count": 0}),
    ("qwen35", {"rope.dimension_sections": [11, 11, 10, 0], "attention.key_length": 256}),
    ("glm4", {"rope.dimension_sections": [0, 0, 0, 0]}),
    ("jamba", {"ssm.inner_size": 512}),
    ("rwkv7", {"wkv.head_size": 64, "token_shift_count": 2, "attention.head_count": 0}),
    ("gemma4", {"attention.shared_kv_layers": 20, "block_count": 35}),
)


def keys_of(architecture: str, values: dict[str, object]) -> dict[str, object]:
    sizes = {"context_length": 4096, "embedding_length": 256, "attention.head_count": 4} | values
    named = {f"{architecture}.{key}": value for key, value in sizes.items()}
    return {"general.architecture": architecture} | named


@pytest.mark.parametrize("case", FAULTS)
def test_values_that_would_abort_llama_cpp_are_refused(case: str, make: Make) -> None:
    architecture, values = FAULTS[case]
    header = make(keys=keys_of(architecture, values), tensors=ATTENTION)
    found = [finding for finding in check_model(header) if finding.level == "error"]
    assert rules(found) == ["error absurd-header"] and found[0].message.isprintable()
    assert "error absurd-header" in rules(check_pair(header, make()).errors)


def test_values_of_real_models_are_accepted(make: Make) -> None:
    for architecture, values in SOUND:
        header = make(keys=keys_of(architecture, values))
        assert not [f for f in check_model(header) if f.level == "error"], (architecture, values)
