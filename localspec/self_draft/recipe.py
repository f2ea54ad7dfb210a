"""Recipes: what a draft keeps of the model it is made from."""

from collections.abc import Sequence
from dataclasses import dataclass

KEEP = "keep"  # the type that the weights have


@dataclass(frozen=True, slots=True)
class Recipe:
    """Layers kept, by index and ascending, and the type of their weights.

    ``type`` is a name of llama-quantize (Q4_0, Q2_K, ...), or `KEEP`. ``vocab`` is how many tokens
    have an output row, None for all.
    """

    layers: tuple[int, ...]
    type: str = KEEP
    vocab: int | None = None

    def describe(self, n_layers: int) -> str:
        """In words, of a model with so many layers."""
        kept = len(self.layers)
        if kept == n_layers:
            which = f"all {n_layers} layers"
        elif self.layers == tuple(range(kept)):
            which = f"the first {kept} of {n_layers} layers"
        else:
            which = f"{kept} of {n_layers} layers, without {_ranges(self.layers, n_layers)}"
        if self.type != KEEP:
            which += f" in {self.type}"
        return which if self.vocab is None else f"{which}, {self.vocab:,} output rows"


def _ranges(layers: Sequence[int], n_layers: int) -> str:
    """The layers that are not among these: 3, 5-8."""
    missing = [i for i in range(n_layers) if i not in layers]
    runs: list[list[int]] = []
    for i in missing:
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
