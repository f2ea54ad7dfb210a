"""``localspec`` and ``chat`` alone: in a terminal the models to chat with, elsewhere the help."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import typer

from localspec.core.formatting import size
from localspec.core.paths import is_bundled
from localspec.display.terminal import console
from localspec.library.local_models import Inventory, current_folder, find_models
from localspec.library.resolve import Resolver

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
    resolver = Resolver()
    files = {row.name: _files(resolver, row.name) for row in rows}
    single = _single(here, {os.path.realpath(file) for each in files.values() for file in each})
    offered = [*((row.name, row.size, files[row.name]) for row in rows), *single]
    offered = sorted(offered, key=lambda each: not _in_folder(each[2]))[:_SHOWN]
    out = console.make_console(stderr=False)
    if not offered:
        best = recommended(known)
        words = "recommended for this machine: downloads "
        first = [] if best is None else [(_command(best.name), words + size(best.size))]
        console.labelled_rows(out, [*_FIRST_STEPS, *first, ("localspec --help", "all commands")])
        return None
    console.sentence(out, "Models on this machine; nothing is downloaded:", "bold")
    lines = (
        (f"{i}  {_command(name)}", size(n_bytes) + (", in this folder" * _in_folder(paths)))
        for i, (name, n_bytes, paths) in enumerate(offered, 1)
    )
    console.labelled_rows(out, [*lines])
    console.labelled_rows(out, [("More: localspec pairs, localspec list, localspec --help", "")])
    with suppress(EOFError):
        while chosen := input("Chat with number, or Enter to leave: ").strip():
            if chosen.isdecimal() and 0 < int(chosen) <= len(offered):
                return offered[int(chosen) - 1][0]
            console.note(f"{chosen!r} is not a number from 1 to {len(offered)}.", asked=True)
    return None


def _command(name: str) -> str:
    return f"localspec chat {shlex.quote(name)}"


def _files(resolver: Resolver, pair: str) -> list[Path]:
    return [path for path in map(resolver.on_disk, resolver.choose(pair).models) if path]


def _in_folder(files: Sequence[Path]) -> bool:
    """Whether the models are in the current folder."""
    return all(path.absolute().parent == Path.cwd() for path in files)


def _single(here: Inventory, of_pairs: set[str]) -> Iterator[tuple[str, int, list[Path]]]:
    """Models that fit and belong to no pair that is offered."""
    from localspec.llama.memory.probe import memory_for_models

    memory = memory_for_models(total=True)
    for model in sorted(here.models, key=lambda model: -model.n_bytes):
        fits = memory is None or model.n_bytes <= memory
        is_shown = os.path.realpath(model.path) in of_pairs or is_bundled(model.path)
        if fits and not is_shown:
            yield model.name, model.n_bytes, [model.path]
