"""Measures drafting on real models and several kinds of text in mixed order, beside other servers.

    python benchmarks/real.py TARGET.gguf DRAFT.gguf [--llama-server llama-build/bin/llama-server]
    python benchmarks/real.py TARGET.gguf DRAFT.gguf --in-process --lengths 2 3 4 6 --lookup off
    python benchmarks/real.py TARGET.gguf DRAFT.gguf --in-process --exact --warm --lengths 1 2 4 8

Prompts are those of `benchmarks/real.jsonl`, of nine kinds, one of each kind in turn: what one
kind teaches is carried into the next. Each prompt is answered greedily by every variant, one after
the other, in an order that alternates; a prompt comes once, because all servers draft from earlier
answers. Ratios are of tokens per second over `plain`, localspec without drafting: of all answers of
a kind, then the least and the largest of one answer.

By default variants are servers, all loaded at once: ``localspec serve`` (plain, ``auto``, fixed
lengths), and llama-server and ik_llama.cpp's server where their programs are named. Seconds are
those of the client from the request to the answer, less the time that the server reports for the
prompt. Of the other servers no more is taken off than their own plain decoding needs for the same
prompt, since they count the draft's reading of the prompt in it. `benchmarks/plain.py` says how to
build llama-server.

With --in-process the engine answers in this process, as ``localspec bench`` does, which also says
whether a text that is not plain's is proven to be rounding. With --exact none may differ; answers
then go on behind their end, up to --max-tokens. With --draft-anyway drafts are verified in passes
of the class where --exact would decode one token at a time, because that is faster. With --warm
only plain decoding begins with empty caches: the others have read a part of the prompt before,
another part each, behind other answers.

With --output each answer is kept in a file as soon as it is there, and the same command goes on
where it was stopped, for example by --minutes. The last line is everything as JSON.
"""

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from client import ask
from common import GREEDY, Parser, conditions, listening
from real_figures import IK, LLAMA, PLAIN, Figures, Record, Records, show

from localspec.bench.equality import DifferenceFinder
from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.prompts import BenchPrompt, by_task, read_prompts
from localspec.chat.answer import Answer
from localspec.core import machine
from localspec.core.options.load_options import DraftTokens, LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.loading import pair
from localspec.engine.loading.exact_passes import use_exact_passes
from localspec.llama.model import LlamaModel
from localspec.llama.pass_class import PassClass

CTX_SIZE, SEED = 2048, 11
PROMPTS = Path(__file__).with_name("real.jsonl")


Ask = Callable[[int, BenchPrompt], Record]  # the answer to the prompt of this number


def servers(args: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each server, by variant."""
    common = ["-m", str(args.target), "-c", str(CTX_SIZE), "-t", str(args.threads), "-np", "1"]
    drafting = ["-md", str(args.draft)]
    mine = [sys.executable, "-m", "localspec", "serve", *common]
    found = {PLAIN: [*mine, "--draft", "off"], "auto": [*mine, *drafting]}
    found["auto"] += ["--prompt-lookup", args.lookup]
    for length in args.lengths:
        found[f"draft {length}"] = [*mine, *drafting, "--draft-tokens", str(length)]
    if args.llama_server:
        theirs = [str(args.llama_server), *common, "--cache-ram", "0", "--spec-type"]
        found[f"{LLAMA} plain"] = [*theirs, "none"]
        for length in args.peer_lengths:
            limit = ["--spec-draft-n-max", str(length)]
            found[f"{LLAMA} draft-simple {length}"] = [*theirs, "draft-simple", *drafting, *limit]
        found[f"{LLAMA} ngram-mod"] = [*theirs, "ngram-mod"]
        found[f"{LLAMA} draft-simple,ngram-mod"] = [*theirs, "draft-simple,ngram-mod", *drafting]
    if args.ik_server:
        theirs = [str(args.ik_server), *common, "--cache-ram", "0"]
        draft = [*drafting, "--spec-type", "draft:n_max=3"]
        found[f"{IK} plain"] = theirs
        found[f"{IK} draft:n_max=3"] = [*theirs, *draft]
        found[f"{IK} draft, autotune"] = [*theirs, *draft, "--spec-autotune"]
        found[f"{IK} suffix, draft"] = [*theirs, "--spec-type", "suffix", *draft]
    return found


def ask_server(variant: str, port: int, tokens: int, number: int, prompt: BenchPrompt) -> Record:
    """The answer of a server."""
    reply = ask(port, [dict(each) for each in prompt.messages], max_tokens=tokens)
    return Record(
        variant=variant,
        kind=prompt.task,
        prompt=number,
        tokens=reply.tokens,
        seconds=reply.seconds,
        prompt_seconds=reply.prompt_seconds,
        drafted=reply.timings.get("draft_n") or 0,
        accepted=reply.timings.get("draft_n_accepted") or 0,
        text=reply.text,
    )


@contextmanager
def serving(args: argparse.Namespace) -> Iterator[dict[str, Ask]]:
    """What asks each server, by variant."""
    with ExitStack() as stack:
        found: dict[str, Ask] = {}
        for variant, command in servers(args).items():
            if args.only and not any(each in variant for each in [PLAIN, *args.only]):
                continue
            port = stack.enter_context(listening(command))
            print(f"{variant} is loaded", file=sys.stderr)
            found[variant] = partial(ask_server, variant, port, args.max_tokens)
            ask(port, [{"role": "user", "content": "Say hello."}], max_tokens=4)
        yield found


@dataclass
class InProcess:
    """An engine of this process, and plain decoding's answer to the last prompt."""

    engine: Engine
    plan: BenchPlan
    plain: Answer | None = None

    def answer(self, length: DraftTokens, part: float, number: int, prompt: BenchPrompt) -> Record:
        """The answer with a draft length; plain decoding comes first.

        ``part`` of the prompt is read before, behind what earlier answers left; 0: from empty
        caches.
        """
        variant = Variant(str(length), self.engine, self.plan, length)
        ids = self.engine.encode_chat(list(prompt.messages))
        if part:
            replace(variant, plan=replace(self.plan, max_tokens=1)).answer_warm(
                ids[: max(1, round(part * len(ids)))]
            )
        answer = variant.answer_warm(ids) if part else variant.answer(ids)
        margin = proven = None
        if length == 0 and not part:
            self.plain = answer
        elif self.plain is not None and answer.tokens != self.plain.tokens:
            (found,) = DifferenceFinder("", ids, self.plain.tokens).explain(variant, [answer])
            margin, proven = found.margin, found.is_rounding
        stats = answer.stats
        return Record(
            variant=name_of(length, part),
            kind=prompt.task,
            prompt=number,
            tokens=stats.tokens,
            seconds=stats.prompt_seconds + stats.draft_prompt_seconds + stats.seconds,
            prompt_seconds=stats.prompt_seconds,
            drafted=stats.drafted,
            accepted=stats.accepted,
            text=answer.text,
            margin=margin,
            proven=proven,
        )


def drafting_passes(model: LlamaModel, *found: Any) -> PassClass:
    """What `use_exact_passes` finds, without decoding one token at a time."""
    passes = replace(use_exact_passes(model, *found), alone=False)
    model.use_class(passes)
    return passes


def name_of(length: DraftTokens, part: float) -> str:
    """The variant of a draft length, and of a part of the prompt that is read before."""
    name = {0: PLAIN, "auto": "auto"}.get(length, f"draft {length}")
    return f"{name}, {part:.0%} read" if part else name


@contextmanager
def in_process(args: argparse.Namespace) -> Iterator[dict[str, Ask]]:
    """What asks the engine, by variant."""
    lengths: list[DraftTokens] = [0, "auto", *args.lengths]
    options = LoadOptions(args.target, exact=args.exact, ctx_size=CTX_SIZE, threads=args.threads)
    target = replace(options, branches=args.branches)
    if args.draft_anyway:
        vars(pair)["use_exact_passes"] = drafting_passes
    with Engine.load(target, replace(options, path=args.draft, exact=False)) as engine:
        print("\n".join(engine.notes), file=sys.stderr)
        params = replace(GREEDY, temperature=args.temperature, seed=SEED)
        plan = BenchPlan(params, (0, "auto"), 1, args.max_tokens, args.lookup == "on")
        mine = InProcess(engine, plan)
        if args.exact:
            print(engine.target.passes, file=sys.stderr)
            engine.is_stop = lambda token: False  # type: ignore[method-assign]
        warm = engine.encode_chat([{"role": "user", "content": "Say hello."}])
        for length in [] if args.exact else lengths:
            Variant("", engine, plan, length).warm_up(warm)
        asked = [(length, 0.0) for length in lengths]
        if args.warm:
            asked = [(0, 0.0), *((each, 1 - i / len(lengths)) for i, each in enumerate(lengths))]
        yield {name_of(*each): partial(mine.answer, *each) for each in asked}


def chosen(args: argparse.Namespace) -> list[tuple[int, BenchPrompt]]:
    """The prompts, one of each kind in turn, with their numbers in the file."""
    prompts = [each for path in args.prompts for each in read_prompts(path)]
    groups = by_task(prompts, ",".join(args.kinds) if args.kinds else None)
    turns = itertools.zip_longest(*(group[: args.per_kind] for group in groups.values()))
    return [(prompts.index(each), each) for turn in turns for each in turn if each is not None]


def measure(args: argparse.Namespace, kept: Records) -> None:
    """Ask for every answer that is not there, until the time is over."""
    begun = time.monotonic()
    with in_process(args) if args.in_process else serving(args) as variants:
        for number, prompt in chosen(args):
            if all((name, number) in kept.answers for name in variants):
                continue
            if time.monotonic() - begun > 60 * args.minutes:
                print("the time is over; the same command goes on", file=sys.stderr)
                return
            first, *others = variants  # plain decoding, whose text the others are compared with
            for name in [first, *others[:: -1 if number % 2 else 1]]:
                record = variants[name](number, prompt)
                kept.add(record)
                print(
                    f"{number:3} {prompt.task:10} {name:36} {record.tokens:4} tokens in "
                    f"{record.seconds:6.2f} s",
                    file=sys.stderr,
                )


def main() -> None:
    """Print progress on stderr, then a table and one line of JSON."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--llama-server", type=Path, help="its program, to be compared with")
    parser.add_argument("--ik-server", type=Path, help="ik_llama.cpp's llama-server, likewise")
    parser.add_argument("--in-process", action="store_true", help="without servers")
    parser.add_argument("--exact", action="store_true", help="passes that round alike; in process")
    parser.add_argument(
        "--draft-anyway", action="store_true", help="with --exact, where that is slower too"
    )
    parser.add_argument("--warm", action="store_true", help="prompts in the cache; in process")
    parser.add_argument("--branches", type=int, default=1, help="of a tree; in process")
    parser.add_argument("--temperature", type=float, default=0, help="in process")
    parser.add_argument("--prompts", type=Path, nargs="+", default=[PROMPTS])
    parser.add_argument("--kinds", nargs="+", help="only these kinds of text")
    parser.add_argument("--only", nargs="+", help="parts of the names of variants beside plain")
    parser.add_argument("--lengths", type=int, nargs="*", default=[], help="fixed draft lengths")
    parser.add_argument("--peer-lengths", type=int, nargs="*", default=[3], help="of draft-simple")
    parser.add_argument("--lookup", choices=("on", "off"), default="on", help="in auto")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no prompt later")
    parser.integers(max_tokens=80, per_kind=6, threads=machine.physical_cores())
    parser.output()
    args = parser.parse_args()
    settings = [args.target.name, args.draft.name, args.max_tokens, args.lookup, args.in_process]
    if args.in_process:
        settings += [args.exact, args.draft_anyway, args.warm, args.branches, args.temperature]
    kept = Records(args.output, settings)
    kept.read()
    measure(args, kept)
    figures = Figures(kept.answers)
    on = conditions(args.threads, args.target.name, args.draft.name, f"{args.max_tokens} tokens")
    print(on)
    show(figures)
    ratios = {
        variant: {kind: asdict(ratio) for kind, ratio in kinds.items()}
        for variant, kinds in figures.ratios().items()
    }
    texts = {variant: figures.texts(variant) for variant in figures.variants}
    print(json.dumps({"conditions": on, "ratios": ratios, "texts": texts}))


if __name__ == "__main__":
    main()
