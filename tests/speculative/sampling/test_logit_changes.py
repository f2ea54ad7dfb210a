"""Logit bias, penalties and DRY before truncation: their order, what is masked, llama.cpp."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling.logit_changes import TokenRules
from localspec.speculative.sampling.sampler import Sampler
from tests.support.llama.samplers import llama_chain, probabilities

OFF = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)


def changed(changes: dict[str, Any], row: list[float], history: list[int]) -> list[float]:
    """The row behind all changes, the first being 0 in each."""
    dense = probabilities(Sampler(replace(OFF, **changes)), np.array(row, np.float32), history)
    with np.errstate(divide="ignore"):
        logits: list[float] = (np.log(dense) - np.log(dense[0])).tolist()
    return logits


def test_a_bias_is_added() -> None:
    row = [0.0, 1.0, 2.0]
    assert changed({"logit_bias": ("1+0.5", "2-3")}, row, []) == pytest.approx([0, 1.5, -1])
    assert changed({"logit_bias": ("1+0.5", "1+0.5")}, row, []) == pytest.approx([0, 2, 2])
    assert changed({"logit_bias": ("1-inf",)}, row, []) == pytest.approx([0, -np.inf, 2])
    # A draft may know fewer ids than the target.
    assert changed({"logit_bias": ("7+5", "1+0.5")}, row, []) == pytest.approx([0, 1.5, 2])


def test_the_bias_comes_before_the_penalties() -> None:
    # 1 - 3 is negative, and is multiplied; the other way round it were 1 / 2 - 3.
    changes = {"logit_bias": ("1-3",), "repeat_penalty": 2.0}
    assert changed(changes, [0.0, 1.0], [1]) == pytest.approx([0, -4])


def test_dry_comes_behind_the_penalties() -> None:
    changes = {"dry_multiplier": 3.0, "repeat_penalty": 2.0}
    history = [1, 2, 3, 4, 2, 3]  # 4 would extend a repetition of two
    row = [0.0, 1.0, 1.0, 1.0, 1.0]
    assert changed(changes, row, history) == pytest.approx([0, 0.5, 0.5, 0.5, -2.5])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_masked_is_never_picked(temperature: float) -> None:
    row = np.array([1.0, 9.0, 8.0, 2.0], np.float32)
    sampler = Sampler(replace(OFF, temperature=temperature), TokenRules(masked=(1, 2, 99)))
    picks = {sampler.sample(row, position, []) for position in range(200)}
    assert picks == ({3} if temperature == 0 else {0, 3})
    assert sampler.choose(row, 0, []).token in picks
    assert sampler.distribution(row, 0, []).of(1) == 0
    assert sampler.shortfall(row, 0, [], 1) == np.inf


def test_greedy_takes_the_best_behind_all_changes() -> None:
    row = np.array([3.0, 2.9, 2.8, 2.0], np.float32)
    greedy = replace(OFF, temperature=0)
    assert Sampler(replace(greedy, presence_penalty=0.15)).sample(row, 0, [0]) == 1
    assert Sampler(replace(greedy, frequency_penalty=0.06)).sample(row, 0, [0, 0, 1]) == 0
    assert Sampler(replace(greedy, frequency_penalty=0.06)).sample(row, 0, [0, 0, 0, 1]) == 1
    assert Sampler(replace(greedy, presence_penalty=-0.15)).sample(row, 0, [1]) == 1  # raises it
    sampler = Sampler(replace(greedy, logit_bias=("0-0.5",)))
    assert sampler.sample(row, 0, []) == 1
    assert sampler.margin(row, 0, []) == pytest.approx(0.1, abs=1e-6)
    assert sampler.shortfall(row, 0, [], 0) == pytest.approx(0.4, abs=1e-6)


def test_memory_is_what_a_pick_looks_at() -> None:
    assert Sampler(OFF).memory == 0
    assert Sampler(replace(OFF, dry_multiplier=1.0)).memory == 64
    assert Sampler(replace(OFF, presence_penalty=1.0, repeat_last_n=20)).memory == 20
    both = replace(OFF, presence_penalty=1.0, dry_multiplier=1.0, dry_penalty_last_n=100)
    assert Sampler(both).memory == 100
    assert Sampler(replace(both, repeat_last_n=-1)).memory > 10**6


@given(
    st.lists(st.integers(0, 5), max_size=40),
    st.sampled_from(
        [
            {"dry_multiplier": 1.0, "dry_penalty_last_n": 9},
            {"frequency_penalty": 0.5, "repeat_last_n": 7},
            {"dry_multiplier": 1.0, "presence_penalty": 0.5, "repeat_last_n": 3},
            {"frequency_penalty": 0.5, "repeat_last_n": -1},
        ]
    ),
)
def test_a_pick_needs_no_more_than_its_memory(history: list[int], changes: dict[str, Any]) -> None:
    row = (np.arange(6) ** 2 % 7).astype(np.float32)
    sampler = Sampler(replace(OFF, **changes))
    shown = history[max(0, len(history) - sampler.memory) :]
    expected = sampler.choose(row, len(history), history)
    assert sampler.choose(row, len(history), [0, 1, *shown][2:]) == expected


PENALTIES: list[dict[str, Any]] = [
    {"repeat_penalty": 1.3},
    {"repeat_penalty": 0.8, "repeat_last_n": 10},
    {"presence_penalty": 0.7},
    {"presence_penalty": -0.7, "frequency_penalty": 0.2},
    {"frequency_penalty": 0.3, "repeat_last_n": 90},
    {"frequency_penalty": 0.3, "repeat_last_n": 300},  # counted on from history to history
    {"repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.1},
    {"repeat_penalty": 1.2, "presence_penalty": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1},
    {"logit_bias": ("1+2", "5-inf", "1-0.5"), "repeat_penalty": 1.2, "dry_multiplier": 0.7},
]


@pytest.mark.llama
@pytest.mark.parametrize("changes", PENALTIES)
def test_as_llama_cpp_does(changes: dict[str, Any]) -> None:
    params, rng = replace(OFF, **changes), np.random.default_rng(2)
    sampler, history = Sampler(params), list[int]()
    with llama_chain(params, 60) as chain:
        for _ in range(40):
            history = [*history[: len(history) - 3], *rng.integers(0, 30, 15).tolist()]
            row = (rng.standard_normal(60) * 2).astype(np.float32)
            expected = chain.distribution(row, history)
            found = probabilities(sampler, row, history)
            assert set(np.flatnonzero(found).tolist()) == set(expected)
            assert found[list(expected)] == pytest.approx(list(expected.values()), rel=1e-4)
