"""Play controllers on recorded traces with a table of costs: exactly repeatable milliseconds.

    python benchmarks/replay.py TRACES.jsonl...

The loop is the real one; target and draft answer from the trace, and the clock moves by what the
table says a pass costs.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from localspec.core.config import SamplingParams
from localspec.speculative.controller import Adaptive, FixedLength, Knowledge, NoDraft
from localspec.speculative.drafters import MODEL, TAIL, Candidate
from localspec.speculative.limits import best_seconds
from localspec.speculative.loop import Controller, Logits, common_prefix, generate_rounds
from localspec.speculative.sampler import Sampler
from localspec.speculative.suffix import SuffixIndex

Cost = Callable[[int, int], float]  # seconds of a pass by its width and the tokens before it


class Clock:
    """Moves when something costs time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Trace:
    """One recorded answer."""

    task: str
    temperature: float
    prompt: list[int]
    tokens: list[int]
    drafts: list[list[tuple[int, float]]]
    repeated: float

    @property
    def text(self) -> list[int]:
        return [*self.prompt, *self.tokens]


class TraceTarget:
    """A TokenModel that says what the trace says."""

    def __init__(self, trace: Trace, cost: Cost, clock: Clock) -> None:
        self.n_vocab = 1 + max(
            max(trace.text), max((c[0] for d in trace.drafts for c in d), default=0)
        )
        self.n_ctx = 10**6
        self.tokens: list[int] = trace.text[: len(trace.prompt) - 1]
        self._text = trace.text
        self._cost, self._clock = cost, clock

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        self._clock.now += self._cost(len(tokens), len(self.tokens))
        first = len(self.tokens) + len(tokens) - rows + 1
        self.tokens = [*self.tokens, *tokens]
        out = np.zeros((rows, self.n_vocab), np.float32)
        for i in range(rows):
            if first + i < len(self._text):
                out[i, self._text[first + i]] = 1.0
        return out

    def keep(self, length: int) -> None:
        del self.tokens[length:]


class TraceDrafter:
    """A drafter that proposes what the trace recorded."""

    def __init__(self, trace: Trace, cost: Cost, reading: float, clock: Clock) -> None:
        self._trace, self._cost, self._reading, self._clock = trace, cost, reading, clock
        self._held: list[int] = []

    def unread(self, context: list[int]) -> int:
        return len(context) - min(common_prefix(self._held, context), len(context) - 1)

    def read(self, context: list[int]) -> None:
        self._clock.now += self._reading * (self.unread(context) - 1)
        self._held = context[:-1]

    def propose(self, context: list[int]) -> Iterator[Candidate]:
        width, held = self.unread(context), list(context)
        for token, lead in self._trace.drafts[len(context) - len(self._trace.prompt)]:
            self._clock.now += self._cost(width, len(held))
            self._held = list(held)
            width = 1
            held.append(token)
            yield Candidate(token, lead, MODEL)

    def to_review(self, context: list[int], longest: int) -> int:
        unread = self.unread(context)
        few = unread <= TAIL + longest or 2 * unread <= len(context)
        return unread if few else TAIL + longest

    def review(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        count = self.to_review(context, longest)
        unread = self.unread(context) - 1
        self._clock.now += self._reading * (count - 1)
        self._held = context[:-1] if count > unread else []
        found = []
        for i in range(
            max(len(self._trace.prompt), len(context) - min(unread, longest)), len(context)
        ):
            (token, lead), *_ = self._trace.drafts[i - len(self._trace.prompt)]
            found.append((Candidate(token, lead, MODEL), context[i]))
        return found


@dataclass
class Machine:
    """Costs of a machine and pair, in plain tokens: verify by width, a draft step, a token read."""

    name: str
    widths: dict[int, float]
    step: float
    reading: float = 0.0
    slope: float = 0.0

    def verify(self, width: int, past: int) -> float:
        known = sorted(self.widths)
        value = float(np.interp(width, known, [self.widths[n] for n in known]))
        if width > known[-1]:
            value = self.widths[known[-1]] * width / known[-1]
        return value + self.slope * past * width

    def draft(self, width: int, past: int) -> float:
        return self.step * (1 + 0.15 * (width - 1))


def curve(text: str) -> dict[int, float]:
    return {i: float(value) for i, value in enumerate(text.split(), start=1)}


MACHINES = [
    Machine(
        "3090 8B Q4_0",
        curve("1 1.12 1.20 1.33 1.54 1.74 1.96 2.15 2.15 2.15 2.15 2.15 2.15 2.15 2.15 2.15")
        | {33: 3.0},
        0.06,
        0.01,
    ),
    Machine(
        "V100 8B Q2_K",
        curve("1 1.14 1.43 1.78 2.00 2.20 2.19 2.17") | {16: 3.5, 33: 6.0},
        0.1,
        0.02,
    ),
    Machine(
        "MI50 27B Q8_0", {1: 1, 2: 1.2, 4: 1.34, 8: 1.99, 9: 3.2, 16: 3.3, 32: 3.5}, 0.08, 0.02
    ),
    Machine(
        "NUMA CPU", curve("1 1.21 1.42 1.63 1.87 2.1 2.34 2.56") | {16: 4.3, 33: 8.0}, 0.1, 0.04
    ),
    Machine(
        "core F16", curve("1 1.99 2.23 2.30 2.51 2.71 3.50 3.74") | {16: 6.2, 33: 12.0}, 0.08, 0.04
    ),
    Machine(
        "core Q8_0", curve("1 2.05 2.35 2.55 3.95 4.25 4.71 4.18") | {16: 7.35, 33: 14.0}, 0.1, 0.05
    ),
    Machine(
        "core Q4_K", curve("1 1.95 2.91 3.66 4.61 5.54 6.47 7.08") | {16: 9.9, 33: 20.0}, 0.1, 0.05
    ),
]


def calibrated(machine: Machine, unit: float) -> Knowledge:
    """What a short calibration would have found."""
    known = Knowledge(reading=machine.reading * unit)
    for width in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 33):
        for _ in range(2):
            known.verify.observe(width, 0, machine.verify(width, 0) * unit)
    for width in (1, 2, 4, 8):
        known.draft.observe(width, 0, machine.draft(width, 0) * unit)
    return known


@dataclass
class Run:
    """Seconds, tokens and rounds of a controller over traces."""

    seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    worst: float = math.inf  # plain over this, on the worst trace
    lost: list[str] = field(default_factory=list)


UNIT = 0.05


def play(
    trace: Trace, machine: Machine, make: Callable[[TraceDrafter, Clock], Controller]
) -> tuple[float, int]:
    """Seconds and rounds of one answer."""
    clock = Clock()
    target = TraceTarget(trace, lambda n, past: machine.verify(n, past) * UNIT, clock)
    drafter = TraceDrafter(
        trace, lambda n, past: machine.draft(n, past) * UNIT, machine.reading * UNIT, clock
    )
    rounds = list(
        generate_rounds(
            target,
            make(drafter, clock),
            Sampler(SamplingParams(temperature=0)),
            trace.prompt,
            max_tokens=len(trace.tokens),
            is_stop=lambda token: False,
            clock=clock,
        )  # fmt: skip
    )
    assert [t for r in rounds for t in r.tokens] == trace.tokens
    return clock.now, len(rounds)


def adaptive(
    trace: Trace, machine: Machine, known: Knowledge, index: SuffixIndex | None = None
) -> float:
    """Seconds of one answer with auto."""
    return play(trace, machine, lambda d, c: Adaptive(known, c, d, index))[0]


def oracle(trace: Trace, machine: Machine) -> float:
    """Seconds with the best length in every round, known beforehand."""
    agreed = [
        drafted[0][0] == token for drafted, token in zip(trace.drafts, trace.tokens, strict=True)
    ]
    verify = [machine.verify(1 + k, len(trace.prompt)) * UNIT for k in range(17)]
    return best_seconds(agreed, verify, machine.step * UNIT)


def read_traces(paths: Sequence[Path]) -> list[Trace]:
    traces = []
    for path in paths:
        for line in path.read_text().splitlines():
            traces.append(Trace(**json.loads(line)))
    return traces


def main() -> None:
    """A table: plain is 1, by machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--temperature", type=float)
    args = parser.parse_args()
    traces = [t for t in read_traces(args.traces) if t.repeated <= 0.3]
    if args.temperature is not None:
        traces = [t for t in traces if t.temperature == args.temperature]
    print(f"{len(traces)} traces, {sum(len(t.tokens) for t in traces)} tokens")
    lengths = (1, 2, 3, 4, 6, 8)
    print(
        f"{'machine':16}"
        + "".join(f"{n:>7}" for n in lengths)
        + "   best    cold   warm  +suffix  worst(cold) (suffix)  oracle  %"
    )
    ratios = []
    for machine in MACHINES:
        plain = [play(t, machine, lambda d, c: NoDraft())[0] for t in traces]
        total = sum(plain)
        fixed = [
            total / sum(play(t, machine, lambda d, c, n=n: FixedLength(d, n, c))[0] for t in traces)
            for n in lengths
        ]
        cold = [adaptive(t, machine, calibrated(machine, UNIT)) for t in traces]
        known, both = calibrated(machine, UNIT), calibrated(machine, UNIT)
        warm = [adaptive(t, machine, known) for t in traces]
        mixed = [adaptive(t, machine, both, SuffixIndex()) for t in traces]
        ideal = total / sum(oracle(t, machine) for t in traces)
        worst = [
            min(p / s for p, s, t in zip(plain, side, traces, strict=True) if len(t.tokens) >= 64)
            for side in (cold, mixed)
        ]
        gain = total / sum(warm)
        ratios.append(gain / max(1.0, *fixed))
        print(
            f"{machine.name:16}"
            + "".join(f"{x:7.2f}" for x in fixed)
            + f"{max(1.0, *fixed):7.2f}{total / sum(cold):8.2f}{gain:7.2f}{total / sum(mixed):8.2f}"
            + f"{worst[0]:12.3f}{worst[1]:8.3f}{ideal:9.2f}{gain / ideal:6.0%}"
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"warm over best of plain and fixed: {mean:.3f}")


if __name__ == "__main__":
    main()
