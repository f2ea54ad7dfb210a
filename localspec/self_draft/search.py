"""The search for the best draft made out of a target: types first, then fewer layers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from localspec.core.errors import LocalspecError
from localspec.engine.engine import Engine
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.make import KEEP, Recipe, make_draft
from localspec.self_draft.trial import Trial, Trials
from localspec.self_draft.trim import trim_vocabulary
from localspec.self_draft.vocabulary import frequent_ids

COUNT_BUDGET = 60.0  # seconds

Progress = Callable[[str, int, int], None]  # label, done, in all


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trial, and the file of its draft."""

    trial: Trial
    file: Path


class Search:
    """Drafts of ``source``, made and tried one at a time in ``folder``.

    ``best`` is the one with the highest predicted speedup, whose file stays, once there is any.
    ``trials`` are in their order, ``failed`` are recipes that failed, with the reason. ``stopped``
    where Ctrl-C ended the search.
    """

    best: Candidate

    def __init__(
        self, source: ModelHeader, trials: Trials, folder: Path, on_progress: Progress
    ) -> None:
        self.trials: list[Trial] = []
        self.failed: dict[Recipe, LocalspecError] = {}
        self.stopped = False
        self._source = source
        self._attempt = trials.attempt
        self._folder = folder
        self._on_progress = on_progress

    def run(self, recipes: Iterator[Recipe], budget: float) -> None:
        """Make and try these drafts for ``budget`` seconds.

        A draft is left out that would take too long if it took as long for each layer as the
        slowest so far, but the first is made in any case. Ctrl-C ends the search, and is raised if
        nothing was found before.
        """
        end, slowest = perf_counter() + budget, 0.0  # seconds for a layer
        try:
            for recipe in recipes:
                began = perf_counter()
                if slowest and began + slowest * recipe.layers > end:
                    continue
                try:
                    self._make(recipe, end)
                except LocalspecError as problem:
                    self.failed[recipe] = problem
                slowest = max(slowest, (perf_counter() - began) / recipe.layers)
        except KeyboardInterrupt:
            if not self.trials:
                raise
            self.stopped = True

    def try_source(self) -> None:
        """Try the source as it is."""
        self._on_progress(f"trying {self._source.path.name}", 0, 1)
        trial = self._attempt(Recipe(n_layers(self._source)), self._source.path)
        self.trials.append(trial)
        self.best = Candidate(trial, self._source.path)

    def trim(self, engine: Engine, vocab: int) -> None:
        """Reduce the best to so many output rows; it is the best from then on.

        The tokens of the target are counted for `COUNT_BUDGET` seconds at most.
        """
        draft, end = read_header(self.best.file), perf_counter() + COUNT_BUDGET
        assert draft.vocab is not None
        self._on_progress("counting the tokens that the target uses", 0, 1)
        ids = frequent_ids(engine, vocab, len(draft.vocab), lambda: perf_counter() > end)
        self._on_progress("trimming", 0, 1)
        file = self._folder / "trimmed.gguf"
        trim_vocabulary(draft, engine.target.header, ids, file)
        trial = self._attempt(replace(self.best.trial.recipe, vocab=len(ids)), file)
        self.trials.append(trial)
        self.best = Candidate(trial, file)

    def _make(self, recipe: Recipe, end: float) -> None:
        """Make a draft and try it; see `make_draft` and `Trials.attempt` for what is raised."""
        what = recipe.describe(n_layers(self._source))
        left = f"at most {max(0.0, end - perf_counter()):.0f} s left"
        file = self._folder / f"{len(self.trials) + len(self.failed)}.gguf"
        try:
            self._on_progress(f"making {what}, {left}", 0, 1)
            make_draft(self._source, recipe, file)
            self._on_progress(f"trying {what}, {left}", 0, 1)
            trial = self._attempt(recipe, file)
            if not self.trials or best(self.trials).predicted_speedup < trial.predicted_speedup:
                self.best = Candidate(trial, file)
            self.trials.append(trial)
        finally:
            for other in self._folder.glob("*.gguf"):
                if not self.trials or other != self.best.file:
                    other.unlink()


def best(trials: Sequence[Trial]) -> Trial:
    """The one with the highest predicted speedup."""
    return max(trials, key=lambda trial: trial.predicted_speedup)


def proposals(n_layers: int, types: Sequence[str], trials: Sequence[Trial]) -> Iterator[Recipe]:
    """Recipes worth a trial, each once; the ``trials`` made by then decide what comes next.

    First all layers in each type. Then, in the best of these types, half of the layers, and ever
    closer numbers around the best number so far.
    """
    yield from (Recipe(n_layers, each) for each in types if each != KEEP)
    kind = best(trials).recipe.type if trials else types[0]
    count, step, tried = 0, n_layers // 2, {0, n_layers}
    while step:
        new = [n for n in (count - step, count + step) if 0 < n < n_layers and n not in tried]
        tried.update(new)
        yield from (Recipe(each, kind) for each in new)
        exits = [trial for trial in trials if trial.recipe.layers < n_layers]
        count = best(exits).recipe.layers if exits else count
        step = max(1, step // 2) if new or step > 1 else 0
