"""Which passes round alike: widths at which a token's logits are the same bit for bit.

llama.cpp chooses kernels by the number of tokens in a pass, so that the same token may have other
logits in a pass of another width. The widths depend on types, processor, build, attention, threads
and context, so they are found by trying.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from localspec.speculative.loop import Clock, Logits

STEPS = (1, 2, 4, 8, 16, 32)  # tokens: all passes are filled up to a multiple of one of these
_GROUPS = (8, 1, 3, 2, 4, 5, 9, 17, 56)  # real tokens of the passes that are compared
_COMPARED = 9  # tokens that are read in each way, or fewer in narrow groups
_REPEATS = 4  # passes of a narrow group
_SHORT, _LONG = 24, 530  # tokens before them; kernels change where threads share 512 and more
_REREAD = 40  # tokens of a prompt, read in one pass and in narrow ones
_WIDEST = 56  # tokens of a pass with logits: flash attention changes at 64
_ACCEPTANCE = 0.8  # of drafted tokens, to weigh wide passes against plain ones
_WEIGHED = (1, 2, 4, 8)  # steps in a pass
_MOST_WEIGHED = 32  # tokens of a pass
_TRIES = 3


@dataclass(frozen=True, slots=True)
class PassClass:
    """Passes that round alike: multiples of ``step`` tokens, up to ``widest``.

    With ``step`` 0 no such passes were found. ``alone``: answers are decoded one token at a time,
    without drafts, because that is faster or nothing else is there; prompts are then read in
    passes of the class, and what an answer wrote is read again.
    """

    step: int = 1
    widest: int = 2**16
    alone: bool = False

    def __str__(self) -> str:
        if not self.step:
            return "no two widths of pass round alike: drafting is off, and prompts are read whole"
        passes = f"passes are filled up to multiples of {self.step} (at most {self.widest} tokens)"
        if self.step == 1:
            passes = f"all passes up to {self.widest} tokens round alike"
        if self.alone:
            return (
                f"drafting is off: decoding one token at a time is faster than filled passes; for "
                f"prompts, {passes}"
            )
        return passes


NATURAL = PassClass()


class ClassedModel(Protocol):
    """What the search needs of a model; see `model.LlamaModel`."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def trims(self) -> bool:
        """Whether tokens are forgotten at no cost."""

    def use_class(self, passes: PassClass) -> None:
        """Make all passes of this class."""

    def decode(self, tokens: Sequence[int], rows: int) -> Logits: ...

    def truncate(self, length: int) -> None: ...


def find_class(model: ClassedModel, clock: Clock = time.perf_counter) -> PassClass:
    """The fastest passes that round alike, by decoding the same tokens in many ways.

    The model's cache is left empty, its class `NATURAL`.
    """
    most = max(0, model.n_ctx - max(_GROUPS))
    pasts = sorted({min(_SHORT, most), min(_LONG if model.trims else 2 * _SHORT, most)})
    try:
        found = next(filter(None, (_valid(model, step, pasts) for step in STEPS)), None)
        if found is None:
            return PassClass(0, alone=True)
        return _choose(model, found, pasts[-1], clock)
    finally:
        model.use_class(NATURAL)
        model.truncate(0)


def _valid(model: ClassedModel, step: int, pasts: Sequence[int]) -> PassClass | None:
    """The class of multiples of ``step``; None where they do not round alike."""
    passes = PassClass(step, _WIDEST // step * step)
    if not all(_alike(model, passes, past) for past in pasts):
        return None
    wide = replace(passes, widest=2**16)
    return wide if _reads_alike(model, passes, wide, pasts[-1]) else passes


def _alike(model: ClassedModel, passes: PassClass, past: int) -> bool:
    """Whether tokens behind ``past`` others have the same logits however they are read."""
    tokens = _tokens(model, past + max(_GROUPS))
    model.use_class(passes)
    readings = _readings(model, tokens, past)
    known = next(readings)
    for rows in readings:
        both = min(len(known), len(rows))
        if not np.array_equal(rows[:both], known[:both]):
            return False
        known = max(known, rows, key=len)
    return True


def _readings(model: ClassedModel, tokens: list[int], past: int) -> Iterator[Logits]:
    """Logits of the tokens behind ``past``, read in groups of different sizes."""
    model.decode(tokens[:past], 0)
    for group in _GROUPS:
        count = max(group, min(_REPEATS * group, _COMPARED))
        yield _grouped(model, tokens[past : past + count], group)
        _return(model, tokens, past)
    begin = max(0, past - _REREAD)
    _return(model, tokens, begin)
    for at in range(begin, past, 3):
        model.decode(tokens[at : min(at + 3, past)], 0)
    yield _grouped(model, tokens[past : past + _COMPARED], _COMPARED)


def _reads_alike(model: ClassedModel, first: PassClass, second: PassClass, past: int) -> bool:
    """Whether a prompt of ``past`` tokens, read in passes of two classes, goes on alike."""
    rows = [_rows_behind(model, passes, past) for passes in (first, second)]
    return np.array_equal(rows[0], rows[1])


def _rows_behind(model: ClassedModel, passes: PassClass, past: int) -> Logits:
    tokens = _tokens(model, past + _COMPARED)
    model.use_class(passes)
    model.decode(tokens[:past], 0)
    return model.decode(tokens[past:], _COMPARED).copy()


def _return(model: ClassedModel, tokens: list[int], length: int) -> None:
    """Let the model hold so many tokens, read as they were at first."""
    if model.trims:
        model.truncate(length)
    else:
        model.truncate(0)
        model.decode(tokens[:length], 0)


def _tokens(model: ClassedModel, count: int) -> list[int]:
    return [(7919 * i + 1) % model.n_vocab for i in range(count)]


def _grouped(model: ClassedModel, tokens: list[int], group: int) -> Logits:
    rows = [
        model.decode(tokens[i : i + group], len(tokens[i : i + group])).copy()
        for i in range(0, len(tokens), group)
    ]
    return np.concatenate(rows)


def _choose(model: ClassedModel, found: PassClass, past: int, clock: Clock) -> PassClass:
    """The class itself, or one token at a time where no filled pass is expected to be faster."""
    if found.step == 1:
        return found
    wide = [w for n in _WEIGHED if (w := n * found.step) <= _MOST_WEIGHED]
    seconds = _seconds(model, [1, *wide], past, clock)
    best = min(seconds[width] / _expected_tokens(width) for width in wide)
    return found if best <= seconds[1] else replace(found, alone=True)


def _expected_tokens(width: int) -> float:
    """Tokens that a pass emits when its drafts are accepted at the usual rate."""
    return float(sum(_ACCEPTANCE**i for i in range(width)))


def _seconds(
    model: ClassedModel, widths: Sequence[int], past: int, clock: Clock
) -> dict[int, float]:
    """The least seconds of passes by their width, all measured in turn."""
    model.use_class(NATURAL)
    tokens = _tokens(model, past + max(widths))
    model.decode(tokens[:past], 0)
    seconds = dict.fromkeys(widths, float("inf"))
    for width in _TRIES * [*widths]:
        _return(model, tokens, past)
        began = clock()
        model.decode(tokens[past : past + width], width)
        seconds[width] = min(seconds[width], clock() - began)
    return seconds
