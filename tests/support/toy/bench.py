"""A toy engine that rounds by the width of its passes, and short ways to measure with it."""

from collections.abc import Sequence
from typing import Any

from localspec.bench.comparison import Comparison
from localspec.bench.figures import Figures
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.run import run_bench
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams


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
