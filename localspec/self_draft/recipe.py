"""Recipe of a self-draft: its layers, its type and its vocabulary."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.core.options.option import Bounds, option

KEEP = "keep"  # the type that the weights have
_making = partial(option, None, everyday=True)


@dataclass(frozen=True, slots=True)
class SelfDraftOptions:
    """The options of ``draft make``; None: by default.

    ``vocab`` is the number of tokens with an output row, None for all. With ``source``, a draft of
    the target, only the output rows of that draft are reduced. ``counts`` is a file of text whose
    tokens are counted.
    """

    layers: int | None = _making(
        "--layers", "Keep the first N layers. Default: all.", bounds=Bounds(1, 512)
    )
    type: str | None = _making(
        "--type",
        "Type of the weights, as llama-quantize calls it; keep: the target's. Default: Q4_0 for "
        "targets of F32, F16, BF16 and Q8_0, else keep.",
        metavar="Q4_0|Q2_K|...|keep",
    )
    vocab: int | None = _making(
        "--vocab",
        "Keep output rows of the N tokens the target uses most; best a multiple of 64. Without "
        "--layers and --type, of a target with MTP heads: make a sidecar of the heads. Its default "
        "there: the fewest that cover 98 % of its answers.",
        bounds=Bounds(1, 2**24),
    )
    source: Path | None = _making(
        "--draft -md", "With --vocab: trim this draft of the target.", metavar="FILE"
    )
    counts: Path | None = _making(
        "--counts",
        "With --vocab, or for MTP heads: keep the tokens most frequent in this text instead of "
        "those in the target's answers; of .jsonl the strings in its lines.",
        metavar="FILE",
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """How many first layers a draft keeps, and the type of its weights.

    ``type`` is a name of llama-quantize (Q4_0, Q2_K, ...), or `KEEP`. ``vocab`` is how many tokens
    have an output row, None for all. With ``heads`` it keeps the MTP heads after the layers
    instead, and none of these.
    """

    layers: int
    type: str = KEEP
    vocab: int | None = None
    heads: bool = False

    def describe(self, n_layers: int) -> str:
        """The recipe in words; the target has ``n_layers``."""
        if self.heads:
            return "the MTP heads" + (f", {self.vocab:,} output rows" if self.vocab else "")
        kept = f"the first {self.layers} of" if self.layers < n_layers else "all"
        said = f"{kept} {n_layers} layers" + (f" in {self.type}" if self.type != KEEP else "")
        return said if self.vocab is None else f"{said}, {self.vocab:,} output rows"
