"""Figures: speedup comes from sums, limits follow from what passes and draft steps cost."""

from __future__ import annotations

import pytest

from localspec.bench.comparison import Comparison
from localspec.engine.generate import Answer
from localspec.engine.stats import PassStats, SourceStats
from tests.support.answers import VARIED, compared, made_answer, side
from tests.support.bench_toys import BenchToy, compare, drafted, plan


def test_speedup_comes_from_sums() -> None:
    plain = side(0, [made_answer(40.0), made_answer(8.0)], [made_answer(20.0), made_answer(12.0)])
    other = side(
        3,
        [made_answer(10.0, rounds=10, drafted=60, accepted=30), made_answer(14.0, rounds=20)],
        [made_answer(4.0, rounds=10, ttft=3.0), made_answer(12.0, rounds=20, ttft=3.0)],
    )
    found = drafted(compared(plain, other))
    assert found.draft_tokens == 3
    assert found.speedup == pytest.approx(80 / 40)  # the mean of ratios would be 2.64 or so
    assert found.speedup_by_repeat == pytest.approx((48 / 24, 32 / 16))
    assert (found.tokens, found.drafted, found.accepted) == (160, 60, 30)
    assert found.generation_tps == pytest.approx(160 / 40)
    assert found.acceptance_rate == 0.5
    assert found.mean_accepted_length == pytest.approx(160 / 60)
    # 40 s in 60 rounds, a plain token takes 80 s / 160 tokens.
    assert found.round_cost == pytest.approx((40 / 60) / (80 / 160))
    assert found.speedup == pytest.approx(found.mean_accepted_length / found.round_cost)
    assert found.ttft_s == 2.0


def test_repeats_may_differ() -> None:
    plain = side(0, [made_answer(10.0)], [made_answer(30.0)])
    other = side(3, [made_answer(5.0)], [made_answer(60.0)])
    found = drafted(compared(plain, other))
    assert found.speedup_by_repeat == pytest.approx((2.0, 0.5))
    assert found.speedup == pytest.approx(40 / 65)


def test_plain_against_itself() -> None:
    (found,) = compared(side(0, [made_answer(10.0)])).figures()
    assert (found.speedup, found.speedup_by_repeat, found.round_cost) == (1.0, (1.0,), 1.0)
    assert found.acceptance_rate is None and found.mean_accepted_length == 1.0


def test_the_drafts_reading_of_the_prompt_counts() -> None:
    plain, other = side(0, [made_answer(10.0)]), side(3, [made_answer(4.0, rounds=20, reading=1.0)])
    found = drafted(compared(plain, other))
    assert found.speedup == pytest.approx(2.0)
    assert found.generation_tps == pytest.approx(40 / 5)
    assert found.round_cost == pytest.approx((5 / 20) / (10 / 40))
    assert found.draft_prompt_s == 1.0


def test_limits_stand_in_their_order() -> None:
    engine = BenchToy(quirk=0.5)
    found = compare(engine, [engine.encode("abc"), engine.encode("bead")], plan(0, 3, "auto"))
    limits = found.limits()
    assert limits is not None
    assert limits.ceiling + 1e-9 >= limits.oracle >= limits.fixed > 0
    assert list(limits.shares) == sorted(limits.shares, reverse=True) and limits.shares[0] > 0
    assert found.as_json()["limits"]["oracle"] == limits.oracle  # type: ignore[index]


def test_limits_follow_from_seconds() -> None:
    def made(seconds: dict[int, float], rounds: int, draft: float, drafted: int) -> Answer:
        made = made_answer(sum(seconds.values()) + draft, rounds=rounds, drafted=drafted)
        made.stats.passes = {width: PassStats(1, each) for width, each in seconds.items()}
        made.stats.draft_seconds = draft
        if drafted:
            made.stats.sources["draft"] = SourceStats(1, drafted, 0)
        return made

    n = len(VARIED)
    answers = (side(0, [made({1: 1.0}, 1, 0, 0)]), side(1, [made({2: 1.5, 17: 9.0}, 1, 0.5, 2)]))
    agreed = (True,) * n
    found = Comparison("code", ("code 1",), answers, (), (agreed,)).limits()
    assert found is not None
    # A draft step costs 0.25 and two tokens 1.5: a round of two costs 1.75, as two plain ones 2.
    assert found.ceiling == pytest.approx(17 / (9 + 16 * 0.25)) and found.ceiling_length == 16
    rounds = 1 + (n - 1) // 17  # the first, whole ones, and one for the rest
    rest = (n - 1) % 17
    cost = 1 + (rounds - 1) * 13 + (1.5 + (rest - 2) * 0.5 + (rest - 1) * 0.25)
    assert found.fixed == pytest.approx(n / cost) and found.fixed_length == 16
    assert Comparison("code", ("code 1",), answers).limits() is None
    nobody = Comparison("code", ("code 1",), answers[:1], (), ((),))
    assert nobody.limits() is None
