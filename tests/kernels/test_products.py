"""Row kernels' products: the bits of a row are those it has alone, and its values are right."""

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.llama.row_kernels import RowKernels
from tests.support.llama.graph import Floats, graph, packed, unpacked

pytestmark = pytest.mark.llama

TYPES = "Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 BF16 F16 F32".split()
EXACT = ("F16", "F32")
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 24)
ROWS = 24
# Error of the greatest result: activations have 8 bits, and the rounding of 32-bit sums.
TOLERANCE, TOLERANCE_OF_FLOATS = 0.02, 1e-5


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def product(name: str, weights: NDArray[np.uint8], x: Floats, rows: int, threads: int) -> Floats:
    """Rows of ``x`` times a matrix of ``rows`` packed rows."""
    with graph() as g:
        count, width = x.shape
        w = g.tensor(name, weights, width, rows)
        return g.compute(
            "ggml_mul_mat",
            w,
            g.tensor("F32", x, width, count),
            shape=(count, rows),
            threads=threads,
        )


@pytest.mark.parametrize("rows, width", [(8, 256), (35, 512), (61, 2816)])
@pytest.mark.parametrize("name", TYPES)
def test_a_row_has_the_bits_that_it_has_alone(
    kernels: RowKernels, name: str, rows: int, width: int
) -> None:
    assert kernels.takes(name)
    weights, x = packed(name, normal(1, rows, width)), normal(2, ROWS, width)
    kernels.reset()
    alone = product(name, weights, x[:1], rows, 1)
    for threads in (1, 2, 4):
        for n in WIDTHS:
            parts = [product(name, weights, x[i : i + n], rows, threads) for i in range(0, ROWS, n)]
            found = np.concatenate(parts)
            alone = found if len(alone) == 1 else alone
            assert np.array_equal(found, alone), (name, n, threads)
    assert kernels.left() == []


@pytest.mark.parametrize("name", TYPES)
def test_values_are_right(kernels: RowKernels, name: str) -> None:
    rows, width = 43, 1536
    weights, x = packed(name, normal(1, rows, width)), normal(2, 5, width)
    found = product(name, weights, x, rows, 2)
    right = x.astype(np.float64) @ unpacked(name, weights, (rows, width)).astype(np.float64).T
    tolerance = TOLERANCE_OF_FLOATS if name in (*EXACT, "BF16") else TOLERANCE
    assert np.abs(found - right).max() < tolerance * np.abs(right).max()
    kernels.enable(False)
    try:
        theirs = product(name, weights, x, rows, 2)
    finally:
        kernels.enable(True)
    assert np.abs(theirs - right).max() < TOLERANCE * np.abs(right).max()  # and it is another code
    assert name == "F32" or not np.array_equal(theirs, found)


@pytest.mark.parametrize("name", EXACT)
def test_rows_of_any_length_of_floats(kernels: RowKernels, name: str) -> None:
    for rows, width in [(1, 1), (3, 15), (5, 37), (130, 72)]:
        weights, x = packed(name, normal(1, rows, width)), normal(2, 9, width)
        found = product(name, weights, x, rows, 2)
        alone = [product(name, weights, x[i : i + 1], rows, 1) for i in range(len(x))]
        assert np.array_equal(found, np.concatenate(alone))
        right = x @ unpacked(name, weights, (rows, width)).T
        assert np.allclose(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_row(kernels: RowKernels, name: str, value: float) -> None:
    weights, x = packed(name, normal(1, 16, 512)), normal(2, 4, 512)
    clean = product(name, weights, x, 16, 1)
    x[2, 300] = value
    found = product(name, weights, x, 16, 1)
    assert np.isnan(found[2]).all()
    assert np.array_equal(found[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("name", ["Q6_K", "Q5_0"])
def test_zeros_and_tiny_values(kernels: RowKernels, name: str) -> None:
    weights = packed(name, normal(1, 16, 256))
    x = np.zeros((3, 256), np.float32)
    x[1] = 1e-38
    x[2, 7] = 1.0
    found = product(name, weights, x, 16, 1)
    assert not found[0].any() and np.isfinite(found).all() and found[2].any()


def test_fewer_rows_than_a_group_are_left_and_named(kernels: RowKernels) -> None:
    kernels.reset()
    product("Q4_K", packed("Q4_K", normal(1, 7, 256)), normal(2, 2, 256), 7, 1)
    assert [str(each) for each in kernels.left()] == ["Q4_K in products"]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", TYPES)
def test_experts(kernels: RowKernels, name: str, shared: bool) -> None:
    experts, used, rows, width = 8, 3, 40, 512
    weights = packed(name, normal(1, experts * rows, width))
    x = normal(2, ROWS, 1 if shared else used, width)
    chosen = np.random.default_rng(3)
    ids = np.array([chosen.permutation(experts)[:used] for _ in range(ROWS)], np.int32)

    def of_experts(first: int, last: int, threads: int) -> Floats:
        with graph() as g:
            count = last - first
            w = g.tensor(name, weights, width, rows, experts)
            x_ = g.tensor("F32", x[first:last], width, x.shape[1], count)
            ids_ = g.tensor("I32", ids[first:last], used, count)
            return g.compute(
                "ggml_mul_mat_id", w, x_, ids_, shape=(count, used, rows), threads=threads
            )

    kernels.reset()
    alone = np.concatenate([of_experts(i, i + 1, 1) for i in range(ROWS)])
    for threads in (1, 2, 4):
        for n in (2, 5, 24):
            parts = [of_experts(i, min(i + n, ROWS), threads) for i in range(0, ROWS, n)]
            assert np.array_equal(np.concatenate(parts), alone)
    assert kernels.left() == []
    matrices = unpacked(name, weights, (experts, rows, width)).astype(np.float64)[ids]
    right = np.einsum("nuk,nurk->nur", np.broadcast_to(x, (ROWS, used, width)), matrices)
    assert np.abs(alone - right).max() < TOLERANCE * np.abs(right).max()


def test_the_reference_products_are_right(kernels: RowKernels) -> None:
    assert kernels.wrong_type() is None
