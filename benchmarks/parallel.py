"""Compares requests answered at once in shared passes with the same ones after the other.

    python benchmarks/parallel.py

So many clients ask the padded demo pair a question each at the same time, once with a single slot
and once with a slot for each; both take turns. The clients are threads of the library's user;
nothing is drafted from earlier text. Counted are all tokens over the time until the last client has
its answer, reading of prompts included, and for each client the time to its first token. Prints a
table in Markdown for each quantization, with the least and the largest ratio over the batches of
questions, and where a text is not that of a single slot, by how much it falls short of what plain
decoding picks behind the same tokens, beside what kernels round.

With --prompt, a prompt of so many tokens comes in while three clients have answers under way:
tokens per second of the three until its first token, the longest pause of one of them, and the
seconds to that first token.
"""

import argparse
import itertools
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import CTX_SIZE, Parser, conditions, padded_pair, span

import localspec
from localspec.api import Model
from localspec.bench.demo import QUANTIZATIONS, QUESTIONS
from localspec.chat.answer import Answer, collect
from localspec.core import machine
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.text_stream import Prompt
from tests.support.llama.audit import shortfalls
from tests.support.llama.rounding import rounding

# Without prompt lookup: answers to the same question would be drafted from each other.
ASKED: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "prompt_lookup": False}
PARAMS = SamplingParams(temperature=0, ignore_eos=True)
QUESTIONS_HERE = (
    *QUESTIONS,
    "Explain the function os.path.splitext.",
    "Show me the source of shutil.move.",
)
COLUMNS = (
    *("clients", "variant", "tok/s, one slot", "shared", "times (batches)", "accepted"),
    *("first token, s, one slot", "shared", "text"),
)
WAYS: tuple[DraftTokens, ...] = (0, 4, "auto")
_WAY_NAMES: dict[DraftTokens, str] = {0: "plain", "auto": "auto"}
INTERRUPTED = ("variant", "tok/s of the three", "longest pause, s", "first token, s")
_WARM_UP_TOKENS = 16
_DECODERS = 3
_UNDER_WAY = 8  # tokens of each decoder before the long prompt comes in


@dataclass(slots=True)
class Served:
    """A batch of questions: their answers by number, and seconds."""

    answers: dict[int, Answer] = field(default_factory=dict)
    first: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.tokens) for answer in self.answers.values())


@dataclass(frozen=True, slots=True)
class Server:
    """A model that answers clients in threads of their own; those beyond its slots wait."""

    model: Model
    tokens: int

    def serve(self, prompts: Sequence[Prompt], clients: int, length: DraftTokens) -> Served:
        """Answer all prompts; each client asks the next one when it has its answer."""
        waiting, served = deque(enumerate(prompts)), Served()

        def work() -> None:
            while waiting:
                number, prompt = waiting.popleft()
                asked = time.perf_counter()
                pieces = self.model.stream(
                    prompt, draft_tokens=length, max_tokens=self.tokens, **ASKED
                )
                first = next(pieces)
                served.first.append(time.perf_counter() - asked)
                served.answers[number] = collect(itertools.chain([first], pieces))

        began = time.perf_counter()
        run_all([work] * clients)
        served.seconds = time.perf_counter() - began
        return served


def run_all(work: Sequence[Callable[[], None]]) -> None:
    """Run everything, each in a thread of its own."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass(frozen=True, slots=True)
class Difference:
    """A text that is not that of a single slot.

    ``shortfall`` is by how many logits a token falls short of what plain decoding picks behind the
    same text, at most; rounding alone explains no more than ``explained``.
    """

    shortfall: float
    explained: float


@dataclass(frozen=True, slots=True)
class Row:
    """One variant with so many clients; a pair of batches for each repeat."""

    clients: int
    length: DraftTokens
    single: list[Served]
    shared: list[Served]
    differences: list[Difference]

    def line(self) -> str:
        """A row of the table in Markdown."""
        pairs = list(zip(self.single, self.shared, strict=True))
        ratios = [one.seconds / many.seconds for one, many in pairs]
        stats = [answer.stats for each in self.shared for answer in each.answers.values()]
        drafted = sum(each.drafted for each in stats)
        accepted = sum(each.accepted for each in stats)
        cells = [
            str(self.clients),
            _WAY_NAMES.get(self.length, f"draft {self.length}"),
            f"{pace(self.single):.1f}",
            f"{pace(self.shared):.1f}",
            f"{pace(self.shared) / pace(self.single):.2f} ({span(ratios, 2)})",
            f"{accepted / drafted:.0%}" if drafted else "",
            f"{waited(self.single):.2f}",
            f"{waited(self.shared):.2f}",
            self._texts(),
        ]
        return "|" + "|".join(cells) + "|"

    def _texts(self) -> str:
        if not self.differences:
            return "same"
        proven = all(each.shortfall <= each.explained for each in self.differences)
        every = sum(len(each.answers) for each in self.shared)
        worst = max(self.differences, key=lambda each: each.shortfall - each.explained)
        return (
            f"{'rounding' if proven else 'DIFFERENT'} in {len(self.differences)} of {every}: at "
            f"most {worst.shortfall:.4f} of {worst.explained:.4f} logits"
        )


def pace(batches: Sequence[Served]) -> float:
    """Tokens per second of all clients together."""
    return sum(each.tokens for each in batches) / sum(each.seconds for each in batches)


def waited(batches: Sequence[Served]) -> float:
    """Mean seconds to a client's first token."""
    return statistics.mean(seconds for each in batches for seconds in each.first)


def measure(args: argparse.Namespace, files: Sequence[Path]) -> Iterator[Row]:
    """All variants with each number of clients."""
    options = {"ctx_size": CTX_SIZE, "threads": args.threads}
    most = max(2, *args.clients)
    with (
        localspec.load(*files, **options) as one,
        localspec.load(*files, parallel=most, **options) as many,
    ):
        single = one.engine
        servers = [Server(model, args.tokens) for model in (one, many)]
        prompts = [
            single.encode_chat([{"role": "user", "content": question}])
            for question in QUESTIONS_HERE
        ]
        for server in servers:
            for length in WAYS:
                replace(server, tokens=_WARM_UP_TOKENS).serve(prompts[:2], 2, length)
        for clients in args.clients:
            batches = [
                [prompts[(n * clients + i) % len(prompts)] for i in range(clients * args.asks)]
                for n in range(args.repeats)
            ]
            for length in WAYS:
                pairs = [
                    one_by_one(servers, batch, clients, length, swapped=bool(n % 2))
                    for n, batch in enumerate(batches)
                ]
                found = [
                    each
                    for batch, pair in zip(batches, pairs, strict=True)
                    for each in differences(single, batch, *pair)
                ]
                yield Row(clients, length, [a for a, _ in pairs], [b for _, b in pairs], found)


def one_by_one(
    servers: Sequence[Server],
    prompts: Sequence[Prompt],
    clients: int,
    length: DraftTokens,
    *,
    swapped: bool,
) -> tuple[Served, Served]:
    """What both servers give, the second asked first where ``swapped``."""
    first, second = servers
    if swapped:
        late = second.serve(prompts, clients, length)
        return first.serve(prompts, clients, length), late
    return first.serve(prompts, clients, length), second.serve(prompts, clients, length)


def differences(
    engine: Engine, prompts: Sequence[Prompt], one: Served, many: Served
) -> Iterator[Difference]:
    """One for each text that is not that of the single slot."""
    for i, prompt in enumerate(prompts):
        text = many.answers[i].tokens
        if one.answers[i].tokens != text:
            short = max(shortfalls(engine, prompt, PARAMS, text), default=0.0)
            yield Difference(short, 2 * rounding(engine, prompt, text))


@dataclass(slots=True)
class Interrupted:
    """Three answers under way while a long prompt is read."""

    prompt: Prompt
    said: list[float] = field(default_factory=list)  # when each token of the three came
    gaps: list[float] = field(default_factory=list)  # between pieces of one of the three
    asked: float = 0.0
    first: float = 0.0
    _under_way: list[int] = field(default_factory=lambda: [0] * _DECODERS)

    def run(self, model: Model, prompts: Sequence[Prompt], length: DraftTokens) -> None:
        """Start the decoders, then the prompt, and end all with its first token."""
        decoders = [partial(self._decode, i, model, prompts[i], length) for i in range(_DECODERS)]
        run_all([*decoders, partial(self._read, model, length)])

    @property
    def pace(self) -> float:
        """Tokens per second of the three while the prompt was read."""
        return sum(self.asked <= at < self.first for at in self.said) / self.seconds

    @property
    def seconds(self) -> float:
        """From the prompt to its first token."""
        return self.first - self.asked

    def _decode(self, number: int, model: Model, prompt: Prompt, length: DraftTokens) -> None:
        before = 0.0
        with closing(model.stream(prompt, draft_tokens=length, **ASKED)) as pieces:
            for piece in pieces:
                now = time.perf_counter()
                self._under_way[number] += len(piece.tokens)
                self.said += [now] * len(piece.tokens)
                if self.first:
                    return
                if self.asked and before:
                    self.gaps.append(now - before)
                before = now

    def _read(self, model: Model, length: DraftTokens) -> None:
        while min(self._under_way) < _UNDER_WAY:
            time.sleep(0.001)
        self.asked = time.perf_counter()
        with closing(model.stream(self.prompt, draft_tokens=length, **ASKED)) as pieces:
            next(pieces)
            self.first = time.perf_counter()


def interrupt(args: argparse.Namespace, files: Sequence[Path]) -> Iterator[str]:
    """A line for each variant, about a long prompt among answers under way."""
    size = args.prompt + 2 * CTX_SIZE
    loaded = localspec.load(*files, parallel=_DECODERS + 1, ctx_size=size, threads=args.threads)
    with loaded as model:
        engine = model.engine
        prompts = [engine.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS_HERE]
        for length in WAYS:
            found = []
            for repeat in range(args.repeats):
                # Another text each time, as the cache holds those that were read.
                text = f"{length} {repeat} " + " ".join(QUESTIONS_HERE) * (1 + args.prompt // 32)
                long = engine.encode_chat([{"role": "user", "content": text}])
                del long[args.prompt :]
                found.append(Interrupted(long))
                found[-1].run(model, prompts, length)
            paces, gaps = [each.pace for each in found], [max(each.gaps) for each in found]
            cells = [
                _WAY_NAMES.get(length, f"draft {length}"),
                f"{statistics.median(paces):.1f} ({span(paces, 1)})",
                f"{statistics.median(gaps):.2f}",
                f"{statistics.median(each.seconds for each in found):.2f}",
            ]
            yield "|" + "|".join(cells) + "|"


def main() -> None:
    """Print the tables."""
    parser = Parser(__doc__)
    parser.add_argument("--quantizations", nargs="+", default=list(QUANTIZATIONS))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--files", type=Path, nargs=2, help="a target and a draft, in place")
    parser.integers(repeats=2, asks=2, tokens=64, prompt=0, threads=machine.physical_cores())
    args = parser.parse_args()
    load = f"load average {os.getloadavg()[0]:.1f} before"
    print(conditions(args.threads, f"{args.tokens} tokens a client", load))
    sources: dict[str, Callable[[], Sequence[Path]]] = (
        {"the files given": lambda: args.files}
        if args.files
        else {name: partial(padded_pair, name) for name in args.quantizations}
    )
    for name, files in sources.items():
        columns = INTERRUPTED if args.prompt else COLUMNS
        print(f"\n{name}:\n\n|" + "|".join(columns) + "|\n|" + "---|" * len(columns), flush=True)
        rows = (row.line() for row in measure(args, files()))
        for line in interrupt(args, files()) if args.prompt else rows:
            print(line, flush=True)
    print(f"\nload average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
