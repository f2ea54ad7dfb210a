"""Tiny models of today's architectures, and sidecars that draft for them, by name.

A name that ends with `-mtp` has a NextN head behind its own layers, or as many as the number says;
`mtp-` is the sidecar that has only those. EAGLE3 and DFlash draft for any model of this width, the
assistant for gemma4. DSpark is DFlash with a Markov head, and `-bonus` one whose anchor drafts
nothing; DFlash2 has convolutions and a selector.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.files.architectures.writer import Architecture, Shape, weights, write_model
from tests.support.files.tiny_models import vocabulary

WIDTH, HEADS, HEAD, FEED_FORWARD, LAYERS = 64, 2, 32, 96, 4
N_VOCAB = len(vocabulary())
MASK_TOKEN = N_VOCAB - 2  # a control token, which no text holds
REDUCED_VOCAB = 128  # of a head that can say only some tokens
ASSISTANT_WIDTH, ASSISTANT_LAYERS = 32, 2
Keys = Mapping[str, Any]
# What a NextN layer appends to the keys that have a value for each layer.
_OF_A_HEAD = {
    "attention.head_count_kv": HEADS,
    "feed_forward_length": FEED_FORWARD,
    "attention.sliding_window_pattern": False,
}


@pytest.fixture(scope="session")
def architecture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a model or a sidecar by its name here, written once for all tests."""
    folder = tmp_path_factory.mktemp("architectures")
    return functools.cache(lambda name: write_architecture(folder / f"{name}.gguf", name))


def write_architecture(path: Path, name: str, noise: float = 0.0) -> Path:
    """Write a model or a sidecar by its name here; `noise` as `write_model` takes it."""
    return write_model(path, (MODELS | SIDECARS | NUMBERED)[name], noise)


def _transformer(layers: int = LAYERS, width: int = WIDTH) -> Keys:
    return {
        "context_length": 1024,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.freq_base": 10_000.0,
        "rope.dimension_count": HEAD,
    }


def _state(inner: int, rank: int, state: int) -> Keys:
    """The sizes of a recurrent state: channels, heads (in Mamba: rank of the steps), memory."""
    return {
        "ssm.inner_size": inner,
        "ssm.time_step_rank": rank,
        "ssm.state_size": state,
        "ssm.group_count": 2,
        "ssm.conv_kernel": 4,
    }


def _window(*sliding: bool) -> Keys:
    """Layers that see only 32 tokens back, by layer."""
    return {
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": list(sliding),
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "rope.freq_base_swa": 10_000.0,
        "rope.dimension_count_swa": HEAD,
    }


def _xielu(layers: int) -> Keys:
    """The activation of each layer has parameters of its own."""
    rising = [0.5 + 0.1 * i for i in range(layers)]
    return {f"xielu.{key}": rising for key in ("alpha_n", "alpha_p", "beta", "eps")}


def _with_heads(trunk: Architecture, count: int = 1) -> Architecture:
    """The same model with ``count`` NextN layers behind its own."""
    keys = {
        key: value + [_OF_A_HEAD[key]] * count
        if key in _OF_A_HEAD and isinstance(value, list)
        else value
        for key, value in trunk.keys.items()
    }
    keys |= {"block_count": trunk.keys["block_count"] + count, "nextn_predict_layers": count}
    return replace(trunk, keys=keys)


def _sidecar(model: Architecture) -> Architecture:
    """What a file of the NextN layers alone has of ``model``."""
    own = model.keys["block_count"] - model.keys["nextn_predict_layers"]
    layers = "|".join(map(str, range(own)))
    return replace(model, without=rf"{model.without}|blk\.({layers})\..*")


def _assistant_shapes() -> Mapping[str, Shape]:
    """Its tensors, for llama.cpp aborts when it is asked: layers without keys and values."""
    width, attention = ASSISTANT_WIDTH, HEADS * HEAD
    layer: Mapping[str, Shape] = {
        "attn_norm": (width,),
        "attn_q": (attention, width),
        "attn_q_norm": (HEAD,),
        "attn_output": (width, attention),
        "post_attention_norm": (width,),
        "layer_output_scale": (1,),
        "ffn_norm": (width,),
        "ffn_gate": (FEED_FORWARD, width),
        "ffn_up": (FEED_FORWARD, width),
        "ffn_down": (width, FEED_FORWARD),
        "post_ffw_norm": (width,),
    }
    return {
        "token_embd.weight": (N_VOCAB, width),
        "output_norm.weight": (width,),
        "rope_freqs.weight": (HEAD // 2,),
        "nextn.pre_projection.weight": (width, 2 * WIDTH),
        "nextn.post_projection.weight": (WIDTH, width),
    } | {
        f"blk.{index}.{name}.weight": shape
        for index in range(ASSISTANT_LAYERS)
        for name, shape in layer.items()
    }


# Heads of these share the trunk's table of tokens and its output matrix.
_SHARED_TABLES = r".*nextn\.(embed_tokens|shared_head_head)\.weight"
_EXPERTS: Keys = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 64,
    "expert_shared_feed_forward_length": 64,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 1,
}
_SIGMOID: Keys = {"expert_gating_func": 2, "expert_weights_norm": True}
_DELTA_NET: Keys = {**_transformer(), **_state(WIDTH, 2, 32), "full_attention_interval": 2}
_SECTIONS: Keys = {"rope.dimension_sections": [6, 5, 5, 0]}
_MAMBA2 = _state(2 * WIDTH, 4, 32)
_EVERY_OTHER: Keys = {"attention.head_count_kv": [0, HEADS, 0, HEADS]}
_NO_ATTENTION: Keys = {"attention.head_count": 0, "feed_forward_length": 0}
_NEMOTRON: Keys = {
    **_transformer(),
    **_MAMBA2,
    "attention.head_count_kv": [0, HEADS, 0, 0],
    "feed_forward_length": [0, 0, 0, FEED_FORWARD],
}
_GRANITE: Keys = {
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "attention.scale": 0.125,
}
_KIMI: Keys = {
    "attention.head_count": [HEADS, 0, HEADS, 0],
    "attention.head_count_kv": [1, 0, 1, 0],
    "attention.kv_lora_rank": 64,
    "attention.key_length": 64 + 16,
    "attention.value_length": 64,
    "attention.key_length_mla": HEAD + 16,
    "attention.value_length_mla": HEAD,
    "rope.dimension_count": 16,
    "kda.head_dim": HEAD,
    "ssm.conv_kernel": 4,
    "expert_gating_func": 2,
}
_RWKV7: Keys = {
    "attention.head_count": 0,
    "wkv.head_size": WIDTH,
    "attention.decay_lora_rank": 8,
    "attention.iclr_lora_rank": 8,
    "attention.value_residual_mix_lora_rank": 8,
    "attention.gate_lora_rank": 16,
    "token_shift_count": 2,
}
_GEMMA4: Keys = {"attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0}

_TRUNKS = {
    model.name: model
    for model in (
        Architecture("llama", _transformer()),
        Architecture("qwen35", {**_DELTA_NET, **_SECTIONS}, _SHARED_TABLES),
        Architecture("qwen35moe", {**_DELTA_NET, **_SECTIONS, **_EXPERTS}, _SHARED_TABLES),
        Architecture("qwen3next", {**_DELTA_NET, **_EXPERTS}, _SHARED_TABLES),
        Architecture("falcon-h1", {**_transformer(), **_MAMBA2}),
        Architecture("granitehybrid", {**_transformer(), **_MAMBA2, **_EVERY_OTHER, **_GRANITE}),
        Architecture("nemotron_h", _NEMOTRON),
        Architecture("nemotron_h_moe", {**_NEMOTRON, **_EXPERTS, **_SIGMOID}),
        Architecture("lfm2", {**_transformer(), **_EVERY_OTHER, "shortconv.l_cache": 3}),
        Architecture("jamba", {**_transformer(), **_state(2 * WIDTH, 16, 16), **_EVERY_OTHER}),
        Architecture("kimi-linear", {**_transformer(), **_EXPERTS, **_KIMI}),
        Architecture("mamba", {**_transformer(), **_state(2 * WIDTH, 8, 16), **_NO_ATTENTION}),
        Architecture("mamba2", {**_transformer(), **_MAMBA2, **_NO_ATTENTION}),
        Architecture("rwkv7", {**_transformer(), **_RWKV7}),
        Architecture("glm4moe", {**_transformer(), **_EXPERTS, **_SIGMOID}),
        Architecture("step35", {**_transformer(), **_EXPERTS, **_window(True, True, True, False)}),
        Architecture("gemma4", {**_transformer(), **_window(True, True, True, False), **_GEMMA4}),
    )
}
_WITH_HEADS = {
    "qwen35-mtp": _with_heads(_TRUNKS["qwen35"]),
    "qwen35-mtp2": _with_heads(_TRUNKS["qwen35"], 2),
    "qwen35moe-mtp": _with_heads(_TRUNKS["qwen35moe"]),
    "qwen3next-mtp": _with_heads(_TRUNKS["qwen3next"]),
    "nemotron_h_moe-mtp": _with_heads(_TRUNKS["nemotron_h_moe"]),
    "glm4moe-mtp": _with_heads(_TRUNKS["glm4moe"]),
    "step35-mtp3": _with_heads(_TRUNKS["step35"], 3),
}
_EAGLE3 = Architecture(
    "eagle3", {**_transformer(layers=1), "target_layers": [1, 2, 3], "target_hidden_size": WIDTH}
)
_REDUCED = {
    "d2t": np.sort(np.random.default_rng(0).permutation(N_VOCAB)[:REDUCED_VOCAB]),
    "output.weight": weights("output.weight", (REDUCED_VOCAB, WIDTH)),
}
_DFLASH: Keys = {
    "target_layers": [0, 2],
    "block_size": 8,
    "tokenizer.ggml.mask_token_id": MASK_TOKEN,
}
_DFLASH_SIDECAR = Architecture(
    "dflash",
    {**_transformer(layers=2), **_DFLASH},
    without=r"(token_embd|output)\.weight|.*(post_|sinks|output_scale).*",
)
RANK, SELECTED = 8, 4  # of the matrices of DSpark and DFlash2; candidates of a place
_GROUP, _KERNEL = 16, 3  # of DFlash2's convolutions


def _given(shapes: Mapping[str, Shape]) -> Mapping[str, Any]:
    return {name: weights(name, shape) for name, shape in shapes.items()}


_MARKOV = _given({"markov_w1.weight": (N_VOCAB, RANK), "markov_w2.weight": (N_VOCAB, RANK)})
_MARKOV = {name: 2 * matrix for name, matrix in _MARKOV.items()}  # else no token depends on it
_CONFIDENCE = _given({"conf_proj.weight": (1, WIDTH + RANK), "conf_proj.bias": (1,)})
_SELECTOR = {
    name: 3 * matrix
    for name, matrix in _given(
        {
            "selector_predecessor.weight": (N_VOCAB, RANK),
            "selector_successor.weight": (N_VOCAB, RANK),
            "selector_hidden.weight": (RANK, WIDTH),
        }
    ).items()
}
_CONVOLUTIONS = _given(
    {
        f"blk.{i}.{part}_conv_{name}": shape
        for i in range(2)
        for part in ("attn", "ffn")
        for name, shape in {
            "base": (2, _KERNEL, WIDTH),
            "proj.weight": (2 * _KERNEL * WIDTH // _GROUP, WIDTH),
        }.items()
    }
)
_DFLASH2: Keys = {
    "conv_kernel_size": _KERNEL,
    "conv_group_size": _GROUP,
    "selector_rank": RANK,
    "selector_top_k": SELECTED,
}


_DEEPSEEK4: Keys = {  # DSpark's layers if its target is DeepSeek V4
    **_EXPERTS,
    "expert_gating_func": 4,
    "expert_weights_norm": True,
    "swiglu_clamp_exp": [10.0] * 2,
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 32,
    "attention.sliding_window": 32,
    "attention.output_group_count": 2,
    "attention.output_lora_rank": 16,
    "attention.compress_ratios": [0] * 2,
    "rope.dimension_count": 16,
}


def _block(given: Mapping[str, Any], keys: Keys) -> Architecture:
    """A variant of the DFlash head by its own tensors and keys."""
    return replace(_DFLASH_SIDECAR, keys={**_DFLASH_SIDECAR.keys, **keys}, given=given)


_ASSISTANT: Keys = {
    "embedding_length_out": WIDTH,
    "nextn_predict_layers": ASSISTANT_LAYERS,
    "attention.shared_kv_layers": ASSISTANT_LAYERS,
    "embedding_length_per_layer_input": 0,
}

_LONG = _transformer(layers=8)
_BIASES = {
    name: weights(name, (WIDTH,)) for name in (f"blk.{i}.attn_output.bias" for i in range(8))
}
_WINDOW: Keys = {"attention.sliding_window": 32, "rope.freq_base_swa": 100.0}
# Models of which llama.cpp decides by a layer's number what it is, or has arrays by layer.
NUMBERED: dict[str, Architecture] = {
    model.name: model
    for model in (
        Architecture("gemma2", {**_LONG, **_WINDOW}),
        Architecture("gemma3", {**_LONG, **_WINDOW}),
        Architecture("cohere2", {**_LONG, **_WINDOW, "logit_scale": 1.0}),
        Architecture("olmo2", {**_LONG, **_WINDOW}),
        Architecture("gpt-oss", {**_LONG, **_WINDOW, **_EXPERTS}, given=_BIASES),
        Architecture("smollm3", _LONG),
        Architecture("smallthinker", {**_LONG, **_WINDOW, **_EXPERTS, "expert_gating_func": 1}),
        Architecture("llama4", {**_LONG, **_EXPERTS, "interleave_moe_layer_step": 2}),
        Architecture("minicpm", {**_LONG, **_GRANITE}),
        Architecture("apertus", {**_LONG, **_xielu(8)}),
    )
}

# Whose attention sees only 32 tokens back, beside layers with a state.
_SLIDING = replace(_TRUNKS["lfm2"], keys={**_TRUNKS["lfm2"].keys, "attention.sliding_window": 32})

MODELS: dict[str, Architecture] = _TRUNKS | _WITH_HEADS | {"lfm2-sliding": _SLIDING}
SIDECARS: dict[str, Architecture] = {
    "mtp-qwen35": _sidecar(_WITH_HEADS["qwen35-mtp"]),
    "mtp-step35": _sidecar(_WITH_HEADS["step35-mtp3"]),
    "eagle3": replace(_EAGLE3, without=r"output\.weight"),  # says the target's tokens
    "eagle3-reduced": replace(_EAGLE3, given=_REDUCED),
    "dflash": _DFLASH_SIDECAR,
    "dspark": _block(
        {**_MARKOV, **_CONFIDENCE}, {"sample_from_anchor": True, "has_confidence_head": True}
    ),
    "dspark-deepseek4": replace(
        _block({**_MARKOV, "conf_proj.weight": _CONFIDENCE["conf_proj.weight"]}, _DEEPSEEK4),
        without=r"(token_embd|output)\.weight",
    ),
    "dspark-reduced": _block(
        {
            **_REDUCED,
            "markov_w1.weight": _MARKOV["markov_w1.weight"],
            "markov_w2.weight": _MARKOV["markov_w2.weight"][:REDUCED_VOCAB],
        },
        {"has_confidence_head": False},
    ),
    "dspark-bonus": _block(_MARKOV, {"sample_from_anchor": False, "has_confidence_head": False}),
    "dflash2": _block({**_SELECTOR, **_CONVOLUTIONS}, _DFLASH2),
    "dflash2-causal": _block(
        {**_SELECTOR, **_CONVOLUTIONS}, {**_DFLASH2, "attention.causal": True}
    ),
    "gemma4-assistant": Architecture(
        "gemma4-assistant",
        {
            **_transformer(ASSISTANT_LAYERS, ASSISTANT_WIDTH),
            **_window(True, False),
            **_ASSISTANT,
        },
        shapes=_assistant_shapes(),
    ),
}
