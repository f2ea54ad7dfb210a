"""Result of ``draft make``: in words, and as plain data."""

import os
import shlex
from dataclasses import asdict
from pathlib import Path

from localspec.core.formatting import size
from localspec.display.terminal.console import make_console, sentence
from localspec.metadata.draft_kind import n_layers
from localspec.self_draft.making import MadeDraft


def result(found: MadeDraft, output: Path | None) -> None:
    """Print the recipe, the place of the file, and the command that measures it."""
    out = make_console(stderr=False)
    draft = "self" if output is None else os.path.abspath(output)
    command = ["localspec", "tune", "--target", str(found.target.path), "--draft", draft]
    places = [] if found.stored is None else [f"Stored for --draft self: {found.stored}."]
    places += [] if output is None else [f"Written to {output}."]
    for each in (
        f"Made: {found.recipe.describe(n_layers(found.source))}, {size(found.n_bytes)}.",
        *places,
        f"Whether it pays: {shlex.join(command)}",
    ):
        sentence(out, each)


def as_json(found: MadeDraft, output: Path | None) -> dict[str, object]:
    return {
        "target": str(found.target.path),
        "output": None if output is None else str(output),
        "source": str(found.source.path),
        "kept": None if found.stored is None else str(found.stored),
        "draft": asdict(found.recipe) | {"n_bytes": found.n_bytes},
    }
