"""The search for a self-draft: which recipes are tried, in which time, and which file stays."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core import paths
from localspec.core.errors import EngineError
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import search
from localspec.self_draft.make import KEEP, Recipe
from localspec.self_draft.search import Search, best, proposals
from localspec.self_draft.trial import Trial, Trials

LOWER = ("Q4_0", "Q2_K")
Value = Callable[[Recipe], float]


def trial(recipe: Recipe, value: float) -> Trial:
    return Trial(recipe, 1, 0.5, 1.0, 1.0, value, 1)


def tried(n_layers: int, types: tuple[str, ...], value: Value) -> list[Trial]:
    """The trials of all proposals, each as good as the value says."""
    trials: list[Trial] = []
    for recipe in proposals(n_layers, types, trials):
        trials.append(trial(recipe, value(recipe)))
    return trials


@given(st.integers(1, 40), st.sampled_from([LOWER, (*LOWER, KEEP), (KEEP,)]), st.integers(0, 2**32))
def test_only_drafts_that_can_be_are_proposed_once(
    n_layers: int, types: tuple[str, ...], seed: int
) -> None:
    recipes = [each.recipe for each in tried(n_layers, types, lambda one: hash((one, seed)) % 1000)]
    assert len(set(recipes)) == len(recipes)
    assert all(1 <= recipe.layers <= n_layers and recipe.type in types for recipe in recipes)
    assert Recipe(n_layers, KEEP) not in recipes


@given(st.integers(2, 128), st.data())
def test_the_best_early_exit_is_found(n_layers: int, data: st.DataObject) -> None:
    peak = data.draw(st.integers(1, n_layers - 1))
    trials = tried(n_layers, (KEEP,), lambda recipe: -abs(recipe.layers - peak))
    assert best(trials).recipe.layers == peak
    assert len(trials) <= 3 * n_layers.bit_length() + 4


def test_types_come_first_and_the_best_of_them_with_fewer_layers() -> None:
    trials = tried(8, LOWER, lambda recipe: recipe.type == "Q2_K")
    first, second, *others = (each.recipe for each in trials)
    assert [first, second] == [Recipe(8, kind) for kind in LOWER]
    assert others[0] == Recipe(4, "Q2_K") and {recipe.type for recipe in others} == {"Q2_K"}


def test_where_nothing_could_be_tried_ever_fewer_layers_are_proposed() -> None:
    assert [recipe.layers for recipe in proposals(8, LOWER, [])] == [8, 8, 4, 2, 1]


class World:
    """Drafts that take time for each layer, and the value that a rule gives them."""

    def __init__(self, folder: Path, value: Value) -> None:
        folder.mkdir()
        self.now = 0.0
        self._value = value
        self.shown: list[str] = []
        source = read_header(paths.demo_hybrid())  # with a prediction head, which is no layer
        self.search = Search(source, cast(Trials, self), folder, lambda *told: self._show(*told))

    def _show(self, label: str, done: int, total: int) -> None:
        self.shown.append(label)

    def make(self, header: ModelHeader, recipe: Recipe, file: Path) -> None:
        file.write_text(repr(recipe))
        self.now += recipe.layers

    def attempt(self, recipe: Recipe, file: Path) -> Trial:
        return trial(recipe, self._value(recipe))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Value], World]:
    def build(value: Value) -> World:
        made = World(tmp_path / "drafts", value)
        monkeypatch.setattr(search, "perf_counter", lambda: made.now)
        monkeypatch.setattr(search, "make_draft", made.make)
        return made

    return build


RECIPES = [Recipe(6, "Q4_0"), Recipe(6, "Q2_K"), Recipe(3, "Q4_0"), Recipe(4, "Q4_0")]


def test_only_the_best_file_stays(world: Callable[[Value], World], tmp_path: Path) -> None:
    made = world(lambda recipe: -abs(recipe.layers - 3))
    made.search.run(iter(RECIPES), 1e9)
    assert [each.recipe for each in made.search.trials] == RECIPES
    assert made.search.best.trial.recipe == Recipe(3, "Q4_0")
    assert list((tmp_path / "drafts").iterdir()) == [made.search.best.file]
    assert made.search.best.file.read_text() == repr(Recipe(3, "Q4_0"))
    assert made.shown[0].startswith("making all 6 layers in Q4_0, at most")


@pytest.mark.parametrize(("budget", "recipes"), [(0, 1), (9, 2), (12, 2), (100, 4)])
def test_drafts_that_would_take_too_long_are_left_out(
    world: Callable[[Value], World], budget: float, recipes: int
) -> None:
    """The first is made in any case, and smaller ones in what time is left."""
    made = world(lambda recipe: 1.0)
    made.search.run(iter(RECIPES), budget)
    assert len(made.search.trials) == recipes
    assert made.now <= max(6, budget)
    if budget == 9:
        assert made.search.trials[1].recipe == Recipe(3, "Q4_0")


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), EngineError("no")])
def test_ctrl_c_keeps_the_best_and_failures_are_passed_over(
    world: Callable[[Value], World], tmp_path: Path, problem: BaseException
) -> None:
    def value(recipe: Recipe) -> float:
        if recipe == RECIPES[2]:
            raise problem
        return recipe.layers

    made = world(value)
    made.search.run(iter(RECIPES), 1e9)
    assert made.search.best.trial.recipe == RECIPES[0]
    assert list((tmp_path / "drafts").iterdir()) == [made.search.best.file]
    if isinstance(problem, KeyboardInterrupt):
        assert made.search.stopped and len(made.search.trials) == 2
    else:
        assert made.search.failed == {RECIPES[2]: problem} and len(made.search.trials) == 3


def test_ctrl_c_before_anything_was_found_ends_it_all(
    world: Callable[[Value], World], tmp_path: Path
) -> None:
    def value(recipe: Recipe) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world(value).search.run(iter(RECIPES), 1e9)
    assert list((tmp_path / "drafts").iterdir()) == []


def test_heads_are_no_layers_of_a_given_draft(world: Callable[[Value], World]) -> None:
    made = world(lambda recipe: 1.0)
    made.search.try_source()
    assert made.search.best.trial.recipe == Recipe(6)
    assert made.search.best.file == paths.demo_hybrid()
