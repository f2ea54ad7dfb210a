"""Figures: speedup comes from sums, limits follow from what passes and draft steps cost."""

import pytest

from tests.support.answers import compared, made_answer, side
from tests.support.toy.bench import drafted


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


def test_intervals_are_over_prompts() -> None:
    plain = side(0, *[[made_answer(12.0)] * 4] * 2)
    even = side(2, *[[made_answer(6.0)] * 4] * 2)
    uneven = side(3, *[[made_answer(s, reading=1.0) for s in (3.0, 5.0, 7.0, 5.0)]] * 2)
    none, narrow, wide = (row.speedup_interval for row in compared(plain, even, uneven).figures())
    assert none is None and narrow == pytest.approx((2.0, 2.0))
    assert wide is not None and 1.5 < wide[0] < 1.9 < 2.1 < wide[1] < 3.0


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
