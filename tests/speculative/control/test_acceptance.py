"""Acceptance: a prior from confidence, then what was seen, fading."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.acceptance import Acceptance, sigmoid


def test_the_prior_is_the_share_of_the_best_of_two() -> None:
    fresh = Acceptance()
    for confidence in (0.0, 1.0, 3.0):
        assert fresh.probability(confidence) == pytest.approx(sigmoid(confidence))
    assert fresh.probability(float("inf")) > 0.999


@given(st.integers(0, 20))
def test_what_is_seen_decides_in_the_end(seed: int) -> None:
    rng = np.random.default_rng(seed)
    learnt = Acceptance()
    for _ in range(3000):
        confidence = float(rng.choice([0.1, 3.1]))
        learnt.observe(confidence, bool(rng.random() < (0.8 if confidence < 1 else 0.3)))
    assert learnt.probability(0.1) == pytest.approx(0.8, abs=0.15)
    assert learnt.probability(3.1) == pytest.approx(0.3, abs=0.15)
    assert 90 < learnt.observations <= 100


def test_old_observations_fade() -> None:
    learnt = Acceptance()
    for right in [True] * 1000 + [False] * 1000:
        learnt.observe(1.0, right)
    assert learnt.probability(1.0) < 0.05


def test_a_text_can_be_harder_than_usual() -> None:
    learnt = Acceptance()
    for i in range(300):
        learnt.observe(3.1, i % 10 != 0)
    learnt.fade(1.0)
    usual, never_met = learnt.probability(3.1), learnt.probability(-1.0)
    for _ in range(8):
        learnt.observe(3.1, False)
    assert learnt.probability(3.1) < usual - 0.2
    assert learnt.probability(-1.0) < never_met - 0.1  # though nothing like it was seen here
    learnt.fade(1.0)
    assert usual - 0.1 < learnt.probability(3.1) < usual
    assert learnt.probability(-1.0) == never_met


def test_neighbours_help() -> None:
    learnt = Acceptance()
    for _ in range(100):
        learnt.observe(1.0, False)
    learnt.fade(1.0)
    assert learnt.probability(1.9) < sigmoid(1.9) - 0.5
    assert learnt.probability(4.0) == pytest.approx(sigmoid(4.0))


@given(st.lists(st.tuples(st.floats(-9, 30), st.booleans()), max_size=40), st.floats(-9, 30))
def test_probabilities_are_probabilities_and_survive_a_file(
    seen: list[tuple[float, bool]], asked: float
) -> None:
    learnt = Acceptance()
    for confidence, right in seen:
        learnt.observe(confidence, right)
    assert 0 < learnt.probability(asked) < 1
    again = Acceptance.from_json(json.loads(json.dumps(learnt.as_json())))
    learnt.fade(1.0)  # a file is for other texts: what is special of this one is not in it
    assert again.probability(asked) == learnt.probability(asked)
    assert again.chances() == learnt.chances()


@pytest.mark.parametrize(
    "change",
    [
        {"seen": [1.0]},
        {"right": [2.0] * 16},
        {"seen": [float("nan")] * 16},
        {"often": [-1.0] * 16},
        {"often": []},
    ],
)
def test_nonsense_is_not_taken_up(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Acceptance.from_json(Acceptance().as_json() | change)


def mean(chances: list[tuple[float, float]]) -> float:
    return sum(p * w for p, w in chances) / sum(w for _, w in chances)


def test_chances_are_those_met_of_late() -> None:
    learnt = Acceptance()
    assert mean(learnt.chances()) == pytest.approx(0.7, abs=0.05)
    rng = np.random.default_rng(1)
    for _ in range(5000):
        confidence = float(rng.choice([0.1, 3.1], p=[0.2, 0.8]))
        learnt.observe(confidence, bool(rng.random() < (0.4 if confidence < 1 else 0.95)))
    assert mean(learnt.chances()) == pytest.approx(0.84, abs=0.06)
    assert mean(learnt.chances(hope=1.0)) > mean(learnt.chances())
    assert all(0 < p < 1 for p, _ in learnt.chances(hope=3.0))


def test_faded_knowledge_is_sooner_overruled() -> None:
    old, faded = Acceptance(), Acceptance()
    for learnt in (old, faded):
        for _ in range(200):
            learnt.observe(1.0, False)
    faded.fade(0.1)
    for learnt in (old, faded):
        for _ in range(10):
            learnt.observe(1.0, True)
    assert faded.probability(1.0) > old.probability(1.0) + 0.2
    assert mean(faded.chances()) > mean(old.chances())
