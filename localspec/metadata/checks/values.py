"""Checks of a model's hyperparameters: values at which llama.cpp's assertions end the process.

By `llama_model_base::load_hparams`, the graphs in src/models/*.cpp, and ggml's operators.
"""

import math
from collections.abc import Iterator

from localspec.core.formatting import one_line
from localspec.metadata.draft_kind import claimed_heads, draft_kind, whole_number
from localspec.metadata.header import ModelHeader

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
_LAST_GATE = 4  # `llama_expert_gating_func_type`
_SCALINGS = ("none", "linear", "yarn", "longrope")  # `LLAMA_ROPE_SCALING_TYPES`
_EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")

_DELTA_NETS = ("qwen35", "qwen35moe", "qwen3next")
# Whose number of experts may be 1 without meaning any.
_MAYBE_DENSE = ("hunyuan-dense", "hunyuan_vl")
_SECTIONS = 4  # of `rope.dimension_sections`
# Whose graph rotates by sections, and asserts that there are some.
_BY_SECTIONS = ("paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe")
# Whose graph asserts that a state is twice as wide as the model.
_TWICE_AS_WIDE = ("granitehybrid", "jamba")
_TWO_SHIFTS = ("rwkv6", "rwkv7")
# Without rotary embedding in all or some variants, which the header may say with a 0.
_MAYBE_UNROTATED = frozenset(
    "arwkv7 bloom glm5-next gpt2 gptj granitehybrid jais jamba kimi-k3 kimi-linear mamba mamba2 "
    "mpt nemotron_h nemotron_h_moe plamo2 refact rwkv6 rwkv6qwen2 rwkv7 smollm3".split()
)


def value_faults(header: ModelHeader) -> Iterator[str]:
    """The faults, each as a sentence without its subject."""
    yield from _layer_faults(header)
    yield from _expert_faults(header)
    yield from _rope_faults(header)
    yield from _attention_faults(header)
    if draft_kind(header).is_model:  # not heads alone
        yield from _state_faults(header)


def numbers(header: ModelHeader, key: str) -> tuple[int, ...]:
    """The value of a key for all layers or for each; empty unless they are whole numbers."""
    value = header.get(key)
    every = value if isinstance(value, tuple) else (value,)
    return tuple(each for each in every if type(each) is int)


def _layer_faults(header: ModelHeader) -> Iterator[str]:
    layers, heads = header.block_count, claimed_heads(header)
    if layers is not None and not 1 <= layers <= MAX_LAYERS:
        yield f"claims {layers:,} layers; llama.cpp allows 1 to {MAX_LAYERS}"
    if heads > (layers or heads):
        yield f"claims {heads:,} prediction heads among {layers:,} layers"
    for key in _EPSILONS:
        epsilon = header.get(key)
        if isinstance(epsilon, float) and not (math.isfinite(epsilon) and epsilon >= 0):
            yield f"has an epsilon of {epsilon} for its norms"


def _expert_faults(header: ModelHeader) -> Iterator[str]:
    experts, used = header.expert_count or 0, max(numbers(header, "expert_used_count"), default=0)
    gate, groups = whole_number(header, "expert_gating_func"), _number(header, "expert_group_count")
    if gate is not None and gate > _LAST_GATE:
        yield f"has the unknown expert_gating_func {gate:,}"
    if header.architecture in _MAYBE_DENSE and experts <= 1:
        return
    if experts > _MAX_EXPERTS:
        yield f"claims {experts:,} experts; llama.cpp allows {_MAX_EXPERTS:,}"
    elif used > experts or used < min(experts, 1):
        yield f"uses {used:,} experts of {experts:,} for a token"
    chosen = _number(header, "expert_group_used_count")
    several = groups > 1 and (experts % groups or not 0 < chosen < groups)
    if several or groups > max(0, experts - 1):
        yield f"uses {chosen:,} of {groups:,} groups of its {experts:,} experts"


def _rope_faults(header: ModelHeader) -> Iterator[str]:
    """Dimensions of a head that rotary embedding turns, in pairs (`ggml_rope_impl`)."""
    scaling = header.get("rope.scaling.type")
    if isinstance(scaling, str) and scaling not in _SCALINGS:
        yield f"has the unknown rope.scaling.type '{one_line(scaling[:40])}'"
    for suffix in ("", "_swa"):
        turned = whole_number(header, f"rope.dimension_count{suffix}")
        length = whole_number(header, f"attention.key_length{suffix}")
        least = 0 if header.architecture in _MAYBE_UNROTATED else 2
        most = length if length is not None else turned
        if turned is not None and (turned % 2 or not least <= turned <= (most or 0)):
            whole = f" of {length:,}" if length is not None else ""
            yield f"rotates {turned:,}{whole} dimensions of a head"
    listed = header.get("rope.dimension_sections")
    if isinstance(listed, tuple) and len(listed) != _SECTIONS:
        yield f"has {len(listed)} rope.dimension_sections; llama.cpp reads {_SECTIONS}"
    sections, length = (
        numbers(header, "rope.dimension_sections"),
        _number(header, "attention.key_length"),
    )
    absent = header.architecture in _BY_SECTIONS and max(sections[:3], default=1) < 1
    if absent or (length and sum(sections) > length):
        yield f"rotates a head in the sections {sections}"


def _attention_faults(header: ModelHeader) -> Iterator[str]:
    """Heads that attention needs, of a width that the cache of keys shares."""
    attends = any(".attn_q." in tensor.name for tensor in header.tensors)
    if attends and not max(numbers(header, "attention.head_count"), default=0):
        yield "has attention of 0 heads"
    size, width = whole_number(header, "wkv.head_size"), header.embedding_length
    if size is not None and width and (not size or width % size):
        yield f"has heads of {size:,} in a state of {width:,}"
    shared, layers = _number(header, "attention.shared_kv_layers"), header.block_count or 0
    if draft_kind(header).is_model and shared > max(0, layers - 2):
        yield f"shares the keys of {shared:,} layers among {layers:,}"
    shifts = whole_number(header, "token_shift_count")
    if shifts is not None and header.architecture in _TWO_SHIFTS and shifts != 2:
        yield f"shifts {shifts:,} tokens, where {one_line(header.architecture)} shifts 2"


def _state_faults(header: ModelHeader) -> Iterator[str]:
    """Sizes of recurrent states, and of the interval between layers with attention."""
    keys = ("ssm.inner_size", "ssm.time_step_rank", "ssm.state_size")
    inner, heads, state = (whole_number(header, key) for key in keys)
    width = header.embedding_length
    if header.architecture in _TWICE_AS_WIDE and inner is not None and inner != 2 * (width or 0):
        yield f"has a state of {inner:,} channels, where a width of {width or 0:,} needs twice that"
    if header.architecture not in _DELTA_NETS:
        return
    if inner is not None and heads is not None and state is not None and inner != heads * state:
        yield f"has a state of {inner:,} channels in {heads:,} heads of {state:,}"
    if whole_number(header, "full_attention_interval") == 0:
        yield "has attention in each 0th layer"


def _number(header: ModelHeader, key: str) -> int:
    return whole_number(header, key) or 0
