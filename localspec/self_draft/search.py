"""The search for the best draft made out of a target: layers kept and their type, within a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from localspec.core.errors import LocalspecError
from localspec.self_draft.recipe import KEEP, Recipe
from localspec.self_draft.trial import Trial
from localspec.speculative.loop import Clock

_FIRST_SHARES = (1 / 2, 1 / 4, 3 / 4)  # of the layers, kept by an early exit
_LEFT_OUT_SHARES = (1 / 4, 1 / 8, 1 / 2)  # of the groups of layers
_UNKNOWN = 1.0  # influence of a layer that could not be measured: it is the last to go

Layers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """What may be tried with a model of ``n_layers``.

    ``types`` are those of the weights; ``first`` is the one early exit that is wanted, or None.
    Layers are left out in groups of ``group``, the ones of least ``influence`` first, and a draft
    may consist of what is ``usable``.
    """

    n_layers: int
    types: tuple[str, ...]
    first: int | None = None
    group: int = 1
    influence: Mapping[int, float] = field(default_factory=dict)
    usable: Callable[[Layers], bool] = lambda layers: True

    @property
    def whole(self) -> Layers:
        """All layers."""
        return tuple(range(self.n_layers))

    def by_influence(self) -> list[Layers]:
        """The groups of layers, those of least influence first."""
        starts = range(0, self.n_layers, self.group)
        groups = [self.whole[start : start + self.group] for start in starts]
        return sorted(groups, key=lambda g: sum(self.influence.get(i, _UNKNOWN) for i in g))


@dataclass(slots=True)
class Findings:
    """What a search found: trials in their order, and recipes that failed, with the reason.

    ``late`` are recipes for which no time was left; ``stopped`` where Ctrl-C ended it.
    """

    trials: list[Trial] = field(default_factory=list)
    failed: dict[Recipe, LocalspecError] = field(default_factory=dict)
    late: set[Recipe] = field(default_factory=set)
    stopped: bool = False

    def knows(self, recipe: Recipe) -> bool:
        """Whether it was tried, or turned away."""
        if recipe in self.failed or recipe in self.late:
            return True
        return any(trial.recipe == recipe for trial in self.trials)


def search(
    space: Space, attempt: Callable[[Recipe], Trial], *, clock: Clock, budget: float
) -> Findings:
    """Try recipes until nothing better is in sight or the seconds are spent.

    No trial begins that would end too late if it took as long for each layer as the slowest so far;
    the first begins in any case. Ctrl-C ends the search with what was found, and is raised if that
    is nothing.
    """
    found, slowest, end = Findings(), 0.0, clock() + budget
    try:
        for recipe in proposals(space, found):
            began = clock()
            if slowest and began >= end:
                break
            if slowest and began + slowest * len(recipe.layers) > end:
                found.late.add(recipe)
                continue
            try:
                found.trials.append(attempt(recipe))
            except LocalspecError as problem:
                found.failed[recipe] = problem
            slowest = max(slowest, (clock() - began) / len(recipe.layers))
    except KeyboardInterrupt:
        if not found.trials:
            raise
        found.stopped = True
    return found


def proposals(space: Space, found: Findings) -> Iterator[Recipe]:
    """Recipes worth a trial, each once; what was found by then decides what comes next.

    First one of each shape: all layers in a lower type, the first half of them, all but a quarter,
    those of least influence. Then a few more of each. Then better numbers of first layers by
    bisection, and better sets of layers by exchanging some (Draft & Verify, arXiv 2309.08168,
    searches such sets too, by Bayesian optimization).
    """
    for recipe in _shapes(space, found):
        if _is_new(recipe, space, found):
            yield recipe


def _shapes(space: Space, found: Findings) -> Iterator[Recipe]:
    if space.first is not None:
        yield from (Recipe(space.whole[: space.first], each) for each in space.types)
        return
    yield Recipe(space.whole, space.types[0])
    yield _first(space, _FIRST_SHARES[0], space.types[0])
    yield _least_influential(space, _LEFT_OUT_SHARES[0], space.types[0])
    yield from (Recipe(space.whole, each) for each in space.types[1:])
    whole = [trial for trial in found.trials if trial.recipe.layers == space.whole]
    kind = _best(whole).recipe.type if whole else space.types[0]
    yield from (_first(space, share, kind) for share in _FIRST_SHARES)
    yield from (_least_influential(space, share, kind) for share in _LEFT_OUT_SHARES)
    layered = _layered(space, found)
    if layered:
        yield from (Recipe(_best(layered).recipe.layers, each) for each in space.types)
    while (better := _bisected(space, found, kind)) is not None:
        yield better
    while (better := _exchanged(space, found)) is not None:
        yield better


def _is_new(recipe: Recipe, space: Space, found: Findings) -> bool:
    """Whether it is a draft other than the target itself, may be, and was not tried."""
    if recipe.layers == space.whole and recipe.type == KEEP:
        return False
    return bool(recipe.layers) and space.usable(recipe.layers) and not found.knows(recipe)


def _first(space: Space, share: float, kind: str) -> Recipe:
    """An early exit behind this share of the layers."""
    return Recipe(space.whole[: round(space.n_layers * share)], kind)


def _least_influential(space: Space, share: float, kind: str) -> Recipe:
    """Without this share of the groups of layers."""
    groups = space.by_influence()
    return Recipe(_without(space, groups[: max(1, round(len(groups) * share))]), kind)


def _bisected(space: Space, found: Findings, kind: str) -> Recipe | None:
    """The number of first layers between the best one and a neighbour that was tried, or None."""
    exits = {
        len(trial.recipe.layers): trial
        for trial in _layered(space, found)
        if trial.recipe == Recipe(space.whole[: len(trial.recipe.layers)], kind)
    }
    if not exits:
        return None
    best = max(exits, key=lambda count: exits[count].predicted_speedup)
    below = max((count for count in exits if count < best), default=0)
    above = min((count for count in exits if count > best), default=space.n_layers)
    between = ((below + best) // 2, (best + above + 1) // 2)
    recipes = (Recipe(space.whole[:count], kind) for count in between)
    return next((each for each in recipes if _is_new(each, space, found)), None)


def _exchanged(space: Space, found: Findings) -> Recipe | None:
    """A recipe beside the best one that lacks layers: a group fewer, one more, or another."""
    layered = _layered(space, found)
    if not layered:
        return None
    best = _best(layered).recipe
    groups = space.by_influence()
    out = [group for group in groups if not set(group) & set(best.layers)]
    kept = [group for group in groups if set(group) <= set(best.layers)]
    others = [_but(out, back) for back in reversed(out)] + [[*out, gone] for gone in kept]
    others += [[*_but(out, back), gone] for gone in kept for back in reversed(out)]
    recipes = (Recipe(_without(space, each), best.type) for each in others)
    return next((each for each in recipes if _is_new(each, space, found)), None)


def _layered(space: Space, found: Findings) -> list[Trial]:
    """The trials of drafts that lack layers."""
    return [trial for trial in found.trials if trial.recipe.layers != space.whole]


def _without(space: Space, groups: Sequence[Layers]) -> Layers:
    gone = {layer for group in groups for layer in group}
    return tuple(layer for layer in space.whole if layer not in gone)


def _but(groups: Sequence[Layers], one: Layers) -> list[Layers]:
    return [group for group in groups if group != one]


def _best(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.predicted_speedup)
