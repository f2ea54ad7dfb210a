"""Runs all that is measured on a GPU, in order of worth, within so many minutes.

    python benchmarks/gpu/run.py --models FOLDER --draft DRAFT.gguf --output FOLDER --minutes 8

FOLDER holds target-TYPE.gguf of `models.py`; llama-server is $LLAMA_SERVER of `build.sh`. Each step
is a process that writes its results as it finds them, into few files: a line of servers.jsonl for
each answer, one of passes.jsonl for each measurement of passes, documents of `bench`. A step that
is complete is noted in done.txt and not run again; one that takes too long is ended, and goes on
where it was at the next call. --list only prints the steps.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import Parser
from servers import ONE_GRAPH, PEER, PLAIN, VARIANTS

HERE = Path(__file__).parent
_MAIN = (f"{PEER} plain", PLAIN, "auto", f"{PEER} draft-simple 3")
_LEAST = 20  # seconds that a step is worth beginning for


@dataclass(frozen=True, slots=True)
class Step:
    """A command, how many minutes it may take, and what it adds to the environment."""

    name: str
    command: tuple[str, ...]
    minutes: float
    environment: tuple[tuple[str, str], ...] = ()


def steps(args: argparse.Namespace) -> Iterator[Step]:
    """Everything, what is worth most first."""
    out, python = args.output, sys.executable
    targets = {name: args.models / f"target-{name}.gguf" for name in args.types}
    first, *others = targets.values()
    draft, repeats = str(args.draft), ("--repeats", str(args.repeats))

    def passes(target: Path) -> tuple[str, ...]:
        lines = ("--output", str(out / "passes.jsonl"))
        return (python, str(HERE / "passes.py"), str(target), draft, *lines, *repeats)

    def servers(target: Path, minutes: float, clients: int, *variants: str) -> tuple[str, ...]:
        asked = ("--prompts", str(args.prompts), "--max-tokens", str(args.max_tokens))
        where = ("--output", str(out / "servers.jsonl"), "--llama-server", args.llama_server)
        limits = ("--clients", str(clients), "--minutes", str(minutes))
        pair = (str(HERE / "servers.py"), str(target), draft)
        return (python, *pair, *where, *limits, *asked, "--variants", *variants)

    def bench(name: str, *more: str) -> tuple[str, ...]:
        lengths = ("--draft-tokens", "auto", "--tasks", "code", "--repeats", "1")
        document = ("--output", str(out / f"{name}.json"))
        pair = ("-m", str(first), "-md", draft)
        return (python, "-m", "localspec", "bench", "--thorough", *pair, *lengths, *document, *more)

    yield Step("card", (python, "-m", "localspec", "doctor"), 1)
    yield Step("main", servers(first, 3, 1, *_MAIN), 3.5)
    tests = ("tests/llama/test_kept_graphs.py", "tests/engine/test_devices.py")
    yield Step("tests", (python, "-m", "pytest", "-q", *tests), 1.5)
    yield Step("passes", passes(first), 1)
    yield Step("passes, one graph", passes(first), 1, (ONE_GRAPH,))
    yield Step("four clients", servers(first, 2, 4, *_MAIN), 2.5)
    rest = [name for name in VARIANTS if name not in _MAIN]
    yield Step("variants", servers(first, 3, 1, *rest), 3.5)
    for target in others:
        yield Step(f"main, {target.stem}", servers(target, 2, 1, *_MAIN[:3]), 2.5)
        yield Step(f"passes, {target.stem}", passes(target), 1)
    yield Step("exact", bench("exact", "--exact", "--max-tokens", str(args.max_tokens)), 1.5)
    past = ("--past", str(args.past))
    yield Step("long context", (*passes(first), *past), 1)


def run(step: Step, seconds: float, log: Path) -> int:
    """The exit code of a step, 124 where it is ended; its whole group of processes is."""
    with log.open("a") as file:
        file.write(f"\n== {step.name}: {shlex.join(step.command)}\n")
        file.flush()
        process = subprocess.Popen(
            step.command,
            cwd=HERE.parents[1],
            env={**os.environ, **dict(step.environment)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # servers that a step left behind as well
            except ProcessLookupError:
                pass
            process.wait()


def main() -> None:
    """Run what is missing, until the time is over."""
    parser = Parser(__doc__ or "")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--llama-server", default=os.environ.get("LLAMA_SERVER", "llama-server"))
    parser.add_argument("--types", nargs="+", default=["Q4_K_M", "F16", "Q8_0"])
    parser.add_argument("--minutes", type=float, default=8.0, help="of all steps")
    parser.add_argument("--only", nargs="+", help="names of steps")
    parser.add_argument("--list", action="store_true", help="print the steps")
    parser.integers(prompts=10, max_tokens=128, repeats=12, past=8000)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    noted, end = args.output / "done.txt", time.monotonic() + 60 * args.minutes
    done = noted.read_text().splitlines() if noted.exists() else []
    for step in steps(args):
        if args.list:
            print(f"{step.name}: {shlex.join(step.command)}")
        left = min(60 * step.minutes, end - time.monotonic())
        if args.list or step.name in done or (args.only and step.name not in args.only):
            continue
        if left < _LEAST:
            print(f"{step.name}: no time left", flush=True)
            continue
        began = time.monotonic()
        code = run(step, left, args.output / "log.txt")
        print(f"{step.name}: {code} after {time.monotonic() - began:.0f} s", flush=True)
        if code == 0:
            with noted.open("a") as file:
                file.write(f"{step.name}\n")


if __name__ == "__main__":
    main()
