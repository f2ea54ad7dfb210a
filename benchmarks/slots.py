"""Compares drafting with plain decoding where several clients ask a server at once.

    python benchmarks/slots.py TARGET.gguf DRAFT.gguf --clients 4 --tokens 40 --batches 3

Two servers with as many slots as clients take turns, one plain and one with `auto`. In each batch
all clients ask prompts of `benchmarks/real.jsonl`, kinds in mixed order, until each was answered;
no prompt comes twice, so --batches is at most what they are enough for. Answers have at most half
to one and a half times --tokens: if all were as long, the slots of the plain server would end
together and read their next prompts together, which clients that know nothing of each other do not
cause. Counted are all tokens over the time until the last answer is there, reading of prompts
included. With --ignore-eos answers do not end before that. With --fresh the profile of the pair is
an empty one. Prints a row for each batch, with the tokens of a round, and the ratio of all batches.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from client import Reply, ask
from common import Parser, conditions, listening

from localspec.bench.prompts import BenchPrompt, read_prompts
from localspec.core import machine

PROMPTS = Path(__file__).with_name("real.jsonl")
_GOLDEN = 0.618  # fractions of its multiples spread evenly


def mixed(prompts: Sequence[BenchPrompt], longest: int) -> Iterator[BenchPrompt]:
    """Prompts of at most so many characters, one of each kind in turn."""
    kinds: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        if sum(len(each["content"]) for each in prompt.messages) <= longest:
            kinds.setdefault(prompt.task, []).append(prompt)
    while any(kinds.values()):
        yield from (each.pop(0) for each in kinds.values() if each)


def batch(
    port: int, prompts: Sequence[BenchPrompt], args: argparse.Namespace
) -> tuple[float, list[Reply]]:
    """Seconds until all prompts are answered, and the replies in their order."""

    def one(number: int) -> Reply:
        messages = [dict(each) for each in prompts[number].messages]
        return ask(
            port,
            messages,
            max_tokens=round(args.tokens * (0.5 + number * _GOLDEN % 1)),
            temperature=args.temperature,
            seed=7,
            ignore_eos=args.ignore_eos,
        )

    began = time.perf_counter()
    with ThreadPoolExecutor(args.clients) as pool:
        replies = list(pool.map(one, range(len(prompts))))
    return time.perf_counter() - began, replies


def main() -> None:
    """Run the comparison."""
    parser = Parser(__doc__ or "")
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.integers(clients=4, tokens=40, batches=3, asks=3, longest=2500, ctx_size=2048)
    parser.integers(threads=machine.physical_cores())
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--extra", nargs="*", default=[], help="further flags of both servers")
    args = parser.parse_args()
    if args.fresh:
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    print(conditions(args.threads))
    common = ["-m", str(args.target), "-c", str(args.ctx_size), "-t", str(args.threads)]
    common += ["-np", str(args.clients), *(f"--{each}" for each in args.extra)]
    serve = [sys.executable, "-m", "localspec", "serve", *common]
    found = list(mixed(read_prompts(PROMPTS), args.longest))
    size = args.clients * args.asks
    with ExitStack() as stack:
        plain = stack.enter_context(listening([*serve, "--draft", "off"]))
        auto = stack.enter_context(listening([*serve, "-md", str(args.draft)]))
        print("|batch|plain, tok/s|auto|ratio|tokens a round|drafted|accepted|other texts|")
        print("|---|---|---|---|---|---|---|---|")
        sums = dict.fromkeys((plain, auto), 0.0)
        for n in range(min(args.batches, len(found) // size)):
            prompts = found[n * size : (n + 1) * size]
            replies: dict[int, list[Reply]] = {}
            rates: dict[int, float] = {}
            for port in (plain, auto) if n % 2 == 0 else (auto, plain):
                seconds, replies[port] = batch(port, prompts, args)
                rates[port] = sum(each.tokens for each in replies[port]) / seconds
                sums[port] += 1 / rates[port]
            figures = [each.timings for each in replies[auto]]
            tokens, rounds, drafted, accepted = (
                sum(each[name] for each in figures)
                for name in ("predicted_n", "rounds", "draft_n", "draft_n_accepted")
            )
            others = sum(a.text != b.text for a, b in zip(*replies.values(), strict=True))
            print(
                f"|{n + 1}|{rates[plain]:.1f}|{rates[auto]:.1f}|{rates[auto] / rates[plain]:.2f}"
                f"|{tokens / rounds:.2f}|{drafted}|{accepted}|{others} of {len(prompts)}|",
                flush=True,
            )
        print(f"auto over plain, all batches: {sums[plain] / sums[auto]:.2f}")


if __name__ == "__main__":
    main()
