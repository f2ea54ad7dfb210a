"""The sizes of the hybrid model."""

from dataclasses import dataclass

# Padding the width changes epsilon, which the norms over one head share: so tiny that neither the
# model nor its padded copy notices it.
RMS_EPSILON = 1e-9
CONVOLUTION = 4  # positions that the convolution of a delta net sees


@dataclass(frozen=True)
class HybridShape:
    """The widths of one hybrid model; ``layers`` does not count the NextN layer."""

    width: int
    heads: int
    hidden: int
    layers: int
    period: int  # layers from one full attention to the next


HYBRID_SHAPE = HybridShape(width=320, heads=5, hidden=512, layers=6, period=3)
