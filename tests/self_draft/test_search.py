"""The search for a self-draft: what is proposed, and that it ends in time with the best."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import EngineError
from localspec.self_draft.recipe import KEEP, Recipe
from localspec.self_draft.search import Findings, Space, search
from localspec.self_draft.trial import Trial
from localspec.self_draft.writing.layers import Removable

LOWER = ("Q4_0", "Q2_K")


class World:
    """Trials that take time for each layer, with a speedup that a rule gives."""

    def __init__(self, value: Callable[[Recipe], float], per_layer: float = 1.0) -> None:
        self.now = 0.0
        self.tried: list[Recipe] = []
        self._value = value
        self._per_layer = per_layer

    def clock(self) -> float:
        return self.now

    def attempt(self, recipe: Recipe) -> Trial:
        self.tried.append(recipe)
        self.now += self._per_layer * len(recipe.layers)
        return Trial(recipe, 1, 0.5, 1.0, 1.0, self._value(recipe), 1)

    def search(self, space: Space, budget: float = 1e9) -> Findings:
        return search(space, self.attempt, clock=self.clock, budget=budget)


def best(found: Findings) -> Trial:
    return max(found.trials, key=lambda trial: trial.predicted_speedup)


def space(removable: Removable, types: tuple[str, ...], **more: object) -> Space:
    return Space(
        removable.n_layers,
        types,
        group=removable.group,
        usable=lambda layers: removable.problem(layers) is None,
        **more,  # type: ignore[arg-type]
    )


removables = st.builds(
    Removable,
    n_layers=st.integers(1, 12),
    group=st.integers(1, 4),
    needed=st.lists(st.frozensets(st.integers(0, 11), min_size=1), max_size=2).map(tuple),
    may_go=st.sampled_from(["any", "last", "none"]),
    reason=st.just("so it is"),
)
influences = st.dictionaries(st.integers(0, 11), st.floats(0, 1))


@given(
    removables,
    st.sampled_from([LOWER, (*LOWER, KEEP), (KEEP,)]),
    influences,
    st.integers(0, 2**32),
    st.floats(0, 300),
)
def test_only_drafts_that_may_be_are_tried_once_and_in_time(
    removable: Removable,
    types: tuple[str, ...],
    influence: dict[int, float],
    seed: int,
    budget: float,
) -> None:
    world = World(lambda recipe: hash((recipe.layers, recipe.type, seed)) % 1000 / 500)
    found = world.search(space(removable, types, influence=influence), budget)
    everything = tuple(range(removable.n_layers))
    assert len(set(world.tried)) == len(world.tried) == len(found.trials)
    for recipe in world.tried:
        assert removable.problem(recipe.layers) is None and recipe.type in types
        assert recipe != Recipe(everything, KEEP)
    first = len(world.tried[0].layers) if world.tried else 0
    assert world.now <= max(budget, first)


@given(st.integers(100, 128), st.data())
def test_the_best_early_exit_is_found(n_layers: int, data: st.DataObject) -> None:
    peak = data.draw(st.integers(1, n_layers - 1))

    def value(recipe: Recipe) -> float:
        count = len(recipe.layers)
        return -abs(count - peak) if recipe.layers == tuple(range(count)) else -1000

    removable = Removable(n_layers, may_go="last", reason="so it is")
    found = World(value).search(space(removable, (KEEP,)))
    assert best(found).recipe.layers == tuple(range(peak))
    # Bisection: far fewer than there are.
    assert len(found.trials) <= 3 * n_layers.bit_length() + 4


@given(st.integers(4, 12), st.data())
def test_layers_that_matter_least_are_found(n_layers: int, data: st.DataObject) -> None:
    idle = data.draw(st.frozensets(st.integers(1, n_layers - 1), min_size=1))
    influence = {i: 0.0 if i in idle else 0.5 for i in range(1, n_layers)}

    def value(recipe: Recipe) -> float:
        missing = set(range(n_layers)) - set(recipe.layers)
        return len(missing & idle) - 10 * len(missing - idle)

    found = World(value).search(space(Removable(n_layers), (KEEP,), influence=influence))
    assert set(range(n_layers)) - set(best(found).recipe.layers) == idle


def test_a_misleading_influence_is_mended_by_exchanges() -> None:
    idle, influence = {1, 3}, {1: 0.9, 2: 0.1, 3: 0.8, 4: 0.2, 5: 0.3}

    def value(recipe: Recipe) -> float:
        missing = set(range(6)) - set(recipe.layers)
        return len(missing & idle) - 0.5 * len(missing - idle)

    found = World(value).search(space(Removable(6), (KEEP,), influence=influence))
    assert best(found).recipe.layers == (0, 2, 4, 5)


def test_one_layer_is_exchanged_for_another_where_their_number_is_right() -> None:
    idle, influence = {1, 3}, {1: 0.9, 2: 0.1, 3: 0.8, 4: 0.2, 5: 0.3}

    def value(recipe: Recipe) -> float:
        missing = set(range(6)) - set(recipe.layers)
        return len(missing & idle) if len(missing) == 2 else -1

    found = World(value).search(space(Removable(6), (KEEP,), influence=influence))
    assert best(found).recipe.layers == (0, 2, 4, 5)


def test_each_shape_is_tried_before_any_is_refined() -> None:
    world = World(lambda recipe: 1.0)
    world.search(space(Removable(8), LOWER, influence={5: 0.1, 6: 0.2}), budget=23)
    assert [recipe.describe(8) for recipe in world.tried[:3]] == [
        "all 8 layers in Q4_0",
        "the first 4 of 8 layers in Q4_0",
        "6 of 8 layers, without 5-6 in Q4_0",
    ]


def test_what_is_given_is_not_searched() -> None:
    world = World(lambda recipe: 1.0)
    world.search(space(Removable(8), (*LOWER, KEEP), first=3))
    assert world.tried == [Recipe((0, 1, 2), kind) for kind in (*LOWER, KEEP)]
    world = World(lambda recipe: 1.0)
    world.search(space(Removable(4), ("Q4_0",)))
    assert {recipe.type for recipe in world.tried} == {"Q4_0"} and len(world.tried) > 3


def test_smaller_drafts_are_tried_in_what_time_is_left() -> None:
    world = World(lambda recipe: 1.0)
    found = world.search(space(Removable(8), LOWER), budget=8 + 5)
    assert world.tried == [Recipe(tuple(range(8)), "Q4_0"), Recipe((0, 1, 2, 3), "Q4_0")]
    assert Recipe(tuple(range(8)), "Q2_K") in found.late


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), EngineError("no")])
def test_ctrl_c_keeps_the_best_and_failures_are_passed_over(problem: BaseException) -> None:
    world = World(lambda recipe: len(recipe.layers) / 10)

    def attempt(recipe: Recipe) -> Trial:
        if len(world.tried) == 2:
            world.tried.append(recipe)
            raise problem
        return world.attempt(recipe)

    found = search(space(Removable(8), LOWER), attempt, clock=world.clock, budget=1e9)
    assert found.stopped == isinstance(problem, KeyboardInterrupt)
    assert best(found).recipe == Recipe(tuple(range(8)), "Q4_0")
    if found.stopped:
        assert len(found.trials) == 2
    else:
        assert list(found.failed) == [world.tried[2]] and len(found.trials) > 3


def test_ctrl_c_before_anything_was_found_ends_it_all() -> None:
    def attempt(recipe: Recipe) -> Trial:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(space(Removable(8), LOWER), attempt, clock=lambda: 0.0, budget=1.0)
