"""Pass widths with bit-identical logits of a token.

llama.cpp chooses kernels by the number of tokens in a pass, so that the same token may have other
logits in a pass of another width. The widths depend on types, processor, build, attention, threads
and context, so they are found by trying.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from localspec.core.interrupt import require_wanted
from localspec.core.options.load_options import MAX_ROWS
from localspec.speculative.loop import Clock, Logits

SAME_TEXT = "the drafted text is the plain text, to the last bit"
STEPS = (1, 2, 4, 8, 16, 32)  # tokens: all passes are padded to a multiple of one of these
_GROUPS = (8, 1, 3, 2, 4, 5, 9, 17, 56)  # real tokens of the passes that are compared
_FEW_GROUPS = (17, 1, 3)  # of these if all widths are expected to round alike
_FEW_BEFORE = 96  # tokens before these; a target of 7B reads some twenty a second
_FILLED = (1, 3)  # of these if a pass is padded
_COMPARED = 9  # tokens that are read in each way, or fewer in narrow groups
_REPEATS = 4  # passes of a narrow group
_SHORT, _LONG = 24, 530  # tokens before them; kernels change if threads share 512 and more
_TAIL, _NARROW = 24, 5  # the last tokens: read in one pass, and in passes of _NARROW tokens
_WIDEST = 56  # tokens of a pass with logits: flash attention changes at 64
_READ = 128  # tokens of a pass of a prompt, if these round alike too
_PROMPT = _READ + _READ // 4  # tokens of one: its last pass may be longer
_ACCEPTANCE = 0.8  # of drafted tokens, to weigh padded passes against plain ones
_DRAFT_COST = 0.2  # of a plain pass: the cost of a drafted token
_WEIGHED = (1, 2, 4)  # steps in a pass
_MOST_WEIGHED = 16  # tokens of a pass
_TRIES, _MOST_TRIES = 2, 20  # of each width
_SECONDS = 0.5  # for more than _TRIES: short passes are measured badly on a busy machine


@dataclass(frozen=True, slots=True)
class PassClass:
    """Passes that round alike: multiples of ``step`` tokens, up to ``widest``.

    With ``step`` 0 no such passes were found. ``alone``: answers are decoded one token at a time,
    without drafts, because that is faster or there is no class; prompts are then read in passes of
    the class, and tokens of an answer are read again.
    """

    step: int = 1
    widest: int = 2**16  # no limit
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


@dataclass(frozen=True, slots=True)
class Rounding:
    """Whether passes of all widths round ``alike``, with row kernels.

    ``left`` names the operations that these left to llama.cpp's own code, in words. In texts of
    more than ``tokens`` sliding windows use cells again, whose order depends on rejected drafts; 0
    for no such limit.
    """

    alike: bool
    left: str = ""
    tokens: int = 0

    def __str__(self) -> str:
        if self.alike and self.tokens:
            return f"in texts of up to {self.tokens:,} tokens {SAME_TEXT}"
        if self.alike:
            return f"passes of all widths round alike: {SAME_TEXT}"
        cause = f"llama.cpp's own code computes {self.left}" if self.left else "passes round apart"
        return f"drafted texts may differ from plain ones by rounding: {cause}"


class ClassedModel(Protocol):
    """The part of a model that the search needs; see `model.LlamaModel`."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def trims(self) -> bool: ...
    def use_class(self, passes: PassClass) -> None: ...
    def decode(self, tokens: Sequence[int], rows: int) -> Logits: ...
    def truncate(self, length: int) -> None: ...


def find_class(model: ClassedModel, clock: Clock = time.perf_counter) -> PassClass:
    """The fastest passes that round alike, by decoding the same tokens in many ways.

    The model is left empty, its class `NATURAL`.
    """
    most = max(0, model.n_ctx - max(_GROUPS))
    pasts = sorted({min(_SHORT, most), min(_LONG if model.trims else 2 * _SHORT, most)})
    steps = [*STEPS]
    try:
        for past in pasts:  # the multiples of a step are among those of the steps before it
            text = _Text(model, past)
            while steps and not _alike(text, _narrow(steps[0])):
                steps.pop(0)
        if not steps:
            return PassClass(0, alone=True)
        alone = steps[0] > 1 and not _pays(text, steps[0], clock)
        found, wide = _narrow(steps[0]), PassClass(steps[0], _READ)
        return replace(wide if text.reads_alike(found, wide) else found, alone=alone)
    finally:
        model.use_class(NATURAL)
        model.truncate(0)


def all_alike(model: ClassedModel) -> bool:
    """Whether passes of all widths round alike, by few of them: some 300 tokens are read.

    The model is left empty, its class `NATURAL`.
    """
    past = min(_FEW_BEFORE if model.trims else 2 * _SHORT, max(0, model.n_ctx - max(_GROUPS)))
    text = _Text(model, past)
    try:
        narrow = _narrow(1)
        if not _alike(text, narrow, _FEW_GROUPS):
            return False
        text.hold_past(narrow)  # its beginning was read in one pass
        rows = text.rows(_COMPARED, _COMPARED)
        return np.array_equal(rows, text.rows_after(narrow))
    finally:
        model.use_class(NATURAL)
        model.truncate(0)


class _Text:
    """A test text: ``past`` tokens, and those after them that passes of many widths read."""

    def __init__(self, model: ClassedModel, past: int) -> None:
        self._model = model
        self._tokens = [(7919 * i + 1) % model.n_vocab for i in range(past + max(_GROUPS))]
        self._past, self._base = past, max(0, past - _TAIL)
        self._read: tuple[PassClass, int] | None = None  # how the end of the past was read
        self._begin()

    def _begin(self) -> None:
        self._model.truncate(0)
        self._model.use_class(NATURAL)
        self._model.decode(self._tokens[: self._base], 0)

    def hold_past(self, passes: PassClass, size: int = _TAIL) -> None:
        """Hold the past; its end is read in passes of ``size`` tokens and of a class."""
        if self._model.trims and self._read == (passes, size):
            self._model.truncate(self._past)
            return
        if self._model.trims:
            self._model.truncate(self._base)
        else:
            self._begin()
        self._model.use_class(passes)
        for part in _parts(self._tokens[self._base : self._past], size):
            self._model.decode(part, 0)
        self._read = passes, size

    def rows(self, group: int, count: int) -> Logits:
        """Logits of ``count`` tokens after the past, read in groups."""
        parts = _parts(self._tokens[self._past : self._past + count], group)
        return np.concatenate([self._model.decode(part, len(part)).copy() for part in parts])

    def rows_after(self, passes: PassClass) -> Logits:
        """Logits after the past, which is read again from its beginning in passes of a class."""
        self._model.truncate(0)
        self._model.use_class(passes)
        self._model.decode(self._tokens[: self._past], 0)
        return self.rows(_COMPARED, _COMPARED)

    def reads_alike(self, first: PassClass, second: PassClass) -> bool:
        """Whether a prompt that is read in passes of two classes has the same logits after it."""
        count = min(_PROMPT, self._past)
        rows = []
        for passes in (first, second):
            self._model.truncate(0)
            self._model.use_class(passes)
            self._model.decode(self._tokens[:count], 0)
            rest = self._tokens[count:][:MAX_ROWS]
            rows.append(self._model.decode(rest, len(rest)).copy())
        return np.array_equal(rows[0], rows[1])


def _parts(tokens: list[int], size: int) -> Iterator[list[int]]:
    """The tokens of each pass; Ctrl-C ends all of them before the next."""
    for i in range(0, len(tokens), size):
        require_wanted()
        yield tokens[i : i + size]


def _narrow(step: int) -> PassClass:
    """The multiples of a step up to the widest pass with logits."""
    return PassClass(step, _WIDEST // step * step)


def _alike(text: _Text, passes: PassClass, tried: Sequence[int] = _GROUPS) -> bool:
    """Whether tokens have the same logits in all passes of a class."""
    known = np.empty((0, 0), np.float32)
    groups = [each for each in tried if each in _FILLED or each >= passes.step]
    for size, group in [*((_TAIL, group) for group in groups), (_NARROW, _COMPARED)]:
        text.hold_past(passes, size)
        rows = text.rows(group, max(group, min(_REPEATS * group, _COMPARED)))
        both = min(len(known), len(rows))
        if both and not np.array_equal(rows[:both], known[:both]):
            return False
        known = max(known, rows, key=len)
    return True


def _pays(text: _Text, step: int, clock: Clock) -> bool:
    """Whether drafts in padded passes may be faster than one token at a time."""
    widths = [width for n in _WEIGHED if (width := n * step) <= max(step, _MOST_WEIGHED)]
    seconds = _seconds(text, sorted({1, *widths}), clock)
    costs = (seconds[w] + (w - 1) * _DRAFT_COST * seconds[1] for w in widths)
    # Tokens that a pass of each width emits, if the target accepts drafts at the usual rate.
    emitted = (sum(_ACCEPTANCE**i for i in range(w)) for w in widths)
    return min(cost / n for cost, n in zip(costs, emitted, strict=True)) <= seconds[1]


def _seconds(text: _Text, widths: Sequence[int], clock: Clock) -> dict[int, float]:
    """The least seconds of passes by their width, all measured in turn."""
    seconds, end = dict.fromkeys(widths, float("inf")), clock() + _SECONDS
    for done in range(_MOST_TRIES):
        if done >= _TRIES and clock() > end:
            break
        for width in widths:
            text.hold_past(NATURAL)
            began = clock()
            text.rows(width, width)
            seconds[width] = min(seconds[width], clock() - began)
    return seconds
