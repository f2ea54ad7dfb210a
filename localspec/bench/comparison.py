"""Benchmark comparisons: prompts of one task answered by every side, and as JSON.

Answers whose text repeats itself are left out of the figures: drafting is too easy there.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

from localspec.bench.equality import Difference
from localspec.bench.figures import Costs, Figures, Side, pass_costs, side_figures
from localspec.chat.answer import Answer
from localspec.chat.stats import SameText

REPEATED_TOO_MUCH = 0.30  # share of repeated 8-grams from which a text counts as a loop


def repeated_share(tokens: Sequence[int], n: int = 8) -> float:
    """Share of the n-grams of ``tokens`` that occurred before: how much the text loops, 0 to 1."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Prompts of one task, by name, answered by every side; the first side is plain.

    It has an answer for each of those of another side, in turn with it: in each repeat, one for the
    second side, one for the third and so on.
    Without ``text_independent_of_draft`` (of the sampling parameters) texts may differ.
    """

    task: str
    names: tuple[str, ...]
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...] = ()
    text_independent_of_draft: bool = True

    def as_json(self) -> dict[str, object]:
        """Plain data: seconds end in ``_s``, tokens per second in ``_tps``."""
        return {
            "task": self.task,
            "prompts": list(self.names),
            "left_out": self.looping(),
            "sides": [asdict(row) for row in self.figures()],
            "plain_noise": self.plain_noise(),
            "costs": None if (costs := self.costs()) is None else asdict(costs),
            "differences": [asdict(each) for each in self.differences],
        }

    def answers_as_json(self) -> list[dict[str, object]]:
        return [
            {
                "prompt": name,
                "draft_tokens": side.draft_tokens,
                "repeat": repeat,
                **_measured_as_json(one),
            }
            for side in self.sides
            for repeat, row in enumerate(side.answers)
            for name, one in zip(self.names, row, strict=True)
        ]

    def looping(self) -> list[str]:
        """The prompts with an answer, on any side, that repeats itself too much to be measured."""
        return [
            name
            for i, name in enumerate(self.names)
            if any(
                repeated_share(row[i].tokens) > REPEATED_TOO_MUCH
                for side in self.sides
                for row in side.answers
            )
        ]

    def figures(self, prompts: Collection[str] | None = None) -> list[Figures]:
        """One for each side over prompts, by default those whose text does not loop."""
        used = self._used(prompts)
        return [
            side_figures(side, self._plain_of(i), used, self._text(side, prompts or self.names))
            for i, side in enumerate(self.sides)
            if used
        ]

    def _plain_of(self, i: int) -> Side:
        """The plain answers in turn with those of the i-th side."""
        plain = self.sides[0]
        return replace(plain, answers=plain.answers[i - 1 :: len(self.sides) - 1]) if i else plain

    def is_clear(self) -> bool:
        """Whether every side is faster or slower than plain decoding by its 90 % interval."""
        intervals = [row.speedup_interval for row in self.figures()[1:]]
        return bool(intervals) and all(
            each is not None and not each[0] <= 1 <= each[1] for each in intervals
        )

    def plain_noise(self) -> float:
        """By how much plain decoding differs between repeats, as a share; 0 for one repeat."""
        used = self._used(None)
        return self.sides[0].spent(used).noise if used else 0.0

    def costs(self) -> Costs | None:
        """The costs of passes; None without an answer that can be used."""
        return pass_costs(self.sides, used) if (used := self._used(None)) else None

    def _used(self, prompts: Collection[str] | None) -> list[int]:
        if prompts is None:
            prompts = set(self.names) - set(self.looping())
        return [i for i, name in enumerate(self.names) if name in prompts]

    def _text(self, side: Side, prompts: Collection[str]) -> SameText:
        if not self.text_independent_of_draft and side.draft_tokens != 0:
            return "redrawn"
        ours = [
            each
            for each in self.differences
            if each.draft_tokens == side.draft_tokens and each.prompt in prompts
        ]
        if not ours:
            return "same"
        return "rounding" if all(d.is_rounding for d in ours) else "different"


def _measured_as_json(answer: Answer) -> dict[str, object]:
    stats = answer.stats
    return {
        "tokens": stats.tokens,
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "accepted_at": stats.accepted_at,
        "generation_s": stats.seconds,
        "draft_s": stats.draft_seconds,
        "verify_s": stats.verify_seconds,
        "draft_prompt_s": stats.draft_prompt_seconds,
        "ttft_s": stats.ttft_s,
    }


def together(comparisons: Sequence[Comparison], task: str = "all") -> Comparison:
    """Several comparisons with the same sides and repeats as one over all their prompts."""
    return Comparison(
        task,
        tuple(name for comparison in comparisons for name in comparison.names),
        tuple(map(_joined, zip(*(comparison.sides for comparison in comparisons), strict=True))),
        tuple(each for comparison in comparisons for each in comparison.differences),
        all(comparison.text_independent_of_draft for comparison in comparisons),
    )


def _joined(sides: Sequence[Side]) -> Side:
    repeats = zip(*(side.answers for side in sides), strict=True)
    return Side(
        sides[0].draft_tokens,
        tuple(tuple(answer for row in rows for answer in row) for rows in repeats),
    )
