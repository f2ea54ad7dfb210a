"""How many output rows trimmed MTP heads keep, by the text that rows cover and their cost."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace

import numpy as np

from localspec.core.options.load_options import LoadOptions
from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.head import Head
from localspec.llama.heads.hidden_states import States
from localspec.llama.heads.opening import open_head
from localspec.llama.model import LlamaModel
from localspec.metadata.draft_kind import output_width
from localspec.metadata.header import ModelHeader
from localspec.self_draft.trim import CTX_SIZE
from localspec.speculative.limits import usual_best
from localspec.speculative.loop import Clock

_SIZES = 10  # numbers of rows that are compared, each about 0.7 of the one before
_GRAIN = 64
_TRIES = 16
_CLEARLY = 1.02  # times as fast as whole heads: estimates are no closer


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The best number of output rows below ``size``, all; ``covered`` is their share of the text.

    Steps are seconds of the heads for a token, speedups are expected ones over plain decoding.
    """

    rows: int
    size: int
    covered: float
    step: float
    whole_step: float
    speedup: float
    whole_speedup: float

    @property
    def pays(self) -> bool:
        """Whether fewer rows are expected to be faster than plain decoding and the whole heads."""
        return self.speedup > _CLEARLY * max(1.0, self.whole_speedup)

    @property
    def sentence(self) -> str:
        why = (
            f"they cover {self.covered:.1%} of unseen text, and a step of the heads takes "
            f"{1e3 * self.step:.3g} ms in place of {1e3 * self.whole_step:.3g}: about "
            f"{self.speedup:.2f}x plain is expected, {self.whole_speedup:.2f}x with the whole heads"
        )
        if self.pays:
            return f"Chosen: {self.rows:,} of {self.size:,} output rows; {why}."
        better = "The whole heads are better" if self.whole_speedup > 1 else "No heads pay"
        return (
            f"{better} here, so nothing is made. Of fewer output rows {self.rows:,} of "
            f"{self.size:,} are the best; {why}."
        )

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"pays": self.pays}


def sizes(size: int) -> list[int]:
    """The numbers of rows to compare for a vocabulary of ``size``, descending."""
    found = (round(size / 2 ** (i / 2) / _GRAIN) * _GRAIN for i in range(1, _SIZES + 1))
    return sorted({each for each in found if 0 < each < size} or {max(1, size // 2)}, reverse=True)


def choose_rows(
    coverage: Sequence[float],
    verify: Sequence[float],
    chance: float,
    fewest: tuple[int, float],
    whole: tuple[int, float],
) -> RowChoice:
    """The best of `sizes`, by the best fixed draft length (`usual_best`).

    ``coverage[n - 1]`` is the share of text that n rows cover, ``verify[k]`` the seconds of a pass
    with k drafted tokens, ``chance`` that of a token drafted by whole heads. ``fewest`` and
    ``whole`` are numbers of rows with the measured seconds of a step; in between it is a line.

    A drafted token needs a row, and so does the one before it that the heads read: the chance falls
    with the square of the coverage.
    """
    (rows, seconds), (size, most) = fewest, whole
    each = max(0.0, most - seconds) / (size - rows)

    def expected(n: int) -> tuple[float, float, int]:
        step = most - each * (size - n)
        return usual_best(verify, step, chance * coverage[n - 1] ** 2)[0], step, n

    speedup, step, best = max(expected(n) for n in sizes(size) if n >= rows)
    plain = usual_best(verify, most, chance)[0]
    return RowChoice(best, size, float(coverage[best - 1]), step, most, speedup, plain)


def step_seconds(
    target: ModelHeader, trimmed: ModelHeader, options: LoadOptions, clock: Clock
) -> tuple[float, float]:
    """Seconds of a step with trimmed heads and with the target's own, measured in turn."""
    options = replace(options, ctx_size=CTX_SIZE, parallel=1, load_heads=True)
    state = np.random.default_rng(0).standard_normal((1, output_width(target) or 0), np.float32)
    with ExitStack() as stack:
        model = stack.enter_context(closing(LlamaModel(target, options)))
        heads = [
            stack.enter_context(closing(open_head(model, header, replace(options, path=path))))
            for header, path in ((trimmed, trimmed.path), (None, target.path))
        ]
        rounds = [[_step(head, state, clock) for head in heads] for _ in range(_TRIES)]
    fewer, whole = (min(times) for times in zip(*rounds, strict=True))
    return fewer, whole


def _step(head: Head, state: States, clock: Clock) -> float:
    began = clock()
    head.context.decode(HeadRows([1], [0], state, 1))
    head.context.logits(1)
    took = clock() - began
    head.context.forget(0)
    return took
