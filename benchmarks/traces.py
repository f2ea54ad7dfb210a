"""Record what a pair says, so that controllers can be compared without noise.

For each prompt the target's own answer, and at each of its positions what the draft would propose,
several tokens deep, with its lead over the runner-up. `replay.py` plays controllers on them.

    python benchmarks/traces.py TARGET.gguf DRAFT.gguf --prompts FILE.jsonl --output TRACES.jsonl
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path

from localspec.bench.comparison import repeated_share
from localspec.bench.prompts import read_prompts
from localspec.core.config import LoadOptions, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import collect, stream_generate
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.sampler import Sampler


def record(
    engine: Engine, prompt: list[int], params: SamplingParams, max_tokens: int, depth: int
) -> dict[str, object]:
    """One answer, and the draft's candidates behind each of its prefixes."""
    assert engine.draft is not None
    engine.target.keep(0)
    answer = collect(stream_generate(engine, prompt, params, 0, max_tokens=max_tokens))
    engine.draft.keep(0)
    drafter = ModelDrafter(engine.draft, Sampler(params), engine.target.n_vocab, engine.is_stop)
    drafts = []
    for i in range(len(answer.tokens)):
        context = [*prompt, *answer.tokens[:i]]
        found = islice(drafter.propose(context), depth)
        drafts.append([[each.token, round(min(each.confidence, 99.0), 3)] for each in found])
    return {
        "prompt": prompt,
        "tokens": answer.tokens,
        "drafts": drafts,
        "repeated": round(repeated_share(answer.tokens), 3),
        "temperature": params.temperature,
    }


def main() -> None:
    """Record every prompt at both temperatures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    options = [LoadOptions(path, threads=args.threads) for path in (args.target, args.draft)]
    with Engine.load(*options) as engine, args.output.open("w") as out:
        for prompt in read_prompts(args.prompts):
            ids = engine.encode_chat(prompt.messages)
            for temperature in (0.0, 0.8):
                params = SamplingParams(temperature=temperature, seed=1)
                trace = record(engine, ids, params, args.max_tokens, args.depth)
                out.write(json.dumps({"task": prompt.task} | trace) + "\n")


if __name__ == "__main__":
    main()
