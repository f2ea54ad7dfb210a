"""``localspec`` alone: in a terminal the pairs to chat with on this machine, elsewhere the help."""

import sys
from typing import TYPE_CHECKING

import typer

from localspec.core.formatting import size
from localspec.display import console

if TYPE_CHECKING:
    from localspec.library.pairs.listing import PairRow

_SHOWN = 9  # pairs, one digit each
_FIRST_STEPS = (
    ("localspec demo", "see drafting at work, with the bundled pair"),
    ("localspec pairs --fits", "pairs to download for this machine"),
)


def _command(row: "PairRow", words: str = "", begin: str = "") -> tuple[str, str]:
    return f"{begin}localspec chat {row.name}", f"{words}{size(row.size)}"


def start(context: typer.Context) -> None:
    """Offer a chat with a pair that is on this disk and fits; without any, the first steps."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        typer.echo(context.get_help())
        raise typer.Exit(2)
    from localspec.library.local_models import find_models
    from localspec.library.pairs.listing import pair_rows, recommended

    known = pair_rows(find_models().files)
    rows = [row for row in known if all(row.here) and row.fits is not False]
    out = console.make_console(stderr=False)
    if not rows:
        best = recommended(known)
        first = [] if best is None else [_command(best, "the pair to try first here, ")]
        console.labelled_rows(out, [*_FIRST_STEPS, *first, ("localspec --help", "all commands")])
        return
    shown = {str(i): row for i, row in enumerate(rows[:_SHOWN], 1)}
    console.labelled_rows(out, [_command(row, begin=f"{i}  ") for i, row in shown.items()])
    console.labelled_rows(out, [("More: localspec pairs, localspec --help", "")])
    try:
        answer = input("Chat with number, or Enter to leave: ").strip()
    except EOFError:
        return
    if answer in shown:
        context.command.main(["chat", shown[answer].name], prog_name="localspec")
