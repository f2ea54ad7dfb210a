"""Comparisons: loops are left out, several are one when put together, all of it is JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.comparison import Comparison, repeated_share, together
from localspec.chat.answer import Answer
from localspec.core.options.load_options import DraftTokens
from tests.support.answers import (
    LOOP,
    VARIED,
    compared,
    difference,
    made_answer,
    made_comparison,
    side,
)
from tests.support.toy.bench import drafted


@pytest.mark.parametrize(
    ("tokens", "n", "share"),
    [
        ([], 8, 0.0),
        ([1, 2, 3], 8, 0.0),
        (list(range(20)), 8, 0.0),
        ([1] * 8, 8, 0.0),
        ([1] * 9, 8, 0.5),
        ([1] * 107, 8, 0.99),
        ([1, 2] * 4, 2, 5 / 7),
        ([1, 2, 1, 3], 1, 0.25),
    ],
)
def test_repeated_share(tokens: list[int], n: int, share: float) -> None:
    assert repeated_share(tokens, n) == pytest.approx(share)


def test_loops_can_be_counted_where_they_are_wanted() -> None:
    found = made_comparison(loops=1, prompts=2)
    assert found.figures(found.names)[0].tokens == 2 * found.figures()[0].tokens
    alone = made_comparison(loops=1)
    assert alone.figures() == [] and len(alone.figures(alone.names)) == 2


def test_figures_of_some_of_the_prompts() -> None:
    found = made_comparison(loops=1, prompts=3, differences=[difference("code 2")])
    loops, rest = found.figures(["code 1"]), found.figures(["code 2", "code 3"])
    assert rest == found.figures() and rest[1].text == "rounding"
    assert loops[0].tokens == 2 * len(LOOP) and loops[1].text == "same"
    assert found.figures([]) == []


def test_looping_answers_are_left_out_of_figures() -> None:
    plain = side(0, [made_answer(10.0), made_answer(1.0, LOOP)])
    other = side(3, [made_answer(5.0), made_answer(1000.0, LOOP)])
    comparison = compared(plain, other)
    assert comparison.looping() == ["code 2"]
    found = drafted(comparison)
    assert found.speedup == pytest.approx(2.0)
    assert found.tokens == len(VARIED)
    assert comparison.as_json()["left_out"] == ["code 2"]


def test_each_side_is_compared_with_the_plain_answers_in_turn_with_it() -> None:
    plain = side(0, *([made_answer(seconds)] for seconds in (2.0, 8.0, 4.0, 16.0)))
    sides = plain, *(side(length, *[[made_answer(1.0)]] * 2) for length in (2, "auto"))
    figures = Comparison("code", ("code 1",), sides).figures()
    assert [row.speedup for row in figures] == pytest.approx([1.0, 3.0, 12.0])
    assert figures[1].speedup_by_repeat == pytest.approx((2.0, 4.0))
    assert figures[2].speedup_by_repeat == pytest.approx((8.0, 16.0))


def test_intervals_are_json() -> None:
    seconds: dict[DraftTokens, float] = {0: 4.0, 2: 2.0, "auto": 1.0}
    sides = [side(length, [made_answer(each)] * 4) for length, each in seconds.items()]
    again = json.loads(json.dumps(compared(*sides).as_json()))
    assert [row["speedup_interval"] for row in again["sides"]] == [None, [2.0, 2.0], [4.0, 4.0]]


@pytest.mark.parametrize("where", [(0, 1), (1, 0), (1, 1)])
def test_one_looping_answer_on_any_side_is_enough(where: tuple[int, int]) -> None:
    texts = [[VARIED, VARIED], [VARIED, VARIED]]
    texts[where[0]][where[1]] = LOOP
    sides = [
        side(length, *([made_answer(1.0), made_answer(1.0, text)] for text in row))
        for length, row in zip((0, 3), texts, strict=True)
    ]
    assert compared(*sides).looping() == ["code 2"]


def test_no_figures_when_everything_loops() -> None:
    comparison = compared(side(0, [made_answer(10.0, LOOP)] * 2))
    assert comparison.looping() == ["code 1", "code 2"]
    assert comparison.figures() == []


def test_plain_data_is_json() -> None:
    comparison = made_comparison(differences=[difference(margin=None)])
    again = json.loads(json.dumps(comparison.as_json()))
    assert (again["task"], again["prompts"], again["left_out"]) == ("code", ["code 1"], [])
    assert [each["draft_tokens"] for each in again["sides"]] == [0, 3]
    assert again["sides"][1]["speedup_by_repeat"] == pytest.approx([1.25, 1.5])
    assert again["sides"][1]["speedup_interval"] is None
    assert again["differences"] == [
        {"prompt": "code 1", "draft_tokens": 3, "position": 7, "margin": None, "repeatable": True,
         "proven_at": 2, "apart": None}
    ]  # fmt: skip
    answers = json.loads(json.dumps(comparison.answers_as_json()))
    assert [(one["draft_tokens"], one["repeat"]) for one in answers] == [
        (0, 0),
        (0, 1),
        (3, 0),
        (3, 1),
    ]
    last = answers[-1]
    assert (last["tokens"], last["rounds"], last["drafted"], last["accepted"]) == (40, 16, 50, 31)
    assert last["generation_s"] == pytest.approx(1.28 / 1.5)


TIMES = st.lists(
    st.lists(st.floats(0.1, 100), min_size=2, max_size=2), min_size=2, max_size=2
)  # [repeat][prompt]


@given(TIMES, TIMES, TIMES, TIMES)
def test_together_is_as_if_measured_at_once(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], d: list[list[float]]
) -> None:
    def made(*groups: list[list[float]]) -> list[list[Answer]]:
        return [[made_answer(t) for group in groups for t in group[repeat]] for repeat in range(2)]

    one = compared(side(0, *made(a)), side(3, *made(b)), task="one",
                   differences=[difference("one 2")])  # fmt: skip
    two = compared(side(0, *made(c)), side(3, *made(d)), task="two",
                   differences=[difference("two 2")])  # fmt: skip
    found = together([one, two])
    assert found.task == "all" and found.names == ("one 1", "one 2", "two 1", "two 2")
    assert found.sides == (side(0, *made(a, c)), side(3, *made(b, d)))
    assert [each.prompt for each in found.differences] == ["one 2", "two 2"]
