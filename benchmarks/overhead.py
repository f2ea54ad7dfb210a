"""What localspec itself takes per round, outside llama.cpp, by size of vocabulary.

    python benchmarks/overhead.py

The loop, the controller, the sampler and the text stream are the real ones; the models answer at
once, from rows of logits made beforehand. The draft agrees at seven places of ten. Medians of
--repeats runs of --tokens tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.core.config import DraftTokens, SamplingParams
from localspec.engine.generate import collect, stream_generate
from localspec.engine.stats import GenerationStats
from localspec.speculative.controller import Knowledge
from localspec.speculative.loop import Clock

PERIOD = 61  # positions after which the rows begin again


PassCost = Callable[[int], float]
VERIFY: PassCost = lambda width: 0.02 * (1 + 0.02 * width)  # noqa: E731
STEP: PassCost = lambda width: 1e-3  # noqa: E731
PRETENDED = [0.0]  # seconds that passes would have taken


def pretended_clock() -> float:
    """What the controller is shown: as if passes took time."""
    return time.perf_counter() + PRETENDED[0]


class InstantModel:
    """A TokenModel that has all its logits already; the likeliest token leads by 2 to 8."""

    def __init__(self, n_vocab: int, agreeing: float, seed: int, cost: PassCost) -> None:
        self._cost = cost
        self.n_vocab, self.n_ctx = n_vocab, 10**6
        self.tokens: list[int] = []
        text, own = np.random.default_rng(0), np.random.default_rng(seed)
        self._rows: NDArray[np.float32] = own.standard_normal((PERIOD + 64, n_vocab), np.float32)
        likeliest = text.integers(1, n_vocab, PERIOD)
        for i in range(len(self._rows)):
            mine = own.random() < agreeing
            token = likeliest[i % PERIOD] if mine else own.integers(1, n_vocab)
            self._rows[i, token] = 8 + 6 * own.random()

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        PRETENDED[0] += self._cost(len(tokens))
        self.tokens.extend(tokens)
        first = (len(self.tokens) - rows) % PERIOD
        return self._rows[first : first + rows]

    def keep(self, length: int) -> None:
        del self.tokens[length:]


class InstantEngine:
    """An Engine over two such models, whose passes are said to cost as on a GPU."""

    can_roll_back = True

    def __init__(self, n_vocab: int) -> None:
        self.target = InstantModel(n_vocab, 1.0, 1, VERIFY)
        self.draft = InstantModel(n_vocab, 0.7, 2, STEP)

    def learnt(self, clock: Clock) -> Knowledge:
        known = Knowledge(reading=1e-7)
        for width in (1, 4, 8, 16, 33):
            known.verify.observe(width, 0, VERIFY(width))
            known.draft.observe(width, 0, STEP(width))
        return known

    def is_stop(self, token: int) -> bool:
        return token == 0

    def piece(self, token: int) -> bytes:
        return b"word "


@dataclass
class Row:
    """One line of the table; times in microseconds, counts per round."""

    vocabulary: int
    temperature: float
    draft: DraftTokens
    per_round: float
    drafted: float
    per_token: float
    allowed: float


def measure(engine: InstantEngine, params: SamplingParams, length: DraftTokens, n: int) -> Row:
    """One run, warmed up."""
    prompt = list(range(1, 40))

    def run(tokens: int) -> tuple[float, GenerationStats]:
        engine.target.keep(0)
        engine.draft.keep(0)
        began = time.perf_counter()
        responses = stream_generate(
            engine, prompt, params, length, max_tokens=tokens, clock=pretended_clock
        )
        answer = collect(responses)
        return time.perf_counter() - began, answer.stats

    run(32)
    seconds, stats = run(n)
    drafted = stats.drafted / stats.rounds
    return Row(
        engine.target.n_vocab,
        params.temperature,
        length,
        1e6 * seconds / stats.rounds,
        drafted,
        1e6 * seconds / stats.tokens,
        150 + 25 * drafted + 25 * (drafted + 1),
    )


def main() -> None:
    """A table, then the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print("vocabulary  temp  draft  µs/round  drafted/round  µs/token  150 + 25/drafted + 25/row")
    rows = []
    lengths: tuple[DraftTokens, ...] = (0, 4, "auto")
    for n_vocab in (32_000, 152_000, 262_000):
        engine = InstantEngine(n_vocab)
        for temperature in (0.0, 0.8):
            params = SamplingParams(temperature=temperature)
            for length in lengths:
                runs = [measure(engine, params, length, args.tokens) for _ in range(args.repeats)]
                row = sorted(runs, key=lambda one: one.per_round)[len(runs) // 2]
                spread = statistics.pstdev(one.per_round for one in runs)
                rows.append(vars(row) | {"spread": spread})
                print(
                    f"{n_vocab:10,}  {temperature:4}  {str(length or 'off'):>5}"
                    f"  {row.per_round:8.0f}  {row.drafted:13.2f}  {row.per_token:8.0f}"
                    f"  {row.allowed:8.0f}",
                    flush=True,
                )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
