"""Measures `localspec serve` and llama-server on a GPU, one server at a time, for few minutes.

    python benchmarks/gpu/servers.py TARGET.gguf DRAFT.gguf --llama-server PATH --output FILE.jsonl
        [--variants "llama.cpp plain" plain auto] [--clients 1] [--minutes 3]

`benchmarks/real.py` loads all servers at once, to ask them in turn; a card has no room for that.
Here each variant is started by itself and asked one prompt of each of the kinds of
`benchmarks/real.jsonl`, then one more, by so many clients at the same time. The first variant is
measured once more at the end, which says how much the card itself changes. llama-server keeps one
graph, as it does unpatched, although it is built of the same sources. Answers are streamed:
the speed is that behind the first token; that of whole answers, prompts included, stands beside it,
since a server may send several tokens at a time. Each answer is written at once, and what is in the
file is not measured again, so that the same command goes on where it was stopped; --minutes begins
no server later. The last lines are the table of all that is in the file.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from client import ask
from common import Parser, listening
from real import PROMPTS

from localspec.bench.prompts import BenchPrompt, by_task, read_prompts

PEER, PLAIN = "llama.cpp", "plain"
_CTX_SIZE = 2048  # tokens of each client's context


@dataclass(frozen=True, slots=True)
class Server:
    """What a variant adds to the command of its program, and to the environment."""

    arguments: tuple[str, ...]
    drafts: bool = True
    environment: tuple[tuple[str, str], ...] = ()


ONE_GRAPH = ("LLAMA_KEPT_GRAPHS", "0")
VARIANTS = {
    f"{PEER} plain": Server(("--spec-type", "none"), False),
    PLAIN: Server(("--draft", "off"), False),
    "auto": Server(()),
    f"{PEER} draft-simple 3": Server(("--spec-type", "draft-simple", "--spec-draft-n-max", "3")),
    f"{PEER} draft-simple 8": Server(("--spec-type", "draft-simple", "--spec-draft-n-max", "8")),
    f"{PEER} draft-simple,ngram-mod": Server(("--spec-type", "draft-simple,ngram-mod")),
    f"{PEER} ngram-mod": Server(("--spec-type", "ngram-mod"), False),
    "auto, one graph": Server((), environment=(ONE_GRAPH,)),
    "auto, one graph, single": Server(
        (), environment=(ONE_GRAPH, ("LOCALSPEC_PASS_WIDTHS", "single"))
    ),
    "auto, one graph, filled": Server(
        (), environment=(ONE_GRAPH, ("LOCALSPEC_PASS_WIDTHS", "filled"))
    ),
    "auto, single, filled": Server((), environment=(("LOCALSPEC_PASS_WIDTHS", "single filled"),)),
    "auto, no lookup": Server(("--prompt-lookup", "off")),
    "draft 3": Server(("--draft-tokens", "3")),
    "draft 8": Server(("--draft-tokens", "8")),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``run`` tells a variant that is measured again from the first time."""

    target: str
    variant: str
    clients: int
    run: int
    kind: str
    prompt: int
    tokens: int
    seconds: float
    ttft: float
    drafted: int
    accepted: int
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """All answers of a variant: from the start of its server to the last one."""

    target: str
    variant: str
    clients: int
    run: int
    ready_seconds: float
    answer_seconds: float
    memory_mib: int | None
    answers: int

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.target, self.variant, self.clients, self.run


@contextmanager
def changed(environment: Mapping[str, str]) -> Iterator[None]:
    """Other variables for the processes that the block starts."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def command(args: argparse.Namespace, variant: str) -> list[str]:
    """The command of a variant's server, without an address."""
    server, slots = VARIANTS[variant], str(args.clients)
    if variant.startswith(PEER):
        size = str(_CTX_SIZE * args.clients)
        found = [str(args.llama_server), "-m", str(args.target), "-c", size, "--cache-ram", "0"]
    else:
        serve = [sys.executable, "-m", "localspec", "serve"]
        found = [*serve, "-m", str(args.target), "-c", str(_CTX_SIZE)]
    found += ["-np", slots, *server.arguments]
    return [*found, "-md", str(args.draft)] if server.drafts else found


def environment(variant: str) -> dict[str, str]:
    """What a variant's server finds in its environment besides ours."""
    return dict((ONE_GRAPH,) if variant.startswith(PEER) else VARIANTS[variant].environment)


def memory_used() -> int | None:
    """MiB that are taken on all cards together; None without nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True)
    return None if done.returncode else sum(map(int, done.stdout.split()))


def chosen(count: int) -> list[tuple[int, BenchPrompt]]:
    """One prompt of each kind, then the second ones, with their numbers in the file."""
    prompts = read_prompts(PROMPTS)
    groups = list(by_task(prompts, None).values())
    turns = (group[i] for i in range(count) for group in groups if i < len(group))
    return [(prompts.index(each), each) for each, _ in zip(turns, range(count), strict=False)]


class Results:
    """The file of all answers and runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.answers: list[Answer] = []
        self.runs: list[Run] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            fields = json.loads(line)
            if "text" in fields:
                self.answers.append(Answer(**fields))
            else:
                self.runs.append(Run(**fields))

    def add(self, found: Answer | Run) -> None:
        """Keep a result, in the file at once."""
        with self._lock:
            self.answers += [found] if isinstance(found, Answer) else []
            self.runs += [found] if isinstance(found, Run) else []
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(found)) + "\n")

    def has(self, key: tuple[str, str, int, int]) -> bool:
        """Whether a run is complete."""
        return any(each.key == key for each in self.runs)

    def first(self, run: Run, variant: str) -> Run | None:
        """Another variant's first run with the same target and as many clients."""
        key = (run.target, variant, run.clients, 0)
        return next((each for each in self.runs if each.key == key), None)

    def of(self, run: Run) -> list[Answer]:
        """The answers of a run, the newest for each prompt: a try may have been cut off."""
        found = {
            each.prompt: each
            for each in self.answers
            if (each.target, each.variant, each.clients, each.run) == run.key
        }
        return list(found.values())


def measure(args: argparse.Namespace, results: Results, variant: str, run: int) -> None:
    """Start a variant's server and ask it everything."""
    before, began = memory_used(), time.perf_counter()
    with changed(environment(variant)), listening(command(args, variant)) as port:
        ready = time.perf_counter() - began
        ask(port, [{"role": "user", "content": "Say hello."}], max_tokens=8)
        waiting = chosen(args.prompts)[::-1]

        def work() -> None:
            while waiting:
                number, prompt = waiting.pop()
                reply = ask(
                    port,
                    [dict(each) for each in prompt.messages],
                    stream=True,
                    max_tokens=args.max_tokens,
                )
                results.add(
                    Answer(
                        args.target.stem,
                        variant,
                        args.clients,
                        run,
                        prompt.task,
                        number,
                        reply.tokens,
                        reply.seconds,
                        reply.ttft or 0.0,
                        reply.timings.get("draft_n") or 0,
                        reply.timings.get("draft_n_accepted") or 0,
                        reply.text,
                    )
                )

        began = time.perf_counter()
        with ThreadPoolExecutor(args.clients) as pool:
            for asking in [pool.submit(work) for _ in range(args.clients)]:
                asking.result()
        seconds = time.perf_counter() - began
        now = memory_used()
        used = None if now is None or before is None else now - before
        results.add(
            Run(args.target.stem, variant, args.clients, run, ready, seconds, used, args.prompts)
        )


def pace(answers: Sequence[Answer], run: Run) -> float:
    """Tokens per second: of one client behind the first token, of several over the whole time."""
    if run.clients > 1:
        return sum(each.tokens for each in answers) / run.answer_seconds
    seconds = sum(each.seconds - each.ttft for each in answers)
    return sum(each.tokens - 1 for each in answers) / seconds if seconds > 0 else 0.0


def ratio(results: Results, run: Run, variant: str) -> str:
    """The pace over another variant's; of one client also that of the kind that gains least."""
    base = results.first(run, variant)
    if base is None or not (whole := pace(results.of(base), base)):
        return ""
    ours, theirs = results.of(run), results.of(base)
    told = f"{pace(ours, run) / whole:.2f}"
    if run.clients > 1:
        return told
    kinds = {each.kind for each in ours} & {each.kind for each in theirs}
    pairs = [
        [pace([each for each in side if each.kind == kind], run) for side in (ours, theirs)]
        for kind in kinds
    ]
    least = min((mine / other for mine, other in pairs if other), default=0.0)
    return f"{told} ({least:.2f})"


def row(results: Results, run: Run) -> list[str]:
    """A line of the table: beside plain decoding of localspec and of llama.cpp, and its text."""
    answers = results.of(run)
    base = results.first(run, f"{PEER} plain" if run.variant.startswith(PEER) else PLAIN)
    plain = {each.prompt: each.text for each in results.of(base)} if base else {}
    same = sum(plain.get(each.prompt) == each.text for each in answers)
    drafted = sum(each.drafted for each in answers)
    accepted = sum(each.accepted for each in answers)
    return [
        run.target,
        str(run.clients),
        run.variant + " (again)" * run.run,
        f"{pace(answers, run):.1f}",
        f"{sum(each.tokens for each in answers) / sum(each.seconds for each in answers):.1f}",
        ratio(results, run, f"{PEER} plain"),
        ratio(results, run, PLAIN),
        f"{accepted / drafted:.0%}" if drafted else "",
        f"{1000 * statistics.median(each.ttft for each in answers):.0f}",
        "" if run.memory_mib is None else str(run.memory_mib),
        f"{run.ready_seconds:.1f}",
        f"{same} of {len(answers)}" if plain else "",
    ]


def table(results: Results) -> str:
    """All runs in Markdown."""
    head = (
        "target|clients|variant|tok/s|whole|of llama.cpp plain (least kind)|of plain (least kind)|"
        "accepted|first token, ms|MiB|ready, s|text as plain"
    )
    lines = [head, "|".join(["---"] * (head.count("|") + 1))]
    lines += ["|".join(row(results, run)) for run in results.runs if results.of(run)]
    return "\n".join(f"|{line}|" for line in lines)


def main() -> None:
    """Measure what is missing, until the time is over, then print the table."""
    parser = Parser(__doc__ or "")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.integers(clients=1, prompts=10, max_tokens=128)
    args = parser.parse_args()
    results, end = Results(args.output), time.monotonic() + 60 * args.minutes
    asked = [*((each, 0) for each in args.variants), (args.variants[0], 1)]
    for variant, run in asked:
        if results.has((args.target.stem, variant, args.clients, run)):
            continue
        if time.monotonic() > end:
            print("the time is over; the same command goes on", file=sys.stderr)
            break
        try:
            measure(args, results, variant, run)
        except (SystemExit, OSError, RuntimeError) as problem:
            print(f"{variant}: {problem}", file=sys.stderr)
    print(table(results))
    missing = [
        variant
        for variant, run in asked
        if not results.has((args.target.stem, variant, args.clients, run))
    ]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}")


if __name__ == "__main__":
    main()
