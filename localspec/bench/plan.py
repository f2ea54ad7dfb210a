"""Benchmark plans: which draft lengths answer which prompts, how often, and in what context.

Also names what measuring needs of an engine beyond generating.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from localspec.core.config import DraftTokens
from localspec.core.errors import PromptTooLong
from localspec.core.sampling_params import SamplingParams
from localspec.engine.generate import TextEngine
from localspec.speculative.control.controllers import longest
from localspec.speculative.loop import Clock

PromptIds = Sequence[int]


class BenchEngine(TextEngine, Protocol):
    """An engine whose passes can be widened, to tell rounding from a mistake."""

    @property
    def min_width(self) -> int:
        """Tokens of the target's narrowest pass."""
        ...

    def widened(self, width: int) -> AbstractContextManager[None]:
        """Let no pass of the target be narrower than ``width`` tokens inside the block."""
        ...


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How to measure. ``lengths`` are the sides; the first is 0, plain, which all are held to.

    ``clock`` tells seconds, to the measurement and to auto alike.
    """

    params: SamplingParams
    lengths: tuple[DraftTokens, ...]
    repeats: int
    max_tokens: int
    prompt_lookup: bool = True
    audit: bool = False
    clock: Clock = time.perf_counter

    @property
    def width(self) -> int:
        """Tokens in the widest pass of any side, at least two."""
        return max(map(widest_pass, self.lengths))

    def needed_ctx(self, prompt: int, width: int) -> int:
        """Context size for a prompt of so many tokens, its answer and passes of this width.

        The last token of an answer is never decoded; the pass before it may be filled up.
        """
        return prompt + self.max_tokens - 2 + width

    def answers(self, prompts: int) -> int:
        """Measured answers to this many prompts."""
        return prompts * self.repeats * len(self.lengths)


def widest_pass(length: DraftTokens) -> int:
    """Tokens in the widest pass of a side, at least two."""
    return 1 + max(1, longest(length))


def require_room(
    engine: BenchEngine, tasks: Mapping[str, Sequence[PromptIds]], plan: BenchPlan
) -> None:
    """Raise PromptTooLong when a prompt, its answer and a widened pass exceed the context."""
    longest_prompt = max(len(prompt) for group in tasks.values() for prompt in group)
    needed = plan.needed_ctx(longest_prompt, plan.width)
    if needed > engine.target.n_ctx:
        raise PromptTooLong(
            f"The longest prompt has {longest_prompt} tokens; with an answer of {plan.max_tokens} "
            f"it needs a context of {needed} tokens, and there are {engine.target.n_ctx}.",
            "Give a smaller --max-tokens, a larger --ctx-size, or shorter --prompts.",
        )
