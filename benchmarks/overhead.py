"""Measures localspec's own time per round, outside llama.cpp, by vocabulary size.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from common import Parser, empty_caches
from numpy.typing import NDArray

from localspec.core.config import DraftTokens, SamplingParams
from localspec.engine.generate import collect, stream_generate
from localspec.speculative.control.knowledge import Knowledge
from localspec.speculative.loop import Clock

PERIOD = 61  # positions after which the rows begin again
PROMPT = list(range(1, 40))
LENGTHS: tuple[DraftTokens, ...] = (0, 4, "auto")


class InstantModel:
    """A TokenModel that has all its logits already; the likeliest token leads by 2 to 8."""

    def __init__(
        self, n_vocab: int, agreeing: float, seed: int, seconds: float, share: float
    ) -> None:
        self._seconds, self._share = seconds, share
        self.spent = 0.0  # seconds that passes would have taken
        self.n_vocab, self.n_ctx = n_vocab, 10**6
        self.tokens: list[int] = []
        text, own = np.random.default_rng(0), np.random.default_rng(seed)
        self._rows: NDArray[np.float32] = own.standard_normal((PERIOD + 64, n_vocab), np.float32)
        likeliest = text.integers(1, n_vocab, PERIOD)
        for i in range(len(self._rows)):
            mine = own.random() < agreeing
            token = likeliest[i % PERIOD] if mine else own.integers(1, n_vocab)
            self._rows[i, token] = 8 + 6 * own.random()

    def seconds(self, width: int) -> float:
        """What a pass of this width would take; each of its tokens adds a share."""
        return self._seconds * (1 + self._share * width)

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        self.spent += self.seconds(len(tokens))
        self.tokens.extend(tokens)
        first = (len(self.tokens) - rows) % PERIOD
        return self._rows[first : first + rows]

    def keep(self, length: int) -> None:
        del self.tokens[length:]


class InstantProfile:
    """Costs of passes as they are said to be, whatever the clock shows."""

    def __init__(self, target: InstantModel, draft: InstantModel) -> None:
        self._models = target, draft

    def knowledge(self, clock: Clock) -> Knowledge:
        known, (target, draft) = Knowledge(reading=1e-7), self._models
        for width in (1, 4, 8, 16, 33):
            known.verify.observe(width, 0, target.seconds(width))
            known.draft.observe(width, 0, draft.seconds(width))
        return known

    def introduce(self, say: Callable[[str], None]) -> None:
        """Nothing is measured."""


class InstantEngine:
    """An Engine over two such models, whose passes are said to cost as on a GPU."""

    can_roll_back = True

    def __init__(self, n_vocab: int) -> None:
        self.target = InstantModel(n_vocab, agreeing=1.0, seed=1, seconds=0.02, share=0.02)
        self.draft = InstantModel(n_vocab, agreeing=0.7, seed=2, seconds=1e-3, share=0.0)
        self.profile = InstantProfile(self.target, self.draft)

    def clock(self) -> float:
        """What the controller is shown: as if passes took time."""
        return time.perf_counter() + self.target.spent + self.draft.spent

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

    def line(self) -> str:
        """This row of the table."""
        return (
            f"{self.vocabulary:10,}  {self.temperature:4}  {str(self.draft or 'off'):>5}"
            f"  {self.per_round:8.0f}  {self.drafted:13.2f}  {self.per_token:8.0f}"
            f"  {self.allowed:8.0f}"
        )


def measure(engine: InstantEngine, params: SamplingParams, length: DraftTokens, n: int) -> Row:
    """One run of ``n`` tokens, after a short one that warms up."""
    for tokens in (32, n):
        empty_caches(engine.target, engine.draft)
        began = time.perf_counter()
        responses = stream_generate(
            engine, PROMPT, params, length, max_tokens=tokens, clock=engine.clock
        )
        stats = collect(responses).stats
        microseconds = 1e6 * (time.perf_counter() - began)
    drafted = stats.drafted / stats.rounds
    return Row(
        vocabulary=engine.target.n_vocab,
        temperature=params.temperature,
        draft=length,
        per_round=microseconds / stats.rounds,
        drafted=drafted,
        per_token=microseconds / stats.tokens,
        allowed=150 + 25 * drafted + 25 * (drafted + 1),
    )


def measure_all(engine: InstantEngine, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Print and yield the median row for each temperature and draft length."""
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)):
        for length in LENGTHS:
            runs = [measure(engine, params, length, args.tokens) for _ in range(args.repeats)]
            row = sorted(runs, key=lambda one: one.per_round)[len(runs) // 2]
            print(row.line(), flush=True)
            yield vars(row) | {"spread": statistics.pstdev(one.per_round for one in runs)}


def main() -> None:
    """Print a table, then the same as JSON."""
    parser = Parser(__doc__)
    parser.integers(tokens=400, repeats=5)
    args = parser.parse_args()
    print("vocabulary  temp  draft  µs/round  drafted/round  µs/token  150 + 25/drafted + 25/row")
    rows: list[dict[str, object]] = []
    for n_vocab in (32_000, 152_000, 262_000):
        rows += measure_all(InstantEngine(n_vocab), args)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
