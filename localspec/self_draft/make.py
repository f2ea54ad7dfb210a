"""Drafts written out of a target, by a recipe."""

from collections.abc import Callable
from pathlib import Path

from localspec.metadata.header import ModelHeader
from localspec.self_draft.recipe import Recipe

Progress = Callable[[int, int], None]  # tensors done, in all


def make_draft(
    target: ModelHeader, recipe: Recipe, output: Path, on_progress: Progress | None = None
) -> None:
    """Write the draft that ``recipe`` makes of ``target`` to ``output``, complete or not at all."""
    raise NotImplementedError
