"""The largest of a row, with and without a penalty, against a full sort."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.speculative.sampling import row as row_module
from localspec.speculative.sampling.penalties import Penalties
from localspec.speculative.sampling.row import _FEW, Row, at_least

# Thirds of whole numbers: many ties, and rounding in every step.
few_logits = st.lists(st.integers(-18, 18), min_size=1, max_size=150).map(
    lambda thirds: np.array(thirds, np.float32) / np.float32(3)
)


def kinds_of_rows(n: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(n)
    kinds = {
        "distinct": rng.standard_normal(n),
        "ties": rng.integers(-15, 15, n),
        "equal": np.zeros(n),
        "zeros of both signs": np.where(rng.random(n) < 0.5, -0.0, 0.0),
        "rising": np.arange(n),  # the best lie in the tail behind the last whole chunk
        "falling": -np.arange(n),
        "masked": np.where(np.arange(n) % 100 > 0, -np.inf, rng.standard_normal(n)),
    }
    return {kind: logits.astype(np.float32) for kind, logits in kinds.items()}


def sorted_ids(logits: NDArray[np.float32], k: int, distance: float = math.inf) -> list[int]:
    """The obvious way to what `Row.largest` returns."""
    least = float(logits.max()) - distance
    known = [i for i, logit in enumerate(logits.tolist()) if logit >= least and logit > -math.inf]
    return sorted(known, key=lambda token: (-logits[token], token))[:k]


@pytest.fixture(params=[row_module._COLUMNS, 16])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of at least so many columns."""
    monkeypatch.setattr(row_module, "_COLUMNS", request.param)


@pytest.mark.usefixtures("columns")
@pytest.mark.parametrize("n", [1, 2, 15, 31, 32, 33, 160, 161, 1289])
def test_largest_is_a_full_sort_cut_short(n: int) -> None:
    for kind, logits in kinds_of_rows(n).items():
        for k in {1, 2, 3, 4, 5, 7, 40, _FEW + 1, n, n + 7}:
            for distance in (0.0, 0.5, 3.0, math.inf):
                ids, scores = Row(logits).largest(k, distance)
                assert ids.tolist() == sorted_ids(logits, k, distance), (kind, k, distance)
                assert scores.dtype == np.float64 and (scores == logits[ids]).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("columns")
@given(
    few_logits,
    st.lists(st.integers(0, 160), max_size=60),
    st.sampled_from([1.1, 2.0, 90.0]),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.7, 3.0, math.inf]),
)
def test_a_penalty_changes_the_order(
    logits: NDArray[np.float32], history: list[int], factor: float, k: int, distance: float
) -> None:
    penalty = Penalties(factor, -1)
    penalty.show(history, len(logits))
    row, lowered = Row(logits, penalty), penalty.whole(logits)
    assert (row.whole() == lowered).all()
    ids, scores = row.largest(k, distance)
    assert ids.tolist() == sorted_ids(lowered, k, distance)
    assert (scores == lowered[ids]).all()


def test_only_columns_that_reach_the_bound_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_logits: list[int] = []
    best_first = row_module._best_first

    def count(ids: NDArray[np.int64], logits: NDArray[np.float32], k: int):  # type: ignore[no-untyped-def]
        sorted_logits.append(len(ids))
        return best_first(ids, logits, k)

    monkeypatch.setattr(row_module, "_best_first", count)
    logits = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    Row(logits).largest(40)
    logits[777] = 12
    Row(logits).largest(40, 3.0)
    assert 40 <= sorted_logits[0] < 120 and sorted_logits[1] == 1


@given(st.floats(-1e30, 1e30), st.floats(-4, 4, width=32))
def test_a_bound_compares_as_in_double_precision(bound: float, logit: float) -> None:
    for exact in (bound, logit + 1e-9, logit - 1e-9, float(logit)):
        assert (np.float32(logit) >= at_least(exact)) == (logit >= exact)


@pytest.mark.usefixtures("columns")
@pytest.mark.parametrize("n", [1, 32, 1603])
def test_no_numbers_are_an_error(n: int) -> None:
    for wrong in (np.nan, np.inf):
        for place in {0, n // 2, n - 1}:
            logits = np.zeros(n, np.float32)
            logits[place] = wrong
            with pytest.raises(EngineError):
                Row(logits)
    with pytest.raises(EngineError):
        Row(np.full(n, -np.inf, np.float32))
