"""Bench: sides take turns, speedup comes from sums, looping and differing texts are found out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conftest import FakeClock, ToyEngine
from real_pair import GREEDY

from localspec import backend, bench
from localspec.bench import Side, compare, figures, looping
from localspec.config import DraftLength, SamplingParams
from localspec.engine import Engine
from localspec.generate import Answer
from localspec.stats import GenerationStats

VARIED = list(range(40))
LOOP = [1, 2, 3, 4] * 10


def made_answer(
    seconds: float,
    tokens: Sequence[int] = VARIED,
    *,
    rounds: int = 40,
    drafted: int = 0,
    accepted: int = 0,
    ttft: float = 1.0,
) -> Answer:
    stats = GenerationStats(
        tokens=len(tokens), rounds=rounds, seconds=seconds, drafted=drafted, accepted=accepted,
        ttft_s=ttft,
    )  # fmt: skip
    return Answer("", list(tokens), stats, "length")


def side(length: DraftLength, *repeats: Sequence[Answer]) -> Side:
    return Side(length, tuple(map(tuple, repeats)))


def test_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, DraftLength, int]] = []

    def answer(
        engine: object,
        prompt: Sequence[int],
        params: SamplingParams,
        length: DraftLength,
        max_tokens: int,
    ) -> Answer:
        calls.append((prompt[0], length, max_tokens))
        return made_answer(1.0, [*prompt, len(calls)])

    monkeypatch.setattr(bench, "answer", answer)
    measured: list[int] = []
    sides = compare(
        ToyEngine(), [[7], [8]], GREEDY, (0, 4, "auto"),
        repeats=3, max_tokens=50, on_answer=lambda: measured.append(len(calls)),
    )  # fmt: skip
    warm, rest = calls[:3], calls[3:]
    assert warm == [(7, 0, 16), (7, 4, 16), (7, "auto", 16)]
    there: list[DraftLength] = [0, 4, "auto"]
    expected = [
        (prompt, length, 50)
        for order in (there, there[::-1], there)
        for prompt in (7, 8)
        for length in order
    ]
    assert rest == expected
    assert measured == list(range(4, 22))
    assert [one.draft_length for one in sides] == there
    for one in sides:
        assert len(one.answers) == 3
        for row in one.answers:
            assert [answer.tokens[0] for answer in row] == [7, 8]


def test_speedup_comes_from_sums() -> None:
    plain = side(0, [made_answer(40.0), made_answer(8.0)], [made_answer(20.0), made_answer(12.0)])
    drafted = side(
        3,
        [made_answer(10.0, rounds=10, drafted=60, accepted=30), made_answer(14.0, rounds=20)],
        [made_answer(4.0, rounds=10), made_answer(12.0, rounds=20)],
    )
    found = figures(drafted, plain)
    assert found is not None
    assert found.speedup == pytest.approx(80 / 40)  # the mean of ratios would be 2.64 or so
    assert found.speedup_by_repeat == pytest.approx((48 / 24, 32 / 16))
    assert (found.tokens, found.drafted, found.accepted) == (160, 60, 30)
    assert found.generation_tps == pytest.approx(160 / 40)
    assert found.acceptance_rate == 0.5
    assert found.mean_accepted_length == pytest.approx(160 / 60)
    # 40 s in 60 rounds, a plain token takes 80 s / 160 tokens.
    assert found.round_cost == pytest.approx((40 / 60) / (80 / 160))
    assert found.speedup == pytest.approx(found.mean_accepted_length / found.round_cost)
    assert found.ttft_s == 1.0
    assert found.same_text


def test_repeats_may_differ() -> None:
    plain = side(0, [made_answer(10.0)], [made_answer(30.0)])
    drafted = side(3, [made_answer(5.0)], [made_answer(60.0)])
    found = figures(drafted, plain)
    assert found is not None
    assert found.speedup_by_repeat == pytest.approx((2.0, 0.5))
    assert found.speedup == pytest.approx(40 / 65)


def test_plain_against_itself() -> None:
    plain = side(0, [made_answer(10.0)])
    found = figures(plain, plain)
    assert found is not None
    assert (found.speedup, found.speedup_by_repeat, found.round_cost) == (1.0, (1.0,), 1.0)
    assert found.acceptance_rate is None and found.mean_accepted_length == 1.0


def test_looping_answers_are_left_out_of_figures() -> None:
    plain = side(0, [made_answer(10.0), made_answer(1.0, LOOP)])
    drafted = side(3, [made_answer(5.0), made_answer(1000.0, LOOP)])
    assert looping(plain) == [1]
    found = figures(drafted, plain)
    assert found is not None
    assert found.speedup == pytest.approx(2.0)
    assert found.tokens == len(VARIED)


def test_no_figures_when_everything_loops() -> None:
    plain = side(0, [made_answer(10.0, LOOP)] * 2)
    assert looping(plain) == [0, 1]
    assert figures(plain, plain) is None


@pytest.mark.parametrize("where", [(0, 0), (1, 1)])
def test_a_differing_answer_is_told(where: tuple[int, int]) -> None:
    plain = side(0, [made_answer(10.0)] * 2, [made_answer(10.0)] * 2)
    rows = [[made_answer(5.0), made_answer(5.0)] for _ in range(2)]
    rows[where[0]][where[1]] = made_answer(5.0, [*VARIED[:-1], 99])
    found = figures(side(3, *rows), plain)
    assert found is not None and not found.same_text
    again = figures(plain, side(0, *rows))
    assert again is not None and not again.same_text


def test_a_differing_answer_is_told_also_when_it_loops() -> None:
    plain = side(0, [made_answer(10.0), made_answer(10.0, LOOP)])
    other = side(3, [made_answer(10.0), made_answer(10.0, [*LOOP, 5])])
    found = figures(other, plain)
    assert found is not None and not found.same_text


class Moody(ToyEngine):
    """An engine whose target says something else whenever it verifies a draft."""

    def __init__(self) -> None:
        super().__init__(quirk=0.3)
        plain_decode = self.target.decode

        def decode(tokens: Sequence[int], rows: int) -> object:
            logits = plain_decode(tokens, rows)
            return -logits if rows > 1 else logits

        self.target.decode = decode  # type: ignore[method-assign, assignment]


def test_an_engine_that_breaks_the_promise_is_found_out() -> None:
    for engine, same in ((ToyEngine(), True), (Moody(), False)):
        prompts = [engine.encode("abc"), engine.encode("cab")]
        sides = compare(engine, prompts, GREEDY, (0, 4), repeats=1, max_tokens=20)
        assert bench._same_text(sides[1], sides[0]) is same


def test_every_answer_starts_from_empty_caches() -> None:
    engine = ToyEngine(clock=FakeClock())
    prompt = engine.encode("abcabc")
    for _ in range(2):
        answer = bench.answer(engine, prompt, GREEDY, 3, 9)
        assert answer.stats.cached_tokens == 0
        assert answer.stats.prompt_tokens == len(prompt)


def test_ctrl_c_ends_the_whole_measurement(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    prompt = engine.encode_text("the thing")
    monkeypatch.setattr(backend.library(), "llama_decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(engine, [prompt], GREEDY, (0, 3), repeats=1, max_tokens=20)


def test_a_real_pair_says_the_same(engine: Engine) -> None:
    prompts = [engine.encode_text(text) for text in ("the thing", "another thing")]
    sides = compare(engine, prompts, GREEDY, (0, 3), repeats=2, max_tokens=20)
    plain, drafted = (figures(one, sides[0]) for one in sides)
    assert plain is not None and drafted is not None
    assert plain.same_text and drafted.same_text
    assert plain.drafted == 0 and drafted.drafted > 0
    assert plain.mean_accepted_length == 1.0 < drafted.mean_accepted_length
    assert len(drafted.speedup_by_repeat) == 2
