"""Answers and comparisons made up for tests, tokens and seconds as wanted; streams put together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.bench.comparison import Comparison
from localspec.bench.demo import DemoResult
from localspec.bench.equality import Difference
from localspec.bench.figures import Side
from localspec.chat.answer import Answer, Piece
from localspec.chat.stats import GenerationStats
from localspec.core.options.load_options import DraftTokens
from localspec.metadata.header import read_header
from localspec.speculative.loop import Prefill, Round
from tests.support.real_pair import TinyFiles

VARIED = list(range(40))
LOOP = [1, 2, 3, 4] * 10


def made_answer(
    seconds: float,
    tokens: Sequence[int] = VARIED,
    *,
    rounds: int = 40,
    drafted: int = 0,
    accepted: int = 0,
    ttft: float = 1.0,
    reading: float = 0.0,
) -> Answer:
    stats = GenerationStats(
        tokens=len(tokens), rounds=rounds, seconds=seconds, drafted=drafted, accepted=accepted,
        ttft_s=ttft, draft_prompt_seconds=reading,
    )  # fmt: skip
    return Answer("", list(tokens), stats, "length")


def side(length: DraftTokens, *repeats: Sequence[Answer]) -> Side:
    return Side(length, tuple(map(tuple, repeats)))


def made_comparison(
    speedups: Sequence[float] = (1.25, 1.5),
    *,
    task: str = "code",
    loops: int = 0,
    prompts: int = 1,
    differences: Sequence[Difference] = (),
) -> Comparison:
    """Plain at 31.2 tok/s against a draft of 3 with these speedups, one repeat for each.

    A round gives 2.5 tokens; ``loops`` of the prompts loop on both sides.
    """
    texts = [LOOP if i < loops else VARIED for i in range(prompts)]
    plain = [[_plain(text) for text in texts] for _ in speedups]
    drafted = [[_drafted(up, text) for text in texts] for up in speedups]
    return compared(side(0, *plain), side(3, *drafted), task=task, differences=differences)


def made_demo(tiny: TinyFiles, **options: Any) -> DemoResult:
    """What the demo tells of the tiny pair; options are those of its comparison."""
    headers = read_header(tiny.target), read_header(tiny.draft)
    return DemoResult("Q4_0", headers, headers, made_comparison(task="Q4_0", **options))


def varied_comparison(
    speedups: Sequence[float], *, differences: Sequence[Difference] = ()
) -> Comparison:
    """The same with one repeat, and a prompt for each speedup."""
    plain, drafted = [_plain() for _ in speedups], [_drafted(up) for up in speedups]
    return compared(side(0, plain), side(3, drafted), differences=differences)


def _plain(text: Sequence[int] = VARIED) -> Answer:
    return made_answer(1.28, text, ttft=0.125)


def _drafted(speedup: float, text: Sequence[int] = VARIED) -> Answer:
    return made_answer(1.28 / speedup, text, rounds=16, drafted=50, accepted=31, ttft=0.25)


def compared(
    *sides: Side, task: str = "code", differences: Sequence[Difference] = ()
) -> Comparison:
    """A comparison of these sides, its prompts named by their numbers.

    A plain answer stands for those in turn with each other side.
    """
    plain, *others = sides
    names = tuple(f"{task} {i + 1}" for i in range(len(plain.answers[0])))
    rows = tuple(row for row in plain.answers for _ in others or [plain])
    return Comparison(task, names, (replace(plain, answers=rows), *others), tuple(differences))


def difference(prompt: str = "code 1", **changes: Any) -> Difference:
    """One proven to be rounding, unless said otherwise."""
    found = Difference(prompt, 3, position=7, margin=0.1, repeatable=True, proven_at=2)
    return replace(found, **changes)


def made_stats(drafted: int = 0, accepted: int = 0) -> GenerationStats:
    stats = GenerationStats()
    stats.start(Prefill(tokens=20, cached=0, seconds=0.5))
    stats.add(Round((1,), 0, 0, 0.25), 0.25)
    stats.add(Round(tuple(range(accepted + 1)), drafted, accepted, 0.75), 0.75)
    return stats


def tokens_of(responses: Sequence[Piece]) -> list[int]:
    return [token for response in responses for token in response.tokens]


def text_of(responses: Sequence[Piece]) -> str:
    return "".join(response.text for response in responses)
