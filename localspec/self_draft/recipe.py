"""Recipes: what a draft keeps of the model it is made from."""

from dataclasses import dataclass

KEEP = "keep"  # the type that the weights have


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
        """In words, of a model with so many layers."""
        kept = f"the first {self.layers} of" if self.layers < n_layers else "all"
        said = f"{kept} {n_layers} layers" + (f" in {self.type}" if self.type != KEEP else "")
        return said if self.vocab is None else f"{said}, {self.vocab:,} output rows"
