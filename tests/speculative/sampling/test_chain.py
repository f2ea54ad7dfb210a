"""The whole chain: against llama.cpp's own samplers, and what each step leaves of a small row."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.options.sampling_params import SamplingParams
from localspec.speculative.sampling.chain import chain_survivors
from localspec.speculative.sampling.noise import gumbel_noise
from localspec.speculative.sampling.row import Row
from localspec.speculative.sampling.sampler import Sampler
from localspec.speculative.sampling.truncation import LISTED, survivors
from tests.support.llama.samplers import llama_chain, probabilities

OFF = SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0)
ROW = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32))


def left(changes: dict[str, Any], row: NDArray[np.float32] = ROW) -> list[int]:
    """Ids that may be drawn at position 0 with XTC's chance decided by its probability alone."""
    return np.flatnonzero(probabilities(Sampler(replace(OFF, **changes)), row, [])).tolist()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"xtc_probability": 1.0, "xtc_threshold": 0.12}, [2, 3, 4]),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.3}, [0, 1, 2, 3, 4]),  # only one above it
        ({"xtc_probability": 1.0, "xtc_threshold": 0.51}, [0, 1, 2, 3, 4]),  # above 0.5: off
        ({"xtc_probability": 1.0, "xtc_threshold": 0.12, "top_k": 2}, [1]),  # behind truncation
        ({"top_n_sigma": 0.5}, [0]),  # the deviation is 0.77
        ({"top_n_sigma": 1.5}, [0, 1]),
        ({"top_n_sigma": 4.0}, [0, 1, 2, 3, 4]),
        ({"typical_p": 0.3}, [1, 2]),  # the entropy is 1.33, that of a token of 0.26
        ({"typical_p": 0.3, "top_k": 1}, [0]),  # behind top-k
        ({"typical_p": 0.3, "min_p": 0.9}, [1]),  # min-p is measured against what typical left
        ({"typical_p": 0.3, "temperature": 0}, [1]),  # the likeliest that is left
        ({"xtc_probability": 1.0, "xtc_threshold": 0.09, "temperature": 0}, [3]),
        ({"dynatemp_range": 0.5, "temperature": 0}, [0, 1, 2, 3, 4]),  # up to 0.5
    ],
)
def test_what_is_left(changes: dict[str, Any], expected: list[int]) -> None:
    assert left(changes) == expected


def test_an_even_row_is_drawn_hotter_and_a_clear_one_colder() -> None:
    for row, high in ((np.zeros(4, np.float32), True), (np.array([9, 0, 0, 0], np.float32), False)):
        kept = Sampler(replace(OFF, dynatemp_range=0.6))._survivors(row, 0, [])
        assert kept.temperature == pytest.approx(1.6 if high else 0.4, abs=0.01)
    cold = Sampler(replace(OFF, temperature=0.5, dynatemp_range=0.6))
    alone = np.array([90, 0, 0, 0], np.float32)
    assert cold._survivors(alone, 0, []).temperature == 0  # then the likeliest is taken
    assert cold.sample(alone, 0, []) == 0 and cold.margin(alone, 0, []) == 90


def test_masked_tokens_have_no_part() -> None:
    row = np.array([1.0, 0.5, -np.inf, -np.inf, 0.0], np.float32)
    dense = row[[0, 1, 4]]
    for name, value in (("top_n_sigma", 1.0), ("typical_p", 0.5), ("dynatemp_range", 0.9)):
        sampler = Sampler(replace(OFF, **{name: value}))  # type: ignore[arg-type]
        expected = probabilities(sampler, dense, [])
        assert probabilities(sampler, row, [])[[0, 1, 4]] == pytest.approx(expected)


def test_xtc_runs_as_often_as_it_should_and_for_both_models_at_once() -> None:
    sampler = Sampler(replace(OFF, xtc_probability=0.3, seed=5))
    other = ROW[::-1].copy()
    ran = [0 not in np.flatnonzero(probabilities(sampler, ROW, [], at)) for at in range(4000)]
    also = [4 not in np.flatnonzero(probabilities(sampler, other, [], at)) for at in range(4000)]
    assert ran == also
    assert sum(ran) / 4000 == pytest.approx(0.3, abs=0.03)
    again = Sampler(replace(OFF, xtc_probability=0.3, seed=6))
    assert [0 not in np.flatnonzero(probabilities(again, ROW, [], at)) for at in range(4000)] != ran


RECORDED: list[tuple[dict[str, Any], list[int]]] = [
    ({"top_n_sigma": 1.0}, [1060, 2463, 2263, 1743, 4867, 908, 5435, 6831]),
    ({"typical_p": 0.6}, [1060, 2463, 7832, 1743, 4867, 908, 5435, 6831]),
    (
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        [5624, 2463, 2263, 1743, 4597, 1571, 5435, 7147],
    ),
    ({"dynatemp_range": 0.6}, [1060, 2463, 7832, 1743, 4867, 908, 5435, 6831]),
]


@pytest.mark.parametrize(("changes", "expected"), RECORDED)
def test_a_seed_gives_the_picks_it_always_gave(
    changes: dict[str, Any], expected: list[int]
) -> None:
    sampler = Sampler(replace(SamplingParams(seed=11), **changes))
    rows = [(gumbel_noise(1, i, np.arange(9001)) * 2).astype(np.float32) for i in range(8)]
    assert [sampler.sample(row, i, []) for i, row in enumerate(rows)] == expected


SETTINGS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([0, 1, 3, 5, 1000]),
        "top_p": st.sampled_from([0.137, 0.531, 0.911, 1.0]),
        "min_p": st.sampled_from([0.0, 0.05, 0.51]),
    }
)
rows = st.lists(st.integers(-18, 18), min_size=1, max_size=40).map(
    lambda thirds: np.array(thirds, np.float32) / np.float32(3)
)


@given(SETTINGS, rows, st.integers(0, 99))
def test_steps_that_leave_all_change_nothing(
    changes: dict[str, Any], row: NDArray[np.float32], position: int
) -> None:
    """The chain and the fast way agree, so that a step which does nothing changes no text."""
    plain = Sampler(replace(OFF, **changes, seed=3))
    idle = Sampler(replace(plain.params, top_n_sigma=1000.0))
    assert idle._needs_chain and not plain._needs_chain
    assert idle.choose(row, position, []) == plain.choose(row, position, [])


def test_many_survivors_are_listed_and_masked() -> None:
    row = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    plain, idle = OFF, replace(OFF, top_n_sigma=1000.0)
    expected, kept = survivors(Row(row), plain), Sampler(idle)._survivors(row, 0, [])
    assert len(kept.ids) == LISTED and kept.ids.tolist() == expected.ids.tolist()
    assert kept.others is not None and expected.others is not None
    assert (kept.others.mask == expected.others.mask).all()


# -- llama.cpp ---------------------------------------------------------------------------------


STEPS: list[dict[str, Any]] = [
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 2.3, "top_k": 5},
    {"typical_p": 0.2},
    {"typical_p": 0.71, "temperature": 0.7},
    {"typical_p": 0.95, "top_k": 40, "top_p": 0.9, "min_p": 0.03},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1, "min_p": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1, "typical_p": 0.6},
    {"dynatemp_range": 0.5, "top_k": 40},
    {"dynatemp_range": 0.7, "dynatemp_exp": 1.8, "temperature": 0.8},
    {"dynatemp_range": 2.0, "dynatemp_exp": 0.4, "temperature": 0.8, "min_p": 0.02},
    {"dynatemp_range": 0.5, "temperature": 0.0, "top_k": 10},
    {"typical_p": 0.5, "temperature": 0.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 0.0},
    {"top_n_sigma": 1.0, "temperature": 0.0},
    {
        **{"top_n_sigma": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "temperature": 1.2},
        **{"xtc_probability": 1.0, "xtc_threshold": 0.1, "dynatemp_range": 0.4},
        **{"repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1},
        **{"dry_multiplier": 0.8, "logit_bias": ("3+2.5", "7-inf", "9-1")},
    },
]


@pytest.mark.llama
@pytest.mark.parametrize("changes", STEPS)
@pytest.mark.parametrize("spread", [0.7, 3.0])
def test_as_llama_cpp_samples(changes: dict[str, Any], spread: float) -> None:
    params = replace(OFF, **changes)
    rng = np.random.default_rng(4)
    with llama_chain(params, 400) as chain:
        for _ in range(25):
            row = (rng.standard_normal(400) * spread).astype(np.float32)
            history: Sequence[int] = rng.integers(0, 12, 100).tolist()
            expected = chain.distribution(row, history)
            found = probabilities(Sampler(params), row, history)
            assert set(np.flatnonzero(found).tolist()) == set(expected)
            assert found[list(expected)] == pytest.approx(list(expected.values()), rel=1e-4)


def test_the_deviation_of_a_row_with_dry_s_largest_penalties() -> None:
    """Without a warning of an overflow, which would be shown beside the answer."""
    row = np.zeros(50, np.float32)
    row[:20] = np.finfo(np.float32).min
    with warnings.catch_warnings(action="error"):
        kept = chain_survivors(Row(row), replace(OFF, top_n_sigma=1.0), 0)
    assert kept.ids.tolist() == list(range(20, 50))
