"""The command rm: delete downloaded models to free disk space."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands.flags.pair import model_argument
from localspec.core.errors import LocalspecError, UsageError
from localspec.core.formatting import size
from localspec.display.terminal import console
from localspec.library.resolve import Resolver

if TYPE_CHECKING:
    from localspec.library.removal import Removal


def remove(
    names: Annotated[list[str], model_argument("MODEL", "Models, or a pair's name for both.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete models from the models folder, after asking; names other users of the files.

    Records, partial downloads, drafts that were made of the model and its measurements go
    with it. Models of other tools are left alone.
    """
    from localspec.library.removal import removals_of

    resolver = Resolver(prefixes=False)  # a typing error must not delete another model
    found = {each.path: each for name in names for each in removals_of(name, resolver)}
    made = {file for each in found.values() for file in _made_of(each.path)}
    for each in found.values():
        _describe(each)
    freed = sum(each.n_bytes for each in found.values())
    if made:
        extra = sum(file.stat().st_size for file in made)
        freed += extra
        console.note(f"Drafts made of it, and measurements: {size(extra)}.")
    if not yes and not _agreed(f"Delete {size(freed)}?"):
        console.note("Nothing was deleted.")
        raise typer.Exit(1)
    for each in found.values():
        each.delete()
    for file in made:
        file.unlink(missing_ok=True)
    console.note(f"Freed {size(freed)}.")


def _describe(removal: "Removal") -> None:
    link = "; a link, its file stays" if removal.path.is_symlink() else ""
    users = f"; used by the pairs {', '.join(removal.pairs)}" if removal.pairs else ""
    others = f"; {', '.join(removal.elsewhere)} has it too" if removal.elsewhere else ""
    console.note(f"{removal.name}: {size(removal.n_bytes)}{link}{users}{others}.")


def _agreed(question: str) -> bool:
    if not console.is_typed():
        raise UsageError("rm asks before it deletes, and there is no terminal.", "Add --yes.")
    return console.ask(question)


def _made_of(model: Path) -> list[Path]:
    """The files of a draft that was made of a model, and of its measurements."""
    from localspec.engine.loading import pair_file
    from localspec.metadata.header import read_header
    from localspec.self_draft import store

    with suppress(LocalspecError, OSError):  # of a file that is damaged or incomplete
        header = read_header(model)
        return [*store.files_of(header), *pair_file.files_of(header)]
    return []
