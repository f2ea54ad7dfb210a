"""Sampling: llama.cpp's chain against an obvious reference, and draws from its distribution."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling import sampler as sampler_module
from localspec.speculative.sampling import truncation
from localspec.speculative.sampling.noise import gumbel_noise
from localspec.speculative.sampling.penalties import Penalties
from localspec.speculative.sampling.sampler import Sampler
from localspec.speculative.sampling.truncation import LISTED, TokenDistribution
from tests.support.alike import alike
from tests.support.llama.samplers import probabilities

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
    token = sampler.sample(logits, position, history)
    assert type(token) is int
    assert probabilities(sampler, logits, history)[token] > 0
    assert token == sampler.sample(logits, position, history)
    assert history == before


@given(params_strategy, rows, histories, st.integers(0, 99))
def test_only_the_last_tokens_matter(
    params: SamplingParams, logits: NDArray[np.float32], history: list[int], position: int
) -> None:
    sampler, last = Sampler(params), params.repeat_last_n
    if 0 <= last <= len(history):
        recent = history[len(history) - last :]
        picked = sampler.sample(logits, position, history)
        assert sampler.sample(logits, position, recent) == picked
        assert sampler.sample(logits, position, [5, 6, *recent]) == picked


def share_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tokens share noise already where more than 4 survive, in blocks of 3."""
    monkeypatch.setattr(truncation, "LISTED", 4)
    monkeypatch.setattr(sampler_module, "_BLOCK", 3)


def chi_squared(picks: Sequence[int], expected: NDArray[np.float64]) -> float:
    """How many standard deviations the statistic lies above its mean."""
    seen, possible = np.bincount(picks, minlength=len(expected)), expected > 0
    assert not seen[~possible].any()
    expected, seen = expected[possible] * len(picks), seen[possible]
    freedom = len(expected) - 1
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


_PICKS: list[dict[str, float]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 6},
    {"top_p": 0.8},
    {"min_p": 0.2, "repeat_penalty": 1.5},
]
_NOISE = list(itertools.product(_PICKS, (False, True), (False, True)))


# The steps of a sampler know nothing of the noise, so few are tried with each kind.
@pytest.mark.parametrize(
    ("changes", "by_seed", "shared"),
    [alike(*each) if any(each[1:]) and each[0] in _PICKS[1:4] else each for each in _NOISE],
)
def test_picks_follow_the_distribution(
    changes: dict[str, float], by_seed: bool, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shared:
        share_noise(monkeypatch)
    params = replace(PLAIN, **changes)  # type: ignore[arg-type]
    logits = np.random.default_rng(1).standard_normal(12).astype(np.float32) * 1.5
    history, draws = [2, 7], 4000
    distribution = probabilities(Sampler(params), logits, history)
    if by_seed:
        samplers = (Sampler(replace(params, seed=seed)) for seed in range(draws))
        picks = [sampler.sample(logits, 5, history) for sampler in samplers]
    else:
        picks = [Sampler(params).sample(logits, position, history) for position in range(draws)]
    assert chi_squared(picks, distribution) < 4


def test_picks_follow_the_distribution_of_a_large_vocabulary() -> None:
    n, sampler = 9000, Sampler(PLAIN)
    logits = (gumbel_noise(1, 2, np.arange(n)) * 0.6).astype(np.float32)
    expected = probabilities(sampler, logits, [])
    # Cells of many tokens, and of those that have noise of their own and those that have not.
    own = np.zeros(n, bool)
    own[np.argsort(-logits)[:LISTED]] = True
    assert 0.3 < expected[own].sum() < 0.7
    cell = np.arange(n) // 500 + n // 500 * own
    picks = [int(cell[sampler.sample(logits, position, [])]) for position in range(4000)]
    assert chi_squared(picks, np.bincount(cell, expected).astype(np.float64)) < 4


def test_shared_noise_of_many_is_no_tokens_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each choice of a block, and then of a token in it, is independent of the other."""
    share_noise(monkeypatch)
    sampler, logits = (
        Sampler(PLAIN),
        np.zeros(16, np.float32),
    )  # four listed, blocks of 2, 3, 3, 3, 1
    picks = [sampler.sample(logits, position, []) for position in range(6000)]
    pairs = [first * 16 + second for first, second in zip(picks, picks[1:], strict=False)]
    assert chi_squared(pairs, np.full(256, 1 / 256)) < 4


def test_truncation_that_keeps_the_pick_does_not_change_it() -> None:
    # Noise belongs to the id, not to its rank among the survivors.
    logits = np.random.default_rng(2).standard_normal(3000).astype(np.float32) * 3
    kept = 0
    for position in range(200):
        token = Sampler(PLAIN).sample(logits, position, [])
        for changes in ({"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.05}):
            sampler = Sampler(replace(PLAIN, **changes))
            if probabilities(sampler, logits, [])[token] > 0:
                assert sampler.sample(logits, position, []) == token
                kept += 1
    assert kept > 200


RECORDED: list[tuple[dict[str, float], list[int], list[int]]] = [
    ({}, [945, 7489, 7832, 4335, 4011, 7154], [1060, 2463, 2263, 1743, 4867, 908]),
    (
        {"top_k": 1000, "min_p": 0},
        [2312, 7489, 7832, 4335, 162, 7154],
        [1060, 2463, 2263, 1743, 4867, 908],
    ),
    (
        {"temperature": 1.3, "top_k": 100, "top_p": 0.9, "min_p": 0.01},
        [945, 7489, 7832, 4335, 162, 7154],
        [1060, 2463, 7832, 1743, 4867, 908],
    ),
    (
        {"repeat_penalty": 0.7},
        [945, 7489, 7832, 4335, 4011, 7154],
        [1060, 2463, 3729, 1743, 8715, 908],
    ),
]


@pytest.mark.parametrize(("changes", "flat", "steep"), RECORDED)
def test_a_seed_gives_the_picks_it_always_gave(
    changes: dict[str, float], flat: list[int], steep: list[int]
) -> None:
    """Recorded from the sampler that sorted: seeded texts with top-k on must not change."""
    params = replace(SamplingParams(seed=11), **changes)  # type: ignore[arg-type]
    history = [7 * i * i % 9001 for i in range(300)]
    for spread, expected in ((0.5, flat), (2.0, steep)):
        sampler, picks = Sampler(params), []
        for i in range(len(expected)):
            logits = (gumbel_noise(1, i, np.arange(9001)) * spread).astype(np.float32)
            picks.append(sampler.sample(logits, i, history[: 200 + i]))
        assert picks == expected, spread


def test_shared_noise_of_many_raises_the_share_of_matches() -> None:
    rng, n = np.random.default_rng(3), 8 * LISTED
    sampler, matches, overlap, trials = Sampler(PLAIN), 0, 0.0, 300
    for position in range(trials):
        target = rng.standard_normal(n).astype(np.float32)
        draft = (target + rng.standard_normal(n) / 4).astype(np.float32)
        matches += sampler.sample(target, position, []) == sampler.sample(draft, position, [])
        found = [probabilities(sampler, row, []) for row in (target, draft)]
        overlap += float(np.minimum(*found).sum())
    assert 0.7 * overlap < matches < 1.05 * overlap


def test_shared_noise_raises_the_share_of_matches() -> None:
    rng = np.random.default_rng(3)
    sampler, other = Sampler(PLAIN), Sampler(replace(PLAIN, seed=1))
    matches = {"shared": 0, "greedy": 0, "independent": 0}
    overlap = 0.0
    for position in range(1500):
        target = (2 * rng.standard_normal(40)).astype(np.float32)
        draft = (target + rng.standard_normal(40) / 2).astype(np.float32)
        token = sampler.sample(target, position, [])
        matches["shared"] += token == sampler.sample(draft, position, [])
        matches["greedy"] += token == int(draft.argmax())
        matches["independent"] += token == other.sample(draft, position, [])
        found = [probabilities(sampler, row, []) for row in (target, draft)]
        overlap += float(np.minimum(*found).sum())
    assert matches["shared"] > 1.2 * matches["greedy"] > 1.2 * matches["independent"]
    # Never above the optimum 1 - TV but for chance, and near it (arXiv 2408.07978).
    assert 0.85 * overlap < matches["shared"] < 1.05 * overlap


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0), PLAIN])
def test_logits_that_are_no_numbers_are_an_error(params: SamplingParams) -> None:
    """All kinds and sizes of rows: test_row."""
    for ask in (Sampler(params).sample, Sampler(params).choose):
        with pytest.raises(EngineError) as raised:
            ask(np.array([0, np.nan, 1], np.float32), 0, [0, 1])
        assert raised.value.hint


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
    pick, margin = sampler.sample(logits, position, ()), sampler.margin(logits, position, ())
    assert margin is not None and margin >= 0

    def pick_with(token: int, lift: float) -> int:
        changed = logits.copy()
        changed[token] += np.float32(lift)
        return sampler.sample(changed, position, ())

    others = [token for token in range(len(logits)) if token != pick]
    assert all(pick_with(token, margin * 0.99 - 1e-4) == pick for token in others)
    assert any(pick_with(token, margin * 1.01 + 1e-4) == token for token in others)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=70), st.booleans())
def test_the_lead_is_over_the_second_largest(values: list[int], penalised: bool) -> None:
    logits = np.array(values, np.float32)
    params = SamplingParams(temperature=0, repeat_penalty=1.5 if penalised else 1.0)
    history = [0, 1, 40]
    row = Penalties(1.5, -1)
    row.show(history if penalised else [], len(logits))
    best = sorted(row.whole(logits).tolist(), reverse=True)
    token, lead, *_ = Sampler(params).choose(logits, 0, history)
    assert token == Sampler(params).sample(logits, 0, history)
    assert lead == (best[0] - best[1] if len(best) > 1 else math.inf)


def test_a_single_survivor_needs_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sampler_module, "gumbel_noise")
    logits = np.array([1.0, 9.0, 3.0], np.float32)
    assert Sampler(SamplingParams()).sample(logits, 0, ()) == 1
    assert Sampler(SamplingParams()).choose(logits, 0, ()) == (1, math.inf, None, ())


def test_a_distribution_by_token() -> None:
    distribution = TokenDistribution(np.array([7, 2, 5]), np.array([0.5, 0.25, 0.25]))
    assert (distribution.of(7), distribution.of(2), distribution.of(3)) == (0.5, 0.25, 0.0)
    assert distribution.at(np.array([0, 2, 7, 9])).tolist() == [0.0, 0.25, 0.5, 0.0]


@pytest.mark.parametrize("shared", [False, True])
def test_draws_follow_the_distribution(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if shared:
        share_noise(monkeypatch)
    ids, probabilities = np.array([7, 2, 5, 0, 4, 1]), np.array([0.4, 0.0, 0.1, 0.3, 0.15, 0.05])
    distribution = TokenDistribution(ids, probabilities)
    draws = [distribution.draw(seed, 5) for seed in range(2000)]
    draws += [distribution.draw(5, position) for position in range(2000)]
    assert chi_squared(draws, distribution.at(np.arange(8))) < 4


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("shared", [False, True])
@given(params_strategy, rows, histories)
def test_what_a_token_lacks_to_be_picked(
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
    params: SamplingParams,
    logits: NDArray[np.float32],
    history: list[int],
) -> None:
    if shared:
        share_noise(monkeypatch)
    sampler, position = Sampler(params), 7
    picked = sampler.sample(logits, position, history)
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("shared", [False, True])
@given(params_strategy, rows, histories, st.integers(1, 3))
def test_runners_up_are_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
    params: SamplingParams,
    logits: NDArray[np.float32],
    history: list[int],
    count: int,
) -> None:
    if shared:
        share_noise(monkeypatch)
    sampler, position = Sampler(params), 7
    alone = sampler.choose(logits, position, history)
    chosen = sampler.choose(logits, position, history, count)
    assert chosen._replace(runners_up=()) == alone and alone.runners_up == ()
    short = [
        sampler.shortfall(logits, position, history, each.token) / (params.temperature or 1.0)
        for each in chosen.runners_up
    ]
    assert [each.distance for each in chosen.runners_up] == pytest.approx(short, abs=1e-5)
    tokens = {chosen.token, *(each.token for each in chosen.runners_up)}
    assert len(tokens) == 1 + len(short) <= 1 + count
    if not shared:
        assert short == [] or chosen.lead == pytest.approx(short[0], abs=1e-5)
        others = set(range(len(logits))) - tokens
        left = [sampler.shortfall(logits, position, history, token) for token in others]
        nearest = min(left, default=math.inf) / (params.temperature or 1.0)
        assert nearest == math.inf if len(short) < count else nearest >= short[-1] - 1e-5


def test_a_token_without_noise_of_its_own_is_no_runner_up(monkeypatch: pytest.MonkeyPatch) -> None:
    share_noise(monkeypatch)
    logits, sampler = np.zeros(16, np.float32), Sampler(PLAIN)
    chosen = [sampler.choose(logits, position, [], 3) for position in range(50)]
    assert all(each.token >= 0 for one in chosen for each in one.runners_up)
