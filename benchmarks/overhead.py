"""Measures localspec's own time per round, outside llama.cpp, by vocabulary and prompt length.

    python benchmarks/overhead.py

The loop, the controller with its prompt lookup, the sampler and the text stream are the real ones;
the models answer at once, from rows of logits made beforehand. The draft agrees at seven places of
ten; the text never repeats, or, in the rows "loop" of auto, begins again all the time. Medians of
--repeats runs of --tokens tokens. The first two rounds, in which target, draft and
prompt lookup read the prompt, are told apart, once for each answer.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from common import Parser, empty_caches
from numpy.typing import NDArray

from localspec.chat.answer import Piece, collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.generate import stream_generate
from localspec.speculative.control.conversations import Conversations
from localspec.speculative.control.pair_profile import LossBudget, PairProfile
from localspec.speculative.history import AnswerHistory
from localspec.speculative.loop import ALONE, Clock
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.constrained import Constraint
from localspec.speculative.sampling.logit_changes import NO_RULES, TokenRules

ROWS = 61  # rows of logits, used again in turn
LOOP = 61  # tokens after which a text that loops begins again
LONGEST_TEXT = 10_000
# Vocabularies and prompt lengths, in tokens; no token of a prompt occurs twice.
SIZES = ((32_000, 40), (152_000, 40), (262_000, 40), (152_000, 8_000), (152_000, 32_000))
# Draft lengths, and the text that is said. What loops is proposed by prompt lookup.
SIDES: tuple[tuple[DraftTokens, int], ...] = (
    *((length, LONGEST_TEXT) for length in (0, 4, "auto")),
    ("auto", LOOP),
)


class InstantModel:
    """A TokenModel that has its logits already; the token it would say leads by 2 to 8.

    ``says`` holds what it would say at each position, from the beginning again at the end.
    """

    def __init__(
        self, n_vocab: int, says: NDArray[np.int64], seed: int, seconds: float, share: float
    ) -> None:
        self._seconds, self._share = seconds, share
        self.spent = 0.0  # seconds that passes would have taken
        self.n_vocab, self.n_ctx = n_vocab, 10**6
        self.tokens: list[int] = []
        rng = np.random.default_rng(seed)
        self._rows: NDArray[np.float32] = rng.standard_normal((ROWS + 64, n_vocab), np.float32)
        self._leads = 8 + 6 * rng.random(len(says))
        self._says, self._raised = says, [0] * len(self._rows)

    def seconds(self, width: int) -> float:
        """What a pass of this width would take; each of its tokens adds a share."""
        return self._seconds * (1 + self._share * width)

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        self.spent += self.seconds(len(tokens))
        self.tokens.extend(tokens)
        begin = len(self.tokens) - rows
        first = begin % ROWS
        for i in range(rows):
            self._raise(first + i, (begin + i) % len(self._says))
        return self._rows[first : first + rows]

    def _raise(self, row: int, position: int) -> None:
        """Let this row say what is said at this position, and no more what it said before."""
        self._rows[row, self._raised[row]] = 0.0
        self._raised[row] = self._says[position]
        self._rows[row, self._says[position]] = self._leads[position]

    pending = 0

    @property
    def reusable(self) -> int:
        return len(self.tokens)

    block_size: int | None = None
    confidences = None
    follows_target = False
    gives_prompt_row = True
    batch_share = ALONE
    tree = None

    def checkpoint(self) -> None:
        """Nothing to prepare."""

    def truncate(self, length: int) -> None:
        del self.tokens[length:]


class InstantProfile:
    """Costs of passes as they are said to be, whatever the clock shows."""

    def __init__(self, target: InstantModel, draft: InstantModel) -> None:
        self._models = target, draft

    known = None

    def learnt(self, clock: Clock) -> PairProfile:
        known, (target, draft) = PairProfile(reading=1e-7), self._models
        for width in (1, 4, 8, 16, 33):
            known.verify.observe(width, 0, target.seconds(width))
            known.draft.observe(width, 0, draft.seconds(width))
        return known

    def introduce(self, say: Callable[[str], None]) -> None:
        """Nothing is measured."""

    def save(self) -> None:
        """Nothing is kept."""


class InstantEngine:
    """An Engine over two such models, whose passes are said to cost as on a GPU."""

    can_roll_back = True

    def __init__(self, n_vocab: int, text: int) -> None:
        rng = np.random.default_rng(0)
        says, others = rng.integers(1, n_vocab, text), rng.integers(1, n_vocab, text)
        agreeing = np.where(rng.random(text) < 0.7, says, others)
        self.target = InstantModel(n_vocab, says, seed=1, seconds=0.02, share=0.02)
        self.draft = InstantModel(n_vocab, agreeing, seed=2, seconds=1e-3, share=0.0)
        self.profile = InstantProfile(self.target, self.draft)
        self.prompt_lookup = PromptLookup()
        self.history: AnswerHistory | None = None
        self.conversations = Conversations()
        self.loss_budget = LossBudget()
        self.vocabularies = None
        self.loops = text == LOOP

    def clock(self) -> float:
        """What the controller is shown: as if passes took time."""
        return time.perf_counter() + self.target.spent + self.draft.spent

    def answering(self) -> AbstractContextManager[None]:
        return nullcontext()

    def is_stop(self, token: int) -> bool:
        return token == 0

    def constraint(self, grammar: str, start: int, *, endless: bool = False) -> Constraint:
        raise NotImplementedError

    def piece(self, token: int) -> bytes:
        return b"word "

    def token_rules(self, params: SamplingParams) -> TokenRules:
        return NO_RULES


@dataclass
class Row:
    """One line of the table; times in microseconds, counts per round.

    ``once`` is the time until the second response, the other times are of what follows.
    """

    vocabulary: int
    prompt: int
    temperature: float
    draft: DraftTokens
    loops: bool
    per_round: float
    allowed: float
    drafted: float
    per_token: float
    once: float

    def line(self) -> str:
        """This row of the table."""
        side = "loop" if self.loops else self.draft or "off"
        return (
            f"{self.vocabulary:10,}  {self.prompt:6,}  {self.temperature:4}"
            f"  {side:>5}  {self.per_round:8.0f}  {self.allowed:7.0f}"
            f"  {self.drafted:13.2f}  {self.per_token:8.0f}  {self.once:14.0f}"
        )


def measure(
    engine: InstantEngine, prompt: int, params: SamplingParams, length: DraftTokens, n: int
) -> Row:
    """One run of ``n`` tokens behind a prompt of ``prompt`` tokens."""
    empty_caches(engine.target, engine.draft)
    engine.prompt_lookup.update([])
    engine.conversations.clear()
    times, tokens = [time.perf_counter()], [0]

    def tick(response: Piece) -> None:
        times.append(time.perf_counter())
        tokens.append(response.stats.tokens)

    ids = list(range(1, 1 + prompt))
    responses = stream_generate(
        engine, ids, GenerateOptions(params, length, max_tokens=n), clock=engine.clock
    )
    stats = collect(responses, tick).stats
    microseconds, rounds = 1e6 * (times[-1] - times[2]), stats.rounds - 2
    drafted = stats.drafted / stats.rounds
    return Row(
        vocabulary=engine.target.n_vocab,
        prompt=prompt,
        temperature=params.temperature,
        draft=length,
        loops=engine.loops,
        per_round=microseconds / rounds,
        allowed=150 + 25 * drafted + 25 * (drafted + 1) if length else 60,
        drafted=drafted,
        per_token=microseconds / (tokens[-1] - tokens[2]),
        once=1e6 * (times[2] - times[0]),
    )


def measure_all(n_vocab: int, prompt: int, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Print and yield the median row for each temperature and side."""
    engines = {text: InstantEngine(n_vocab, text) for text in (LONGEST_TEXT, LOOP)}
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)):
        for length, text in SIDES:
            engine = engines[text]
            measure(engine, prompt, params, length, 32)  # warms up
            runs = [
                measure(engine, prompt, params, length, args.tokens) for _ in range(args.repeats)
            ]
            row = sorted(runs, key=lambda one: one.per_round)[len(runs) // 2]
            print(row.line(), flush=True)
            yield vars(row) | {"spread": statistics.pstdev(one.per_round for one in runs)}


def main() -> None:
    """Print a table, then the same as JSON."""
    parser = Parser(__doc__)
    parser.integers(tokens=400, repeats=5)
    args = parser.parse_args()
    print(
        "vocabulary  prompt  temp  draft  µs/round  allowed  drafted/round  µs/token"
        "  once/answer µs"
    )
    rows: list[dict[str, object]] = []
    for n_vocab, prompt in SIZES:
        rows += measure_all(n_vocab, prompt, args)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
