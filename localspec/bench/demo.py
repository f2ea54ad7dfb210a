"""Demo: the bundled pair, padded to the cost of bigger models, measured plain beside drafted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.bench.comparison import Comparison
from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import (
    DEMO_DRAFT_SHAPE,
    DEMO_HYBRID_SHAPE,
    DEMO_TARGET_SHAPE,
    padded_copy,
)
from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core import paths
from localspec.core.config import DraftTokens, LoadOptions
from localspec.core.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.metadata.header import ModelHeader, read_header

QUANTIZATIONS: tuple[Quantization, ...] = ("F16", "Q4_0")
CTX_SIZE = 512  # tokens: a prompt and an answer
# Three kinds of question, on packages the models have seen and (json, textwrap) have not; chosen
# because the answers neither end after a few words nor loop.
QUESTIONS = (
    "Explain the class argparse.ArgumentParser.",
    "Explain the function shutil.copytree.",
    "Show me the source of os.path.join.",
    "How is random.choice implemented?",
    "Show me the source of json.dumps.",
    "Show me the source of textwrap.wrap.",
)

Progress = Callable[[str, int, int], None]
Shapes = tuple[PaddedShape, PaddedShape]


@dataclass(frozen=True, slots=True)
class PairResult:
    """One quantisation of the demo pair, plain and drafted.

    ``bundled`` holds the headers of target and draft before padding.
    """

    bundled: tuple[ModelHeader, ModelHeader]
    target: ModelHeader
    draft: ModelHeader
    comparison: Comparison

    def as_json(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return {
            "quantization": self.comparison.task,
            "bundled": [header.as_json() for header in self.bundled],
            "target": self.target.as_json(),
            "draft": self.draft.as_json(),
            **self.comparison.as_json(),
        }


def padded_pair(
    quantization: Quantization,
    on_progress: Progress,
    shapes: Shapes = (DEMO_TARGET_SHAPE, DEMO_DRAFT_SHAPE),
) -> tuple[Path, Path]:
    """The padded target and draft in the cache folder, built when they are not there yet."""
    return _padded(paths.demo_pair(), shapes, quantization, on_progress)


def padded_hybrid(
    quantization: Quantization,
    on_progress: Progress,
    shapes: Shapes = (DEMO_HYBRID_SHAPE, DEMO_DRAFT_SHAPE),
) -> tuple[Path, Path]:
    """The same of the hybrid, for which the pair's draft can draft too."""
    sources = paths.demo_hybrid(), paths.demo_pair()[1]
    return _padded(sources, shapes, quantization, on_progress)


def _padded(
    sources: tuple[Path, Path], shapes: Shapes, quantization: Quantization, on_progress: Progress
) -> tuple[Path, Path]:
    folder = paths.cache_folder() / "demo"
    target, draft = (
        padded_copy(source, folder, shape, quantization, partial(on_progress, label))
        for source, shape, label in zip(
            sources,
            shapes,
            (f"padding the demo target ({quantization})", f"padding the draft ({quantization})"),
            strict=True,
        )
    )
    return target, draft


def run_demo(
    *,
    draft_tokens: DraftTokens,
    repeats: int,
    max_tokens: int,
    threads: int | None = None,
    on_progress: Progress = lambda label, done, total: None,
) -> Iterator[PairResult]:
    """Measure every quantisation of the padded pair, greedily; one result at a time."""
    plan = BenchPlan(SamplingParams(temperature=0), (0, draft_tokens), repeats, max_tokens)
    for quantization in QUANTIZATIONS:
        target, draft = padded_pair(quantization, on_progress)
        options = [
            LoadOptions(path, ctx_size=CTX_SIZE, threads=threads) for path in (target, draft)
        ]
        with Engine.load(*options) as engine:
            yield _measure(engine, quantization, plan, on_progress)


def _measure(
    engine: Engine, quantization: str, plan: BenchPlan, on_progress: Progress
) -> PairResult:
    assert engine.draft is not None
    prompts = [engine.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    total = plan.answers(len(prompts))
    done = 0

    def on_answer(task: str) -> None:
        nonlocal done
        done += 1
        on_progress(f"measuring the {task} pair", done, total)

    (comparison,) = run_bench(engine, {quantization: prompts}, plan, on_answer)
    return PairResult(
        bundled=(read_header(paths.demo_pair()[0]), read_header(paths.demo_pair()[1])),
        target=engine.target.header,
        draft=engine.draft.header,
        comparison=comparison,
    )
