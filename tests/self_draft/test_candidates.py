"""Files of drafts on trial; how a whole search uses them is in test_selection."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from localspec.core import paths
from localspec.metadata.header import read_header
from localspec.self_draft import candidates
from localspec.self_draft.candidates import Budget, Candidates
from localspec.self_draft.recipe import Recipe
from localspec.self_draft.trial import Trial, Trials


class Promises:
    """Trials that find ever better drafts."""

    def __init__(self) -> None:
        self.tried = 0

    def attempt(self, recipe: Recipe, path: Path) -> Trial:
        self.tried += 1
        return Trial(recipe, 1, 0.5, 1.0, 1.0, float(self.tried), 1)


def makers(target: Path, folder: Path) -> Candidates:
    budget = Budget(lambda: 0.0, 9.0, lambda label, done, total: None)
    return Candidates(read_header(target), cast(Trials, Promises()), folder, budget)


def test_heads_are_none_of_the_layers_of_a_given_draft(tmp_path: Path) -> None:
    found = makers(paths.demo_hybrid(), tmp_path).given()
    assert found.recipe.describe(6) == "all 6 layers"


def test_the_best_is_that_of_the_file_whenever_ctrl_c_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes as a signal while the file takes its place."""
    import signal

    def make(header: object, recipe: Recipe, file: Path, on_progress: object) -> None:
        file.write_text(repr(recipe))

    monkeypatch.setattr(candidates, "make_draft", make)
    some = makers(paths.demo_hybrid(), tmp_path)
    some.attempt(Recipe((0, 1, 2)))
    real = Path.replace

    def replace(file: Path, place: Path) -> Path:
        done = real(file, place)
        signal.raise_signal(signal.SIGINT)
        return done

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        some.attempt(Recipe((3, 4, 5)))
    assert some.best_file.read_text() == repr(some.best.recipe) == repr(Recipe((3, 4, 5)))
