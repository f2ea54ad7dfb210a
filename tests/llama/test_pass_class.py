"""The search for passes that round alike, on a model with made-up kernels."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.core.interrupt import Cancelled, stopped_when
from localspec.llama.pass_class import NATURAL, PassClass, Rounding, all_alike, find_class
from tests.support.toy.models import FakeClock

Kernel = Callable[[int, int], int]  # the width of a pass and a place in it -> how it rounds


class Kernels:
    """A ClassedModel whose tokens remember the kernel that read them, and count in later rows."""

    n_vocab = 11
    trims = True

    def __init__(self, kernel: Kernel, n_ctx: int = 1024, *, cost: Sequence[float] = ()) -> None:
        self.n_ctx = n_ctx
        self.clock = FakeClock()
        self._kernel = kernel
        self._cost = cost
        self._passes = NATURAL
        self._read: list[int] = []

    def use_class(self, passes: PassClass) -> None:
        self._passes = passes

    def truncate(self, length: int) -> None:
        del self._read[length:]

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        step, found = max(1, self._passes.step), []
        size = min(self._passes.widest, 512) // step * step
        for i in range(0, len(tokens), size):
            part = tokens[i : i + size]
            width = -(-len(part) // step) * step
            if self._cost:
                self.clock.now += self._cost[min(width, len(self._cost)) - 1]
            for place, token in enumerate(part):
                self._read.append(self._kernel(width, place))
                found.append([token, sum(self._read)])
        return np.array(found[len(found) - rows :], np.float32)


def by_eights(width: int, place: int) -> int:
    """As on a Zen 5 with Q4_K_M."""
    return 0 if width >= 8 else 1 + (width > 1) + (width > 3)


def remainders(width: int, place: int) -> int:
    """As repacked weights on AVX2: rows that fill no group of four have another kernel."""
    return int(place >= width - width % 4)


def tiles(width: int, place: int) -> int:
    """As flash attention from 64 tokens on, and one token alone."""
    return 1 if width == 1 else 2 * (width >= 64)


@pytest.mark.parametrize(
    ("kernel", "step", "widest"),
    [
        (lambda width, place: 0, 1, 128),
        (by_eights, 8, 128),
        (remainders, 4, 128),
        (tiles, 2, 56),
        (lambda width, place: width % 8 + place % 3, 0, 2**16),
        (lambda width, place: width, 32, 32),
    ],
)
def test_the_narrowest_step_that_rounds_alike(kernel: Kernel, step: int, widest: int) -> None:
    found = find_class(Kernels(kernel))
    assert (found.step, found.widest) == (step, widest)
    assert found.alone or step


@pytest.mark.parametrize(("wide", "alone"), [(1.4, False), (3.0, True)])
def test_one_token_at_a_time_where_filled_passes_cost_more(wide: float, alone: bool) -> None:
    model = Kernels(by_eights, cost=[1.0] * 7 + [wide] * 9 + [99.0])
    found = find_class(model, lambda: model.clock.now)
    assert found == PassClass(8, 128, alone)
    assert ("drafting is off" in str(found)) == alone


def test_short_passes_are_measured_again_where_the_machine_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Kernels(by_eights, cost=[0.001] * 7 + [0.0014] * 9 + [0.099])
    decode, timed, held_up = model.decode, list[float](), list[int]()

    def busy(tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        if timed and rows >= 8 and len(held_up) < 6:
            held_up.append(rows)
            model.clock.now += 0.01
        return decode(tokens, rows)

    def clock() -> float:
        timed.append(model.clock.now)
        return model.clock.now

    monkeypatch.setattr(model, "decode", busy)
    assert not find_class(model, clock).alone and len(held_up) == 6


def test_a_short_context_is_enough() -> None:
    assert find_class(Kernels(by_eights, n_ctx=70)).step == 8
    assert not all_alike(Kernels(by_eights, n_ctx=70))


@pytest.mark.parametrize(
    ("kernel", "alike"),
    [
        (lambda width, place: 0, True),
        (by_eights, False),
        (remainders, False),
        (tiles, False),
        (lambda width, place: int(width > 64), False),
        (lambda width, place: int(place >= 16), False),
    ],
)
def test_whether_all_widths_round_alike(kernel: Kernel, alike: bool) -> None:
    assert all_alike(Kernels(kernel)) == alike


def test_that_takes_half_of_the_search() -> None:
    model = Kernels(lambda width, place: 0, cost=[float(width) for width in range(1, 513)])
    all_alike(model)
    quick, model.clock.now = model.clock.now, 0.0
    find_class(model)
    assert 2 * quick < model.clock.now


def test_what_row_kernels_make_of_a_model_in_words() -> None:
    assert str(Rounding(True)).endswith("the drafted text is the plain text, to the last bit")
    left = str(Rounding(False, "Q3_K in products (2 tensors)"))
    assert left.endswith("llama.cpp's own code computes Q3_K in products (2 tensors)")
    assert str(Rounding(False)).endswith("by rounding: passes round apart")


def test_a_comparison_can_be_stopped_between_two_passes() -> None:
    model = Kernels(lambda width, place: 0, cost=[1.0])
    with pytest.raises(Cancelled), stopped_when(lambda: model.clock.now > 2):
        all_alike(model)
    assert model.clock.now < 5
