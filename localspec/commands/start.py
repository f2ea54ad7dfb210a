"""``localspec`` and ``chat`` alone: in a terminal the models to chat with, elsewhere the help."""

import os
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from localspec.core.formatting import size
from localspec.core.paths import is_bundled
from localspec.display.terminal import console
from localspec.library.local_models import Inventory, current_folder, find_models
from localspec.library.resolve import Resolver

if TYPE_CHECKING:
    from localspec.library.pairs.listing import PairRow

_SHOWN = 9  # models, one digit each
_FIRST_STEPS = (
    ("localspec demo", "see drafting at work, with the bundled pair"),
    ("localspec pairs --fits", "pairs to download for this machine"),
)


def start(context: typer.Context) -> None:
    """Offer a chat with a model that is on this disk and fits; without any, the first steps."""
    if not console.is_dialogue():
        typer.echo(context.get_help())
        raise typer.Exit(2)
    if (name := choose_model()) is not None:
        context.command.main(["chat", name], prog_name="localspec")


def choose_model() -> str | None:
    """The pair or model that the user chooses, None for none; first steps if none is here."""
    from localspec.library.pairs.listing import pair_rows, recommended

    here = find_models(extra=current_folder())
    known = pair_rows(here.files)
    rows = [row for row in known if all(row.here) and row.fits is not False]
    offered = [*((row.name, row.size) for row in rows), *_single(here, rows)][:_SHOWN]
    out = console.make_console(stderr=False)
    if not offered:
        best = recommended(known)
        words = "the pair to try first here, "
        first = [] if best is None else [_line(best.name, best.size, words)]
        console.labelled_rows(out, [*_FIRST_STEPS, *first, ("localspec --help", "all commands")])
        return None
    names = {str(i): name for i, (name, _) in enumerate(offered, 1)}
    lines = (_line(*each, begin=f"{i}  ") for i, each in enumerate(offered, 1))
    console.labelled_rows(out, [*lines])
    console.labelled_rows(out, [("More: localspec pairs, localspec list, localspec --help", "")])
    try:
        return names.get(input("Chat with number, or Enter to leave: ").strip())
    except EOFError:
        return None


def _line(name: str, n_bytes: int | None, words: str = "", begin: str = "") -> tuple[str, str]:
    return f"{begin}localspec chat {shlex.quote(name)}", f"{words}{size(n_bytes)}"


def _single(here: Inventory, rows: "list[PairRow]") -> "Iterator[tuple[str, int]]":
    from localspec.llama.memory.probe import memory_for_models

    resolver, memory = Resolver(), memory_for_models(total=True)
    named = [name for row in rows for name in resolver.choose(row.name).models]
    of_pairs = {os.path.realpath(path) for path in map(resolver.on_disk, named) if path}
    for model in sorted(here.models, key=lambda model: -model.n_bytes):
        fits = memory is None or model.n_bytes <= memory
        is_shown = os.path.realpath(model.path) in of_pairs or is_bundled(model.path)
        if fits and not is_shown:
            yield model.name, model.n_bytes
