"""What passes cost on several machines, as `benchmarks/replay.py` plays controllers on them."""

from dataclasses import dataclass

import numpy as np

from localspec.speculative.control.costs import CALIBRATED
from localspec.speculative.control.pair_profile import FIRST_TRIAL, PairProfile

UNIT = 0.05  # seconds of a plain token


@dataclass
class CostTable:
    """Costs of a machine and pair, in plain tokens: verify by width, a draft step, a token read.

    ``change`` is what a pass of another width than the last takes longer.
    """

    name: str
    widths: dict[int, float]
    step: float
    reading: float = 0.0
    change: float = 0.0

    def verify(self, width: int) -> float:
        """Seconds of a pass of the target."""
        known = sorted(self.widths)
        value = float(np.interp(width, known, [self.widths[n] for n in known]))
        if width > known[-1]:
            value = self.widths[known[-1]] * width / known[-1]
        return value * UNIT

    def draft(self, width: int) -> float:
        """Seconds of a pass of the draft."""
        return self.step * (1 + 0.15 * (width - 1)) * UNIT

    def read(self, tokens: int) -> float:
        """Seconds in which the draft reads tokens of a prompt."""
        return self.reading * UNIT * tokens

    def calibrated(self, slowness: float = 1.0) -> PairProfile:
        """What a short calibration would have found, perhaps on a busy machine."""
        known = PairProfile(reading=self.reading * UNIT * slowness, trial_interval=FIRST_TRIAL)
        for width in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 33, 63):
            known.verify.observe(width, 0, self.verify(width) * slowness, CALIBRATED)
        for width in (1, 2, 4, 8):
            known.draft.observe(width, 0, self.draft(width) * slowness, CALIBRATED)
        return known


def curve(text: str) -> dict[int, float]:
    """Costs of the widths 1, 2, ... in this order."""
    return {i: float(value) for i, value in enumerate(text.split(), start=1)}


COST_TABLES = (
    CostTable(
        "3090 8B Q4_0",
        curve("1 1.12 1.20 1.33 1.54 1.74 1.96 2.15") | {16: 2.15, 33: 3.0},
        0.06,
        0.01,
    ),
    CostTable(
        "3090, graphs",
        curve("1 1.12 1.20 1.33 1.54 1.74 1.96 2.15") | {16: 2.15, 33: 3.0},
        0.06,
        0.01,
        0.15,
    ),
    CostTable(
        "V100 8B Q2_K",
        curve("1 1.14 1.43 1.78 2.00 2.20 2.19 2.17") | {16: 3.5, 33: 6.0},
        0.1,
        0.02,
    ),
    CostTable(
        "MI50 27B Q8_0", {1: 1, 2: 1.2, 4: 1.34, 8: 1.99, 9: 3.2, 16: 3.3, 32: 3.5}, 0.08, 0.02
    ),
    CostTable(
        "NUMA CPU", curve("1 1.21 1.42 1.63 1.87 2.1 2.34 2.56") | {16: 4.3, 33: 8.0}, 0.1, 0.04
    ),
    CostTable(
        "core F16", curve("1 1.99 2.23 2.30 2.51 2.71 3.50 3.74") | {16: 6.2, 33: 12.0}, 0.08, 0.04
    ),
    CostTable(
        "core Q8_0", curve("1 2.05 2.35 2.55 3.95 4.25 4.71 4.18") | {16: 7.35, 33: 14.0}, 0.1, 0.05
    ),
    CostTable(
        "core Q4_K", curve("1 1.95 2.91 3.66 4.61 5.54 6.47 7.08") | {16: 9.9, 33: 20.0}, 0.1, 0.05
    ),
    # Two cores, Qwen2.5-Coder 1.5B with a 0.5B draft, whose step costs its share of the bytes.
    CostTable("Zen 5 F16", {1: 1, 2: 1.22, 4: 1.37, 6: 1.53, 8: 1.86, 16: 2.38}, 0.33, 0.03),
    CostTable("Zen 5 Q4_K_M", {1: 1, 2: 1.38, 4: 2.09, 6: 2.9, 8: 3.4, 16: 4.05}, 0.36, 0.06),
    CostTable("Zen 3 F16", curve("1 1.02 1.31 1.71 1.91 2.27") | {8: 2.82, 16: 4.94}, 0.33, 0.08),
    CostTable("Zen 3 Q8_0", curve("1 1.66 2.53 3.38 3.98 4.14") | {8: 5.41, 16: 9.94}, 0.34, 0.15),
    CostTable(
        "Zen 3 Q4_K_M", curve("1 1.51 2.00 2.61 3.19 4.68") | {8: 5.79, 16: 8.08}, 0.36, 0.15
    ),
    # The step is a guess: half a gigabyte of a draft beside 27 of the target, and its launches.
    CostTable(
        "2 MI50 27B Q8_0",
        {1: 1, 2: 1.17, 4: 1.36, 8: 2.22, 9: 3.45, 12: 3.67, 16: 3.83, 32: 4.71},
        0.1,
        0.01,
    ),
    CostTable(
        "R9700 Vulkan",
        {1: 1, 2: 1.1, 4: 1.58, 6: 2.0, 8: 2.58, 9: 3.65, 12: 3.8, 32: 5.0},
        0.1,
        0.01,
    ),
    # Measured on padded models, with a draft of 403M; what the draft reads in is a guess.
    CostTable(
        "H200 9B Q4_0",
        curve("1 1.16 1.32 1.49 1.60 1.76 1.88 2.05 2.18 2.24")
        | {12: 2.29, 16: 2.32, 17: 2.58, 32: 2.92, 33: 3.16, 64: 3.84},
        0.33,
        0.01,
        0.27,
    ),
    CostTable(
        "H200 9B F16",
        curve("1 1.32 1.30 1.31 1.32 1.36 1.34 1.36 1.41") | {16: 1.43, 32: 1.54, 64: 1.59},
        0.23,
        0.01,
        0.16,
    ),
    CostTable("M3 Ultra 4 bit", {1: 1, 2: 1.83, 4: 3.26, 8: 6.12, 16: 10.0}, 0.1, 0.02),
    # Row kernels, two cores: the 1.5B with the 0.5B as it is downloaded, the same with its draft in
    # Q4_0 and 32,768 rows of output, and a target of 6B with that draft.
    CostTable(
        "rows Zen 4 1.5B",
        curve("1 1.19 1.31 1.49 1.77 1.96") | {8: 2.44, 12: 3.55, 16: 4.68, 33: 9.4},
        0.5,
        0.15,
    ),
    CostTable(
        "rows Zen 3 1.5B", {1: 1, 2: 1.14, 3: 1.36, 4: 1.65, 8: 2.42, 16: 4.9, 33: 10}, 0.25, 0.08
    ),
    CostTable(
        "rows Zen 3 6B", {1: 1, 2: 1.12, 4: 1.29, 8: 2.3, 11: 3.2, 17: 4.7, 33: 9.2}, 0.08, 0.017
    ),
)
