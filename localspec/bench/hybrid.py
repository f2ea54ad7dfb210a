"""Demo of the hybrid: every way to draft for it, answering the same questions in turn."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from localspec.bench.comparison import Comparison
from localspec.bench.demo import CTX_SIZE, QUANTIZATIONS, Progress, padded_hybrid
from localspec.bench.equality import Difference, DifferenceFinder
from localspec.bench.figures import Side
from localspec.bench.padding.encoder import Quantization
from localspec.bench.plan import BenchPlan, PromptIds
from localspec.bench.run import answer, take_turns, warm_up
from localspec.core import paths
from localspec.core.config import DraftTokens, LoadOptions
from localspec.core.sampling_params import SamplingParams
from localspec.engine.answer import Answer
from localspec.engine.engine import Engine
from localspec.metadata.header import ModelHeader, read_header

# Which the hybrid answers without repeating itself.
QUESTIONS = (
    "Show me the source of os.path.join.",
    "How is random.choice implemented?",
    "How is symtable.SymbolTable.has_children implemented?",
    "Show me the source of idlelib.scrolledlist.ScrolledList.on_select.",
    "Explain the method asyncio.windows_events.IocpProactor.select.",
    "How is pdb.Pdb.handle_command_def implemented?",
)


@dataclass(frozen=True, slots=True)
class Way:
    """An engine and how it answers: with the second of the plan's draft lengths; the first is 0."""

    name: str
    engine: Engine
    plan: BenchPlan

    def answer(self, prompt: PromptIds) -> Answer:
        """Generate once from empty caches."""
        return answer(self.engine, prompt, self.plan, self.plan.lengths[1])

    def differences(
        self, name: str, prompt: PromptIds, plain: Sequence[Answer], ours: Sequence[Answer]
    ) -> list[Difference]:
        """Where the answers to a prompt of this name leave the first plain one, and why."""
        regenerate = partial(answer, self.engine, prompt, self.plan)
        finder = DifferenceFinder(self.engine, name, prompt, self.plan, regenerate)
        return list(finder.among([plain, ours]))


@dataclass(frozen=True, slots=True)
class HybridResult:
    """One quantisation of the hybrid with every way to draft for it.

    ``bundled`` is the header before padding. Each of ``comparisons`` is one way's, which is its
    task; all have the same plain side.
    """

    quantization: Quantization
    bundled: ModelHeader
    target: ModelHeader
    comparisons: tuple[Comparison, ...]

    def as_json(self) -> dict[str, object]:
        """Plain data for ``--json``."""
        return {
            "quantization": self.quantization,
            "bundled": self.bundled.as_json(),
            "target": self.target.as_json(),
            "ways": [comparison.as_json() for comparison in self.comparisons],
        }


def run_hybrid_demo(
    *,
    draft_tokens: DraftTokens,
    repeats: int,
    max_tokens: int,
    threads: int | None = None,
    on_progress: Progress = lambda label, done, total: None,
) -> Iterator[HybridResult]:
    """Measure every quantisation of the padded hybrid, greedily; one result at a time."""
    plan = BenchPlan(SamplingParams(temperature=0), (0, draft_tokens), repeats, max_tokens)
    for quantization in QUANTIZATIONS:
        files = padded_hybrid(quantization, on_progress)
        told = partial(on_progress, f"measuring the {quantization} hybrid")
        with open_ways(files, plan, threads) as ways:
            comparisons = tuple(_compare(ways, plan, told))
            target = ways[0].engine.target.header
        yield HybridResult(quantization, read_header(paths.demo_hybrid()), target, comparisons)


@contextmanager
def open_ways(
    files: tuple[Path, Path], plan: BenchPlan, threads: int | None
) -> Iterator[list[Way]]:
    """Plain, prompt lookup if auto decides, the draft model, and the hybrid's own MTP head.

    Each kind of draft has an engine of its own: plain decoding pays for no head.
    """
    target, draft = (LoadOptions(path, ctx_size=CTX_SIZE, threads=threads) for path in files)
    with ExitStack() as stack:
        alone, pair, heads = (
            stack.enter_context(Engine.load(target, each))
            for each in (None, draft, replace(target, load_heads=True))
        )
        plain = Way("plain", alone, replace(plan, lengths=(0, 0)))
        lookup = [Way("suffix", alone, plan)] if plan.lengths[-1] == "auto" else []
        yield [plain, *lookup, Way("draft model", pair, plan), Way("MTP", heads, plan)]


def _compare(
    ways: Sequence[Way], plan: BenchPlan, on_answer: Callable[[int, int], None]
) -> Iterator[Comparison]:
    """One for each way but the first, which is plain."""
    engine = ways[0].engine
    prompts = {
        f"question {i}": engine.encode_chat([{"role": "user", "content": question}])
        for i, question in enumerate(QUESTIONS, 1)
    }
    for way in ways:
        warm_up(way.engine, prompts["question 1"], way.plan)
    count, total = itertools.count(1), plan.repeats * len(ways) * len(prompts)
    rows = [
        take_turns(
            [partial(way.answer, prompt) for way in ways],
            plan.repeats,
            lambda: on_answer(next(count), total),
        )
        for prompt in prompts.values()
    ]
    for i, way in enumerate(ways[1:], 1):
        differences = [
            difference
            for (name, prompt), row in zip(prompts.items(), rows, strict=True)
            for difference in way.differences(name, prompt, row[0], row[i])
        ]
        sides = _side(0, [row[0] for row in rows]), _side(plan.lengths[1], [row[i] for row in rows])
        yield Comparison(way.name, tuple(prompts), sides, tuple(differences))


def _side(length: DraftTokens, answers: Sequence[Sequence[Answer]]) -> Side:
    """From answers by prompt and repeat."""
    return Side(length, tuple(zip(*answers, strict=True)))
