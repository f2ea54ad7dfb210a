"""The commands about pairs: list the known ones; add, show and remove one's own."""

import shlex
from typing import Annotated

import typer

from localspec.commands.flags import completion
from localspec.commands.flags.answer import HeaderFlag, JsonFlag
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.llama_command import LlamaCommand
from localspec.commands.flags.pair import PairFlags, stored_settings, unstored_flags
from localspec.commands.session import download_ui
from localspec.core.errors import UsageError
from localspec.core.options.model_options import ModelOptions
from localspec.display import reports
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress
from localspec.library.local_models import current_folder, find_models
from localspec.library.pairs import user_pairs
from localspec.library.pairs.options import picked
from localspec.library.resolve import FIND, SELF, Resolver, is_known

pair_app = typer.Typer(
    help="Save pairs of your own under a name; list, show and remove them.", no_args_is_help=True
)


def pairs(
    family: Annotated[
        str | None, typer.Option("--family", help="Only pairs of this family, such as qwen.")
    ] = None,
    fits: Annotated[bool, typer.Option("--fits", help="Only pairs that fit the memory.")] = False,
    memory: Annotated[
        float | None,
        typer.Option(min=1, max=1e6, metavar="GB", help="RAM of another machine, in GB."),
    ] = None,
    vram: Annotated[
        float | None,
        typer.Option(min=1, max=1e6, metavar="GB", help="Memory of its GPUs; without: none."),
    ] = None,
    as_json: JsonFlag = False,
    header: HeaderFlag = True,
) -> None:
    """List known pairs of target and draft, your own first."""
    from localspec.display import models as lists
    from localspec.library.pairs.listing import pair_rows, recommended

    rooms = [round(gb * 1e9) for gb in (memory or 0, vram or 0)]
    every = pair_rows(find_models(extra=current_folder()).files, family, sum(rooms) or None)
    rows = [row for row in every if not fits or row.fits]
    if not rows and not as_json:
        console.note("No known pair fits this memory.")
        return
    if as_json:
        console.json_line({"pairs": [row.as_json() for row in rows]})
    else:
        best = recommended(rows, max(rooms[0], 2 * rooms[1]) or None)  # a GPU's may be filled
        both = recommended(rows, sum(rooms) + rooms[1], shared=True) if all(rooms) else None
        named = "such a machine" if any(rooms) else "this machine"
        lists.pairs(rows, best, named, None if both is best else both, header=header)


@pair_app.command("add", cls=LlamaCommand)
@spread_groups
def pair_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, . - and _.")],
    given: PairFlags,
) -> None:
    """Name a pair, with its settings: localspec pair add mine --target big.gguf --draft small.gguf.

    The pair is checked, and the hashes of its files are saved for verify.
    """
    from localspec.library.acquire import file_hashes, judge

    user_pairs.require_free(name)
    if is_known(name):
        console.note(f"{name} is also a known pair: yours will be used in its place.")
    resolver = Resolver()
    if unstored := unstored_flags(given):
        raise UsageError(
            f"A pair does not store {', '.join(unstored)}.",
            "Leave that out here, and give it to run, chat, serve or bench.",
        )
    models = ModelOptions(**picked(given, ModelOptions))
    target, draft = _both_models(name, models, resolver)
    verdict = judge(target, draft, resolver, download_ui(), lenient=models.lenient)
    if not verdict.report.compatible:
        reports.pair_report(verdict.report, verdict.target, verdict.draft)
        raise typer.Exit(1)
    target, draft = resolver.canonical_name(target), resolver.canonical_name(draft)
    settings = stored_settings(given)
    with progress(in_bytes=True) as on_progress:
        hashes = file_hashes(verdict, on_progress)
    user_pairs.add(name, target, draft, settings, hashes)
    console.note(f"Saved. Chat with it: localspec chat {name}")


def _both_models(name: str, models: ModelOptions, resolver: Resolver) -> tuple[str, str]:
    target, draft = models.target, models.draft_options().model
    if target is not None:
        named = resolver.choose(target, draft)
        target, draft = named.target, named.draft
    if target is None or draft is None or draft in (FIND, SELF):
        raise UsageError(
            "A pair needs a target and a draft.",
            f"Type: localspec pair add {shlex.quote(name)} --target BIG.gguf --draft SMALL.gguf",
        )
    return target, draft


@pair_app.command("show")
def pair_show(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.pairs)],
    as_json: JsonFlag = False,
) -> None:
    """Show everything known about a pair, yours or a known one."""
    from localspec.display import models as lists
    from localspec.library.pairs.listing import pair_row

    row, settings = (
        pair_row(name, find_models(extra=current_folder()).files),
        user_pairs.find(name).settings,
    )
    if as_json:
        console.json_line(row.as_json() | {"settings": dict(settings)})
    else:
        lists.pair(row, settings)


@pair_app.command("remove")
@pair_app.command("forget", hidden=True)
@pair_app.command("rm", hidden=True)
def pair_remove(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=user_pairs.names)],
) -> None:
    """Remove a pair of yours, not its models."""
    user_pairs.remove(name)
    console.note(f"Removed: {name}. Its models stay where they are.")


pair_app.command("list")(pairs)
