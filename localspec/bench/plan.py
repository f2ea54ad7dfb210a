"""Benchmark plans and variants: which engine answers which prompts, how often, in which context."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.chat.answer import Answer, collect
from localspec.core.errors import PromptTooLong
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.session.job import Stream
from localspec.speculative.control.controllers import longest
from localspec.speculative.loop import Clock

PromptIds = Sequence[int]

FILLED = 8  # tokens: passes of multiples round alike on the processors that were tried
_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How to measure. The first of the draft ``lengths`` is 0, plain decoding, the baseline.

    ``clock`` returns seconds; the measurement and auto share it.
    """

    params: SamplingParams
    lengths: tuple[DraftTokens, ...]
    repeats: int
    max_tokens: int
    prompt_lookup: bool = True
    clock: Clock = time.perf_counter

    @property
    def answers(self) -> int:
        """How many a prompt gets: a plain one with each of another length."""
        return self.repeats * max(1, 2 * (len(self.lengths) - 1))

    @property
    def width(self) -> int:
        """Tokens in the widest pass of any length, filled up as for a proof of rounding."""
        return -(-max(map(widest_pass, self.lengths)) // FILLED) * FILLED

    def needed_ctx(self, prompt: int, width: int) -> int:
        """The context for a prompt, its answer and passes of ``width``."""
        return prompt + self.max_tokens - 2 + width


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of a benchmark: an engine that drafts ``length`` tokens a round; 0 is plain."""

    name: str
    engine: Engine
    plan: BenchPlan
    length: DraftTokens

    def empty_caches(self) -> None:
        self.engine.target.truncate(0)
        if self.engine.draft is not None:
            self.engine.draft.truncate(0)
        self.engine.prompt_lookup.update([])
        self.engine.conversations.clear()

    def answer(self, prompt: PromptIds) -> Answer:
        """Generate once from empty caches; Ctrl-C ends the whole measurement."""
        self.empty_caches()
        return self.answer_warm(prompt)

    def stream(self, prompt: PromptIds) -> Stream:
        """The pieces of an answer from empty caches."""
        self.empty_caches()
        return self._stream(prompt)

    def _stream(self, prompt: PromptIds) -> Stream:
        plan = self.plan
        options = GenerateOptions(
            plan.params, self.length, prompt_lookup=plan.prompt_lookup, max_tokens=plan.max_tokens
        )
        return self.engine.stream(prompt, options, clock=plan.clock)

    def answer_warm(self, prompt: PromptIds) -> Answer:
        """Generate once with the caches of earlier answers."""
        result = collect(self._stream(prompt))
        if result.finish_reason == "cancelled":
            raise KeyboardInterrupt
        return result

    def warm_up(self, prompt: PromptIds) -> None:
        """Answer briefly, unmeasured: first passes page weights in and set up kernels."""
        short = replace(self.plan, max_tokens=min(self.plan.max_tokens, _WARM_UP_TOKENS))
        replace(self, plan=short).answer(prompt)


def widest_pass(length: DraftTokens) -> int:
    """Tokens in the widest pass with a draft length, at least two."""
    return 1 + max(1, longest(length))


def require_prompts_fit(
    engine: Engine, tasks: Mapping[str, Sequence[PromptIds]], plan: BenchPlan
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
