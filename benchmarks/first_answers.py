"""Compares the first answer of a new pair with the same answer by a profile of ten answers.

    python benchmarks/first_answers.py TARGET.gguf DRAFT.gguf [--tries 20] [--busy]

Each try forgets the profile, measures the pair as its first use does, and answers a prompt of a
kind greedily from empty caches; then the profile of ten earlier answers to other prompts answers
it. Seconds are those of the whole answer without the target's reading of the prompt. With --busy
another process uses a core meanwhile. The first column is the speed of the first answer over the
other one, which the same profile also gives twice ("repeat") to show the noise. "priced" is the
same ratio if each pass of either answer takes what the profile of ten answers says: it shows what
was decided, apart from the moment at which it ran.
"""

import argparse
import copy
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from common import GREEDY, Parser, conditions, load

from localspec.bench.plan import BenchPlan, Variant
from localspec.bench.prompts import BenchPrompt, by_task, read_prompts
from localspec.engine.engine import Engine
from localspec.speculative.control.pair_profile import PairProfile
from localspec.speculative.control.probing import FAR_BEHIND
from localspec.speculative.control.valuation import WIDEST
from localspec.speculative.loop import Logits, TokenModel

KINDS = ("code", "chat", "edit")
EARLIER = 10  # answers
PROMPTS = Path(__file__).with_name("real.jsonl")
CTX_SIZE = 2048


@contextmanager
def busy(wanted: bool) -> Iterator[None]:
    """Another process that uses a core, if wanted."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()


class Pair:
    """A loaded pair, whose profile can be replaced."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self.engine = engine
        plan = BenchPlan(GREEDY, ("auto",), 1, tokens, True)
        self._variant = Variant("auto", engine, plan, "auto")
        self._passes: list[tuple[TokenModel, int, int]] = []  # model, tokens, tokens before
        assert engine.draft is not None
        for model in (engine.target, engine.draft):
            self._record(model)

    def _record(self, model: TokenModel) -> None:
        """Record each pass of a model."""
        decode = model.decode

        def recorded(tokens: Sequence[int], rows: int) -> Logits:
            self._passes.append((model, len(tokens), len(model.tokens)))
            return decode(tokens, rows)

        vars(model)["decode"] = recorded

    def priced(self, costs: PairProfile) -> float:
        """Seconds of the last answer's passes after the prompt, by these costs."""
        target, seconds = self.engine.target, 0.0
        prompt = max(i for i, each in enumerate(self._passes) if each[0] is target and not each[2])
        for model, tokens, past in self._passes[prompt + 1 :]:
            if model is target:
                seconds += costs.verify.seconds(tokens, past) if tokens <= WIDEST else 0.0
            elif tokens <= FAR_BEHIND:
                seconds += costs.draft_seconds(tokens, past)
            else:
                seconds += costs.reading_seconds(tokens)
        return seconds

    def seconds(self, prompt: BenchPrompt, profile: PairProfile | None) -> float:
        """Seconds of a token of an answer, by a copy of a profile, or by a new one."""
        self._passes.clear()
        stored = self.engine.profile
        stored.forget()
        if profile is not None:
            vars(stored)["_profile"] = copy.deepcopy(profile)
        stats = self._variant.answer(self.engine.encode_chat(list(prompt.messages))).stats
        return (stats.draft_prompt_seconds + stats.seconds) / stats.tokens

    def learn(self, prompts: list[BenchPrompt]) -> PairProfile:
        """The profile of answers to these prompts, one after the other."""
        self.engine.profile.forget()
        for prompt in prompts:
            self._variant.answer(self.engine.encode_chat(list(prompt.messages)))
        learnt = self.engine.profile.known
        assert learnt is not None
        return copy.deepcopy(learnt)


def measure(pair: Pair, tries: int) -> None:
    """Print a line for each try and kind, then the least and the median."""
    groups = by_task(read_prompts(PROMPTS), None)
    last = [group[-1] for group in groups.values()]
    learnt = pair.learn([*last, last[0]][:EARLIER])
    found: list[tuple[float, float]] = []
    print("kind    first answer  repeat  priced")
    for i in range(tries):
        for kind in KINDS:
            prompt = groups[kind][i % (len(groups[kind]) - 1)]
            usual, by_usual = pair.seconds(prompt, learnt), pair.priced(learnt)
            first, by_first = pair.seconds(prompt, None), pair.priced(learnt)
            again = pair.seconds(prompt, learnt)
            found.append((min(usual, again) / first, by_usual / by_first))
            timed, priced = found[-1]
            print(f"{kind:8}{timed:12.2f}{usual / again:8.2f}{priced:8.2f}", flush=True)
    for name, column in zip(("first answer", "priced"), zip(*found, strict=True), strict=True):
        print(f"{name}: least {min(column):.2f}, median {statistics.median(column):.2f}")


def main() -> None:
    """Load the pair, and measure."""
    parser = Parser(__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--busy", action=argparse.BooleanOptionalAction, default=False)
    parser.integers(tries=20, max_tokens=64, threads=None)
    args = parser.parse_args()
    with busy(args.busy), load([args.target, args.draft], args.threads, CTX_SIZE) as engine:
        print(conditions(args.threads, args.target.name, args.draft.name))
        measure(Pair(engine, args.max_tokens), args.tries)


if __name__ == "__main__":
    main()
