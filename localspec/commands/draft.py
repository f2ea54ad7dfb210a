"""The commands about drafts made out of a target: draft make."""

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands.flags.answer import JsonFlag
from localspec.commands.flags.completion import models
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.llama_command import LlamaCommand
from localspec.commands.flags.pair import LoadingFlags
from localspec.commands.flags.rows import number
from localspec.commands.models.pairs import PANEL
from localspec.commands.session import download_ui
from localspec.core.errors import FileProblem, UsageError
from localspec.core.options.option import Bounds
from localspec.display import console
from localspec.display.progress import progress
from localspec.library.pairs.options import pair_load_options

if TYPE_CHECKING:
    from localspec.self_draft.selection import Selection, SelfDraftOptions

_AUTO = "auto"
_LAYERS, _VOCAB = Bounds(1, 512), Bounds(1, 2**24)

draft_app = typer.Typer(help="Make a draft out of a target itself.", no_args_is_help=True)


@draft_app.command("make", cls=LlamaCommand)
@spread_groups
def draft_make(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="The big model, as in run.", autocompletion=models),
    ],
    loading: LoadingFlags,
    layers: Annotated[
        int | None,
        typer.Option(
            "--layers",
            parser=number(_LAYERS, {_AUTO: 0}),
            metavar="N|auto",
            help="Keep the first N layers; auto searches which to keep.",
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            "--type",
            metavar="Q4_0|Q2_K|...|keep|auto",
            help="Type of the weights, as llama-quantize calls it; auto tries several.",
        ),
    ] = _AUTO,
    vocab: Annotated[
        int | None,
        typer.Option(
            "--vocab",
            parser=number(_VOCAB, {}),
            metavar="N",
            help="Keep output rows of the N tokens the target uses most; best a multiple of 64.",
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(
            "--draft",
            "-md",
            metavar="FILE",
            help="With --vocab: trim this draft of the target, and search nothing.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the draft to this file as well.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make the draft of a target that promises most, and measure whether it pays.

    Layers are left out, weights get a lower type, or both. If it pays it is kept, and --draft self
    uses it; so is the verdict that none pays, if nothing was given to be made. Ctrl-C ends the
    search with the best so far, and exit code 130.
    """
    from localspec.display import self_draft as shown
    from localspec.library.acquire import ensure_local
    from localspec.library.resolve import Resolver
    from localspec.self_draft.selection import make_and_store

    wish = _wish(layers, weights, vocab, draft, output)
    resolver = Resolver()
    (path,) = ensure_local([resolver.choose(target, None).target], resolver, download_ui())
    if output is not None:
        _require_free(output, path, draft)
    found, kept = make_and_store(
        path,
        wish,
        partial(pair_load_options, loading),
        console.note,
        progress,
        lambda made: _copy(made, output),
    )
    if as_json:
        console.json_line(shown.as_json(found, kept, output))
    else:
        shown.result(found, kept, output)
    raise typer.Exit(130 if found.verdict is None else 0)


def _wish(
    layers: int | None, weights: str, vocab: int | None, draft: Path | None, output: Path | None
) -> "SelfDraftOptions":
    """What is not to be searched; raises UsageError for what cannot be made."""
    from localspec.llama.quantize import require_type
    from localspec.self_draft.make import KEEP
    from localspec.self_draft.selection import SelfDraftOptions

    kind = None if weights == _AUTO else weights if weights == KEEP else require_type(weights)
    if draft is not None:
        if vocab is None or output is None or layers is not None or kind is not None:
            raise UsageError(
                "--draft only trims the vocabulary of a draft that exists.",
                "Give --vocab N and --output FILE with it, and no --layers or --type.",
            )
    return SelfDraftOptions(layers or None, kind, vocab, draft)


def _require_free(output: Path, target: Path, draft: Path | None) -> None:
    """Refuse, before minutes are spent, a place that holds something else or takes nothing."""
    from localspec.bench.report import require_writable
    from localspec.metadata.header import read_header
    from localspec.self_draft.make import require_free_place

    require_free_place(read_header(target), output)
    if draft is not None and draft.exists() and output.exists() and output.samefile(draft):
        raise FileProblem(f"{output} is the draft itself.", "Name another file with --output.")
    require_writable(output)


def _copy(made: "Selection", output: Path | None) -> None:
    """Write the draft to where it was asked for."""
    from localspec.core.files import appearing_when_complete, file_problem

    if output is None:
        return
    what, hint = (
        f"The draft cannot be written to {output}",
        "Give --output a file in a folder with room.",
    )
    with file_problem(what, hint), appearing_when_complete(output) as partial:
        shutil.copyfile(made.file, partial)


def register(app: typer.Typer) -> None:
    """Add these commands to the program, in the panel of its help for models and pairs."""
    app.add_typer(draft_app, name="draft", rich_help_panel=PANEL)
