"""Acceptance: a prior from confidence, then what was seen, fading."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.control.acceptance import Acceptance, AnswerAcceptance, sigmoid


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
    assert 900 < learnt.observations <= 1000


def test_old_observations_fade() -> None:
    learnt = Acceptance()
    for right in [True] * 1000 + [False] * 1000:
        learnt.observe(1.0, right)
    assert learnt.probability(1.0) < 0.05


def test_an_answer_can_be_harder_than_others() -> None:
    """Four candidates show it, also where nothing like the next one was seen."""
    pair = Acceptance()
    for i in range(300):
        pair.observe(3.1, i % 10 != 0)
    usual, never_met = pair.probability(3.1), pair.probability(-1.0)
    hard = AnswerAcceptance(pair)
    assert (hard.probability(3.1), hard.probability(-1.0)) == pytest.approx((usual, never_met))
    for _ in range(4):
        hard.observe(3.1, False)
    assert hard.probability(3.1) < usual - 0.2
    assert hard.probability(-1.0) < never_met - 0.1
    following = AnswerAcceptance(pair)
    assert usual - 0.1 < following.probability(3.1) < usual
    assert following.probability(-1.0) == pytest.approx(never_met)


def test_answers_under_way_do_not_change_each_other_s_effect() -> None:
    pair = Acceptance()
    hard, other = AnswerAcceptance(pair), AnswerAcceptance(pair)
    for _ in range(8):
        hard.observe(3.1, False)
    assert other.probability(0.5) == pytest.approx(pair.probability(0.5))
    assert hard.probability(0.5) < other.probability(0.5) - 0.2


def test_neighbours_help() -> None:
    learnt = Acceptance()
    for _ in range(100):
        learnt.observe(1.0, False)
    assert learnt.probability(1.9) < sigmoid(1.9) - 0.5
    assert learnt.probability(4.0) == pytest.approx(sigmoid(4.0))


@given(st.lists(st.tuples(st.floats(-9, 30), st.booleans()), max_size=40), st.floats(-9, 30))
def test_probabilities_are_probabilities_and_survive_a_file(
    seen: list[tuple[float, bool]], asked: float
) -> None:
    pair = Acceptance()
    answer = AnswerAcceptance(pair)
    for confidence, right in seen:
        answer.observe(confidence, right)
    assert 0 < answer.probability(asked) < 1
    again = Acceptance.from_json(json.loads(json.dumps(pair.as_json())))
    assert again.probability(asked) == pair.probability(asked)
    assert again.chances() == pair.chances()


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


def test_chances_are_those_of_the_pair_until_an_answer_shows_its_own() -> None:
    pair = Acceptance()
    assert mean(pair.chances()) == pytest.approx(0.7, abs=0.05)
    rng = np.random.default_rng(1)
    for _ in range(5000):
        confidence = float(rng.choice([0.1, 3.1], p=[0.2, 0.8]))
        pair.observe(confidence, bool(rng.random() < (0.4 if confidence < 1 else 0.95)))
    answer = AnswerAcceptance(pair)
    assert mean(answer.chances()) == pytest.approx(mean(pair.chances()), abs=0.02)
    assert mean(answer.chances()) == pytest.approx(0.84, abs=0.06)
    assert mean(answer.chances(hope=1.0)) > mean(answer.chances())
    assert all(0 < p < 1 for p, _ in answer.chances(hope=3.0))
    for _ in range(16):
        answer.observe(0.1, False)
    assert mean(answer.chances()) < 0.5
