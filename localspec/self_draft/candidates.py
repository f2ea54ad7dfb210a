"""Candidates of a search for a self-draft: files that are made, tried, and kept while the best."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from localspec.core.interrupt import held_interrupt
from localspec.engine.engine import Engine
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft.recipe import Recipe
from localspec.self_draft.trial import Trial, Trials
from localspec.self_draft.vocabulary import frequent_ids
from localspec.self_draft.writing.layers import removable
from localspec.self_draft.writing.make import make_draft
from localspec.self_draft.writing.trim import trim_vocabulary
from localspec.speculative.loop import Clock

COUNT_BUDGET = 60.0  # seconds

Progress = Callable[[str, int, int], None]  # label, done, in all


class Budget:
    """The seconds of the search, and the bar that shows how many are left."""

    def __init__(self, clock: Clock, seconds: float, on_progress: Progress) -> None:
        self.clock = clock
        self._began, self._seconds = clock(), seconds
        self._on_progress = on_progress

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self._began + self._seconds - self.clock())

    def show(self, what: str) -> None:
        """Tell what is done now, and how long the search still takes at most."""
        left = self.left
        label = f"{what}, at most {left:.0f} s left"
        self._on_progress(label, int(self._seconds - left), int(self._seconds) + 1)


class Candidates:
    """Files of drafts, made one at a time and removed; only the best so far stays."""

    best: Trial  # from the first one on

    def __init__(self, header: ModelHeader, trials: Trials, folder: Path, budget: Budget) -> None:
        self.best_file = folder / "best.gguf"
        self._header = header
        self._trials = trials
        self._file = folder / "candidate.gguf"
        self._budget = budget

    def attempt(self, recipe: Recipe) -> Trial:
        """Make the draft and try it; see `make_draft` and `Trials.attempt` for what is raised."""
        what = recipe.describe(removable(self._header).n_layers)
        try:
            self._budget.show(f"making {what}")
            make_draft(
                self._header,
                recipe,
                self._file,
                lambda done, total: self._budget.show(f"making {what}"),
            )
            self._budget.show(f"trying {what}")
            trial = self._trials.attempt(recipe, self._file)
            if not self.best_file.exists() or trial.predicted_speedup > self.best.predicted_speedup:
                with held_interrupt():  # one belongs to the other
                    self._file.replace(self.best_file)
                    self.best = trial
            return trial
        finally:
            self._file.unlink(missing_ok=True)

    def given(self) -> Trial:
        """Try the draft as it is."""
        self._budget.show(f"trying {self._header.path.name}")
        whole = Recipe(tuple(range(removable(self._header).n_layers)))
        self.best = self._trials.attempt(whole, self._header.path)
        self.best_file = self._header.path
        return self.best

    def trim(self, engine: Engine, vocab: int, on_progress: Progress) -> Trial:
        """Try the best with so many output rows; it is the best from then on.

        The tokens of the target are counted for `COUNT_BUDGET` seconds at most.
        """
        draft = read_header(self.best_file)
        assert draft.vocab is not None
        count = Budget(self._budget.clock, COUNT_BUDGET, on_progress)

        def is_over() -> bool:
            count.show("counting the tokens that the target says")
            return not count.left

        ids = frequent_ids(engine, vocab, limit=len(draft.vocab), is_over=is_over)
        trimmed = self._file.with_name("trimmed.gguf")
        on_progress("trimming", 0, 1)
        trim_vocabulary(draft, engine.target.header, ids, trimmed)
        recipe = replace(self.best.recipe, vocab=len(ids))
        self.best_file, self.best = trimmed, self._trials.attempt(recipe, trimmed)
        return self.best
