"""Records what a pair's target and draft say, so that controllers can be compared without noise.

    python benchmarks/traces.py TARGET.gguf DRAFT.gguf --prompts FILE.jsonl --output TRACES.jsonl

For each prompt it records the target's own answer, how far each of its tokens led the runner-up,
and at each position what the draft would propose, some tokens beyond the first wrong one, with its
lead over the runner-up. With `--noise` the draft is made a weaker one:
normal noise of so many logits is added to its own. With `--sessions` in place of prompts, it
records what the draft would propose along the sessions of `benchmarks/sessions.py`.
`benchmarks/replay.py` and `benchmarks/kinds.py` play controllers on them.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from common import GREEDY, Parser, empty_caches, load
from sessions import Turn, sessions

from localspec.bench.comparison import REPEATED_TOO_MUCH, repeated_share
from localspec.bench.prompts import BenchPrompt, read_prompts
from localspec.core.compute import COMPUTE
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.speculative.control.controllers import NoDraft
from localspec.speculative.drafters import Candidate, ModelDrafter
from localspec.speculative.loop import Logits, generate_rounds, prefill
from localspec.speculative.sampling.sampler import Sampler, ScoredToken

UNLED = 99.0  # a lead where truncation leaves one token only
WRONG = 5  # tokens of a chain that are recorded from the first wrong one on


@dataclass
class Trace:
    """One recorded answer.

    ``leads`` are those of the target's tokens, in units of the noise; ``drafts`` holds the draft's
    candidates, with their leads, behind each of the answer's prefixes; ``repeated`` is the share of
    repeated 8-grams.
    A turn of a ``session`` stands in the file behind the turns before it; its text was scripted, so
    that there are no leads of the target.
    """

    task: str
    prompt: list[int]
    tokens: list[int]
    leads: list[float]
    drafts: list[list[tuple[int, float]]]
    repeated: float
    temperature: float
    session: bool = False

    @property
    def text(self) -> list[int]:
        """The prompt and the answer."""
        return [*self.prompt, *self.tokens]


def read_traces(path: Path) -> Iterator[Trace]:
    """The traces of a file that this script wrote."""
    for line in path.read_text().splitlines():
        yield Trace(**json.loads(line))


def traces_parser(doc: str) -> Parser:
    """A parser of scripts that read traces: the files, and one temperature of theirs."""
    parser = Parser(doc)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--temperature", type=float)
    return parser


def chosen_traces(args: argparse.Namespace) -> list[Trace]:
    """The traces that the options name, without texts that repeat themselves too much.

    Turns of sessions are all there, as later ones go on behind them. Ids of tokens are numbered
    anew, so that rows of logits are as short as there are different tokens.
    """
    chosen = [
        trace
        for path in args.traces
        for trace in read_traces(path)
        if (trace.session or trace.repeated <= REPEATED_TOO_MUCH)
        and (args.temperature is None or trace.temperature == args.temperature)
    ]
    numbers: dict[int, int] = {}
    return [renumbered(trace, numbers) for trace in chosen]


def renumbered(trace: Trace, numbers: dict[int, int]) -> Trace:
    """The same trace with ids by first appearance, from 1 on; ``numbers`` holds those so far."""

    def new(token: int) -> int:
        return numbers.setdefault(token, 1 + len(numbers))

    def renew(draft: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
        return [(new(token), lead) for token, lead in draft]

    return replace(
        trace,
        prompt=[new(token) for token in trace.prompt],
        tokens=[new(token) for token in trace.tokens],
        drafts=[renew(draft) for draft in trace.drafts],
    )


class LeadRecorder(Sampler):
    """A sampler that keeps the lead of each token it picks."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params)
        self.leads: list[float] = []

    def sample(self, logits: Logits, position: int, history: Sequence[int]) -> int:
        chosen = self.choose(logits, position, history)
        self.leads.append(rounded(chosen.lead))
        return chosen.token


def rounded(lead: float) -> float:
    """A lead as it is recorded."""
    return round(min(lead, UNLED), 3)


class NoisySampler(Sampler):
    """A sampler that sees logits with normal noise, always the same at a position."""

    def __init__(self, params: SamplingParams, noise: float) -> None:
        super().__init__(params)
        self._noise = noise

    def choose(
        self, logits: Logits, position: int, history: Sequence[int], runners_up: int = 0
    ) -> ScoredToken:
        rng = np.random.default_rng(position)
        blurred = logits + self._noise * rng.standard_normal(len(logits), np.float32)
        return super().choose(blurred, position, history, runners_up)


def record(
    engine: Engine,
    prompt: BenchPrompt,
    params: SamplingParams,
    max_tokens: int,
    depth: int,
    noise: float,
) -> Trace:
    """One answer, and the draft's candidates behind each of its prefixes."""
    assert engine.draft is not None
    empty_caches(engine.target, engine.draft)
    ids = list(engine.encode_chat(prompt.messages))
    sampler, clock = LeadRecorder(params), time.perf_counter
    read = prefill(engine.target, ids, clock)
    rounds = generate_rounds(
        engine.target, NoDraft(), sampler, ids,
        max_tokens=max_tokens, is_stop=engine.is_stop, clock=clock, row=read.row,
    )  # fmt: skip
    tokens = [token for each in rounds for token in each.tokens]
    drafts = proposals(engine, ids, tokens, params, depth, noise)
    return Trace(
        task=prompt.task,
        prompt=ids,
        tokens=tokens,
        leads=sampler.leads,
        drafts=drafts,
        repeated=round(repeated_share(tokens), 3),
        temperature=params.temperature,
    )


def record_turn(engine: Engine, kind: str, turn: Turn, depth: int, noise: float) -> Trace:
    """The draft's candidates along a scripted answer; its cache is kept from turn to turn."""
    ids = list(engine.encode_chat(turn.messages))
    tokens = engine.target.tokenize(turn.answer, add_special=False, parse_special=False)
    drafts = proposals(engine, ids, tokens, GREEDY, depth, noise)
    repeated = round(repeated_share(tokens), 3)
    return Trace(kind, ids, tokens, [], drafts, repeated, 0.0, session=True)


def proposals(
    engine: Engine,
    prompt: list[int],
    tokens: list[int],
    params: SamplingParams,
    depth: int,
    noise: float,
) -> list[list[tuple[int, float]]]:
    """The draft's candidates behind each prefix of an answer."""
    assert engine.draft is not None
    chooser = NoisySampler(params, noise) if noise else Sampler(params)
    drafter = ModelDrafter(engine.draft, chooser, engine.target.n_vocab, engine.is_stop)
    context, found, drafts = list(prompt), list[Candidate](), []
    for i, token in enumerate(tokens):
        if not _departs(found, tokens[i:]):
            ahead = [each.token for each in found]
            for candidate in islice(drafter.propose(context, ahead), depth - len(found)):
                found.append(candidate)
                if _departs(found, tokens[i:]):
                    break
        drafts.append(recorded(found))
        context.append(token)
        # Behind a right candidate the draft would propose the same again.
        found = found[1:] if found and found[0].token == token else []
    return drafts


def _departs(found: Sequence[Candidate], truth: Sequence[int]) -> bool:
    """Whether candidates go on for `WRONG` tokens behind the first that is wrong."""
    right = (each.token == token for each, token in zip(found, truth, strict=False))
    agreed = sum(1 for _ in takewhile(bool, right))
    return len(found) >= agreed + WRONG


def recorded(candidates: Sequence[Candidate]) -> list[tuple[int, float]]:
    """Tokens with their leads."""
    return [(each.token, rounded(each.confidence)) for each in candidates]


def main() -> None:
    """Record what the options ask for."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--prompts", type=Path)
    wanted.add_argument("--sessions", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    parser.integers(max_tokens=128, depth=16, threads=1)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    args = parser.parse_args()
    files = [args.target, args.draft]
    with (
        COMPUTE.adopted(),
        load(files, args.threads, ctx_size=None) as engine,
        args.output.open("w") as out,
    ):
        for trace in recordings(engine, args):
            out.write(json.dumps(asdict(trace)) + "\n")
            out.flush()  # recording takes long


def recordings(engine: Engine, args: argparse.Namespace) -> Iterator[Trace]:
    """Every turn of the sessions, or every prompt at both temperatures."""
    if args.sessions:
        for kind, session in sessions():
            yield from (record_turn(engine, kind, turn, args.depth, args.noise) for turn in session)
        return
    for prompt in read_prompts(args.prompts):
        for temperature in args.temperatures:
            params = SamplingParams(temperature=temperature, seed=1)
            yield record(engine, prompt, params, args.max_tokens, args.depth, args.noise)


if __name__ == "__main__":
    main()
