"""Bench: sides take turns, speedup comes from sums, loops are left out, differences explained."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench import run
from localspec.bench.run import BenchPlan, Comparison, Figures, run_bench, together
from localspec.core.config import DraftTokens, SamplingParams
from localspec.core.errors import EngineError, PromptTooLong
from localspec.engine import llama_library
from localspec.engine.engine import Engine
from localspec.engine.generate import Answer
from localspec.engine.stats import PassStats, SourceStats
from tests.support.answers import (
    LOOP,
    VARIED,
    compared,
    difference,
    made_answer,
    made_comparison,
    side,
)
from tests.support.real_pair import GREEDY
from tests.support.toys import FakeClock, ToyEngine


class BenchToy(ToyEngine):
    """A toy engine that rounds: `noise` by width of pass; `widened` as the real one means it."""

    def __init__(self, *, noise: Sequence[float] = (), **options: Any) -> None:
        super().__init__(**options)
        self.target.min_width = 1  # type: ignore[attr-defined]
        self.widths: list[int] = []
        exact = self.target.decode

        def decode(tokens: Sequence[int], rows: int) -> object:
            width = max(len(tokens), self.target.min_width)  # type: ignore[attr-defined]
            self.widths.append(width)
            logits = exact(tokens, rows)
            shift = noise[min(width, len(noise)) - 1] if noise else 0.0
            turned = np.array([np.roll(row, 1) for row in logits]).reshape(logits.shape)
            return logits + np.float32(shift) * turned

        self.target.decode = decode  # type: ignore[method-assign, assignment]

    @contextmanager
    def widened(self, width: int) -> Iterator[None]:
        target: Any = self.target
        before, target.min_width = target.min_width, width
        yield
        target.min_width = before


def compare(engine: Any, prompts: Sequence[Sequence[int]], plan: BenchPlan) -> Comparison:
    """One task's comparison."""
    (comparison,) = run_bench(engine, {"code": prompts}, plan)
    return comparison


def plan(*lengths: DraftTokens, repeats: int = 1, max_tokens: int = 20, **params: Any) -> BenchPlan:
    return BenchPlan(SamplingParams(**({"temperature": 0} | params)), lengths, repeats, max_tokens)


def drafted(comparison: Comparison) -> Figures:
    """The figures of the second side."""
    return comparison.figures()[1]


# -- measuring -----------------------------------------------------------------------------


def test_sides_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, DraftTokens, int]] = []

    def answer(
        engine: object, prompt: Sequence[int], plan: BenchPlan, length: DraftTokens
    ) -> Answer:
        calls.append((prompt[0], length, plan.max_tokens))
        return made_answer(1.0, [*prompt, 5])

    monkeypatch.setattr(run, "answer", answer)
    heard: list[tuple[str, int]] = []
    found = list(
        run_bench(
            BenchToy(), {"a": [[7], [8]], "b": [[9]]}, plan(0, 4, "auto", repeats=3, max_tokens=50),
            lambda task: heard.append((task, len(calls))),
        )
    )  # fmt: skip
    warm, rest = calls[:3], calls[3:]
    assert warm == [(7, 0, 16), (7, 4, 16), (7, "auto", 16)]
    there: list[DraftTokens] = [0, 4, "auto"]
    assert rest == [
        (prompt, length, 50)
        for prompt in (7, 8, 9)
        for order in (there, there[::-1], there)
        for length in order
    ]
    assert heard == [("a" if n <= 21 else "b", n) for n in range(4, 31)]
    assert [comparison.task for comparison in found] == ["a", "b"]
    assert [comparison.names for comparison in found] == [("a 1", "a 2"), ("b 1",)]
    for comparison, prompts in zip(found, ([7, 8], [9]), strict=True):
        assert [one.draft_tokens for one in comparison.sides] == there
        for one in comparison.sides:
            assert [[answer.tokens[0] for answer in row] for row in one.answers] == [prompts] * 3


def test_answers_are_counted_beforehand() -> None:
    assert plan(0, 2, 4, repeats=3).answers(7) == 63


@pytest.mark.parametrize(
    ("lengths", "width"), [((0,), 2), ((0, 1), 2), ((0, 4, 2), 5), ((0, "auto"), 33), ((0, 62), 63)]
)
def test_the_widest_pass(lengths: tuple[DraftTokens, ...], width: int) -> None:
    assert plan(*lengths).width == width


def test_what_does_not_fit_is_told_before_anything_is_measured() -> None:
    engine = BenchToy(n_ctx=64)
    fits = {"a": [[97]], "b": [[97] * 41]}  # 41 + 19 that are decoded + 4 more in a pass of 5
    assert len(list(run_bench(engine, fits, plan(0, 4)))) == 2
    engine.widths.clear()
    with pytest.raises(PromptTooLong, match="has 42 tokens.* of 65 tokens, and there are 64"):
        next(run_bench(engine, {"a": [[97]], "b": [[97] * 42]}, plan(0, 4)))
    assert engine.widths == []


def test_every_answer_starts_from_empty_caches() -> None:
    engine = BenchToy(clock=FakeClock())
    prompt = engine.encode("abcabc")
    for _ in range(2):
        answer = run.answer(engine, prompt, plan(0, max_tokens=9), 3)
        assert answer.stats.cached_tokens == 0
        assert answer.stats.prompt_tokens == len(prompt)


def test_ctrl_c_ends_the_whole_measurement(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    prompt = engine.encode_text("the thing")
    monkeypatch.setattr(llama_library.library(), "llama_decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(engine, [prompt], plan(0, 3))


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), EngineError("Out of memory.", "Buy.")])
@pytest.mark.parametrize(
    ("answers", "kept"),
    [(7, []), (8, [["a 1"]]), (13, [["a 1"]]), (14, [["a 1", "a 2"]]), (19, [["a 1", "a 2"]])],
)
def test_what_is_complete_outlives_an_interruption(
    monkeypatch: pytest.MonkeyPatch, problem: BaseException, answers: int, kept: list[list[str]]
) -> None:
    # Two for warming up, then six to each of three prompts.
    left = iter(range(answers))

    def answer(*arguments: object) -> Answer:
        if next(left, None) is None:
            raise problem
        return made_answer(1.0)

    monkeypatch.setattr(run, "answer", answer)
    found: list[Comparison] = []
    tasks = {"a": [[7], [8]], "b": [[9]]}
    with pytest.raises(type(problem)):
        for comparison in run_bench(BenchToy(), tasks, plan(0, 4, repeats=3)):
            found.append(comparison)
    assert [list(comparison.names) for comparison in found] == kept
    for comparison in found:
        assert all(len(side.answers) == 3 for side in comparison.sides)
        assert comparison.figures()


# -- figures -------------------------------------------------------------------------------


def test_loops_can_be_counted_where_they_are_wanted() -> None:
    found = made_comparison(loops=1, prompts=2)
    assert found.figures(loops=True)[0].tokens == 2 * found.figures()[0].tokens
    assert made_comparison(loops=1).figures() == []
    assert len(made_comparison(loops=1).figures(loops=True)) == 2


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


def test_looping_answers_are_left_out_of_figures() -> None:
    plain = side(0, [made_answer(10.0), made_answer(1.0, LOOP)])
    other = side(3, [made_answer(5.0), made_answer(1000.0, LOOP)])
    comparison = compared(plain, other)
    assert comparison.looping() == ["code 2"]
    found = drafted(comparison)
    assert found.speedup == pytest.approx(2.0)
    assert found.tokens == len(VARIED)
    assert comparison.as_json()["left_out"] == ["code 2"]


@pytest.mark.parametrize("where", [(0, 1), (1, 0), (1, 1)])
def test_one_looping_answer_on_any_side_is_enough(where: tuple[int, int]) -> None:
    texts = [[VARIED, VARIED], [VARIED, VARIED]]
    texts[where[0]][where[1]] = LOOP
    sides = [
        side(length, *([made_answer(1.0), made_answer(1.0, text)] for text in row))
        for length, row in zip((0, 3), texts, strict=True)
    ]
    assert compared(*sides).looping() == ["code 2"]


def test_the_drafts_reading_of_the_prompt_counts() -> None:
    plain, other = side(0, [made_answer(10.0)]), side(3, [made_answer(4.0, rounds=20, reading=1.0)])
    found = drafted(compared(plain, other))
    assert found.speedup == pytest.approx(2.0)
    assert found.generation_tps == pytest.approx(40 / 5)
    assert found.round_cost == pytest.approx((5 / 20) / (10 / 40))
    assert found.draft_prompt_s == 1.0


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
    assert again["differences"] == [
        {"prompt": "code 1", "draft_tokens": 3, "position": 7, "margin": None, "repeatable": True,
         "proven_at": 2}
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


# -- audit ---------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_an_audit_reads_every_drafted_answer(temperature: float) -> None:
    engine = BenchToy(quirk=0.3)
    planned = replace(plan(0, 4, "auto", repeats=2, temperature=temperature), audit=True)
    found = compare(engine, [engine.encode("abc"), engine.encode("bead")], planned)
    assert [(each.prompt, each.draft_tokens) for each in found.audits[:4]] == [
        ("code 1", 4), ("code 1", 4), ("code 1", "auto"), ("code 1", "auto"),
    ]  # fmt: skip
    assert len(found.audits) == 8
    assert all(each.identical and each.misses == () for each in found.audits)
    assert sum(each.tokens for each in found.audits) == sum(
        len(answer.tokens) for side in found.sides[1:] for row in side.answers for answer in row
    )


def test_an_audit_tells_what_plain_would_not_have_said(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, honest = BenchToy(quirk=0.3), run.answer

    def careless(engine: Any, prompt: Any, plan: BenchPlan, length: DraftTokens) -> Answer:
        given = honest(engine, prompt, plan, length)
        if length == 4:
            given.tokens[5] = (given.tokens[5] + 1) % 200
        return given

    monkeypatch.setattr(run, "answer", careless)
    found = compare(engine, [engine.encode("abc")], replace(plan(0, 4), audit=True))
    (audit,) = found.audits
    (position, short), *_ = audit.misses
    assert not audit.identical and position == 5 and short > 0
    assert found.as_json()["audits"][0]["misses"][0][0] == 5  # type: ignore[index]


# -- limits --------------------------------------------------------------------------------


def test_agreement_is_that_of_the_draft_given_the_true_text() -> None:
    engine = BenchToy(quirk=0.5)
    prompt = engine.encode("abc")
    found = compare(engine, [prompt], plan(0, 4, max_tokens=80))
    text = found.sides[0].answers[0][0].tokens
    context = [*prompt, *text]
    draft = engine.draft
    picks = [int(draft.row(context[: len(prompt) + i]).argmax()) for i in range(len(text))]
    assert found.agreed == (tuple(a == b for a, b in zip(picks, text, strict=True)),)
    assert True in found.agreed[0] and False in found.agreed[0]


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


# -- the same text? ------------------------------------------------------------------------


def test_one_text_has_no_difference() -> None:
    engine = BenchToy()
    found = compare(engine, [engine.encode("abc")], plan(0, 4, "auto", repeats=2))
    assert found.differences == ()
    assert [row.text for row in found.figures()] == ["same"] * 3


def rounded(noise: Sequence[float], length: int = 4, **params: Any) -> tuple[BenchToy, Comparison]:
    engine = BenchToy(noise=noise, n_ctx=256)
    prompts = [engine.encode(text) for text in ("abc", "cab", "bead")]
    return engine, compare(engine, prompts, plan(0, length, max_tokens=60, **params))


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_rounding_is_proven_by_passes_of_two(temperature: float) -> None:
    engine, found = rounded([0.05, 0.0], temperature=temperature)
    assert found.differences  # else the test shows nothing
    assert {each.proven_at for each in found.differences} == {2}
    assert drafted(found).text == "rounding" and found.figures()[0].text == "same"
    for each in found.differences:
        i = found.names.index(each.prompt)
        plain, other = (one.answers[0][i].tokens for one in found.sides)
        assert plain[: each.position] == other[: each.position]
        assert plain[each.position] != other[each.position]
        assert each.margin is not None and each.margin > 0
        assert each.draft_tokens == 4 and each.repeatable


def test_kernels_that_change_later_are_brought_to_one_width() -> None:
    _, found = rounded([0.05, 0.1, 0.15, 0.2, 0.0])
    assert found.differences
    assert {each.proven_at for each in found.differences} == {5}


def test_a_mistake_is_not_called_rounding() -> None:
    engine = BenchToy(n_ctx=256)
    seen: list[int] = []
    honest = engine.target.decode

    def moody(tokens: Sequence[int], rows: int) -> object:
        seen.append(rows)
        logits = honest(tokens, rows)
        return -logits if rows > 1 else logits

    engine.target.decode = moody  # type: ignore[method-assign, assignment]
    found = compare(engine, [engine.encode("abc")], plan(0, 4))
    (difference,) = found.differences
    assert difference.proven_at is None
    assert drafted(found).text == "different"


def test_the_margin_is_the_lead_of_the_plain_pick() -> None:
    engine, found = rounded([0.05, 0.0])
    first = found.differences[0]
    i = found.names.index(first.prompt)
    prompt = engine.encode(("abc", "cab", "bead")[i])
    plain = found.sides[0].answers[0][i].tokens
    engine.target.keep(0)
    engine.target.decode([*prompt, *plain[: first.position]][:-1], 0)
    row = engine.target.decode([*prompt, *plain][len(prompt) + first.position - 1 :][:1], 1)[0]
    lead = row[plain[first.position]] - np.delete(row, plain[first.position]).max()
    assert first.margin == pytest.approx(float(lead)) and lead > 0


def fickle(engine: BenchToy, at: int) -> None:
    """Let one pass of the target, and only this one, be wrong."""
    honest, calls = engine.target.decode, iter(range(10**6))

    def decode(tokens: Sequence[int], rows: int) -> object:
        logits = honest(tokens, rows)
        return -logits if rows and next(calls) == at else logits

    engine.target.decode = decode  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(("lengths", "at"), [((0, 4), 45), ((0,), 45), ((0, 4), 25)])
def test_what_cannot_be_repeated_is_not_called_rounding(
    lengths: tuple[DraftTokens, ...], at: int
) -> None:
    engine = BenchToy(n_ctx=256)
    fickle(engine, at)
    found = compare(engine, [engine.encode("abc")], plan(*lengths, repeats=2))
    assert found.differences  # else the test shows nothing
    for each in found.differences:
        assert not each.repeatable and each.proven_at is None
    assert "different" in {row.text for row in found.figures()}


def test_auto_need_not_repeat_what_rounding_decides() -> None:
    engine, drafted_texts = BenchToy(), iter([[1], [2], [3], [4]])

    def answer(engine: BenchToy, prompt: object, plan: BenchPlan, length: DraftTokens) -> Answer:
        narrow = engine.target.min_width == 1  # type: ignore[attr-defined]
        return made_answer(1.0, next(drafted_texts) if narrow and length == "auto" else VARIED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "answer", answer)
        found = compare(engine, [engine.encode("abc")], plan(0, "auto", repeats=3))
    assert len(found.differences) == 3
    assert {(each.repeatable, each.proven_at) for each in found.differences} == {(True, 2)}


def test_with_wide_passes_from_the_start_two_prove_nothing() -> None:
    engine = BenchToy(noise=[0.0, 0.05, 0.1, 0.15, 0.0], n_ctx=256)
    engine.target.min_width = 2  # type: ignore[attr-defined]
    prompts = [engine.encode(text) for text in ("abc", "cab", "bead")]
    found = compare(engine, prompts, plan(0, 4, max_tokens=60))
    assert {each.proven_at for each in found.differences} == {5}


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_difference_in_any_repeat_is_told(repeat: int) -> None:
    engine = BenchToy()
    texts = [VARIED, VARIED]
    texts[repeat] = [*VARIED[:-1], 99]
    rows = [[made_answer(1.0)] * 2, [made_answer(1.0, text) for text in texts]]
    finder = run._Differences(engine, "code 1", engine.encode("abc"), plan(0, 3))
    (found,) = finder.among(rows)
    assert (found.draft_tokens, found.position) == (3, len(VARIED) - 1)


# -- a real pair ---------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=0.8, seed=5)])
def test_a_real_pair_says_the_same(engine: Engine, params: SamplingParams) -> None:
    prompts = [engine.encode_text(text) for text in ("the thing", "another thing")]
    found = compare(engine, prompts, BenchPlan(params, (0, 3), repeats=2, max_tokens=20))
    plain, other = found.figures()
    assert all(each.repeatable and each.proven_at for each in found.differences)
    assert plain.drafted == 0 and other.drafted > 0
    assert plain.mean_accepted_length == 1.0 < other.mean_accepted_length
    assert len(other.speedup_by_repeat) == 2
    assert engine.target.min_width == 1
