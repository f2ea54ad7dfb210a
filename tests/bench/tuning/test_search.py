"""The search of `localspec tune`, with trials whose costs are known."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.bench.prompts import BenchPrompt
from localspec.bench.tuning import search
from localspec.bench.tuning.candidates import NOW, Candidate, PairFiles, Values
from localspec.bench.tuning.prediction import OF_DRAFT, OF_TARGET, READINGS
from localspec.bench.tuning.search import Finalist, Outcome, Ratioed, Search
from localspec.bench.tuning.trial import Answered, Pass
from localspec.bench.tuning.turns import Turns
from localspec.bench.tuning.types import TypeCosts
from localspec.chat.stats import Interval
from localspec.core.errors import EngineError
from localspec.core.options.load_options import LoadOptions

PROMPTS = [BenchPrompt("code", ({"role": "user", "content": str(i)},)) for i in range(20)]
ANSWERS = {"draft_tokens": "auto", "prompt_lookup": True}
THREADS = Candidate("threads", {"threads": 1})
SLOW_DRAFT = Candidate("draft threads", {"draft_threads": 1})
KERNELS = Candidate("kernels", {"row_kernels": False}, rounds=True)
OTHER = Candidate("draft", {"draft_model": "/m/other.gguf"})
# Seconds of a pass and of a step, times those now.
SPEEDS: Mapping[str, tuple[float, float]] = {
    "threads": (0.5, 1.0),
    "row_kernels": (2.0, 1.0),
    "draft_threads": (1.0, 5.0),
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Trial:
    """A child that computes nothing: answers take the seconds that its settings say."""

    values: Values
    clock: Clock
    memory: int = 1000
    ended: list[str] = field(default_factory=list)

    def _scale(self) -> tuple[float, float]:
        passes = steps = 1.0
        for name in self.values:
            slower, step = SPEEDS.get(name, (1.0, 1.0))
            passes, steps = passes * slower, steps * step
        return passes, steps

    def seconds(self, kind: Pass) -> float:
        passes, step = self._scale()
        found = step if kind.model == "draft" else passes * max(1, kind.width)
        found *= (kind.width > 0 or kind.model == "target") or 1e-9  # the draft reads for nothing
        self.clock.now += 0.02 * found
        return found

    def begin(self, values: Values, messages: Sequence[Any], tokens: int) -> None:
        self._answer = self.answer(values, messages, tokens)

    def go_on(self, rounds: int) -> Answered | None:
        return self._answer

    def answer(self, values: Values, messages: Sequence[Any], tokens: int) -> Answered:
        """Nine plain passes, or one of two tokens and two steps; the prompt has one token."""
        passes, step = self._scale()
        drafted = values["draft_tokens"] != "off"
        steps = 0 if not drafted else 1 if "draft_model" in values else 2
        seconds = passes * (2 if drafted else 9) + steps * step
        counts = {2: 1} if drafted else {1: 9}
        found = Answered(10, 9, seconds, passes, 1.0, counts, steps, 1)
        self.clock.now += found.whole
        return found

    def close(self) -> None:
        self.ended.append("closed")

    def kill(self) -> None:
        self.ended.append("killed")


class Trials:
    """Those of one search, each kept."""

    broken: tuple[str, ...] = ()
    clock = Clock()
    started: list[Trial] = []

    def __init__(self, pair: PairFiles, room: int) -> None:
        self._open: dict[object, Trial] = {}
        self.room = room

    def of(self, values: Values) -> Trial:
        if {*self.broken} & values.keys():
            raise EngineError("It crashed.", "The settings stay as they are.")
        key = search_key(values)
        if key not in self._open:
            self._open[key] = Trial(values, self.clock)
            self.started.append(self._open[key])
        return self._open[key]

    def together(self, sides: Sequence[Values]) -> list[Trial] | None:
        return None if len(sides) > self.room else [self.of(values) for values in sides]

    def end(self, values: Values) -> None:
        if (found := self._open.pop(search_key(values), None)) is not None:
            found.close()

    def close(self, end: Any = Trial.close) -> None:
        for trial in self._open.values():
            end(trial)


def search_key(values: Values) -> object:
    return tuple(sorted((n, v) for n, v in values.items() if n not in ANSWERS))


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> type[Trials]:
    class Fresh(Trials):
        clock = Clock()
        started = list[Trial]()

    monkeypatch.setattr(search, "Trials", Fresh)
    return Fresh


def run(trials: type[Trials], *tried: Candidate, seconds: float = 600, **changes: Any) -> Outcome:
    pair = PairFiles({}, LoadOptions(Path("t")), LoadOptions(Path("d")), ANSWERS)
    fields = {"pair": pair, "recorded": PROMPTS[:3], "held": PROMPTS[3:], **changes}
    fields = {"room": 4, **fields}
    return Search(candidates=tried, seconds=seconds, clock=trials.clock, **fields).run()


def measuring(*found: TypeCosts) -> dict[str, Callable[[], TypeCosts]]:
    return {each.type: partial(replace, each) for each in found}


def test_a_faster_setting_is_found_predicted_and_proven(trials: type[Trials]) -> None:
    outcome = run(trials, THREADS, KERNELS)
    assert outcome.best.values == {"threads": 1} and outcome.best.is_faster
    # 2 of passes, 2 of steps, 1 of the prompt; passes and the prompt take half
    assert outcome.best.predicted == pytest.approx(5 / 3.5)
    assert outcome.best.speedup.times == pytest.approx(outcome.best.predicted)
    by_name = {each.candidate.shown: each.speedup for each in outcome.tried}
    assert by_name["row_kernels=off"] == pytest.approx(5 / 8)
    assert by_name["draft_tokens=off"] == pytest.approx(5 / 10)
    assert all(trial.ended[-1] == "closed" for trial in trials.started)


def test_equal_settings_change_nothing(trials: type[Trials]) -> None:
    outcome = run(trials, KERNELS)
    assert outcome.best is outcome.now and outcome.best.values == NOW
    assert len(outcome.finalists) == 1  # nothing was predicted to gain


def test_another_draft_answers_for_itself(trials: type[Trials]) -> None:
    outcome = run(trials, OTHER)
    assert outcome.best.values == OTHER.values
    assert outcome.best.predicted == pytest.approx(5 / 4)


def test_drafts_are_compared_by_a_fixed_length(trials: type[Trials], monkeypatch: Any) -> None:
    usual = Trial.answer

    def lucky(trial: Trial, values: Values, messages: Sequence[Any], tokens: int) -> Answered:
        found = usual(trial, values, messages, tokens)
        adapts = values["draft_tokens"] == "auto"
        return replace(found, passes={2: 1}, steps=0) if adapts else found

    monkeypatch.setattr(Trial, "answer", lucky)
    # With a length of 4 it takes one step where the current draft takes two.
    assert run(trials, OTHER).tried[-1].speedup == pytest.approx(5 / 4)


def test_a_candidate_that_crashes_is_reported_and_left_out(trials: type[Trials]) -> None:
    trials.broken = ("row_kernels",)
    outcome = run(trials, KERNELS, THREADS)
    failed = {each.candidate.knob: each.reason for each in outcome.tried if each.speedup is None}
    assert failed == {"kernels": "It crashed."}
    assert outcome.best.values == {"threads": 1}


def test_automatic_lengths_stop_where_the_draft_gets_too_slow(trials: type[Trials]) -> None:
    outcome = run(trials, SLOW_DRAFT)
    # What was drafted would take 2 + 2 * 5 + 1, plain decoding 9 + 1 as before.
    assert outcome.tried[-1].speedup == pytest.approx(5 / 10)


def test_what_slows_both_of_a_turn_changes_no_prediction(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, asked = Trial.seconds, list[Pass]()

    def slowed(trial: Trial, kind: Pass) -> float:
        asked.append(kind)
        return usual(trial, kind) * (1 + len(asked) // 4 % 3)

    monkeypatch.setattr(Trial, "seconds", slowed)
    assert run(trials, THREADS).tried[-1].speedup == pytest.approx(5 / 3.5, rel=0.02)


def test_each_pass_is_measured_with_all_settings_one_after_another(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, asked = Trial.seconds, list[tuple[Pass, bool]]()

    def noting(trial: Trial, kind: Pass) -> float:
        asked.append((kind, "threads" in trial.values))
        return usual(trial, kind)

    monkeypatch.setattr(Trial, "seconds", noting)
    run(trials, THREADS)
    first = next(i for i, (_, is_other) in enumerate(asked) if is_other) - 1
    pairs = [*zip(asked[first::2], asked[first + 1 :: 2], strict=True)]
    assert len(pairs) > 20
    assert all(one[0] == two[0] and one[1] != two[1] for one, two in pairs)
    assert len({one[1] for one, _ in pairs}) == 2  # neither is always the first


@pytest.mark.parametrize(("seconds", "turns"), [(30, 5), (180, 5), (600, 10), (7200, 25)])
def test_a_longer_time_takes_more_turns(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch, seconds: float, turns: int
) -> None:
    usual, asked = Trial.seconds, list[Pass]()

    def noting(trial: Trial, kind: Pass) -> float:
        if "threads" in trial.values:
            asked.append(kind)
        return usual(trial, kind)

    monkeypatch.setattr(Trial, "seconds", noting)
    run(trials, THREADS, seconds=seconds)
    assert asked.count(Pass("target", 1)) == turns
    assert asked.count(READINGS[0]) == math.ceil(turns / 3)  # which takes long


@pytest.mark.parametrize(("candidate", "has_draft"), [(OTHER, 1), (SLOW_DRAFT, 1), (OTHER, 0)])
def test_another_draft_leaves_the_target_as_it_is(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch, candidate: Candidate, has_draft: bool
) -> None:
    """Only its passes are measured; where there is none, next to those of the target."""
    usual, asked = Trial.seconds, list[tuple[Pass, bool]]()

    def noting(trial: Trial, kind: Pass) -> float:
        asked.append((kind, candidate.values.items() <= trial.values.items()))
        return usual(trial, kind)

    monkeypatch.setattr(Trial, "seconds", noting)
    pair = PairFiles({}, LoadOptions(Path("t")), LoadOptions(Path("d")) if has_draft else None, {})
    run(trials, candidate, pair=replace(pair, answers=ANSWERS))
    first = next(i for i, (_, is_other) in enumerate(asked) if is_other) - 1
    sides = {
        is_other: {kind for kind, own in asked[first:] if own == is_other} for is_other in (0, 1)
    }
    assert sides[True] == {*OF_DRAFT}
    assert sides[False] == ({*OF_DRAFT} if has_draft else {Pass("target", 1), READINGS[0]})


def test_where_memory_holds_one_pair_each_is_measured_at_once(trials: type[Trials]) -> None:
    outcome = run(trials, THREADS, room=1)
    assert outcome.best.values == {"threads": 1}
    assert outcome.best.predicted == pytest.approx(5 / 3.5)


def test_a_second_combination_is_tried_where_the_first_is_not_faster(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Turns.answers

    def slower(turns: Turns, sides: Sequence[Values], *asked: Any) -> list[Answered]:
        found = answers(turns, sides, *asked)
        both = len(sides) > 1 and {"threads", "draft_model"} <= sides[1].keys()
        return [found[0], replace(found[0], seconds=100.0)] if both else found

    monkeypatch.setattr(Turns, "answers", slower)
    found = run(trials, THREADS, OTHER)
    assert [len(each.values) for each in found.finalists] == [0, 2, 1]
    assert found.best.values == {"threads": 1} and found.now.speedup.interval is None


def test_types_of_the_target_are_only_reported_each_with_the_best_draft(
    trials: type[Trials],
) -> None:
    halved = {kind: 0.5 for kind in OF_TARGET if kind not in READINGS}
    types = TypeCosts("Q4_0", 10, halved), TypeCosts("F16", reason="It crashed.")
    outcome = run(trials, KERNELS, OTHER, types=measuring(*types))
    quick, failed = outcome.types
    # 2 of passes, 2 of steps, 1 of the prompt now; passes take half, the other draft one step
    assert quick.speedup == pytest.approx(5 / 3) and quick.draft == "draft_model=other.gguf"
    assert failed.speedup is None and failed.costs.reason == "It crashed."
    assert "target" not in outcome.best.values
    (alone,) = run(trials, types=measuring(types[0])).types
    assert alone.speedup == pytest.approx(5 / 4) and alone.draft == "current"


def test_types_are_measured_when_no_other_trial_runs(trials: type[Trials]) -> None:
    def late() -> TypeCosts:
        assert trials.started and all(trial.ended for trial in trials.started)
        trials.clock.now += 10_000
        return TypeCosts("Q4_0", 10, {})

    outcome = run(trials, THREADS, types={"Q4_0": late})
    assert outcome.types[0].speedup == pytest.approx(1.0)
    assert outcome.seconds < 10_000  # which is the time of the settings


def test_ctrl_c_while_types_are_measured_keeps_what_was_proven(trials: type[Trials]) -> None:
    def interrupted() -> TypeCosts:
        raise KeyboardInterrupt

    first = measuring(TypeCosts("Q4_0", 10, {}))
    outcome = run(trials, THREADS, types={**first, "F16": interrupted})
    assert outcome.stopped and outcome.best.values == THREADS.values
    assert [each.costs.type for each in outcome.types] == ["Q4_0"]
    assert not run(trials, THREADS, types=first).stopped


def test_what_the_time_leaves_no_room_for_is_named(trials: type[Trials]) -> None:
    tried = run(trials, THREADS, KERNELS, seconds=40).tried
    (late,) = [each for each in tried if each.speedup is None]
    assert late.candidate == KERNELS and "give a longer --time" in late.reason


@pytest.mark.parametrize(("seconds", "tokens"), [(30, 16), (1000, 64)])
def test_answers_are_short_where_the_time_is(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch, seconds: float, tokens: int
) -> None:
    asked, answer = list[int](), Trial.answer

    def noting(trial: Trial, values: Values, messages: Sequence[Any], most: int) -> Answered:
        asked.append(most)
        return answer(trial, values, messages, most)

    monkeypatch.setattr(Trial, "answer", noting)
    run(trials, seconds=seconds)
    assert set(asked) == {8, tokens}


def test_ctrl_c_kills_what_runs(trials: type[Trials]) -> None:
    def interrupt(what: str, spent: float, total: float) -> None:
        if "in turn" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(trials, THREADS, on_step=interrupt)
    assert {trial.ended[-1] for trial in trials.started} == {"killed", "closed"}


@pytest.mark.parametrize("seconds", [30, 100, 400])
def test_the_time_is_kept_but_for_the_prompts_of_an_interval(
    trials: type[Trials], seconds: float
) -> None:
    outcome = run(trials, THREADS, KERNELS, seconds=seconds)
    assert outcome.seconds < search._LATEST * seconds + 4 * 5


@pytest.mark.parametrize(
    ("interval", "faster"), [((1.01, 1.4), True), ((0.99, 1.6), False), (None, False)]
)
def test_settings_are_faster_if_the_interval_lies_above_1(
    interval: Interval | None, faster: bool
) -> None:
    answered = Answered(10, 9, 1.0, 1.0, 1.0, {1: 9}, 0, 1)
    found = Finalist({"threads": 1}, 1.1, Ratioed(1.2, interval), answered, 0, rounds=False)
    assert found.is_faster is faster


def test_too_few_prompts_prove_nothing(trials: type[Trials]) -> None:
    outcome = run(trials, THREADS, held=PROMPTS[3:6])
    assert outcome.best is outcome.now and len(outcome.finalists) > 1


def test_progress_names_what_is_tried_and_the_best_so_far(trials: type[Trials]) -> None:
    said = list[str]()
    run(trials, THREADS, on_step=lambda what, spent, total: said.append(what))
    assert said[0] == "loading" and "answering, draft_tokens=4" in said
    assert "answering in turn, threads=1, at best 1.43x predicted" in said
    assert not any("type" in what for what in said)


def test_each_type_is_named_with_the_time_that_all_will_take(trials: type[Trials]) -> None:
    def measured() -> TypeCosts:
        trials.clock.now += 20
        return TypeCosts("Q4_0", 10, {})

    said = list[tuple[str, float]]()
    run(
        trials,
        types={"Q4_0": measured, "F16": measured},
        on_step=lambda what, spent, total: said.append((what, total - spent)),
    )
    first, second = said[-2:]
    assert first == ("type Q4_0, 1 of 2", 2 * 45)
    assert second[0] == "type F16, 2 of 2"
    assert second[1] == pytest.approx(20)  # as the first one took


def test_what_is_late_may_take_half_as_long_again(trials: type[Trials]) -> None:
    said = list[tuple[float, float]]()
    run(trials, THREADS, seconds=30, on_step=lambda what, spent, total: said.append((spent, total)))
    early, late = ({each for each in said if (each[0] > 30) == is_late} for is_late in (0, 1))
    assert {total for _, total in early} == {30}
    assert late and all(total == max(spent, 45) for spent, total in late)


def test_drafting_that_auto_leaves_out_is_named(
    trials: type[Trials], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Trial.answer

    def plain(trial: Trial, values: Values, messages: Sequence[Any], tokens: int) -> Answered:
        adapts = values["draft_tokens"] == "auto"
        return usual(
            trial, {**values, "draft_tokens": "off"} if adapts else values, messages, tokens
        )

    assert not any(each.reason for each in run(trials).tried)
    monkeypatch.setattr(Trial, "answer", plain)
    (named,) = [each for each in run(trials).tried if each.reason]
    assert named.candidate.shown == "draft_tokens=off" and named.speedup == 1.0
    assert named.reason == "auto drafted nothing in these answers"
