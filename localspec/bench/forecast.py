"""The duration of a benchmark, from that of its answers and explained texts so far."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from localspec.bench.comparison import Comparison
from localspec.bench.figures import FEWEST_PROMPTS
from localspec.bench.plan import BenchPlan, PromptIds
from localspec.chat.answer import Answer
from localspec.core.formatting import duration

_LATEST = 1.25  # times the limit, for the prompts without which a busy machine has no interval


@dataclass(frozen=True, slots=True)
class Limit:
    """A benchmark ends after ``seconds``, or once its result is clear; later if that is too few.

    A result of fewer prompts than there are ``kinds`` of tasks is not: they differ most. The
    seconds of warming up count, and no prompt begins that would probably end far too late.
    """

    seconds: float
    kinds: int


class Forecast:
    """The seconds that are left: those of answers by their prompts' lengths, the rest by prompt.

    The rest is the work after the answers to a prompt, such as explaining texts that differ.
    """

    def __init__(
        self, plan: BenchPlan, tasks: Mapping[str, Sequence[PromptIds]], limit: Limit | None = None
    ) -> None:
        self.plan = plan
        self._limit = limit
        self._each = plan.answers
        self._lengths = [len(prompt) for prompts in tasks.values() for prompt in prompts]
        self._began = plan.clock()
        self._warming = 0.0
        self._answers = self._read = self._explained = 0
        self._reading = self._generating = self._rest = 0.0

    def begin(self) -> None:
        """End the warming up, which no prompt repeats."""
        self._warming = self.spent()

    def answered(self, answer: Answer) -> None:
        """Count an answer; they come prompt by prompt."""
        stats = answer.stats
        self._read += self._lengths[self._answers // self._each]
        self._answers += 1
        self._reading += stats.prompt_seconds + stats.draft_prompt_seconds
        self._generating += stats.seconds

    def explained(self) -> None:
        """Count a prompt whose answers were compared and explained."""
        self._explained += 1
        self._rest = self.spent() - self._warming - self._reading - self._generating

    def spent(self) -> float:
        return self.plan.clock() - self._began

    def left(self) -> float:
        """The seconds that are left; before the first answer those of the limit, or infinite."""
        most = max(0.0, self._most - self.spent())
        if not self._answers:
            return most
        unread = self._each * sum(self._lengths) - self._read
        answers = self._each * len(self._lengths) - self._answers
        reading = self._reading / max(1, self._read) * unread
        generating = self._generating / self._answers * answers
        unexplained = len(self._lengths) - self._explained
        left = reading + generating + self._rest / max(1, self._explained) * unexplained
        return min(left, most)

    @property
    def is_limited(self) -> bool:
        return self._limit is not None

    @property
    def _most(self) -> float:
        return math.inf if self._limit is None else self._limit.seconds

    def is_enough(self, so_far: Comparison) -> bool:
        """Whether the limit is reached, or more prompts are not needed to know the faster side."""
        if self._limit is None:
            return False
        measured, spent = len(so_far.names), self.spent()
        if spent >= self._limit.seconds and measured >= FEWEST_PROMPTS:
            return True
        if spent + (spent - self._warming) / measured > _LATEST * self._limit.seconds:
            return True
        return measured >= self._limit.kinds and so_far.is_clear()

    def extent(self) -> str:
        """How many answers the benchmark takes, and how long, as far as is known."""
        plan, prompts = self.plan, len(self._lengths)
        kinds = (len(plan.lengths), "setting"), (plan.repeats, "repeat"), (prompts, "prompt")
        counts = " x ".join(f"{n} {name}{'' if n == 1 else 's'}" for n, name in kinds)
        total = duration(self.spent() + self.left())
        if self._limit is not None:
            return f"{counts}: about {total}, or less if the result is clear sooner"
        return f"{counts}: about {total}, and more to explain texts that differ"
