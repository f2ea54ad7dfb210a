"""Demo: the bundled pair, padded to the cost of bigger models, plain and drafted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from localspec.bench.comparison import Comparison
from localspec.bench.padding.encoder import Quantization
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.padding.pad import DEMO_DRAFT_SHAPE, DEMO_TARGET_SHAPE, padded_copy
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.run import run_bench
from localspec.chat.answer import Piece
from localspec.core import paths
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.engine.engine import Engine
from localspec.metadata.header import ModelHeader, read_header

QUANTIZATIONS: tuple[Quantization, ...] = ("F16", "Q4_0")
CTX_SIZE = 512  # tokens: a prompt and an answer
_NARROW = 0.2  # of the speedup: an interval that shows the gain clearly
_WATCHED_TOKENS = 48
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
Progress = Callable[[str, int, int], None]  # label, done, total
Shapes = tuple[PaddedShape, PaddedShape]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One quantisation of the demo: its target and draft as they are bundled, and padded."""

    quantization: Quantization
    bundled: tuple[ModelHeader, ModelHeader]
    padded: tuple[ModelHeader, ModelHeader]
    comparison: Comparison

    def as_json(self) -> dict[str, object]:
        target, draft = (header.as_json() for header in self.padded)
        return {
            "quantization": self.quantization,
            "target": target,
            "bundled": [header.as_json() for header in self.bundled],
            "draft": draft,
            **self.comparison.as_json(),
        }


def demo_folder() -> Path:
    return paths.cache_folder() / "demo"


def demo_tokens(plan: BenchPlan, quantizations: int) -> int:
    """How many tokens the demo generates at most."""
    return quantizations * len(QUESTIONS) * plan.answers * plan.max_tokens


def watch_demo(
    plan: BenchPlan, files: tuple[Path, Path], threads: int | None
) -> Iterator[tuple[DraftTokens, Piece]]:
    """The pieces of one answer by plain decoding, then drafted, each with its draft length."""
    plan = replace(plan, max_tokens=min(plan.max_tokens, _WATCHED_TOKENS))
    with Engine.load(*_load_options(files, threads)) as engine:
        prompt = engine.encode_chat([{"role": "user", "content": QUESTIONS[0]}])
        for length in plan.lengths:
            for piece in Variant(str(length), engine, plan, length).stream(prompt):
                yield length, piece


def run_demo(
    plan: BenchPlan,
    threads: int | None = None,
    on_progress: Progress = lambda label, done, total: None,
    quantizations: Sequence[Quantization] = QUANTIZATIONS,
    on_prompt: Callable[[Comparison], None] = lambda comparison: None,
) -> Iterator[DemoResult]:
    """Measure quantisations of the padded pair; one result at a time."""
    total = len(quantizations) * plan.answers * len(QUESTIONS)
    for i, quantization in enumerate(quantizations):
        before = i * total // len(quantizations)

        def on_answer(task: str, done: int, _: int, answer: object, before: int = before) -> None:
            on_progress("measuring", before + done, total)

        files = padded_pair(quantization, on_progress)
        with Engine.load(*_load_options(files, threads)) as engine:
            assert engine.draft is not None
            prompts = [engine.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]
            (found,) = run_bench(
                engine, {quantization: prompts}, plan, on_answer, on_prompt, _is_narrow
            )
            padded = engine.target.header, engine.draft.header
        on_progress("measuring", (i + 1) * total // len(quantizations), total)
        target, draft = map(read_header, paths.demo_pair())
        yield DemoResult(quantization, (target, draft), padded, found)


def _is_narrow(comparison: Comparison) -> bool:
    drafted = comparison.figures()[1:]
    spans = [(row.speedup_interval, row.speedup) for row in drafted]
    return bool(spans) and all(
        each is not None and each[1] - each[0] <= _NARROW * speedup for each, speedup in spans
    )


def _load_options(files: tuple[Path, Path], threads: int | None) -> list[LoadOptions]:
    return [LoadOptions(path, ctx_size=CTX_SIZE, threads=threads) for path in files]


def padded_pair(
    quantization: Quantization,
    on_progress: Progress,
    shapes: Shapes = (DEMO_TARGET_SHAPE, DEMO_DRAFT_SHAPE),
) -> tuple[Path, Path]:
    """The padded target and draft in the cache folder, built when they are not there yet."""
    folder = demo_folder()
    labels = f"padding the demo target ({quantization})", f"padding the draft ({quantization})"
    target, draft = (
        padded_copy(source, folder, shape, quantization, partial(on_progress, label))
        for source, shape, label in zip(paths.demo_pair(), shapes, labels, strict=True)
    )
    return target, draft
