"""Truncation against sorting the whole row, on each of the ways it may take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling import truncation
from localspec.speculative.sampling.row import Row
from localspec.speculative.sampling.truncation import LISTED, Survivors, softmax, survivors

# None of these shares is that of equal tokens, where rounding decides.
params_strategy = st.builds(
    SamplingParams,
    top_k=st.sampled_from([0, 1, 3, 4, 5, 9, 1000]),
    top_p=st.sampled_from([0.0, 0.137, 0.531, 0.911, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.51, 1.0]),
)
rows = st.lists(st.integers(-18, 18), min_size=1, max_size=40).map(
    lambda thirds: np.array(thirds, np.float32) / np.float32(3)
)


def obvious(logits: NDArray[np.float32], params: SamplingParams) -> list[int]:
    """Ids that survive, best first: each step on the whole row in order."""
    order = np.argsort(-logits, kind="stable")
    if params.top_k > 0:
        order = order[: params.top_k]
    scores = logits[order].astype(np.float64)
    keep = len(order)
    if params.top_p < 1:
        keep = min(keep, int(np.searchsorted(np.cumsum(softmax(scores)), params.top_p)) + 1)
    if params.min_p > 0:
        keep = min(keep, int((scores >= scores[0] + np.log(params.min_p)).sum()))
    found: list[int] = order[:keep].tolist()
    return found


def check(kept: Survivors, logits: NDArray[np.float32], params: SamplingParams, most: int) -> None:
    expected = obvious(logits, params)
    assert kept.ids.tolist() == expected[:most]
    assert (kept.logits == logits[kept.ids]).all()
    others = [] if kept.others is None else np.flatnonzero(kept.others.mask).tolist()
    assert others == sorted(expected[most:])
    assert kept.others is None or kept.others.logits is logits


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(params_strategy, rows)
def test_survivors_are_the_beginning_of_the_sorted_row(
    monkeypatch: pytest.MonkeyPatch, params: SamplingParams, logits: NDArray[np.float32]
) -> None:
    check(survivors(Row(logits), params), logits, params, LISTED)
    with monkeypatch.context() as small:  # the ways of large vocabularies, on small ones
        small.setattr(truncation, "LISTED", 4)
        small.setattr(truncation, "_PIECE", 3)
        check(survivors(Row(logits), params), logits, params, 4)


OFF = SamplingParams(top_k=0, top_p=1, min_p=0)
SETTINGS: list[dict[str, float]] = [
    {},
    {"min_p": 0.05},
    {"min_p": 0.0001},
    {"top_p": 0.30113},
    {"top_p": 0.95313},
    {"top_p": 0.95313, "min_p": 0.05},
    {"top_p": 0.50713, "min_p": 0.0001},
    {"top_k": 40, "top_p": 0.95313, "min_p": 0.05},
    {"top_k": 40, "top_p": 0.95313},
    {"top_k": LISTED},
    {"top_k": 3000},
    {"top_k": 3000, "top_p": 0.95313},
    {"top_k": 3000, "top_p": 0.50713, "min_p": 0.05},
    {"top_k": 10**6, "top_p": 0.95313},
]


@pytest.mark.parametrize("changes", SETTINGS)
def test_large_rows_of_every_shape(changes: dict[str, float]) -> None:
    params, rng = replace(OFF, **changes), np.random.default_rng(5)  # type: ignore[arg-type]
    for n in (LISTED, LISTED + 1, 40_000):
        for spread, leaders in ((1, 0), (1, 1), (1, 5), (4, 0), (0, 0)):
            logits = (spread * rng.standard_normal(n)).astype(np.float32)
            logits[rng.integers(0, n, leaders)] = 14 + rng.random(leaders)
            check(survivors(Row(logits), params), logits, params, LISTED)


def test_masked_tokens_do_not_count() -> None:
    logits = np.full(5000, -np.inf, np.float32)
    logits[::1000] = [3, 1, 2, 1, 3]
    tried: list[dict[str, float]] = [{}, {"top_k": 2000}, {"top_p": 0.99}, {"min_p": 0.2}]
    for changes in tried:
        kept = survivors(Row(logits), replace(OFF, **changes))  # type: ignore[arg-type]
        assert kept.ids.tolist()[:3] == [0, 4000, 2000]
        assert set(kept.ids.tolist()) <= {0, 1000, 2000, 3000, 4000}


@pytest.mark.parametrize("changes", [{"min_p": 0.05}, {"top_p": 0.95}, {"top_k": 3000}, {}])
def test_a_row_is_put_in_order_only_where_more_survive_than_are_listed(
    changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    in_order = truncation._in_order

    def count(logits: NDArray[np.float32], k: int) -> NDArray[np.float32]:
        asked.append(k)
        return in_order(logits, k)

    monkeypatch.setattr(truncation, "_in_order", count)
    params = replace(OFF, **changes)  # type: ignore[arg-type]
    logits = np.random.default_rng(6).standard_normal(20_000).astype(np.float32)
    logits[5] = 30
    survivors(Row(logits), params)
    assert asked == ([3000] if params.top_k else [])


def test_few_that_min_p_leaves_are_judged_without_the_top_k(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    largest = Row.largest

    def count(row: Row, k: int, *distance: float):  # type: ignore[no-untyped-def]
        asked.append(bool(distance and distance[0] < np.inf))
        return largest(row, k, *distance)

    monkeypatch.setattr(Row, "largest", count)
    logits = np.zeros(20_000, np.float32)
    logits[[7, 70]] = 20, 19
    assert survivors(Row(logits), SamplingParams()).ids.tolist() == [7, 70]
    assert asked == [True]
    # The second has less than 5 % of the two, so that top-p asks for the mass of all 40.
    logits[70] = 17.02
    assert survivors(Row(logits), replace(SamplingParams(), top_p=0.9)).ids.tolist() == [7]
    assert asked == [True, True, False]
