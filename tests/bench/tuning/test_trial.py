"""Trials of `localspec tune`: children that load a pair, measure it, and answer."""

import time
from collections.abc import Iterator

import pytest

from localspec.bench.tuning.candidates import NOW, PairFiles
from localspec.bench.tuning.prediction import READINGS, STEP
from localspec.bench.tuning.trial import Answered, Pass, Trial, Trials, added
from localspec.chat.message import Message
from localspec.core.errors import EngineError, LocalspecError
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from tests.support.real_pair import TinyFiles

ANSWERS = {"draft_tokens": "auto", "prompt_lookup": True}
MESSAGES: list[Message] = [{"role": "user", "content": "the thing"}]


def pair_of(tiny: TinyFiles) -> PairFiles:
    given = {"threads": 1, "ctx_size": 512}
    target, draft = (
        LoadOptions(path, threads=1, ctx_size=512) for path in (tiny.target, tiny.draft)
    )
    return PairFiles(given, target, draft, ANSWERS)


@pytest.fixture
def trial(tiny: TinyFiles) -> Iterator[Trial]:
    found = Trial(pair_of(tiny), NOW)
    yield found
    found.kill()


@pytest.mark.llama
def test_a_trial_measures_passes_and_answers(trial: Trial) -> None:
    for kind in (Pass("target", 1), Pass("target", 8), Pass("draft", 1), *READINGS):
        assert trial.seconds(kind) > 0
    plain = trial.answer({**ANSWERS, "draft_tokens": "off"}, MESSAGES, 12)
    assert plain.passes == {1: 11} and plain.steps == 0 and plain.read > 4
    fixed = trial.answer({**ANSWERS, "draft_tokens": "3"}, MESSAGES, 12)
    assert fixed.tokens == plain.tokens and fixed.steps > 3 and max(fixed.passes) == 4
    assert 0 < fixed.per_second and fixed.whole > fixed.seconds > 0 and trial.memory > 0
    assert fixed.timed == 11 and fixed.ttft > 0
    trial.close()


@pytest.mark.llama
def test_a_pair_that_was_tried_is_new_no_more(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    pair = pair_of(tiny)
    Trial(pair, NOW).close()
    monkeypatch.setattr("localspec.engine.loading.first_use._in_child", refuse)
    Engine.load(*pair.with_values(NOW)).close()
    with pytest.raises(AssertionError):
        Engine.load(pair.target).close()  # another pair


@pytest.mark.llama
def test_time_stands_still_between_the_rounds_of_an_answer(trial: Trial) -> None:
    trial.begin({**ANSWERS, "draft_tokens": "off"}, MESSAGES, 3)
    began, paused = time.perf_counter(), 0.0
    while (found := trial.go_on(1)) is None:
        before = time.perf_counter()
        time.sleep(0.3)
        paused += time.perf_counter() - before
    assert paused > 0.3 and found.tokens == 3
    # Its own seconds and the pauses together fit into those that passed.
    assert found.whole + paused < time.perf_counter() - began


@pytest.mark.llama
def test_an_answer_in_turn_is_the_same(trial: Trial) -> None:
    settings = {**ANSWERS, "draft_tokens": "3"}
    trial.begin(settings, MESSAGES, 12)
    while (found := trial.go_on(1)) is None:
        pass
    alone = trial.answer(settings, MESSAGES, 12)
    assert (found.tokens, found.passes, found.steps) == (alone.tokens, alone.passes, alone.steps)


@pytest.mark.llama
def test_an_error_of_the_child_is_raised_and_a_crash_is_named(tiny: TinyFiles) -> None:
    missing = PairFiles({}, LoadOptions(tiny.target.with_name("none.gguf")), None, ANSWERS)
    with pytest.raises(LocalspecError, match=r"none\.gguf"):
        Trial(missing, NOW)
    trial = Trial(pair_of(tiny), NOW)
    trial._worker.process.kill()
    with pytest.raises(EngineError, match=r"trial \(current\) ended. It was killed"):
        trial.seconds(STEP)


@pytest.mark.llama
def test_the_trial_that_was_used_longest_ago_makes_room(tiny: TinyFiles) -> None:
    trials = Trials(pair_of(tiny), 1)
    first = trials.of(NOW)
    assert trials.of({"prompt_lookup": False}) is first  # the same load
    other = trials.of({"row_kernels": False})
    assert first._worker.ended and other is not first
    assert trials.of(NOW) is not first
    trials.close(Trial.kill)


@pytest.mark.llama
def test_equal_loads_run_together_where_there_is_room(tiny: TinyFiles) -> None:
    trials = Trials(pair_of(tiny), 2)
    sides = [NOW, {"draft_tokens": "off"}]
    found = trials.together(sides)
    assert found is not None and found[0] is not found[1] and found == trials.together(sides)
    assert trials.together([*sides, {"threads": 1}]) is None
    trials.close(Trial.kill)


def test_sums_of_answers() -> None:
    one = Answered(4, 3, 2.0, 1.0, 1.0, {1: 2}, 3, 20)
    two = Answered(6, 5, 4.0, 2.0, 3.0, {1: 1, 4: 2}, 5, 30)
    both = added([one, two])
    assert both == Answered(10, 8, 6.0, 3.0, 2.0, {1: 3, 4: 2}, 8, 50)
    assert both.whole == 9.0 and both.per_second == pytest.approx(8 / 6)
