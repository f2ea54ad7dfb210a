"""DRY: what would extend a repetition, against looking at every pair of places and llama.cpp."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling.dry import Dry, repeats
from tests.support.llama.samplers import llama_chain

ON = SamplingParams(dry_multiplier=0.5, dry_base=2.0)


def common_end(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(reversed(left), reversed(right), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 50))
def test_repeats_are_common_ends(window: list[int], limit: int) -> None:
    expected = [min(limit, common_end(window[: i + 1], window)) for i in range(len(window) - 1)]
    assert repeats(np.array(window), limit).tolist() == expected


def penalties(
    history: Sequence[int],
    breakers: Mapping[int, Sequence[tuple[int, ...]]] = {},  # noqa: B006  never changed
    **changes: float,
) -> dict[int, float]:
    return Dry(replace(ON, **changes), breakers).penalties(history)  # type: ignore[arg-type]


def test_what_would_extend_a_repetition_loses() -> None:
    assert penalties([1, 2, 3, 9, 1, 2]) == {3: 0.5}  # two tokens repeat: as long as allowed
    assert penalties([0, 1, 2, 3, 9, 0, 1, 2]) == {3: 1.0}
    assert penalties([0, 1, 2, 3, 9, 0, 1, 2], dry_allowed_length=3) == {3: 0.5}
    assert penalties([0, 1, 2, 3, 9, 0, 1, 2], dry_allowed_length=4) == {}
    # The longest repetition counts, and each follower has its own.
    assert penalties([1, 2, 3, 7, 1, 2, 3, 2, 3, 8, 1, 2, 3]) == {7: 1.0, 2: 1.0, 8: 0.5}
    assert penalties([5, 5, 5, 5]) == {5: 1.0}
    assert penalties([]) == penalties([1]) == penalties([1, 2]) == {}


def test_only_the_window_counts() -> None:
    history = [0, 1, 2, 3, 9, 0, 1, 2]
    assert penalties(history, dry_penalty_last_n=7) == {3: 0.5}
    assert penalties(history, dry_penalty_last_n=6) == {}


def test_no_repetition_reaches_across_a_breaker() -> None:
    history = [0, 1, 2, 3, 9, 0, 1, 2]
    assert penalties(history, {0: [()]}) == {3: 0.5}  # only behind it
    assert penalties(history, {1: [()]}) == {}
    assert penalties(history, {0: [(1,)]}) == {}  # two tokens are a breaker
    assert penalties(history, {0: [(2,)]}) == {3: 1.0}
    assert penalties(history, {2: [(7,)]}) == {3: 1.0}  # may still become one
    assert penalties(history, {3: [()]}) == {}  # a breaker itself is never penalised
    assert penalties(history, {3: [(4,)]}) == {3: 1.0}


def test_a_long_loop_is_penalised_with_a_number() -> None:
    worst = penalties([1] * 64, dry_base=1000.0, dry_multiplier=1000.0)[1]
    assert np.isfinite(np.float32(worst))


@pytest.mark.llama
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dry_base": 1.1, "dry_multiplier": 0.8},
        {"dry_base": 1.0},
        {"dry_base": 1.75, "dry_allowed_length": 0},
        {"dry_allowed_length": 5, "dry_penalty_last_n": 30},
        {"dry_penalty_last_n": 3},
    ],
)
def test_as_llama_cpp_does(changes: dict[str, float]) -> None:
    rng = np.random.default_rng(7)
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    params = replace(ON, **off, **changes)  # type: ignore[arg-type]
    row = rng.standard_normal(20).astype(np.float32)
    with llama_chain(params, 20) as chain:
        for variety in (2, 3, 8):
            for length in (1, 5, 40, 90):
                history = rng.integers(0, variety, length).tolist()
                ids, logits = chain.logits(row, history)
                lost = row[ids] - logits
                expected = {
                    token: pytest.approx(penalty, rel=1e-3, abs=1e-4)
                    for token, penalty in zip(ids, lost.tolist(), strict=True)
                    if penalty
                }
                assert Dry(params, {}).penalties(history) == expected
