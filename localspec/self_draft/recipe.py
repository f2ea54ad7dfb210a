"""Recipe of a self-draft: its layers, its type and its vocabulary."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core.errors import UsageError
from localspec.core.options.option import Bounds, option

if TYPE_CHECKING:  # the command line imports this
    from localspec.metadata.header import ModelHeader

KEEP = "keep"  # the type that the weights have
_LOWER = "Q4_0"  # agrees with 94 % of the tokens of a 1.5B in F16, at 0.3 of its bytes
_PRECISE = ("F32", "F16", "BF16", "Q8_0")  # targets that a lower type makes much quicker


@dataclass(frozen=True, slots=True)
class SelfDraftOptions:
    """What ``draft make`` was asked for; None: by default.

    ``vocab`` is the number of tokens with an output row, None for all. With ``source``, a draft of
    the target, only the output rows of that draft are reduced.
    """

    layers: int | None = option(
        None,
        "--layers",
        "Keep the first N layers. Default: all.",
        bounds=Bounds(1, 512),
        everyday=True,
    )
    type: str | None = option(
        None,
        "--type",
        "Type of the weights, as llama-quantize calls it; keep: the target's. Default: Q4_0 for "
        "targets of F32, F16, BF16 and Q8_0, else keep.",
        metavar="Q4_0|Q2_K|...|keep",
        everyday=True,
    )
    vocab: int | None = option(
        None,
        "--vocab",
        "Keep output rows of the N tokens the target uses most; best a multiple of 64.",
        bounds=Bounds(1, 2**24),
        everyday=True,
    )
    source: Path | None = option(
        None,
        "--draft -md",
        "With --vocab: trim this draft of the target.",
        metavar="FILE",
        everyday=True,
    )


@dataclass(frozen=True, slots=True)
class Recipe:
    """How many first layers a draft keeps, and the type of its weights.

    ``type`` is a name of llama-quantize (Q4_0, Q2_K, ...), or `KEEP`. ``vocab`` is how many tokens
    have an output row, None for all.
    """

    layers: int
    type: str = KEEP
    vocab: int | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """Of the layers."""
        return tuple(range(self.layers))

    def as_json(self) -> dict[str, object]:
        """Plain data; layers are listed by index."""
        return {"layers": list(self.indices), "type": self.type, "vocab": self.vocab}

    def describe(self, n_layers: int) -> str:
        """The recipe in words; the target has ``n_layers``."""
        kept = f"the first {self.layers} of" if self.layers < n_layers else "all"
        said = f"{kept} {n_layers} layers" + (f" in {self.type}" if self.type != KEEP else "")
        return said if self.vocab is None else f"{said}, {self.vocab:,} output rows"


def chosen_recipe(
    options: SelfDraftOptions, target: "ModelHeader", source: "ModelHeader"
) -> Recipe:
    """The recipe for these options; ``source`` is the draft to be trimmed, else the target.

    Raises DraftNotMade or UsageError for options that give no draft of this target, and
    IncompatiblePair where its vocabulary cannot be trimmed.
    """
    from localspec.llama.quantize import require_type
    from localspec.metadata.draft_kind import n_layers
    from localspec.self_draft.make import require_model
    from localspec.self_draft.trim import require_trimmable

    kind = options.type if options.type in (None, KEEP) else require_type(options.type)
    require_model(target)
    if options.vocab is not None:
        # A draft that is made of a split target is one file.
        whole = source if options.source is not None else replace(source, split_count=1)
        require_trimmable(whole, target, options.vocab)
    if options.source is not None:
        return Recipe(n_layers(source), KEEP, options.vocab)
    lower = _LOWER if target.quantization in _PRECISE else KEEP
    recipe = Recipe(options.layers or n_layers(target), kind or lower, options.vocab)
    _require_smaller(recipe, target, n_layers(target))
    return recipe


def _require_smaller(recipe: Recipe, target: "ModelHeader", count: int) -> None:
    """Raise UsageError where a recipe asks for more layers than there are, or for the target."""
    if recipe.layers > count:
        raise UsageError(
            f"--layers is {recipe.layers}, but {target.path.name} has {count} layers.",
            "Give a number below that.",
        )
    if (recipe.layers, recipe.type) == (count, KEEP):
        raise UsageError(
            f"All {count} layers in their type, {target.quantization}, would be the target itself.",
            "Give fewer --layers, or a lower --type such as Q2_K. A small model of its family "
            "drafts better: " + shlex.join(["localspec", "suggest", str(target.path)]),
        )
