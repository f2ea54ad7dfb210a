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
    assert len(costs.passes) == len(WIDTHS) and min(*costs.passes, costs.step, costs.reading) > 0
    plain = trial.answer({**ANSWERS, "draft_tokens": "off"}, MESSAGES, 12)
    assert set(plain.passes) == {1}
    fixed = trial.answer({**ANSWERS, "draft_tokens": "3"}, MESSAGES, 12)
    assert fixed.tokens == plain.tokens and fixed.draft > plain.draft and max(fixed.passes) == 4
    assert 0 < fixed.per_second and fixed.whole > fixed.seconds and trial.memory > 0
    trial.close()


@pytest.mark.llama
def test_an_error_of_the_child_is_raised_and_a_crash_is_named(tiny: TinyFiles) -> None:
    missing = PairFiles({}, LoadOptions(tiny.target.with_name("none.gguf")), None, ANSWERS)
    with pytest.raises(LocalspecError, match=r"none\.gguf"):
        Trial(missing, NOW)
    trial = Trial(pair_of(tiny), NOW)
    trial._worker.process.kill()
    with pytest.raises(EngineError, match=r"process that tried now ended. It was killed"):
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
    one = Answered(4, 3, 2.0, 0.5, {1: 1.0}, 1.0, 0.1, 1.0)
    two = Answered(6, 5, 4.0, 1.0, {1: 1.0, 4: 2.0}, 2.0, 0.2, 3.0)
    both = added([one, two])
    assert both == Answered(10, 8, 6.0, 1.5, {1: 2.0, 4: 2.0}, 3.0, both.draft_prompt, 2.0)
    assert both.draft_prompt == pytest.approx(0.3) and both.whole == pytest.approx(9.3)
