"""Demo of the hybrid: every way to draft for it, answering the same questions in turn."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from localspec.bench.comparison import Comparison
from localspec.bench.demo import CTX_SIZE, QUANTIZATIONS, Progress, padded_hybrid
from localspec.bench.padding.encoder import Quantization
from localspec.bench.plan import BenchPlan, PromptIds
from localspec.bench.variants import Way, compare_ways
from localspec.core import paths
from localspec.core.config import DraftTokens, LoadOptions
from localspec.core.sampling_params import SamplingParams
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
            prompts = _questions(ways[0].engine)
            comparisons = tuple(compare_ways(ways, prompts, told))
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
        lookup = [Way("lookup", alone, plan)] if plan.lengths[-1] == "auto" else []
        yield [plain, *lookup, Way("draft model", pair, plan), Way("MTP", heads, plan)]


def _questions(engine: Engine) -> dict[str, PromptIds]:
    """The questions by name, as the model reads them."""
    return {
        f"question {i}": engine.encode_chat([{"role": "user", "content": question}])
        for i, question in enumerate(QUESTIONS, 1)
    }
