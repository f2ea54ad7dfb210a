"""Records what a pair's target and draft say, so that controllers can be compared without noise.

    python benchmarks/traces.py TARGET.gguf DRAFT.gguf --prompts FILE.jsonl --output TRACES.jsonl

For each prompt it records the target's own answer, and at each of its positions what the draft
would propose, several tokens deep, with its lead over the runner-up. `benchmarks/replay.py` plays
controllers on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from common import Parser, empty_caches, load

from localspec.bench.comparison import repeated_share
from localspec.bench.prompts import Prompt, read_prompts
from localspec.core.config import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import collect, stream_generate
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.sampler import Sampler


@dataclass
class Trace:
    """One recorded answer.

    ``drafts`` holds the draft's candidates, with their leads in logits, behind each of the answer's
    prefixes; ``repeated`` is the share of repeated 8-grams.
    """

    task: str
    prompt: list[int]
    tokens: list[int]
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


def record(
    engine: Engine, prompt: Prompt, params: SamplingParams, max_tokens: int, depth: int
) -> Trace:
    """One answer, and the draft's candidates behind each of its prefixes."""
    assert engine.draft is not None
    empty_caches(engine.target, engine.draft)
    ids = engine.encode_chat(prompt.messages)
    answer = collect(stream_generate(engine, ids, params, 0, max_tokens=max_tokens))
    drafter = ModelDrafter(engine.draft, Sampler(params), engine.target.n_vocab, engine.is_stop)
    context, drafts = list(ids), []
    for token in answer.tokens:
        found = islice(drafter.propose(context), depth)
        drafts.append([(each.token, round(min(each.confidence, 99.0), 3)) for each in found])
        context.append(token)
    return Trace(
        task=prompt.task,
        prompt=ids,
        tokens=answer.tokens,
        drafts=drafts,
        repeated=round(repeated_share(answer.tokens), 3),
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
