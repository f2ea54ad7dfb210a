"""Sampling: llama.cpp's chain against an obvious reference, and noise that is keyed and uniform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.config import SamplingParams
from localspec.core.errors import EngineError
from localspec.speculative.sampler import (
    _ROWS,
    Sampler,
    TokenDistribution,
    _largest,
    gumbel_noise,
    uniform,
)
from tests.support.distributions import probabilities

PLAIN = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)

params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 1000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 3, 64]),
    seed=st.integers(0, 2**32 - 1),
)
# Thirds of whole numbers: many ties, and rounding in every step.
rows = st.lists(st.integers(-18, 18), min_size=1, max_size=24).map(
    lambda thirds: np.array(thirds, np.float32) / np.float32(3)
)
histories = st.lists(st.integers(0, 30), max_size=8)


def reference(
    params: SamplingParams, logits: Sequence[np.float32], history: Sequence[int]
) -> dict[int, float]:
    """The distribution of llama.cpp's chain, step by step as in llama-sampler.cpp."""
    score = [float(logit) for logit in logits]
    if params.repeat_penalty != 1 and params.repeat_last_n != 0:
        window = history if params.repeat_last_n < 0 else history[-params.repeat_last_n :]
        for token in set(window):
            if token < len(score):
                penalty = np.float32(params.repeat_penalty)
                old = np.float32(logits[token])
                score[token] = float(old * penalty if old <= 0 else old / penalty)
    left = sorted(range(len(score)), key=lambda token: (-score[token], token))
    best = score[left[0]]
    if params.top_k > 0:
        left = left[: params.top_k]
    if params.top_p < 1:
        total = sum(math.exp(score[token] - best) for token in left)
        mass, nucleus = 0.0, []
        for token in left:
            mass += math.exp(score[token] - best) / total
            nucleus.append(token)
            if mass >= params.top_p:
                break
        left = nucleus
    if params.min_p > 0:
        least = best + math.log(params.min_p)
        left = [token for token in left if score[token] >= least]
    if params.temperature == 0:
        return {left[0]: 1.0}
    weights = {token: math.exp((score[token] - best) / params.temperature) for token in left}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


@given(params_strategy, rows, histories)
def test_the_distribution_is_that_of_the_reference(
    params: SamplingParams, logits: NDArray[np.float32], history: list[int]
) -> None:
    distribution = probabilities(Sampler(params), logits, history)
    expected = reference(params, list(logits), history)
    assert set(np.flatnonzero(distribution).tolist()) == set(expected)
    assert distribution.sum() == pytest.approx(1)
    for token, probability in expected.items():
        assert distribution[token] == pytest.approx(probability)


@given(params_strategy, rows, histories, st.integers(0, 10_000))
def test_a_pick_lies_in_the_distribution_and_changes_nothing(
    params: SamplingParams, logits: NDArray[np.float32], history: list[int], position: int
) -> None:
    sampler = Sampler(params)
    logits.flags.writeable = False
    before = list(history)
    token = sampler.pick(logits, position, history)
    assert type(token) is int
    assert probabilities(sampler, logits, history)[token] > 0
    assert token == sampler.pick(logits, position, history)
    assert history == before


@given(rows)
def test_greedy_is_the_lowest_id_of_the_best(logits: NDArray[np.float32]) -> None:
    best = max(logits)
    lowest = next(token for token, logit in enumerate(logits) if logit == best)
    assert Sampler(SamplingParams(temperature=0, seed=3)).pick(logits, 0, []) == lowest


LOGITS = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))


SURVIVORS: list[tuple[dict[str, float], list[int]]] = [
    ({}, [0, 1, 2, 3]),
    ({"top_k": 2}, [0, 1]),
    ({"top_k": 3}, [0, 1, 2]),  # the lower id of a tie
    ({"top_k": 9}, [0, 1, 2, 3]),
    ({"top_p": 0.0}, [0]),
    ({"top_p": 0.45}, [0]),
    ({"top_p": 0.55}, [0, 1]),  # the token that crosses the bound stays
    ({"top_p": 0.8}, [0, 1, 2]),
    ({"min_p": 0.2}, [0, 1, 2, 3]),
    ({"min_p": 0.3}, [0, 1]),
    ({"min_p": 1.0}, [0]),
    ({"top_k": 2, "top_p": 0.66}, [0]),  # of what top-k left, the first has two thirds
    ({"top_k": 2, "top_p": 0.67}, [0, 1]),
    ({"temperature": 50, "top_p": 0.45}, [0]),  # temperature comes last
    ({"temperature": 0.01, "min_p": 0.3}, [0, 1]),
    ({"repeat_penalty": 9.0}, [0, 1, 2, 3]),
    ({"repeat_penalty": 9.0, "top_k": 1}, [1]),  # the penalty on token 0 comes first
    ({"repeat_penalty": 9.0, "top_k": 1, "repeat_last_n": 0}, [0]),
    ({"repeat_penalty": 9.0, "top_k": 1, "repeat_last_n": 1}, [0]),
    ({"repeat_penalty": 9.0, "top_k": 1, "repeat_last_n": 2}, [1]),
    ({"repeat_penalty": 9.0, "top_k": 1, "repeat_last_n": -1}, [1]),
]


def test_what_survives_each_step() -> None:
    for changes, survivors in SURVIVORS:
        params = replace(PLAIN, **changes)  # type: ignore[arg-type]
        distribution = probabilities(Sampler(params), LOGITS, [3, 0, 77])
        assert np.flatnonzero(distribution).tolist() == survivors, changes


def test_the_penalty_lowers_negative_and_positive_logits() -> None:
    params = replace(PLAIN, repeat_penalty=2.0)
    distribution = probabilities(
        Sampler(params), np.array([4, -4, 0, 4, -4], np.float32), [0, 0, 1, 2]
    )
    expected = np.exp([2.0, -8, 0, 4, -4])  # once, however often a token occurred
    assert distribution == pytest.approx(expected / expected.sum())


@given(params_strategy, rows, histories, st.integers(0, 99))
def test_only_the_last_tokens_matter(
    params: SamplingParams, logits: NDArray[np.float32], history: list[int], position: int
) -> None:
    sampler, last = Sampler(params), params.repeat_last_n
    if 0 <= last <= len(history):
        recent = history[len(history) - last :]
        picked = sampler.pick(logits, position, history)
        assert sampler.pick(logits, position, recent) == picked
        assert sampler.pick(logits, position, [5, 6, *recent]) == picked


def kinds_of_rows(n: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(n)
    kinds = {
        "distinct": rng.standard_normal(n),
        "ties": rng.integers(0, 30, n),
        "equal": np.zeros(n),
        "rising": np.arange(n),  # the best lie in the tail behind the last whole chunk
        "falling": -np.arange(n),
        "masked": np.where(rng.random(n) < 0.99, -np.inf, rng.standard_normal(n)),
    }
    return {kind: logits.astype(np.float32) for kind, logits in kinds.items()}


def test_largest_is_a_full_sort_cut_short() -> None:
    for n in (1, 2, 511, 512, 513, 1024, 5 * _ROWS, 9 * _ROWS + 100):
        for kind, logits in kinds_of_rows(n).items():
            order = sorted(range(n), key=lambda token: (-logits[token], token))  # noqa: B023
            for k in {0, 1, 2, 3, 4, 5, 7, 8, 9, 40, n - 1, n, n + 7} - {-1}:
                found = _largest(logits, k).tolist()
                assert found == (order[:k] if k else order), (n, kind, k)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 6},
        {"top_p": 0.8},
        {"min_p": 0.2, "repeat_penalty": 1.5},
    ],
)
@pytest.mark.parametrize("by_seed", [False, True])
def test_picks_follow_the_distribution(changes: dict[str, float], by_seed: bool) -> None:
    params = replace(PLAIN, **changes)  # type: ignore[arg-type]
    logits = np.random.default_rng(1).standard_normal(12).astype(np.float32) * 1.5
    history, draws = [2, 7], 4000
    distribution = probabilities(Sampler(params), logits, history)
    if by_seed:
        samplers = (Sampler(replace(params, seed=seed)) for seed in range(draws))
        picks = [sampler.pick(logits, 5, history) for sampler in samplers]
    else:
        picks = [Sampler(params).pick(logits, position, history) for position in range(draws)]
    seen = np.bincount(picks, minlength=12)
    possible = distribution > 0
    assert not seen[~possible].any()
    expected = distribution[possible] * draws
    chi_squared = float(((seen[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)


def test_truncation_that_keeps_the_pick_does_not_change_it() -> None:
    # Noise belongs to the id, not to its rank among the survivors.
    logits = np.random.default_rng(2).standard_normal(3000).astype(np.float32) * 3
    kept = 0
    for position in range(200):
        token = Sampler(PLAIN).pick(logits, position, [])
        for changes in ({"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}):
            sampler = Sampler(replace(PLAIN, **changes))
            if probabilities(sampler, logits, [])[token] > 0:
                assert sampler.pick(logits, position, []) == token
                kept += 1
    assert kept > 200


def test_shared_noise_raises_the_share_of_matches() -> None:
    rng = np.random.default_rng(3)
    sampler, other = Sampler(PLAIN), Sampler(replace(PLAIN, seed=1))
    matches = {"shared": 0, "greedy": 0, "independent": 0}
    overlap = 0.0
    for position in range(1500):
        target = (2 * rng.standard_normal(40)).astype(np.float32)
        draft = (target + rng.standard_normal(40) / 2).astype(np.float32)
        token = sampler.pick(target, position, [])
        matches["shared"] += token == sampler.pick(draft, position, [])
        matches["greedy"] += token == int(draft.argmax())
        matches["independent"] += token == other.pick(draft, position, [])
        found = [probabilities(sampler, row, []) for row in (target, draft)]
        overlap += float(np.minimum(*found).sum())
    assert matches["shared"] > 1.2 * matches["greedy"] > 1.2 * matches["independent"]
    # Never above the optimum 1 - TV but for chance, and near it (arXiv 2408.07978).
    assert 0.85 * overlap < matches["shared"] < 1.05 * overlap


IDS = np.arange(100_000)


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel_noise(7, 11, IDS)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.04)
    uniform = np.sort(np.exp(-np.exp(-noise)))
    even = (np.arange(len(IDS)) + 0.5) / len(IDS)
    assert np.abs(uniform - even).max() < 0.007  # Kolmogorov-Smirnov, far above 99.9 %


def test_noise_of_other_keys_is_unrelated() -> None:
    one = gumbel_noise(7, 11, IDS)
    for key in ((8, 11), (7, 12), (7, 10), (8, 12), (11, 7), (7 + 2**31, 11)):
        other = gumbel_noise(*key, IDS)
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.015, key
        assert abs(np.corrcoef(one[:-1], other[1:])[0, 1]) < 0.015, key
        assert not np.isin(one, other).any(), key


def test_noise_over_positions_is_unrelated_too() -> None:
    tracks = np.array([gumbel_noise(7, position, np.array([5, 6])) for position in range(5000)])
    assert tracks.mean() == pytest.approx(np.euler_gamma, abs=0.06)
    assert tracks.var() == pytest.approx(np.pi**2 / 6, abs=0.15)
    assert abs(np.corrcoef(tracks[:, 0], tracks[:, 1])[0, 1]) < 0.06
    assert abs(np.corrcoef(tracks[:-1, 0], tracks[1:, 0])[0, 1]) < 0.06


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**20),
    st.lists(st.integers(0, 2**20), min_size=1, max_size=9),
)
def test_noise_depends_on_its_key_alone(seed: int, position: int, ids: list[int]) -> None:
    together = gumbel_noise(seed, position, np.array(ids)).tolist()
    assert together == [gumbel_noise(seed, position, np.array([token]))[0] for token in ids]


@pytest.mark.parametrize(
    ("seed", "position", "noise"),
    [
        (0, 0, [0.307329996152, 1.244732970919, -0.985523026348]),
        (1, 0, [1.913877686854, 0.000842869925, 0.25175410728]),
        (0, 1, [-0.119854697337, -0.314503799567, 0.588887899345]),
        (4294967295, 131071, [-0.241740155108, -0.998336063635, 0.266018549119]),
    ],
)
def test_noise_is_what_it_always_was(seed: int, position: int, noise: list[float]) -> None:
    """A change of the hash changes every seeded text: make it on purpose only."""
    assert gumbel_noise(seed, position, np.array([0, 1, 151_935])) == pytest.approx(noise, abs=1e-9)


def broken_row(n: int, kind: str) -> NDArray[np.float32]:
    logits = np.random.default_rng(4).standard_normal(n).astype(np.float32)
    if kind == "one NaN":
        logits[n // 3] = np.nan
    elif kind == "one infinity":
        logits[n // 3] = np.inf
    else:
        logits[:] = {"all NaN": np.nan, "nothing possible": -np.inf}[kind]
    return logits


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(top_k=0),
        SamplingParams(top_k=2, repeat_penalty=1.5),
        PLAIN,
    ],
)
def test_logits_that_are_no_numbers_are_an_error(params: SamplingParams) -> None:
    for kind in ("one NaN", "one infinity", "all NaN", "nothing possible"):
        for n in (1, 16, 50 * _ROWS):
            with pytest.raises(EngineError) as raised:
                Sampler(params).pick(broken_row(n, kind), 0, [0, 1])
            assert raised.value.hint, (kind, n)


def test_a_masked_id_is_never_picked() -> None:
    logits = np.full(5000, -np.inf, np.float32)
    logits[[17, 4999]] = 0
    for params in (SamplingParams(), PLAIN, SamplingParams(temperature=0)):
        picks = {Sampler(params).pick(logits, position, []) for position in range(50)}
        assert picks <= {17, 4999}


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=24),
    st.sampled_from([0.0, 0.4, 1.3]),
    st.integers(0, 50),
)
def test_the_margin_is_what_it_takes_to_turn_the_pick(
    values: list[float], temperature: float, position: int
) -> None:
    sampler = Sampler(replace(PLAIN, temperature=temperature, seed=3))
    logits = np.array(values, np.float32)
    pick, margin = sampler.pick(logits, position, ()), sampler.margin(logits, position, ())
    assert margin is not None and margin >= 0

    def pick_with(token: int, lift: float) -> int:
        changed = logits.copy()
        changed[token] += np.float32(lift)
        return sampler.pick(changed, position, ())

    others = [token for token in range(len(logits)) if token != pick]
    assert all(pick_with(token, margin * 0.99 - 1e-4) == pick for token in others)
    assert any(pick_with(token, margin * 1.01 + 1e-4) == token for token in others)


def test_nothing_runs_up_where_truncation_leaves_one() -> None:
    logits = np.array([1.0, 2.0, 3.0], np.float32)
    assert Sampler(replace(PLAIN, top_k=1)).margin(logits, 0, ()) is None
    assert Sampler(replace(PLAIN, temperature=0.0)).margin(logits, 0, ()) == 1.0


def test_the_margin_knows_the_penalty() -> None:
    logits = np.array([1.0, 2.0, 4.0], np.float32)
    sampler = Sampler(replace(PLAIN, temperature=0.0, repeat_penalty=4.0))
    assert sampler.pick(logits, 0, [2]) == 1
    assert sampler.margin(logits, 0, [2]) == 1.0


def test_a_distribution_by_token() -> None:
    distribution = TokenDistribution(np.array([7, 2, 5]), np.array([0.5, 0.25, 0.25]))
    assert (distribution.of(7), distribution.of(2), distribution.of(3)) == (0.5, 0.25, 0.0)
    assert distribution.at(np.array([0, 2, 7, 9])).tolist() == [0.0, 0.25, 0.5, 0.0]
    assert distribution.draw(np.array([0.0, 3.0, 0.0])) == 2
    assert (
        TokenDistribution(np.array([1, 2]), np.array([0.0, 1.0])).draw(np.array([99.0, 0.0])) == 2
    )


@given(params_strategy, rows, histories)
def test_what_a_token_lacks_to_be_picked(
    params: SamplingParams, logits: np.ndarray, history: list[int]
) -> None:
    sampler, position = Sampler(params), 7
    picked = sampler.pick(logits, position, history)
    assert sampler.shortfall(logits, position, history, picked) == 0
    margin = sampler.margin(logits, position, history)
    others = [
        sampler.shortfall(logits, position, history, token)
        for token in range(len(logits))
        if token != picked
    ]
    assert all(short >= 0 for short in others)
    least = min(others, default=math.inf)
    assert least == (math.inf if margin is None else pytest.approx(margin, abs=1e-5))


def test_uniform_numbers_are_uniform() -> None:
    drawn = np.array([uniform(seed, position) for seed in range(40) for position in range(100)])
    assert 0 < drawn.min() and drawn.max() < 1 and len(set(drawn)) == len(drawn)
    shares, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert abs(shares - 400).max() < 90
    assert uniform(3, 5) == uniform(3, 5)
