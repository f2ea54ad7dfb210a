"""Noise that is keyed, Gumbel or uniform, and the same however it is asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.sampling.noise import gumbel_noise, uniform

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
    st.lists(st.integers(0, 2**20), min_size=1, max_size=40),
)
def test_noise_depends_on_its_key_alone(seed: int, position: int, ids: list[int]) -> None:
    """To the last bit: few ids are hashed one by one, many at once."""
    together = gumbel_noise(seed, position, np.array(ids)).tolist()
    assert together == [gumbel_noise(seed, position, np.array([token]))[0] for token in ids]
    assert together[:5] == gumbel_noise(seed, position, np.array(ids[:5])).tolist()


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


def test_uniform_numbers_are_uniform() -> None:
    drawn = np.array([uniform(seed, position) for seed in range(40) for position in range(100)])
    assert 0 < drawn.min() and drawn.max() < 1 and len(set(drawn)) == len(drawn)
    shares, _ = np.histogram(drawn, bins=10, range=(0, 1))
    assert abs(shares - 400).max() < 90
    assert uniform(3, 5) == uniform(3, 5)
