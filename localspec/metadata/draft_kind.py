"""Kind of a draft by its header: an ordinary model, or heads that read hidden states."""

import re
from dataclasses import dataclass

from localspec.metadata.filenames import HEADS
from localspec.metadata.header import ModelHeader

# Architectures with a graph for NextN layers (`LLM_GRAPH_TYPE_DECODER_MTP` in `build_arch_graph` of
# src/models/*.cpp); glm5-next only throws there. Those of the first list run several in a chain,
# the others assert that there is one.
MTP_CHAINS = frozenset("hy_v3 mimo2 step35".split())
MTP_GRAPHS = MTP_CHAINS | frozenset(
    "bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe nemotron_h_moe qwen35 "
    "qwen35moe qwen3next".split()
)
# Heads that are an architecture of their own, and the one of their targets.
ASSISTANTS = {"gemma4-assistant": "gemma4"}

DEFAULT_BLOCK = 16  # tokens of a DFlash pass, if its file does not say (common/speculative.cpp)
_MASK = "tokenizer.ggml.mask_token_id"
# Tensors of each NextN layer in all architectures.
_NEXTN = ("eh_proj", "enorm", "hnorm")
_BLOCK_TENSOR = re.compile(r"blk\.(\d{1,4})\.")
# Extensions of DFlash, by a tensor (common/speculative.cpp).
VARIANTS = {"markov_w1.weight": "DSpark", "selector_hidden.weight": "DFlash2"}


@dataclass(frozen=True, slots=True)
class DraftKind:
    """Kind of a draft, and its header's facts about the target; unchecked.

    ``kind`` is "model" or one of `HEADS`. ``heads`` counts NextN layers. The inputs of
    ``target_layers`` are read, numbered from 0; the number of layers stands for the output of the
    last one. ``target_width`` is the number of floats in a hidden state of the target;
    ``block_size`` counts the tokens of a DFlash pass: the first is known and all others are
    ``mask_token``; if ``causal``, they see no later ones. ``variant`` names an extension of DFlash.
    If ``anchored``, the known token's place drafts too; ``selected`` counts the candidates of each
    place in DFlash2. ``reduced_vocabulary`` is the number
    of tokens that a draft with a map (`d2t`) or a trimmed vocabulary can propose. Facts that do not
    apply are 0, empty or None.
    """

    kind: str = "model"
    heads: int = 0
    target_layers: tuple[int, ...] = ()
    target_width: int | None = None
    block_size: int = 0
    mask_token: int | None = None
    causal: bool = False
    reduced_vocabulary: int | None = None
    variant: str = ""
    anchored: bool = False
    has_confidence: bool = False
    selected: int = 0

    @property
    def is_model(self) -> bool:
        """Whether it is a whole model, possibly with a trimmed vocabulary."""
        return self.kind == "model"

    @property
    def is_trimmed(self) -> bool:
        """Whether it is a whole model with output rows of some tokens only."""
        return self.is_model and self.reduced_vocabulary is not None

    @property
    def only_drafts(self) -> bool:
        """Whether it cannot generate text by itself."""
        return not self.is_model or self.is_trimmed

    @property
    def spec_type(self) -> str:
        """llama.cpp's name (`common_speculative_type`)."""
        if self.is_model:
            return "draft-simple"
        return "draft-dspark" if self.variant == "DSpark" else f"draft-{self.kind}"

    @property
    def most_drafted(self) -> int:
        """Most tokens that a DFlash pass drafts."""
        return self.block_size - (not self.anchored)

    @property
    def words(self) -> str:
        """Description for a sentence."""
        if self.kind == "mtp":
            return f"{self.heads} multi-token prediction head{'' if self.heads == 1 else 's'}"
        if self.is_trimmed:
            return "a draft with a trimmed vocabulary"
        return f"a {self.variant} head" if self.variant else HEADS.get(self.kind, "a model")

    def as_json(self) -> dict[str, object]:
        return {
            "spec_type": self.spec_type,
            "heads": self.heads,
            "target_layers": list(self.target_layers),
            "target_width": self.target_width,
            "block_size": self.block_size,
            "reduced_vocabulary": self.reduced_vocabulary,
        }


def draft_kind(header: ModelHeader) -> DraftKind:
    """Kind of a file as a draft; by its architecture alone if the header is not complete."""
    architecture = header.architecture
    if architecture in ("eagle3", "dflash"):
        return _tapping(header, architecture)
    if architecture in ASSISTANTS:  # their NextN layers form one head
        return DraftKind("mtp", 1, target_width=output_width(header))
    reduced = None if header.trimmed is None else len(header.trimmed.ids)
    if header.complete and _holds_only_heads(header):
        heads, width = claimed_heads(header), output_width(header)
        return DraftKind("mtp", heads, target_width=width, reduced_vocabulary=reduced)
    return DraftKind(reduced_vocabulary=reduced)


def claimed_heads(header: ModelHeader) -> int:
    """Number of NextN layers in a header, the last of its layers; tensors may be missing."""
    return whole_number(header, "nextn_predict_layers") or 0


def held_heads(header: ModelHeader) -> int:
    """Number of NextN layers with projection and norms (`blk.N.nextn.eh_proj.weight`)."""
    names = {tensor.name for tensor in header.tensors}
    layers = header.block_count or 0
    first = max(0, layers - claimed_heads(header))
    return sum(
        all(f"blk.{i}.nextn.{each}.weight" in names for each in _NEXTN)
        for i in range(first, min(layers, 10_000))
    )


def has_heads(header: ModelHeader) -> bool:
    """Whether a model has NextN layers of its own that llama.cpp can draft with."""
    claimed = claimed_heads(header)
    runs = claimed == 1 or header.architecture in MTP_CHAINS
    whole = 0 < claimed == held_heads(header)
    return whole and runs and header.architecture in MTP_GRAPHS and draft_kind(header).is_model


def n_layers(header: ModelHeader) -> int:
    """Number of layers without NextN layers (`llama_hparams::n_layer`)."""
    return max(0, (header.block_count or 0) - claimed_heads(header))


def output_width(header: ModelHeader) -> int | None:
    """Floats of the hidden state that NextN layers read or give (`llama_hparams::n_embd_out`)."""
    given = whole_number(header, "embedding_length_out")
    if header.architecture == "deepseek4" and header.embedding_length:
        return header.embedding_length * (whole_number(header, "hyper_connection.count") or 1)
    return given or header.embedding_length


def whole_number(header: ModelHeader, key: str) -> int | None:
    """A non-negative integer of the architecture; None for anything else."""
    value = header.get(key)
    return value if type(value) is int and value >= 0 else None


def _holds_only_heads(header: ModelHeader) -> bool:
    """Whether the layers of the model itself were left out (`mtp_only` in src/models/*.cpp)."""
    if not claimed_heads(header) or not header.tensors:
        return False
    names = {tensor.name for tensor in header.tensors}
    blocks = {int(found[1]) for name in names if (found := _BLOCK_TENSOR.match(name))}
    if header.block_count is not None and all(i >= n_layers(header) for i in blocks):
        return True
    known = header.architecture in MTP_GRAPHS or header.block_count is None
    return known and "blk.0.attn_norm.weight" not in names


def _tapping(header: ModelHeader, kind: str) -> DraftKind:
    """EAGLE-3 or DFlash, which read the inputs of their target's layers.

    By the rules of `common_speculative_impl_draft_dflash` and src/models/dflash.cpp.
    """
    is_eagle3, layers = kind == "eagle3", header.get("target_layers")
    numbers = layers if isinstance(layers, tuple) else ()
    tensors = {tensor.name: tensor for tensor in header.tensors}
    mapped = tensors.get("d2t")
    width = whole_number(header, "target_hidden_size") if is_eagle3 else header.embedding_length
    variants = (name for tensor, name in VARIANTS.items() if tensor in tensors)
    variant = "" if is_eagle3 else next(variants, "")
    is_dspark, mask = variant == "DSpark", header.values.get(_MASK)
    # llama.cpp ends the process for a DSpark head without a block size.
    block_size = whole_number(header, "block_size") or (0 if is_dspark else DEFAULT_BLOCK)
    return DraftKind(
        kind,
        target_layers=tuple(n for n in numbers if type(n) is int),
        target_width=width,
        block_size=0 if is_eagle3 else block_size,
        mask_token=mask if type(mask) is int and not is_eagle3 else None,
        causal=not is_eagle3 and header.get("attention.causal") is True,
        reduced_vocabulary=mapped.n_elements if mapped else None,
        variant=variant,
        anchored=is_dspark and header.get("sample_from_anchor") is not False,
        has_confidence=is_dspark
        and "conf_proj.weight" in tensors
        and header.get("has_confidence_head") is not False,
        selected=(whole_number(header, "selector_top_k") or 0) if variant == "DFlash2" else 0,
    )
