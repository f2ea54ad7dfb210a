"""Layers that a draft made out of a model can do without, by what llama.cpp decides by number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from localspec.core.errors import DraftNotMade
from localspec.core.formatting import one_line
from localspec.metadata.draft_kind import claimed_heads, draft_kind, n_layers, whole_number
from localspec.metadata.header import ModelHeader
from localspec.self_draft.writing.kinds import needed_layers

MOST_LAYERS = 512  # LLAMA_MAX_LAYERS

# All of the following is decided by a layer's number in src/models/*.cpp, as of llama.cpp 0c1e570.
# Every so many layers one sees everything (`load_swa_pattern`), where the header does not say it.
_SLIDING = {
    "afmoe": 4, "cohere2": 4, "cohere2moe": 4, "exaone-moe": 4, "gemma2": 2, "gemma3": 6,
    "gpt-oss": 2, "laguna": 4, "llama4": 4, "mellum": 4, "muse-glimmer": 4, "olmo2": 4,
    "plamo3": 8,
}  # fmt: skip
_SLIDING_WITHOUT_KEY = ("gemma2", "llama4")  # these have a window of a fixed size
_UNROTATED = dict.fromkeys("afmoe llama4 smollm3".split(), 4)  # n_no_rope_layer_step
_FULL_ATTENTION = {"qwen35": 4, "qwen35moe": 4, "qwen3next": 4}
_PERIODS = ("interleave_moe_layer_step", "rescale_every_n_layers", "attn_res.block_size")

_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_VARIANTS: dict[str, tuple[int, ...]] = {  # numbers of layers that mean something; empty: any
    "baichuan": (), "deepseek2": (), "exaone4": (64,), "gemma2": (46,), "gemma3": (62,),
}  # fmt: skip
_WHOLE = {
    "gemma3n": "one of its tensors has a part for each layer",
    "graniteswitch": "its router stands behind a fixed number of layers",
    "hrm_text": "its layers are two stacks that run in turns",
    "minimax-01": "how fast a layer forgets follows from its depth",
    "qwen4exp": "its header lists layers by their numbers",
}
_HINT = "Keep all layers, and choose a lower --type."


@dataclass(frozen=True, slots=True)
class Removable:
    """Which layers may be left out of a model of ``n_layers``, NextN layers not counted.

    The first N layers may be kept unless ``may_go`` is "none", and with "last" nothing else; why
    is the ``reason``. With "any", layers go from anywhere, but what stays is numbered anew and each
    layer must keep its number modulo ``group``: so they go in runs as long as a multiple of it, or
    at the end. Of each set of ``needed`` layers one must stay.
    """

    n_layers: int
    group: int = 1
    needed: tuple[frozenset[int], ...] = ()
    may_go: Literal["any", "last", "none"] = "any"
    reason: str = ""

    def problem(self, layers: Sequence[int]) -> str | None:
        """Why a draft cannot consist of these layers, or None."""
        if not layers or list(layers) != sorted({n for n in layers if 0 <= n < self.n_layers}):
            return f"its layers are numbered from 0 to {self.n_layers - 1}, ascending"
        if len(layers) == self.n_layers:
            return None
        if self.may_go == "none":
            return self.reason
        for kind in self.needed:
            if kind.isdisjoint(layers):
                return f"one of the layers {_shown(kind)} must stay, for the others are different"
        if layers[-1] == len(layers) - 1:
            return None
        if self.may_go == "last":
            return self.reason
        if any((old - new) % self.group for new, old in enumerate(layers)):
            return f"its layers come in periods of {self.group}, so only such runs can be left out"
        return None


def removable(header: ModelHeader) -> Removable:
    """What may be left out of the model of a complete header.

    Raises DraftNotMade for what is no model that continues a text, or has an absurd header.
    """
    _require_model(header)
    count = n_layers(header)
    if reason := _why_none(header):
        return Removable(count, may_go="none", reason=reason)
    if reason := _why_last(header):
        return Removable(count, 1, needed_layers(header), "last", reason)
    return Removable(count, _period(header), needed_layers(header))


def require_removable(header: ModelHeader, layers: Sequence[int]) -> None:
    """Raise DraftNotMade unless a draft of these layers can be made out of the model."""
    problem = removable(header).problem(layers)
    if problem is not None:
        raise DraftNotMade(
            f"Those layers cannot be left out of {one_line(header.path.name)}: {problem}.", _HINT
        )


def _shown(layers: frozenset[int]) -> str:
    """The first few of them."""
    first = sorted(layers)[:4]
    return ", ".join(map(str, first)) + (", ..." if len(layers) > len(first) else "")


def _require_model(header: ModelHeader) -> None:
    name = one_line(header.path.name)
    if header.type != "model" or not header.is_autoregressive or not draft_kind(header).is_model:
        raise DraftNotMade(
            f"{name} is no model that continues a text, so no draft can be made out of it.",
            "Give a model for text, without its sidecars.",
        )
    if not 0 < (header.block_count or 0) <= MOST_LAYERS or not n_layers(header):
        raise DraftNotMade(
            f"{name} has {header.block_count or 0:,} layers, {claimed_heads(header):,} of them for "
            f"prediction heads; expected 1 to {MOST_LAYERS}.",
            "Convert the model again.",
        )


def _why_none(header: ModelHeader) -> str | None:
    """Why all layers must stay."""
    architecture = header.architecture
    counts = _VARIANTS.get(architecture)
    if counts is not None and (not counts or n_layers(header) in counts):
        return "llama.cpp tells variants of its architecture by the number of layers"
    if whole_number(header, "embedding_length_per_layer_input"):
        return "one of its tensors has a part for each layer"
    if whole_number(header, "attention.shared_kv_layers"):
        return "its last layers read the keys and values of earlier ones"
    if architecture == "smallthinker" and whole_number(header, _WINDOW):
        return "four of its layers alone would be of another kind"
    if architecture == "minicpm" and header.get("residual_scale") is None:
        return "how much a layer adds follows from their number"
    if architecture == "llama4" and whole_number(header, _WINDOW) == 0:
        return "its last layer is unlike the others"
    return _WHOLE.get(architecture)


def _why_last(header: ModelHeader) -> str | None:
    """Why only the first N layers may be kept."""
    if header.get("attention.indexer.types") is not None:
        return "some of its layers attend to what earlier ones chose"
    return None


def _period(header: ModelHeader) -> int:
    """The number that layers are counted by in turn."""
    architecture = header.architecture
    stated = [whole_number(header, key) for key in _PERIODS]
    if header.get("attention.recurrent_layers") is None:
        interval = whole_number(header, "full_attention_interval")
        stated.append(interval or _FULL_ATTENTION.get(architecture))
    stated += [_sliding_period(header), _UNROTATED.get(architecture)]
    return math.lcm(*(each for each in stated if each))


def _sliding_period(header: ModelHeader) -> int | None:
    """Every how many layers one has no window; None where all are alike, or a list says it."""
    architecture = header.architecture
    if architecture not in _SLIDING:
        return None
    if not whole_number(header, _WINDOW) and architecture not in _SLIDING_WITHOUT_KEY:
        return None
    pattern = header.get(_PATTERN)
    if isinstance(pattern, tuple):
        return None
    return pattern if type(pattern) is int else _SLIDING[architecture]
