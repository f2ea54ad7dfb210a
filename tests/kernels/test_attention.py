"""Row kernels' flash attention: bits do not depend on what is computed, or cached, beside a row."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from localspec.llama.row_kernels import RowKernels
from tests.support.llama.graph import Floats, graph, packed, unpacked

pytestmark = pytest.mark.llama

ROWS = 24


class Case(NamedTuple):
    """Widths of keys, heads of queries and of keys, the cache's type, ALiBi, soft cap."""

    width: int
    heads: int
    kv_heads: int
    type_name: str = "F16"
    bias: float = 0.0
    cap: float = 0.0


CASES = [
    Case(64, 14, 2), Case(128, 12, 2), Case(256, 4, 1), Case(80, 4, 4, bias=8.0),
    Case(96, 6, 3, bias=8.0), Case(128, 8, 2, cap=50.0), Case(64, 8, 2, "Q8_0"),
    Case(64, 8, 2, "Q4_0"), Case(64, 8, 2, "BF16"), Case(64, 8, 2, "F32"), Case(64, 8, 8, "Q5_1"),
]  # fmt: skip


class Attention:
    """Queries over a cache of which a query sees what came before it."""

    def __init__(self, case: Case, cells: int) -> None:
        numbers = np.random.default_rng(5)
        self.case, past = case, cells - ROWS - 20
        self.q = numbers.normal(size=(ROWS, case.heads, case.width)).astype(np.float32)
        self.k, self.v = (
            numbers.normal(size=(cells, case.kv_heads, case.width)).astype(np.float32)
            for _ in range(2)
        )
        distance = np.arange(cells)[None] - past - np.arange(ROWS)[:, None]
        bias = distance if case.bias else 0 * distance
        self.mask = np.where(distance <= 0, bias, -np.inf).astype(np.float32)

    def rows(self, first: int, last: int, threads: int) -> Floats:
        """Results of some of the queries in one pass."""
        case, q = self.case, self.q[first:last].transpose(1, 0, 2)
        cells, count = len(self.k), last - first
        with graph() as g:
            cached = [
                g.tensor(case.type_name, packed(case.type_name, each.transpose(1, 0, 2)),
                         case.width, cells, case.kv_heads)
                for each in (self.k, self.v)
            ]  # fmt: skip
            arguments: list[Any] = [g.tensor("F32", q, case.width, count, case.heads), *cached]
            mask = self.mask[first:last].astype(np.float16)
            arguments.append(g.tensor("F16", mask, cells, count))
            return g.compute(
                "ggml_flash_attn_ext", *arguments, case.width**-0.5, case.bias, case.cap,
                shape=(count, case.heads, case.width), threads=threads,
            )  # fmt: skip

    def right(self) -> Floats:
        """The same in double precision, of what the cache's type holds."""
        case, each = self.case, self.case.heads // self.case.kv_heads
        k, v = (
            unpacked(case.type_name, packed(case.type_name, one), one.shape).astype(np.float64)
            for one in (self.k, self.v)
        )
        scores = np.einsum("nhd,chd->nhc", self.q, np.repeat(k, each, 1)) * case.width**-0.5
        if case.cap:
            scores = case.cap * np.tanh(scores / case.cap)
        scores += self.slopes()[None, :, None] * self.mask[:, None]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("nhc,chd->nhd", weights, np.repeat(v, each, 1))  # type: ignore[no-any-return]

    def slopes(self) -> Floats:
        """ALiBi's factors: a geometric series, then every other of one twice as dense."""
        heads, bias = self.case.heads, self.case.bias
        if not bias:
            return np.ones(heads, np.float32)
        half = 2 ** int(np.log2(heads))
        first = [2.0 ** (-bias * (i + 1) / half) for i in range(half)]
        then = [2.0 ** (-bias / 2 * (2 * i + 1) / half) for i in range(heads - half)]
        return np.array(first + then, np.float32)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_by_width_and_threads(kernels: RowKernels, case: Case) -> None:
    attention = Attention(case, 256)
    kernels.reset()
    alone = np.concatenate([attention.rows(i, i + 1, 1) for i in range(ROWS)])
    for threads in (1, 2, 4):
        for n in (2, 3, 4, 6, 11, 24):
            parts = [attention.rows(i, min(i + n, ROWS), threads) for i in range(0, ROWS, n)]
            assert np.array_equal(np.concatenate(parts), alone), (n, threads)
    assert kernels.left() == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_right(kernels: RowKernels, case: Case) -> None:
    attention = Attention(case, 256)
    assert np.abs(attention.rows(0, ROWS, 2) - attention.right()).max() < 1e-5


@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_cells_of_other_texts_change_nothing(kernels: RowKernels, case: Case) -> None:
    attention = Attention(case, 256)
    alone = attention.rows(0, ROWS, 2)
    numbers = np.random.default_rng(6)
    own = np.sort(numbers.permutation(512)[:256])
    for name in ("k", "v"):
        spread = numbers.normal(size=(512, case.kv_heads, case.width)).astype(np.float32)
        spread[own] = getattr(attention, name)
        setattr(attention, name, spread)
    mask = np.full((ROWS, 512), -np.inf, np.float32)
    mask[:, own] = attention.mask
    attention.mask = mask
    assert np.array_equal(attention.rows(0, ROWS, 2), alone)


def test_a_query_that_sees_nothing_gives_zeros(kernels: RowKernels) -> None:
    attention = Attention(CASES[0], 256)
    seen = attention.rows(0, ROWS, 1)
    attention.mask[3] = -np.inf
    found = attention.rows(0, ROWS, 1)
    assert not found[3].any() and np.array_equal(found[4:], seen[4:])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["k", "v"])
def test_what_is_no_number_is_passed_on(kernels: RowKernels, name: str, value: float) -> None:
    attention = Attention(CASES[0], 256)
    getattr(attention, name)[40] = value
    found = attention.rows(0, ROWS, 1)
    assert not np.isfinite(found).any(axis=2).all()
