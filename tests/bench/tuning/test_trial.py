"""Trials of `localspec tune`: children that load a pair, measure it, and answer."""

from collections.abc import Iterator

import pytest

from localspec.bench.tuning.candidates import NOW, PairFiles
from localspec.bench.tuning.trial import WIDTHS, Answered, Trial, Trials, added
from localspec.chat.message import Message
from localspec.core.errors import EngineError, LocalspecError
from localspec.core.options.load_options import LoadOptions
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
    costs = trial.costs(0.05)
    assert len(costs.passes) == len(WIDTHS) and min(*costs.passes, costs.step) > 0
    assert min(costs.reading, costs.draft_reading) > 0
    plain = trial.answer({**ANSWERS, "draft_tokens": "off"}, MESSAGES, 12)
    assert plain.passes == {1: 11} and plain.steps == 0 and plain.read > 4
    fixed = trial.answer({**ANSWERS, "draft_tokens": "3"}, MESSAGES, 12)
    assert fixed.tokens == plain.tokens and fixed.steps > 3 and max(fixed.passes) == 4
    assert 0 < fixed.per_second and fixed.whole > fixed.seconds > 0 and trial.memory > 0
    assert fixed.timed == 11 and fixed.ttft > 0
    trial.close()


@pytest.mark.llama
def test_an_error_of_the_child_is_raised_and_a_crash_is_named(tiny: TinyFiles) -> None:
    missing = PairFiles({}, LoadOptions(tiny.target.with_name("none.gguf")), None, ANSWERS)
    with pytest.raises(LocalspecError, match=r"none\.gguf"):
        Trial(missing, NOW)
    trial = Trial(pair_of(tiny), NOW)
    trial._worker.process.kill()
    with pytest.raises(EngineError, match=r"trial \(current\) ended. It was killed"):
        trial.costs(0.01)


@pytest.mark.llama
def test_the_trial_that_was_used_longest_ago_makes_room(tiny: TinyFiles) -> None:
    trials = Trials(pair_of(tiny), 1)
    first = trials.of(NOW)
    assert trials.of({"prompt_lookup": False}) is first  # the same load
    other = trials.of({"row_kernels": False})
    assert first._worker.ended and other is not first
    assert trials.of(NOW) is not first
    trials.close(Trial.kill)


def test_sums_of_answers() -> None:
    one = Answered(4, 3, 2.0, 1.0, 1.0, {1: 2}, 3, 20)
    two = Answered(6, 5, 4.0, 2.0, 3.0, {1: 1, 4: 2}, 5, 30)
    both = added([one, two])
    assert both == Answered(10, 8, 6.0, 3.0, 2.0, {1: 3, 4: 2}, 8, 50)
    assert both.whole == 9.0 and both.per_second == pytest.approx(8 / 6)
