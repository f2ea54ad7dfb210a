"""The selection of a self-draft, whole, with real llama.cpp on a target with silent layers."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import DraftNotMade, IncompatiblePair, LocalspecError, UsageError
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.metadata.gguf_writer import copied, write_copy
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from localspec.self_draft import judge as judging
from localspec.self_draft import search, selection, store
from localspec.self_draft.make import KEEP, LAYERS_KEY, Recipe, make_draft
from localspec.self_draft.selection import Selection, SelfDraftOptions, selected
from localspec.self_draft.trial import Trial, Trials
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import interrupt, options

pytestmark = pytest.mark.llama


def load(target: Path, draft: Path | None) -> tuple[LoadOptions, LoadOptions | None]:
    return options(target), None if draft is None else options(draft)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of few tokens, and a verdict on few prompts; the search may take as long as ever."""
    monkeypatch.setattr(judging, "ANSWER_TOKENS", 8)
    monkeypatch.setattr(selection, "VERDICT_BUDGET", 0.0)


@pytest.fixture
def valued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions by agreement and layers, not by what a noisy machine takes."""
    real = Trials.attempt

    def attempt(trials: Trials, recipe: Recipe, path: Path) -> Trial:
        trial = real(trials, recipe, path)
        return replace(trial, predicted_speedup=trial.agreement - recipe.layers / 100)

    monkeypatch.setattr(Trials, "attempt", attempt)


def choose(
    target: Path,
    wish: SelfDraftOptions = SelfDraftOptions(),  # noqa: B008
    use: Callable[[Selection], None] = lambda found: None,
) -> tuple[Selection, list[str], list[tuple[str, int, int]]]:
    said: list[str] = []
    shown: list[tuple[str, int, int]] = []
    with selected(target, wish, load, said.append, lambda *told: shown.append(told)) as found:
        use(found)
    return found, said, shown


def interrupt_making(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Press Ctrl-C when the nth draft is made."""
    real, calls = make_draft, itertools.count(1)

    def make(header: object, recipe: Recipe, *more: object) -> None:
        if next(calls) == call:
            raise KeyboardInterrupt
        real(header, recipe, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "make_draft", make)


@pytest.mark.usefixtures("brief", "valued")
def test_the_best_number_of_first_layers_is_found(silent_target: Path) -> None:
    def use(found: Selection) -> None:
        assert read_header(found.file).values[LAYERS_KEY] == (0, 1, 2, 3)

    found, said, shown = choose(silent_target, SelfDraftOptions(type=KEEP), use)
    assert found.recipe == Recipe(4) and found.search.best.trial.agreement == 1
    assert found.verdict is not None and found.verdict.text in ("same", "rounding")
    assert not found.search.failed and not found.search.stopped
    assert "4 minutes" in said[0] and str(store.folder()) in said[0] and "Ctrl-C" in said[0]
    labels = [label for label, _, _ in shown]
    assert any(label.startswith("trying the first 3 of 6 layers, at most") for label in labels)
    assert labels[-1] == "measuring the best" and shown[-1][1] == shown[-1][2]
    assert list(store.folder().iterdir()) == []  # the caller's to keep


def test_a_precise_target_is_tried_in_lower_types(
    silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_making(monkeypatch, 5)
    found, _, _ = choose(silent_target)
    tried = {trial.recipe for trial in found.search.trials}
    assert {Recipe(6, kind) for kind in ("Q4_0", "Q2_K", "Q3_K_S")} <= tried
    assert all(trial.recipe.type != KEEP for trial in found.search.trials)
    assert any(recipe.layers == 3 for recipe in tried)


@pytest.mark.usefixtures("brief")
def test_what_is_given_is_made_and_no_more(
    silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said, _ = choose(silent_target, SelfDraftOptions(2, "Q8_0"))
    assert said[0].startswith("Making the draft, then measuring it")
    assert [trial.recipe for trial in found.search.trials] == [Recipe(2, "Q8_0")]
    found, _, _ = choose(silent_target, SelfDraftOptions(layers=2))
    kinds = [trial.recipe.type for trial in found.search.trials]
    assert kinds == ["Q4_0", "Q2_K", "Q3_K_S", KEEP]
    monkeypatch.setattr(selection, "SEARCH_BUDGET", 0.0)
    found, _, _ = choose(silent_target)
    assert len(found.search.trials) == 1


@pytest.mark.usefixtures("brief")
def test_the_best_loses_output_rows(silent_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "COUNT_BUDGET", 0.0)  # prompts alone are counted

    def use(found: Selection) -> None:
        trimmed = read_header(found.file).trimmed
        assert trimmed is not None and len(trimmed.ids) == 64

    found, _, shown = choose(silent_target, SelfDraftOptions(2, KEEP, vocab=64), use)
    whole, trimmed = found.search.trials
    assert trimmed is found.search.best.trial and trimmed.recipe == Recipe(2, KEEP, 64)
    assert whole.recipe == Recipe(2, KEEP) and whole.agreement >= trimmed.agreement
    assert found.verdict is not None and found.verdict.text in ("same", "rounding")
    assert any(label.startswith("counting the tokens") for label, _, _ in shown)
    assert ("trimming", 0, 1) in shown


@pytest.mark.usefixtures("brief")
def test_a_draft_that_is_given_is_trimmed_and_nothing_is_searched(
    silent_target: Path, tmp_path: Path
) -> None:
    draft = tmp_path / "small.gguf"
    make_draft(read_header(silent_target), Recipe(1), draft)
    before = draft.read_bytes()
    found, said, _ = choose(silent_target, SelfDraftOptions(vocab=128, draft=draft))
    assert said[0].startswith("Trying the draft") and "Search" not in said[0]
    assert [trial.recipe.vocab for trial in found.search.trials] == [None, 128]
    assert found.source.path == draft and found.recipe == Recipe(1, KEEP, 128)
    assert draft.read_bytes() == before


@pytest.mark.usefixtures("brief")
def test_prediction_heads_of_a_draft_that_is_given_are_no_layers(
    silent_target: Path, tmp_path: Path
) -> None:
    draft = tmp_path / "small.gguf"
    part = read_part(silent_target)
    tensors = [copied(part, t) for t in part.tensors if not t.name.startswith("blk.5.")]
    write_copy(draft, part, {"llama.nextn_predict_layers": 1}, tensors)
    found, _, _ = choose(silent_target, SelfDraftOptions(vocab=128, draft=draft))
    assert found.recipe.describe(5) == "all 5 layers, 128 output rows"


def test_what_leaves_nothing_to_make_is_refused_at_once(
    silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "load", None)  # nothing is loaded
    for layers in (0, 7):
        with pytest.raises(UsageError, match="has 6 layers"):
            choose(silent_target, SelfDraftOptions(layers))
    with pytest.raises(UsageError, match="would be the target itself"):
        choose(silent_target, SelfDraftOptions(6, KEEP))
    with pytest.raises(IncompatiblePair, match="cannot be kept"):
        choose(silent_target, SelfDraftOptions(vocab=10**6))
    single = write_tiny_model(tmp_path / "single.gguf", seed=1, layers=1)
    with pytest.raises(DraftNotMade, match="its only layer cannot be left out"):
        choose(single, SelfDraftOptions(type=KEEP))
    assert not store.folder().exists()


def test_where_every_recipe_fails_the_first_reason_is_told(
    silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise DraftNotMade("It cannot be.")

    monkeypatch.setattr(search, "make_draft", fail)
    with pytest.raises(LocalspecError, match="It cannot be"):
        choose(silent_target, SelfDraftOptions(2, KEEP))
    assert list(store.folder().iterdir()) == []


@pytest.mark.usefixtures("brief")
def test_ctrl_c_in_the_search_keeps_the_best_without_a_verdict(
    silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_making(monkeypatch, 3)

    def use(found: Selection) -> None:
        assert read_header(found.file).block_count == found.recipe.layers

    found, _, _ = choose(silent_target, SelfDraftOptions(type=KEEP), use)
    assert found.search.stopped and found.verdict is None and len(found.search.trials) == 2
    assert list(store.folder().iterdir()) == []


@pytest.mark.usefixtures("brief")
def test_ctrl_c_in_the_verdict_keeps_the_draft(
    silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*arguments: object, **more: object) -> object:
        interrupt(monkeypatch, 30)
        return judging.judge(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(selection, "judge", judge)
    found, _, _ = choose(silent_target, SelfDraftOptions(2, KEEP))
    assert found.verdict is None and len(found.search.trials) == 1


def test_a_target_that_is_low_already_only_loses_layers(
    tmp_path: Path, silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = tmp_path / "low.gguf"
    make_draft(read_header(silent_target), Recipe(6, "Q4_0"), low)
    interrupt_making(monkeypatch, 4)
    found, _, _ = choose(low)
    assert {trial.recipe.type for trial in found.search.trials} == {KEEP}
    assert all(trial.recipe.layers < 6 for trial in found.search.trials)


@pytest.mark.usefixtures("brief")
def test_a_search_is_not_lost_where_output_rows_cannot_go(
    silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "COUNT_BUDGET", 0.0)
    problem = IncompatiblePair("Its logits differ.")

    def fail(*arguments: object) -> None:
        raise problem

    monkeypatch.setattr(search, "trim_vocabulary", fail)
    found, said, _ = choose(silent_target, SelfDraftOptions(2, KEEP, vocab=64))
    assert found.recipe == Recipe(2, KEEP) and found.verdict is not None
    assert found.search.failed == {Recipe(2, KEEP, 64): problem}
    assert "counting the target's tokens for 60 seconds" in said[0]


@pytest.mark.usefixtures("brief")
def test_ctrl_c_while_output_rows_go_keeps_the_best_that_was_searched(
    silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*arguments: object, **more: object) -> list[int]:
        raise KeyboardInterrupt

    def use(found: Selection) -> None:
        assert read_header(found.file).values[LAYERS_KEY] == (0, 1)

    monkeypatch.setattr(search, "frequent_ids", press)
    found, _, _ = choose(silent_target, SelfDraftOptions(2, KEEP, vocab=64), use)
    assert found.search.stopped and found.verdict is None
    draft = tmp_path / "small.gguf"
    make_draft(read_header(silent_target), Recipe(1), draft)
    with pytest.raises(KeyboardInterrupt):  # that draft is not ours to keep
        choose(silent_target, SelfDraftOptions(vocab=64, draft=draft))
    assert draft.exists() and list(store.folder().iterdir()) == []


def test_output_rows_of_a_split_target_may_go(silent_target: Path) -> None:
    parts = replace(read_header(silent_target), split_count=2)
    selection._require_possible(parts, parts, SelfDraftOptions(2, KEEP, vocab=64), (KEEP,))
    given = SelfDraftOptions(vocab=64, draft=parts.path)
    with pytest.raises(IncompatiblePair, match="split into several"):
        selection._require_possible(parts, parts, given, (KEEP,))
