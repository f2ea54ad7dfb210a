"""A toy engine that rounds by the width of its passes, and short ways to measure with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from localspec.bench.comparison import Comparison
from localspec.bench.figures import Figures
from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core.config import DraftTokens, SamplingParams
from tests.support.toys import ToyEngine


class BenchToy(ToyEngine):
    """A toy engine that rounds: `noise` by width of pass; `widened` as the real one means it."""

    def __init__(self, *, noise: Sequence[float] = (), **options: Any) -> None:
        super().__init__(**options)
        self.target.min_width = 1  # type: ignore[attr-defined]
        self.widths: list[int] = []
        exact = self.target.decode

        def decode(tokens: Sequence[int], rows: int) -> object:
            width = max(len(tokens), self.target.min_width)  # type: ignore[attr-defined]
            self.widths.append(width)
            logits = exact(tokens, rows)
            shift = noise[min(width, len(noise)) - 1] if noise else 0.0
            turned = np.array([np.roll(row, 1) for row in logits]).reshape(logits.shape)
            return logits + np.float32(shift) * turned

        self.target.decode = decode  # type: ignore[method-assign, assignment]

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        target: Any = self.target
        before, target.min_width = target.min_width, width
        yield
        target.min_width = before


def compare(engine: Any, prompts: Sequence[Sequence[int]], plan: BenchPlan) -> Comparison:
    """One task's comparison."""
    (comparison,) = run_bench(engine, {"code": prompts}, plan)
    return comparison


def plan(*lengths: DraftTokens, repeats: int = 1, max_tokens: int = 20, **params: Any) -> BenchPlan:
    return BenchPlan(SamplingParams(**({"temperature": 0} | params)), lengths, repeats, max_tokens)


def drafted(comparison: Comparison) -> Figures:
    """The figures of the second side."""
    return comparison.figures()[1]
