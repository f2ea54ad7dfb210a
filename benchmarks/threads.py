"""Measures plain decoding by how it is asked: `run`, servers, asyncio, a batch.

    python benchmarks/threads.py TARGET.gguf [--llama-server llama-build/bin/llama-server]

Everything decodes the same question greedily with the same file and number of threads; only the
thread that asks differs, and it must not matter. `run` answers in its main thread and is the
reference. Servers are loaded at once and idle while others answer; `run`, the program with asyncio
and the batch are processes of their own, and loading them does not count. All take turns, and the
order alternates between rounds.

Tokens per second are those after the first token: of one client by its own clock (a whole answer
without the server's time for the prompt), of four clients all their tokens together, with their
prompts, which are in the servers' caches. A ratio is over `run` in the same round. The last line
is everything as JSON. `benchmarks/plain.py` says how to build llama-server.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from client import ask
from common import CTX_SIZE, Parser, conditions, listening, span

import localspec
from localspec.core import machine

QUESTIONS = (
    "Write a Python class for an LRU cache with get and put in constant time.",
    "Why is the sky blue, in simple words?",
    "Tell a bedtime story about a fox who is afraid of the dark.",
    "What should I think about before adopting a dog?",
)
MANY = len(QUESTIONS)  # clients at the same time, and slots for them
REFERENCE = "run"

Way = Callable[[], float]  # tokens per second of one answer, or of four at the same time


def chat(question: str) -> list[dict[str, str]]:
    """The question as messages."""
    return [{"role": "user", "content": question}]


def localspec_command(command: str, args: argparse.Namespace) -> list[str]:
    """A command of localspec that decodes plainly; what it is asked comes behind it."""
    return [
        sys.executable,
        "-m",
        "localspec",
        command,
        "-m",
        str(args.target),
        *common_flags(args),
    ] + [*("--draft", "off")]


def common_flags(args: argparse.Namespace) -> list[str]:
    """Flags that localspec and llama-server share."""
    return ["-c", str(CTX_SIZE), "-t", str(args.threads), "-fa", args.attention]


def run(args: argparse.Namespace) -> float:
    """An answer of ``localspec run``."""
    command = localspec_command("run", args) + ["--temp", "0", "--ignore-eos", "--json"]
    command += ["-n", str(args.max_tokens), QUESTIONS[0]]
    speed: float = json.loads(output(command))["generation_tps"]
    return speed


def run_batch(args: argparse.Namespace) -> float:
    """An answer of ``localspec run --batch``."""
    with tempfile.TemporaryDirectory() as folder:
        lines, results = Path(folder) / "lines.jsonl", Path(folder) / "results.jsonl"
        body = {"messages": chat(QUESTIONS[0]), "max_tokens": args.max_tokens, "ignore_eos": True}
        lines.write_text(json.dumps(body) + "\n")
        command = localspec_command("run", args) + ["--temp", "0", "--batch", str(lines)]
        output([*command, "-o", str(results)])
        response = json.loads(results.read_text())["response"]
    speed: float = response["body"]["timings"]["predicted_per_second"]
    return speed


def run_asyncio(args: argparse.Namespace) -> float:
    """An answer read by ``async for`` in a process of its own."""
    command = [sys.executable, __file__, str(args.target), "--child"]
    command += ["--max-tokens", str(args.max_tokens), "--threads", str(args.threads)]
    return float(output(command))


def output(command: Sequence[str]) -> str:
    """What a command prints; SystemExit with its last words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-500:]}")
    return done.stdout


async def read_asynchronously(args: argparse.Namespace) -> float:
    """Tokens per second of an answer of the library, by this program's clock."""
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": args.max_tokens}
    with localspec.load(args.target, "off", ctx_size=CTX_SIZE, threads=args.threads) as model:
        began, tokens = 0.0, 0
        async for piece in model.stream(QUESTIONS[0], **options):
            ended = time.perf_counter()
            if began:
                tokens += len(piece.tokens)
            else:
                began = ended
    return tokens / (ended - began)


def one_client(port: int, tokens: int, *, stream: bool) -> float:
    """Tokens per second of one client."""
    return ask(port, chat(QUESTIONS[0]), stream=stream, max_tokens=tokens, ignore_eos=True).speed


def many_clients(port: int, tokens: int) -> float:
    """Tokens per second of four clients together."""

    def answered(question: str) -> int:
        return ask(port, chat(question), max_tokens=tokens, ignore_eos=True).tokens

    began = time.perf_counter()
    with ThreadPoolExecutor(MANY) as clients:
        count = sum(clients.map(answered, QUESTIONS))
    return count / (time.perf_counter() - began)


def servers(args: argparse.Namespace) -> dict[str, list[str]]:
    """The commands of servers, by name and number of slots."""
    found = {}
    for slots in (1, MANY):
        found[f"serve -np {slots}"] = [*localspec_command("serve", args), "-np", str(slots)]
    for slots in (1, MANY) if args.llama_server else ():
        command = [str(args.llama_server), "-m", str(args.target), *common_flags(args)]
        # Its -c is of all slots together.
        command[command.index("-c") + 1] = str(CTX_SIZE * slots)
        command += ["-np", str(slots), "--spec-type", "none", "--cache-ram", "0"]
        found[f"llama-server -np {slots}"] = command
    return found


def ways(args: argparse.Namespace, stack: ExitStack) -> dict[str, Way]:
    """Everything that is measured, by name; servers live as long as the stack."""
    found: dict[str, Way] = {REFERENCE: partial(run, args)}
    for name, command in servers(args).items():
        port, tokens = stack.enter_context(listening(command)), args.max_tokens
        found[f"{name}, one client"] = partial(one_client, port, tokens, stream=False)
        found[f"{name}, one client, streamed"] = partial(one_client, port, tokens, stream=True)
        if name.endswith(str(MANY)):
            found[f"{name}, four clients"] = partial(many_clients, port, tokens)
    found["async for"] = partial(run_asyncio, args)
    found["run --batch"] = partial(run_batch, args)
    return {name: way for name, way in found.items() if args.only is None or wanted(name, args)}


def wanted(name: str, args: argparse.Namespace) -> bool:
    """Whether a way is the reference, or one of those asked for."""
    return name == REFERENCE or any(each in name for each in args.only)


def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens per second by name, round by round."""
    with ExitStack() as stack:
        everything = ways(args, stack)
        speeds: dict[str, list[float]] = {name: [] for name in everything}
        for name, way in everything.items():
            if "client" in name:
                way()  # the prompts, into the caches
        for turn in range(args.rounds):
            for name in list(everything)[:: -1 if turn % 2 else 1]:
                speeds[name].append(everything[name]())
                print(f"round {turn + 1}  {name:40} {speeds[name][-1]:6.1f}", file=sys.stderr)
    return speeds


def show(speeds: dict[str, list[float]]) -> None:
    """Print a row for each way."""
    print(f"{'':40}  tok/s   over run (least to most)")
    for name, each in speeds.items():
        ratios = [a / b for a, b in zip(each, speeds[REFERENCE], strict=True)]
        middle = statistics.median(ratios)
        print(f"{name:40} {statistics.median(each):6.1f}   {middle:.2f} ({span(ratios, 2)})")


def main() -> None:
    """Print progress on stderr, then a table and one line of JSON."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path, help="a GGUF file")
    parser.add_argument("--llama-server", type=Path, help="its program, to be compared with")
    parser.add_argument("--only", nargs="+", help="parts of the names of rows; default: all")
    parser.add_argument("--attention", default="auto", help="flash attention of all: on, off")
    parser.integers(rounds=3, max_tokens=96, threads=machine.physical_cores())
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(asyncio.run(read_asynchronously(args)))
        return
    if args.llama_server is None:
        print("llama-server is left out: --llama-server names no program.", file=sys.stderr)
    load = f"load average {os.getloadavg()[0]:.1f} before"
    on = conditions(args.threads, args.target.name, f"{args.max_tokens} tokens", load)
    print(on, flush=True)
    speeds = measure(args)
    show(speeds)
    print(json.dumps({"conditions": on, "speeds": speeds}))


if __name__ == "__main__":
    main()
