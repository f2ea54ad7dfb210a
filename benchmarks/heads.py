"""What a trimmed head accepts, and what prompt lookup gains behind a head, without a clock.

    python benchmarks/heads.py [--rows 3072 2048 1024] [--tables "3090 8B Q4_0" ...]

The bundled hybrid answers two kinds of prompts. Prose are questions. Edits ask each of them again,
after the answer, so that most of a given code is repeated: the hybrid is too small to change it
when asked to. First with its head whole and with fewer output rows, at one draft length: tokens are
counted. Then by auto with the head and prompt lookup, and with each alone, where a pass costs what
a table of `benchmarks/cost_tables.py` says, so that a busy machine changes nothing; --step is what
a step of the head costs, in plain passes. Texts that are not the plain one are named.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from common import CTX_SIZE, Parser
from cost_tables import COST_TABLES, CostTable

from localspec.bench.plan import BenchPlan, Variant
from localspec.chat.message import Message
from localspec.chat.stats import GenerationStats
from localspec.core import paths
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header
from localspec.self_draft.trim_heads import trim_heads
from localspec.self_draft.vocabulary import count_file, ranked
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.loop import Logits

PROMPT = 64  # tokens: a wider pass reads a prompt, which is not counted
PARAMS = SamplingParams(temperature=0, ignore_eos=True)
PROSE, EDITS = "prose", "edits"
# Those that the hybrid answers without repeating itself.
HYBRID_QUESTIONS = (
    "Show me the source of os.path.join.",
    "How is random.choice implemented?",
    "How is symtable.SymbolTable.has_children implemented?",
    "Show me the source of idlelib.scrolledlist.ScrolledList.on_select.",
    "Explain the method asyncio.windows_events.IocpProactor.select.",
    "How is pdb.Pdb.handle_command_def implemented?",
)
# What trimmed heads are counted on: the beginning of each module of the standard library, and of
# these packages of it, which the questions are about besides.
COUNTED, PACKAGES = 20_000, ("asyncio", "idlelib")


class Machine:
    """A clock that passes move by the costs of a table."""

    def __init__(self) -> None:
        self.now, self.table = 0.0, COST_TABLES[0]

    def __call__(self) -> float:
        return self.now

    def attach(self, engine: Engine) -> None:
        """Let the passes of both models move the clock."""
        self._pace(engine.target, lambda width: self.table.verify(width))
        if isinstance(engine.draft, Head):
            self._pace(engine.draft, lambda width: self.table.draft(width))

    def _pace(self, model: LlamaModel | Head, cost: Callable[[int], float]) -> None:
        own = model.decode

        def decode(tokens: list[int], rows: int) -> Logits:
            logits = own(tokens, rows)
            self.now += cost(len(tokens)) if len(tokens) <= PROMPT else 0
            return logits

        model.decode = decode  # type: ignore[method-assign,assignment]


class Known:
    """The profile that a short calibration of this table would have found; never saved."""

    notes = ()

    def __init__(self, table: CostTable) -> None:
        self.known = table.calibrated()

    def learnt(self, clock: object) -> PairProfile:
        return self.known

    def introduce(self, say: object) -> None:
        pass

    def save(self) -> None:
        pass


class Bench:
    """The hybrid alone and with its head, and the prompts."""

    def __init__(self, stack: ExitStack, args: argparse.Namespace) -> None:
        self._stack, self.machine = stack, Machine()
        path = paths.bundled_folder() / "hybrid.gguf"
        self.options = LoadOptions(path, ctx_size=CTX_SIZE, threads=args.threads)
        self.alone = self.open(None)
        self.heads = self.open(replace(self.options, load_heads=True))
        self.plan = BenchPlan(PARAMS, (0, "auto"), 1, args.tokens, clock=self.machine)
        self._plain = Variant("plain", self.alone, self.plan, 0)
        self.prompts = prompts_of(self._plain, args.prompts)
        self._said: dict[str, list[int]] = {}
        self._others: set[str] = set()

    def open(self, draft: LoadOptions | None) -> Engine:
        """An engine whose passes move the clock."""
        engine = self._stack.enter_context(Engine.load(self.options, draft))
        engine.profile = Known(self.machine.table)  # type: ignore[assignment]
        self.machine.attach(engine)
        return engine

    def answers(
        self, engine: Engine, length: DraftTokens, kind: str, *, lookup: bool = True
    ) -> GenerationStats:
        """The figures of all answers to one kind of prompt, each given twice."""
        engine.profile = Known(self.machine.table)  # type: ignore[assignment]
        variant = Variant(kind, engine, replace(self.plan, prompt_lookup=lookup), length)
        stats = GenerationStats()
        for prompt in self.prompts[kind] * 2:
            ids = engine.encode_text(prompt, special=True)
            found = variant.answer(ids)
            if prompt not in self._said:
                self._said[prompt] = self._plain.answer(ids).tokens
            if found.tokens != self._said[prompt] and prompt not in self._others:
                self._others.add(prompt)
                print(f"another text: {prompt!r}")
            stats.merge(found.stats)
        return stats


def sidecar(engine: Engine, rows: int, folder: Path) -> Path:
    """The hybrid's head with so many output rows: of the tokens in modules of Python itself."""
    header = read_header(engine.target.header.path)
    text, path = folder / "counts.txt", folder / f"mtp-{rows}.gguf"
    if not text.exists():
        library = Path(os.__file__).parent
        folders = [library, *(library / name for name in PACKAGES)]
        sources = [each for folder in folders for each in sorted(folder.glob("*.py"))]
        text.write_text("".join(each.read_text("utf-8")[:COUNTED] for each in sources))
    ids = ranked(engine, count_file(engine, text), engine.target.n_vocab)
    trim_heads(header, header, ids[:rows], path)
    return path


def prompts_of(plain: Variant, count: int) -> dict[str, list[str]]:
    """The texts of each kind of prompt."""
    found: dict[str, list[str]] = {PROSE: [], EDITS: []}
    for question in HYBRID_QUESTIONS[:count]:
        asked: Message = {"role": "user", "content": question}
        prompt = as_text(plain, asked)
        said: Message = {
            "role": "assistant",
            "content": plain.answer(plain.engine.encode_text(prompt, special=True)).text,
        }
        found[PROSE].append(prompt)
        found[EDITS].append(as_text(plain, asked, said, asked))
    return found


def as_text(variant: Variant, *messages: Message) -> str:
    """A conversation in the model's chat format; BOS is left out, since both sides add it."""
    template = variant.engine.template
    text, _ = template.begin(messages)
    return text.removeprefix(template.bos)


def show_rows(bench: Bench, args: argparse.Namespace, folder: Path) -> None:
    """Print what the head accepts, by the number of its output rows."""
    print(f"\n|output rows|{'|'.join(f'accepted, {kind}|tokens/round' for kind in bench.prompts)}|")
    print("|---|" + "---|---|" * len(bench.prompts))
    for rows in (None, *args.rows):
        if rows is None:
            engine = bench.heads
        else:
            path = sidecar(bench.alone, rows, folder)
            engine = bench.open(replace(bench.options, path=path))
        found = [bench.answers(engine, args.length, kind) for kind in bench.prompts]
        cells = "|".join(
            f"{each.acceptance_rate or 0:.1%}|{each.mean_accepted_length:.2f}" for each in found
        )
        print(f"|{'all' if rows is None else f'{rows:,}'}|{cells}|", flush=True)


def show_lookup(bench: Bench, args: argparse.Namespace) -> None:
    """Print what auto gains by table and kind of prompt, in plain answers."""
    print("\n|table, step of the head|prompts|head and lookup|head|lookup|both over the head|")
    print("|---|---|---|---|---|---|")
    for table in COST_TABLES:
        if args.tables and table.name not in args.tables:
            continue
        bench.machine.table = table = replace(table, step=args.step or table.step)
        for kind in bench.prompts:
            found = [
                bench.answers(bench.alone, 0, kind),
                bench.answers(bench.heads, "auto", kind),
                bench.answers(bench.heads, "auto", kind, lookup=False),
                bench.answers(bench.alone, "auto", kind),
            ]
            plain, both, head, lookup = (each.seconds / each.tokens for each in found)
            cells = f"{plain / both:.2f}|{plain / head:.2f}|{plain / lookup:.2f}|{head / both:.2f}"
            print(f"|{table.name}, {table.step:g}|{kind}|{cells}|", flush=True)


def main() -> None:
    """Print both tables."""
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[3072, 2048, 1024, 512])
    parser.add_argument("--tables", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--step", type=float, default=0.0, help="default: what each table says")
    parser.integers(prompts=len(HYBRID_QUESTIONS), tokens=96, length=3, threads=1)
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(stack, args)
        show_rows(bench, args, folder)
        show_lookup(bench, args)


if __name__ == "__main__":
    main()
