"""Ways to draft for one target, each an engine with a draft length, compared with the plain one."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from localspec.bench.comparison import Comparison
from localspec.bench.equality import Difference, DifferenceFinder
from localspec.bench.figures import Side
from localspec.bench.plan import BenchPlan, PromptIds
from localspec.bench.run import answer, take_turns, warm_up
from localspec.chat.answer import Answer
from localspec.core.config import DraftTokens
from localspec.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Way:
    """An engine and how it answers: with the second of the plan's draft lengths; the first is 0."""

    name: str
    engine: Engine
    plan: BenchPlan

    def answer(self, prompt: PromptIds) -> Answer:
        """Generate once from empty caches."""
        return answer(self.engine, prompt, self.plan, self.plan.lengths[1])

    def differences(
        self, name: str, prompt: PromptIds, plain: Sequence[Answer], ours: Sequence[Answer]
    ) -> list[Difference]:
        """Where the answers to a prompt of this name leave the first plain one, and why."""
        regenerate = partial(answer, self.engine, prompt, self.plan)
        finder = DifferenceFinder(self.engine, name, prompt, self.plan, regenerate)
        return list(finder.among([plain, ours]))


def compare_ways(
    ways: Sequence[Way],
    prompts: Mapping[str, PromptIds],
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Comparison]:
    """One for each way but the first, which is plain; all have the same plain side.

    All ways answer each prompt, by name, in turn, as often as the first one's plan repeats.
    ``on_answer`` hears how many answers there are and will be.
    """
    first, *others = ways
    for way in ways:
        warm_up(way.engine, next(iter(prompts.values())), way.plan)
    count, total = itertools.count(1), first.plan.repeats * len(ways) * len(prompts)
    rows = [
        take_turns(
            [partial(way.answer, prompt) for way in ways],
            first.plan.repeats,
            lambda: on_answer(next(count), total),
        )
        for prompt in prompts.values()
    ]
    for i, way in enumerate(others, 1):
        differences = [
            difference
            for (name, prompt), row in zip(prompts.items(), rows, strict=True)
            for difference in way.differences(name, prompt, row[0], row[i])
        ]
        length = way.plan.lengths[1]
        sides = _side(0, [row[0] for row in rows]), _side(length, [row[i] for row in rows])
        yield Comparison(way.name, tuple(prompts), sides, tuple(differences))


def _side(length: DraftTokens, answers: Sequence[Sequence[Answer]]) -> Side:
    """From answers by prompt and repeat."""
    return Side(length, tuple(zip(*answers, strict=True)))
