"""Result of ``draft make``: in words, and as plain data."""

import shlex
from dataclasses import asdict
from pathlib import Path

from localspec.core.formatting import one_line, size
from localspec.display.terminal.console import make_console
from localspec.metadata.draft_kind import n_layers
from localspec.self_draft.making import MadeDraft


def result(found: MadeDraft, output: Path | None) -> None:
    """Print the recipe, the place of the file, and the command that measures it."""
    out = make_console(stderr=False)
    draft = "self" if found.stored is not None else str(output)
    command = ["localspec", "tune", "--target", str(found.target.path), "--draft", draft]
    places = [] if found.stored is None else [f"Stored for --draft self: {found.stored}."]
    places += [] if output is None else [f"Written to {output}."]
    for sentence in (
        f"Made: {found.recipe.describe(n_layers(found.source))}, {size(found.n_bytes)}.",
        *places,
        f"Whether it pays: {shlex.join(command)}",
    ):
        out.print(one_line(sentence), markup=False)


def as_json(found: MadeDraft, output: Path | None) -> dict[str, object]:
    return {
        "target": str(found.target.path),
        "output": None if output is None else str(output),
        "source": str(found.source.path),
        "kept": None if found.stored is None else str(found.stored),
        "draft": asdict(found.recipe) | {"n_bytes": found.n_bytes},
    }
