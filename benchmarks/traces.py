"""Records what a pair's target and draft say, so that controllers can be compared without noise.

    python benchmarks/traces.py TARGET.gguf DRAFT.gguf --prompts FILE.jsonl --output TRACES.jsonl

For each prompt it records the target's own answer, how far each of its tokens led the runner-up,
and at each position what the draft would propose, several tokens deep, with its lead over the
runner-up. `benchmarks/replay.py` plays controllers on them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from common import Parser, empty_caches, load

from localspec.bench.comparison import repeated_share
from localspec.bench.prompts import Prompt, read_prompts
from localspec.core.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.speculative.control.controllers import NoDraft
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.loop import Logits, generate_rounds, prefill
from localspec.speculative.sampling.sampler import Sampler

UNLED = 99.0  # a lead where truncation leaves one token only


@dataclass
class Trace:
    """One recorded answer.

    ``leads`` are those of the target's tokens, in units of the noise; ``drafts`` holds the draft's
    candidates, with their leads, behind each of the answer's prefixes; ``repeated`` is the share of
    repeated 8-grams.
    """

    task: str
    prompt: list[int]
    tokens: list[int]
    leads: list[float]
    drafts: list[list[tuple[int, float]]]
    repeated: float
    temperature: float

    @property
    def text(self) -> list[int]:
        """The prompt and the answer."""
        return [*self.prompt, *self.tokens]


def read_traces(path: Path) -> Iterator[Trace]:
    """The traces of a file that this script wrote."""
    for line in path.read_text().splitlines():
        yield Trace(**json.loads(line))


class LeadRecorder(Sampler):
    """A sampler that keeps the lead of each token it picks."""

    def __init__(self, params: SamplingParams) -> None:
        super().__init__(params)
        self.leads: list[float] = []

    def pick(self, logits: Logits, position: int, history: Sequence[int]) -> int:
        chosen = self.choose(logits, position, history)
        self.leads.append(rounded(chosen.lead))
        return chosen.token


def rounded(lead: float) -> float:
    """A lead as it is recorded."""
    return round(min(lead, UNLED), 3)


def record(
    engine: Engine, prompt: Prompt, params: SamplingParams, max_tokens: int, depth: int
) -> Trace:
    """One answer, and the draft's candidates behind each of its prefixes."""
    assert engine.draft is not None
    empty_caches(engine.target, engine.draft)
    ids = engine.encode_chat(prompt.messages)
    sampler, clock = LeadRecorder(params), time.perf_counter
    prefill(engine.target, ids, clock)
    rounds = generate_rounds(
        engine.target, NoDraft(), sampler, ids,
        max_tokens=max_tokens, is_stop=engine.is_stop, clock=clock,
    )  # fmt: skip
    tokens = [token for each in rounds for token in each.tokens]
    drafter = ModelDrafter(engine.draft, Sampler(params), engine.target.n_vocab, engine.is_stop)
    context, drafts = list(ids), []
    for token in tokens:
        found = islice(drafter.propose(context), depth)
        drafts.append([(each.token, rounded(each.confidence)) for each in found])
        context.append(token)
    return Trace(
        task=prompt.task,
        prompt=ids,
        tokens=tokens,
        leads=sampler.leads,
        drafts=drafts,
        repeated=round(repeated_share(tokens), 3),
        temperature=params.temperature,
    )


def main() -> None:
    """Record every prompt at both temperatures."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.integers(max_tokens=128, depth=16, threads=1)
    args = parser.parse_args()
    files = [args.target, args.draft]
    with load(files, args.threads, ctx_size=None) as engine, args.output.open("w") as out:
        for prompt in read_prompts(args.prompts):
            for temperature in (0.0, 0.8):
                params = SamplingParams(temperature=temperature, seed=1)
                trace = record(engine, prompt, params, args.max_tokens, args.depth)
                out.write(json.dumps(asdict(trace)) + "\n")


if __name__ == "__main__":
    main()
