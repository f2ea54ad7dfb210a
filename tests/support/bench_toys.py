"""A toy engine that rounds by the width of its passes, and short ways to measure with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.bench.comparison import Comparison
from localspec.bench.figures import Figures
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.run import run_bench
from localspec.core.config import DraftTokens
from localspec.core.sampling_params import SamplingParams
from localspec.speculative.loop import ALONE
from tests.support.toys import ToyEngine, ToyModel


class RoundingTarget:
    """A toy target that rounds: ``noise`` is added by width of pass, the last also beyond."""

    def __init__(self, exact: ToyModel, noise: Sequence[float]) -> None:
        self.min_width = 1
        self.widths: list[int] = []
        self.n_ctx, self.n_vocab = exact.n_ctx, exact.n_vocab
        self.truncate = exact.truncate
        self._exact = exact
        self._noise = noise

    pending = 0
    block_size: int | None = None
    reads_along = False
    gives_prompt_row = False
    batch_share = ALONE
    tree = None

    def checkpoint(self) -> None:
        self._exact.checkpoint()

    @property
    def tokens(self) -> list[int]:
        return self._exact.tokens

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        width = max(len(tokens), self.min_width)
        self.widths.append(width)
        logits = self._exact.decode(tokens, rows)
        shift = self._noise[min(width, len(self._noise)) - 1] if self._noise else 0.0
        turned = np.array([np.roll(row, 1) for row in logits], np.float32).reshape(logits.shape)
        return logits + np.float32(shift) * turned


class BenchToy(ToyEngine):
    """A toy engine over a `RoundingTarget`; `widened` as the real one means it."""

    target: RoundingTarget  # type: ignore[assignment]

    def __init__(self, *, noise: Sequence[float] = (), **options: Any) -> None:
        super().__init__(**options)
        self.target = RoundingTarget(self.target, noise)  # type: ignore[arg-type]

    @property
    def min_width(self) -> int:
        return self.target.min_width

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        before, self.target.min_width = self.target.min_width, width
        yield
        self.target.min_width = before


def compare(engine: Any, prompts: Sequence[Sequence[int]], plan: BenchPlan) -> Comparison:
    """One task's comparison."""
    (comparison,) = run_bench(engine, {"code": prompts}, plan)
    return comparison


def variant(engine: Any, length: DraftTokens, **options: Any) -> Variant:
    """A side of a benchmark with a toy engine."""
    return Variant(str(length), engine, plan(0, length, **options), length)


def plan(*lengths: DraftTokens, repeats: int = 1, max_tokens: int = 20, **params: Any) -> BenchPlan:
    return BenchPlan(SamplingParams(**({"temperature": 0} | params)), lengths, repeats, max_tokens)


def drafted(comparison: Comparison) -> Figures:
    """The figures of the second side."""
    return comparison.figures()[1]
