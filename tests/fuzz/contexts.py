"""Pairs with tiny contexts: no length, grammar, prompt or number of slots ends the process.

`python -m tests.fuzz.contexts --seed 0 --count 2000`. Each case loads a pair and answers twice in a
forked child, whose signal is seen.
"""

import argparse
import functools
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from localspec.core import paths
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import BATCH, CTX_SIZE, LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import TextEngine, stream_generate
from localspec.engine.grammar.source import read_schema
from localspec.llama import llama_library
from tests.fuzz.models import in_child
from tests.support.files.architectures.specs import write_architecture
from tests.support.files.tiny_models import write_tiny_model
from tests.support.llama.heads import PAIRS
from tests.support.real_pair import slots_of, write_recurrent_model
from tests.support.toy.slots import together

_SIZES = (8, 9, 16, 31, 32, 33, 63, 64, 65, 96, 129, 130)
_LENGTHS = (0, 1, 4, 16, 62, "auto", "auto")
_TEXT = "def add(a, b):\n    return a + b\n" * 9
_LONG = "The quick brown fox jumps over the lazy dog and runs away into the dark forest. "

Pair = tuple[Path, Path | None]


def pairs(folder: Path, *, heads: bool = True) -> list[Pair]:
    """A pair of each kind of memory and of draft; None stands for heads in the target's file."""

    def file(name: str) -> Path:
        path = folder / f"{name}.gguf"
        return path if path.exists() else write_architecture(path, name)

    twin = write_tiny_model(folder / "twin.gguf", seed=1, context_length=1024)
    sliding = write_tiny_model(
        folder / "sliding.gguf", seed=2, layers=4, window=16, context_length=1024
    )
    recurrent = write_recurrent_model(folder / "recurrent.gguf")
    models: list[Pair] = [paths.demo_pair(), (twin, twin), (sliding, sliding)]
    models += [(recurrent, twin), (twin, recurrent), (recurrent, recurrent)]
    if not heads:
        return models
    return models + [(file(target), None if name is None else file(name)) for target, name in PAIRS]


def schema(rng: random.Random) -> str | None:
    """A grammar that forces long texts, or none."""
    text = _LONG[: rng.choice((3, 20, 80))] * rng.choice((1, 4))
    choices: list[object] = [
        {"const": text},
        {"type": "object", "properties": {text[:60]: {"const": text}}, "required": [text[:60]]},
        {"enum": [text, text[: len(text) // 2] + "!"]},
        {"type": "string"},
    ]
    return rng.choice([None, *(read_schema(json.dumps(each)).grammar for each in choices)])


def answer(pair: Pair, seed: str) -> None:
    """Load a pair as the seed says, and answer in each slot: a prompt, and one that goes on."""
    rng = random.Random(seed)
    parallel = rng.choice((1, 1, 1, 2))
    common = {
        "threads": 1,
        "exact": rng.random() < 0.4,
        "parallel": parallel,
        "batch_size": rng.choice((BATCH.low, BATCH.low + 1, 512)),
        "ubatch_size": BATCH.low,
    }
    shares = parallel > 1 and not common["exact"] and rng.random() < 0.6

    def options(path: Path, *others: int, **own: object) -> LoadOptions:
        size = rng.choice((rng.choice(_SIZES), rng.randint(CTX_SIZE.low, 130), *others))
        return LoadOptions(path, **({"ctx_size": size} | common | own))  # type: ignore[arg-type]

    model, draft = pair
    target = options(
        model, 512, branches=rng.choice((1, 2, 3)), load_heads=draft is None, kv_unified=shares
    )
    second = None if draft is None else options(draft)
    clock = functools.partial(next, itertools.count(0.0, rng.choice((0.0001, 0.5))))
    with Engine.load(target, second, trial=False) as engine:
        if shares:  # more answers at once than the context may hold
            for stream in [engine.stream(*_asked(engine, rng)) for _ in range(6)]:
                assert list(stream)
            return
        slots = slots_of(engine)
        seeds = [rng.random() for _ in slots]

        def work(slot: TextEngine, number: int) -> None:
            _answers(engine, slot, seeds[number], clock)

        if len(slots) == 1:
            work(slots[0], 0)
        else:
            together(slots, slots.batcher, work)


def _answers(engine: Engine, slot: TextEngine, seed: float, clock: Callable[[], float]) -> None:
    rng = random.Random(seed)
    prompt, options = _asked(engine, rng)
    for _ in range(2):
        for piece in stream_generate(slot, prompt, options, clock=clock):
            prompt = [*prompt, *piece.tokens]
        prompt = prompt[: rng.randint(1, engine.target.n_ctx - 1)]
        _, options = _asked(engine, rng)


def _asked(engine: Engine, rng: random.Random) -> tuple[list[int], GenerateOptions]:
    text, most = [*engine.encode_text(_TEXT)], engine.target.n_ctx - 1
    params = SamplingParams(
        temperature=rng.choice((0.0, 0.0, 0.9)), seed=1, ignore_eos=rng.random() < 0.5
    )
    options = GenerateOptions(
        params,
        draft_tokens=rng.choice(_LENGTHS),  # type: ignore[arg-type]
        max_tokens=rng.choice((None, 5, 200)),
        grammar=schema(rng),
    )
    return text[: rng.randint(1, rng.choice((6, most)))], options


def fuzz(seed: int, count: int, files: Sequence[Pair]) -> tuple[Counter[str], list[str]]:
    """Outcomes by number, and the cases that ended by a signal, a traceback or never."""
    outcomes, bad = Counter[str](), list[str]()
    for number in range(count):
        pair = files[number % len(files)]
        outcome = in_child(functools.partial(answer, pair, f"{seed}/{number}"))
        outcomes[outcome] += 1
        if outcome not in ("done", "refused"):
            bad.append(f"case {number} of seed {seed}, {pair[0].stem}: {outcome}")
    return outcomes, bad


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    given = parser.parse_args()
    began = time.perf_counter()
    llama_library.library()  # once, for all children
    with tempfile.TemporaryDirectory() as folder:
        outcomes, bad = fuzz(given.seed, given.count, pairs(Path(folder)))
    print(*bad, sep="\n")
    print(f"{given.count:,} cases in {time.perf_counter() - began:.0f} s: {dict(outcomes)}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
