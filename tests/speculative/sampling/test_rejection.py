"""Rejection: the distribution of what is emitted is the target's own, exactly and as counted."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.speculative.control.controllers import FixedLength
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.loop import Drafted
from localspec.speculative.sampling import sampler as sampler_module
from localspec.speculative.sampling.rejection import (
    RejectionSampler,
    acceptance_probability,
    residual,
)
from localspec.speculative.sampling.row import Row
from localspec.speculative.sampling.sampler import Sampler
from localspec.speculative.sampling.truncation import Survivors, TokenDistribution, survivors
from tests.support.llama.samplers import probabilities
from tests.support.real_pair import options
from tests.support.toy.models import ToyModel, emitted, never_stop, start_answer

WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1, min_p=0, acceptance="rejection")


@st.composite
def distributions(draw: st.DrawFn) -> TokenDistribution:
    """Up to six of eight tokens, in any order."""
    ids = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True))
    weights = np.array(draw(st.lists(st.floats(1e-3, 1), min_size=len(ids), max_size=len(ids))))
    return TokenDistribution(np.array(ids), weights / weights.sum())


@given(distributions(), distributions())
def test_one_token_has_the_targets_distribution(p: TokenDistribution, q: TokenDistribution) -> None:
    emitted = np.zeros(8)
    rejected = 0.0
    for token, chance in zip(q.ids.tolist(), q.probabilities.tolist(), strict=True):
        passes = acceptance_probability(p, q, token)
        emitted[token] += chance * passes
        rejected += chance * (1 - passes)
    rest = residual(p, q)
    emitted[rest.ids] += rejected * rest.probabilities
    expected = np.zeros(8)
    expected[p.ids] = p.probabilities
    assert np.abs(emitted - expected).max() < 1e-9
    # No rule for one token accepts more often than what the two distributions share.
    assert 1 - rejected == pytest.approx(np.minimum(expected[q.ids], q.probabilities).sum())


def chi_squared(
    counts: Counter[tuple[int, ...]], distribution: dict[tuple[int, ...], float]
) -> float:
    """How many standard deviations the statistic lies above its mean; rare outcomes together."""
    total = sum(counts.values())
    assert set(counts) <= set(distribution)
    often = [outcome for outcome, chance in distribution.items() if chance * total >= 8]
    cells = [(counts[outcome], distribution[outcome] * total) for outcome in often]
    seen, expected = (sum(column) for column in zip(*cells, strict=True))
    if total - expected > 1:
        cells.append((total - seen, total - expected))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    freedom = len(cells) - 1
    assert freedom >= 5
    return (statistic - freedom) / math.sqrt(2 * freedom)


def toy_distribution(
    target: ToyModel, prompt: Sequence[int], count: int, params: SamplingParams = WARM
) -> dict[tuple[int, ...], float]:
    """The probability of every continuation of this many tokens, XTC's dice included."""
    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    always, never = (Sampler(replace(params, xtc_probability=chance)) for chance in (1.0, 0.0))
    for _ in range(count):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in distribution.items():
            context = [*prompt, *text]
            with_xtc, without = (
                probabilities(sampler, target.row(context), context) for sampler in (always, never)
            )
            share = params.xtc_probability
            for token, p in enumerate(share * with_xtc + (1 - share) * without):
                if p:
                    longer[(*text, token)] = chance * float(p)
        distribution = longer
    return distribution


def toy_texts(
    make: Callable[[int], Sampler], quirk: float, draws: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Three tokens behind a prompt for many seeds, drafted by two, and how many were accepted."""
    for seed in range(draws):
        sampler = make(seed)
        target, draft = ToyModel(n_vocab=4), ToyModel(n_vocab=4, quirk=quirk)
        controller = FixedLength(ModelDrafter(draft, sampler, 4, never_stop), 2, float)
        rounds = list(start_answer(target, controller, [1, 2], 4, sampler=sampler))
        yield tuple(emitted(rounds)), sum(each.accepted for each in rounds)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"xtc_probability": 0.4, "xtc_threshold": 0.15},
        {"typical_p": 0.97, "dynatemp_range": 0.5},
        {"dry_multiplier": 0.7, "dry_allowed_length": 1, "frequency_penalty": 0.4},
    ],
)
def test_texts_of_a_toy_have_the_targets_distribution(
    rule: str, changes: dict[str, float], thorough: bool
) -> None:
    params = replace(WARM, **changes)  # type: ignore[arg-type]

    def make(seed: int) -> Sampler:
        seeded = replace(params, seed=seed)
        return RejectionSampler(seeded) if rule == "rejection" else Sampler(seeded)

    found = list(
        toy_texts(make, quirk=0.8, draws=(6000 if not changes else 3000) if thorough else 1500)
    )
    distribution = toy_distribution(ToyModel(n_vocab=4), [1, 2], 4, params)
    assert chi_squared(Counter(text for text, _ in found), distribution) < 4
    assert 0.3 < sum(accepted for _, accepted in found) / len(found) < 1.9  # both ways were met


def test_a_wrong_rule_would_be_noticed() -> None:
    class Greedy(RejectionSampler):
        """Takes every drafted token."""

        def verify(self, logits, position, history, drafted):  # type: ignore[no-untyped-def]
            return drafted.token

    found = toy_texts(lambda seed: Greedy(replace(WARM, seed=seed)), quirk=0.8, draws=1500)
    distribution = toy_distribution(ToyModel(n_vocab=4), [1, 2], 4)
    assert chi_squared(Counter(text for text, _ in found), distribution) > 8


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    found = list(
        toy_texts(lambda seed: RejectionSampler(replace(WARM, seed=seed)), quirk=0.0, draws=200)
    )
    assert all(accepted == 2 for _, accepted in found)


@pytest.mark.parametrize("top_k", [0, 40])
def test_a_row_is_cut_once(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count(row: Row, params: SamplingParams) -> Survivors:
        calls.append(params)
        return survivors(row, params)

    monkeypatch.setattr(sampler_module, "survivors", count)
    sampler = RejectionSampler(replace(WARM, top_k=top_k, repeat_penalty=1.2))
    logits = np.random.default_rng(8).standard_normal(2000).astype(np.float32)
    chosen = sampler.choose(logits, 3, [4, 5], 2)
    assert len(calls) == 1 and chosen.runners_up == ()
    assert chosen.distribution is not None and chosen.distribution.of(chosen.token) > 0
    assert (
        sampler.verify(logits, 3, [4, 5], Drafted(chosen.token, chosen.distribution))
        == chosen.token
    )
    assert len(calls) == 2


def test_the_whole_of_a_large_vocabulary_may_be_rejected_and_drawn() -> None:
    sampler, n = RejectionSampler(WARM), 5000
    target, draft = (np.random.default_rng(i).standard_normal(n).astype(np.float32) for i in (1, 2))
    p, q = (sampler.distribution(row, 0, []) for row in (target, draft))
    rest = np.zeros(n)
    rest[p.ids] = np.maximum(p.probabilities - q.at(p.ids), 0)
    accepted = 0
    for position in range(300):
        token = sampler.choose(draft, position, []).token
        verified = sampler.verify(target, position, [], Drafted(token, q))
        accepted += verified == token
        assert verified == token or rest[verified] > 0
    assert accepted / 300 == pytest.approx(1 - rest.sum(), abs=0.1)


def test_a_token_without_its_distribution_cannot_be_tested() -> None:
    with pytest.raises(ValueError, match="must come with the distribution"):
        RejectionSampler(WARM).verify(np.zeros(4, np.float32), 0, [], Drafted(1))


# -- the demo pair -------------------------------------------------------------------------


@pytest.mark.llama
def test_auto_would_bias_rejection(demo_files: tuple[Path, Path]) -> None:
    params = replace(WARM, acceptance="rejection")
    with Engine.load(*(options(path, ctx_size=64) for path in demo_files)) as engine:
        prompt = engine.encode_text("def")
        with pytest.raises(UsageError, match="must be fixed"):
            next(stream_generate(engine, prompt, GenerateOptions(params, "auto")))
        assert next(
            stream_generate(engine, prompt, GenerateOptions(replace(params, temperature=0), "auto"))
        )
