"""Demo: the bundled pair or hybrid, padded to the cost of bigger models, plain and drafted."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
from localspec.bench.plan import BenchPlan, PromptIds, Variant
from localspec.bench.run import compare_variants, run_bench
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
# Those that the hybrid answers without repeating itself.
HYBRID_QUESTIONS = (
    "Show me the source of os.path.join.",
    "How is random.choice implemented?",
    "How is symtable.SymbolTable.has_children implemented?",
    "Show me the source of idlelib.scrolledlist.ScrolledList.on_select.",
    "Explain the method asyncio.windows_events.IocpProactor.select.",
    "How is pdb.Pdb.handle_command_def implemented?",
)

Progress = Callable[[str, int, int], None]  # label, done, total
Shapes = tuple[PaddedShape, PaddedShape]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One quantisation of the demo: its models as they are bundled, and padded, the target first.

    The pair has one comparison. The hybrid has no draft, and a comparison of plain decoding and
    each variant, whose name is its task.
    """

    quantization: Quantization
    bundled: tuple[ModelHeader, ...]
    padded: tuple[ModelHeader, ...]
    comparisons: tuple[Comparison, ...]

    def as_json(self) -> dict[str, object]:
        bundled = [header.as_json() for header in self.bundled]
        target, *drafts = [header.as_json() for header in self.padded]
        found = [comparison.as_json() for comparison in self.comparisons]
        document = {"quantization": self.quantization, "target": target}
        if not drafts:
            return document | {"bundled": bundled[0], "ways": found}
        return document | {"bundled": bundled, "draft": drafts[0], **found[0]}


def demo_folder() -> Path:
    return paths.cache_folder() / "demo"


def demo_tokens(model: str, plan: BenchPlan, quantizations: int) -> int:
    """How many tokens the demo of the "pair" or the "hybrid" generates at most."""
    variants = 2 if model == "pair" else 4 if plan.lengths[-1] == "auto" else 3
    return quantizations * len(QUESTIONS) * variants * plan.repeats * plan.max_tokens


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
    model: str,
    plan: BenchPlan,
    threads: int | None = None,
    on_progress: Progress = lambda label, done, total: None,
    quantizations: Sequence[Quantization] = QUANTIZATIONS,
    on_prompt: Callable[[Comparison], None] = lambda comparison: None,
) -> Iterator[DemoResult]:
    """Measure quantisations of the padded "pair" or "hybrid"; one result at a time."""
    for i, quantization in enumerate(quantizations):

        def on_answer(done: int, total: int, before: int = i) -> None:
            on_progress("measuring", before * total + done, len(quantizations) * total)

        if model == "pair":
            files = padded_pair(quantization, on_progress)
            yield _measured_pair(files, plan, threads, quantization, on_answer, on_prompt)
            continue
        files = padded_hybrid(quantization, on_progress)
        with open_variants(files, plan, threads) as variants:
            engine = variants[0].engine
            prompts = {
                f"question {n}": ids for n, ids in enumerate(_encoded(engine, HYBRID_QUESTIONS), 1)
            }
            found = tuple(compare_variants(variants, prompts, on_answer))
            padded = (engine.target.header,)
        yield DemoResult(quantization, (read_header(paths.demo_hybrid()),), padded, found)


def _measured_pair(
    files: tuple[Path, Path],
    plan: BenchPlan,
    threads: int | None,
    quantization: Quantization,
    on_answer: Callable[[int, int], None],
    on_prompt: Callable[[Comparison], None],
) -> DemoResult:
    with Engine.load(*_load_options(files, threads)) as engine:
        assert engine.draft is not None
        prompts = _encoded(engine, QUESTIONS)
        (found,) = run_bench(
            engine,
            {quantization: prompts},
            plan,
            lambda task, done, total, answer: on_answer(done, total),
            on_prompt,
            _is_narrow,
        )
        total = plan.repeats * len(plan.lengths) * len(prompts)
        on_answer(total, total)
        padded = engine.target.header, engine.draft.header
    return DemoResult(quantization, tuple(map(read_header, paths.demo_pair())), padded, (found,))


def _encoded(engine: Engine, questions: Sequence[str]) -> list[PromptIds]:
    return [engine.encode_chat([{"role": "user", "content": each}]) for each in questions]


def _is_narrow(comparison: Comparison) -> bool:
    drafted = comparison.figures()[1:]
    spans = [(row.speedup_interval, row.speedup) for row in drafted]
    return bool(spans) and all(
        each is not None and each[1] - each[0] <= _NARROW * speedup for each, speedup in spans
    )


@contextmanager
def open_variants(
    files: tuple[Path, Path], plan: BenchPlan, threads: int | None
) -> Iterator[list[Variant]]:
    """Plain, prompt lookup if auto decides, the draft model, and the hybrid's own MTP head.

    Each kind of draft has an engine of its own: plain decoding pays for no head.
    """
    target, draft = _load_options(files, threads)
    with ExitStack() as stack:
        alone, pair, heads = (
            stack.enter_context(Engine.load(target, each))
            for each in (None, draft, replace(target, load_heads=True))
        )
        length = plan.lengths[-1]
        named = [("lookup", alone)] if length == "auto" else []
        named += [("draft model", pair), ("MTP", heads)]
        drafting = [Variant(name, engine, plan, length) for name, engine in named]
        yield [Variant("plain", alone, plan, 0), *drafting]


def _load_options(files: tuple[Path, Path], threads: int | None) -> list[LoadOptions]:
    return [LoadOptions(path, ctx_size=CTX_SIZE, threads=threads) for path in files]


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
    folder = demo_folder()
    labels = f"padding the demo target ({quantization})", f"padding the draft ({quantization})"
    target, draft = (
        padded_copy(source, folder, shape, quantization, partial(on_progress, label))
        for source, shape, label in zip(sources, shapes, labels, strict=True)
    )
    return target, draft
