"""Figures: speedup comes from sums, limits follow from what passes and draft steps cost."""

import pytest

from localspec.bench.comparison import Comparison
from localspec.bench.figures import Side
from localspec.chat.answer import Answer
from localspec.chat.stats import PassStats, SourceStats
from localspec.core.options.load_options import DraftTokens
from localspec.speculative.limits import Guess
from tests.support.answers import VARIED, compared, made_answer, side
from tests.support.toy.bench import compare, drafted, plan
from tests.support.toy.engine import ToyEngine


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


def test_auto_over_the_best_fixed_length() -> None:
    def made(length: DraftTokens, *repeats: float) -> Side:
        return side(length, *([made_answer(seconds)] * 5 for seconds in repeats))

    sides = made(0, 9, 9, 9), made(2, 2, 4, 4), made(3, 5, 3, 3), made("auto", 2, 2, 2)
    found = compared(*sides).auto_over_fixed()
    # Length 2 is the best in repeats 0 and 1, or 0 and 2, and so compared in the others; in
    # repeat 0, where it was lucky, length 3 stands, the best in 1 and 2.
    assert found is not None and found.ratio == pytest.approx((5 + 4 + 4) / 6)
    assert found.interval == pytest.approx((found.ratio, found.ratio)) and found.length == 2
    assert compared(*sides[:3]).auto_over_fixed() is None
    assert compared(sides[0], sides[3]).auto_over_fixed() is None


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
    engine = ToyEngine(quirk=0.5)
    found = compare(engine, [engine.encode("abc"), engine.encode("bead")], plan(0, 3, "auto"))
    limits = found.limits()
    assert limits is not None
    assert limits.ceiling + 1e-9 >= limits.oracle >= limits.causal >= limits.fixed > 0
    assert list(limits.shares) == sorted(limits.shares, reverse=True) and limits.shares[0] > 0
    assert found.as_json()["limits"]["causal"] == limits.causal  # type: ignore[index]


def test_limits_say_whether_a_side_looked_tokens_up() -> None:
    answers = [made_answer(1.0, drafted=2) for _ in range(2)]
    for answer in answers:
        answer.stats.passes = {1: PassStats(1, 1.0), 3: PassStats(1, 1.5)}
        answer.stats.sources["draft"] = SourceStats(1, 2, 1)
    guesses = ((Guess(True, 1.0),) * 40,)
    found = Comparison("code", ("code 1",), (side(0, answers[:1]), side("auto", answers[1:])),
                       (), guesses)  # fmt: skip
    assert (limits := found.limits()) is not None and limits.prompt_lookup is False
    answers[1].stats.sources["lookup"] = SourceStats(1, 1, 1)
    assert (limits := found.limits()) is not None and limits.prompt_lookup is True


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
    guesses = (Guess(True, 1.0),) * n
    found = Comparison("code", ("code 1",), answers, (), (guesses,)).limits()
    assert found is not None
    # A draft step costs 0.25 and two tokens 1.5: a round of two costs 1.75, as two plain ones 2.
    assert found.ceiling == pytest.approx(17 / (9 + 16 * 0.25)) and found.ceiling_length == 16
    rounds = 1 + (n - 1) // 17  # the first, whole ones, and one for the rest
    rest = (n - 1) % 17
    cost = 1 + (rounds - 1) * 13 + (1.5 + (rest - 2) * 0.5 + (rest - 1) * 0.25)
    assert found.fixed == pytest.approx(n / cost) and found.fixed_length == 16
    assert found.causal == pytest.approx(found.fixed)
    assert Comparison("code", ("code 1",), answers).limits() is None
    nobody = Comparison("code", ("code 1",), answers[:1], (), ((),))
    assert nobody.limits() is None
