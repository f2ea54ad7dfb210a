"""Trials of drafts: agreement with what the target said, costs, and a prediction from both."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from localspec.core.errors import EngineError, NotEnoughMemory, PromptTooLong
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.engine.loading.pair import load_pair
from localspec.llama.memory import probe
from localspec.llama.memory.plan import FreeMemory
from localspec.llama.model import LlamaModel
from localspec.llama.vocabulary.trimmed import open_draft_model
from localspec.metadata.header import ModelHeader
from localspec.self_draft import trial
from localspec.self_draft.make import Recipe
from localspec.self_draft.trial import ANSWER_TOKENS, Text, Trials, questions, record
from tests.support.real_pair import TinyFiles, fresh, options, random_ids

pytestmark = pytest.mark.llama

RECIPE = Recipe(1)


@pytest.fixture
def target(tiny: TinyFiles) -> Iterator[Engine]:
    with Engine.load(options(tiny.target)) as engine:
        yield engine


def test_answers_are_the_plain_ones(target: Engine) -> None:
    prompts = {"a": random_ids(20), "b": random_ids(9, seed=1)}
    texts = record(target, prompts, 1e9)
    assert [text.prompt for text in texts] == list(prompts.values())
    for text in texts:
        assert text.answer == fresh(target, text.prompt, max_tokens=48).tokens


def test_recording_ends_when_the_time_is_spent(target: Engine) -> None:
    prompts = {str(i): random_ids(9, seed=i) for i in range(5)}
    texts = record(target, prompts, 0.0)
    assert len(texts) == 1  # in any case


def test_the_target_itself_agrees_with_all_and_another_with_few(
    target: Engine, tiny: TinyFiles
) -> None:
    texts = record(target, {"a": random_ids(20), "b": random_ids(99)}, 1e9)
    trials = Trials(target, texts, options)
    itself, twin = trials.attempt(RECIPE, tiny.target), trials.attempt(RECIPE, tiny.draft)
    assert itself.agreement == 1 > twin.agreement > 0.2
    assert (itself.n_bytes, itself.recipe) == (tiny.target.stat().st_size, RECIPE)
    assert itself.step_cost == pytest.approx(itself.step_s / trials.verify[0])
    assert target.target.tokens == []


def test_the_prediction_is_that_of_the_best_length(target: Engine, tiny: TinyFiles) -> None:
    texts = [Text(random_ids(5), fresh(target, random_ids(5), max_tokens=40).tokens)]
    trials = Trials(target, texts, options)
    trials.verify = [1.0] * 17  # as on a GPU: as wide as one likes
    found = trials.attempt(RECIPE, tiny.target)
    # All is right: the more the better, and the first round drafts nothing.
    assert found.length in range(8, 17) and found.predicted_speedup > 5
    trials.verify = [float(width) for width in range(1, 18)]
    assert trials.attempt(RECIPE, tiny.target).predicted_speedup < 1


def test_costs_are_measured_by_the_clock(
    target: Engine, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.25
        return now

    monkeypatch.setattr(trial, "perf_counter", clock)
    trials = Trials(target, [Text(random_ids(5), random_ids(4))], options)
    assert trials.verify[0] == 0.25  # from the reading before a pass to that behind it
    found = trials.attempt(RECIPE, tiny.draft)
    assert (found.step_s, found.step_cost) == (0.25, 1)


def test_a_draft_that_cannot_roll_back_is_refused(
    target: Engine, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(target, [Text(random_ids(5), random_ids(4))], options)
    closed: list[LlamaModel] = []
    real = LlamaModel.close

    def close(model: LlamaModel) -> None:
        closed.append(model)
        real(model)

    monkeypatch.setattr(LlamaModel, "close", close)
    monkeypatch.setattr(LlamaModel, "can_roll_back", False)
    with pytest.raises(EngineError, match="cannot take tokens back from draft.gguf"):
        trials.attempt(RECIPE, tiny.draft)
    assert [model.header.path for model in closed] == [tiny.draft]


def test_a_draft_that_does_not_fit_beside_the_target_is_refused(
    target: Engine, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(target, [Text(random_ids(5), random_ids(4))], options)
    monkeypatch.setattr(probe, "free_memory", lambda device: FreeMemory(1000))
    with pytest.raises(NotEnoughMemory, match="draft.gguf"):
        trials.attempt(RECIPE, tiny.draft)


def test_a_draft_has_the_context_that_it_will_have(
    target: Engine, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[LoadOptions] = []

    def open_model(header: ModelHeader, options: LoadOptions) -> LlamaModel:
        opened.append(options)
        return open_draft_model(header, options)

    def load(path: Path) -> LoadOptions:
        return options(path, ctx_size=None)

    monkeypatch.setattr(trial, "open_draft_model", open_model)
    texts = [Text(random_ids(5), random_ids(4))]
    Trials(target, texts, load).attempt(RECIPE, tiny.draft)
    pair = load_pair(target.target.options, load(tiny.draft))
    assert pair.draft is not None and opened[0].ctx_size == pair.draft.n_ctx
    pair.draft.close()
    pair.target.close()


def tasks(names: Iterable[str]) -> list[str]:
    return sorted(name.rpartition(" ")[0] for name in names)


def test_each_task_has_a_prompt_to_search_with_and_another_to_judge_by(
    demo_files: tuple[Path, Path],
) -> None:
    with Engine.load(options(demo_files[0])) as engine:
        quick, judged = questions(engine)
        assert len(quick) == 7 and len(judged) == 14
        first = list(judged)[:7]
        assert not set(first) & set(quick) and tasks(first) == tasks(quick)
        for part in (list(quick), first):
            lengths = [len(judged[name]) for name in part]
            assert lengths == sorted(lengths)
        # Of each task the shorter one is for the search.
        for name in quick:
            task = name.rpartition(" ")[0]
            assert len(quick[name]) == min(
                len(ids) for other, ids in judged.items() if other.rpartition(" ")[0] == task
            )


def test_prompts_that_do_not_fit_are_left_out(tiny: TinyFiles) -> None:
    with Engine.load(options(tiny.target, ctx_size=400)) as engine:
        quick, judged = questions(engine)
        assert 0 < len(judged) < 14 and set(quick) <= set(judged)
        assert all(len(ids) + ANSWER_TOKENS < 400 for ids in judged.values())
    with (
        Engine.load(options(tiny.target, ctx_size=70)) as engine,
        pytest.raises(PromptTooLong, match="70 tokens"),
    ):
        questions(engine)
