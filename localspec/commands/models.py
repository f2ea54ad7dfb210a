"""The commands about models: find, judge, fetch and name them.

This room joins others for `check`, `inspect`, `list`, `suggest`, `pairs`, `pair`, `download` and
`verify`, as `cli` does for the commands that answer. It decides nothing about models.
"""

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands.flags import (
    JsonFlag,
    ModelFlags,
    SamplingFlags,
    kept_settings,
    spread_groups,
    unkept_flags,
)
from localspec.core.errors import IncompatiblePair, UsageError
from localspec.display import console, reports
from localspec.display.progress import progress

if TYPE_CHECKING:
    from localspec.library.acquire import DownloadUI

_MODEL = "A GGUF file, or one on the Hub: org/repo:Q4_K_M, hf:org/repo/file.gguf."

FolderOption = Annotated[
    list[Path] | None, typer.Option("--folder", help="Search this folder too; may be repeated.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a large download.")]


def voice(yes: bool = False) -> "DownloadUI":
    """Speak with the user on stderr; without a terminal, large downloads need ``yes``."""
    from localspec.library.acquire import DownloadUI

    def agree(question: str) -> bool:
        return yes or (sys.stdin is not None and sys.stdin.isatty() and console.ask(question))

    return DownloadUI(console.note, agree, partial(progress, in_bytes=True))


def check(
    target_name: Annotated[
        str | None, typer.Argument(metavar="TARGET", help=f"The big model. {_MODEL}")
    ] = None,
    draft_name: Annotated[
        str | None, typer.Argument(metavar="DRAFT", help="The small model, named likewise.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-m", help="Instead of the argument TARGET.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "--draft-model", "-md", help="Instead of the argument DRAFT."),
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Only warn of what cannot corrupt text.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Say whether a draft may speak for a target, and why not: headers only, no weights.

    Of a file on the Hub only the header is read. A pair's name stands for both models.
    """
    from localspec.library.acquire import judge
    from localspec.library.resolve import choose
    from localspec.pairing import report_json

    given = [name for name in (target_name, draft_name, target, draft) if name is not None]
    if len(given) == 1:
        choice = choose(given[0], None)
        given = choice.models
        lenient = lenient or bool(choice.settings.get("lenient"))
    if len(given) != 2:
        raise UsageError(
            f"check compares two models, not {len(given)}.",
            "Type: localspec check TARGET DRAFT",
        )
    first = target or given[0]
    given.remove(first)
    verdict = judge(first, given[0], voice(), lenient=lenient, weights_needed=False)
    if as_json:
        document = report_json(verdict.report, verdict.target, verdict.draft)
        console.json_line(document | {"bytes_read": verdict.bytes_read})
    else:
        reports.pair_report(verdict.report, verdict.target, verdict.draft)
    raise typer.Exit(0 if verdict.report.compatible else 1)


def inspect(
    name: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)],
    as_json: JsonFlag = False,
) -> None:
    """Show what a model file says of itself, and what it is good for: header only, no weights."""
    from localspec.library.acquire import header_of
    from localspec.library.model_info import model_info
    from localspec.library.pairs import memory_for_models

    shown = model_info(header_of(name, voice()), memory_for_models())
    if as_json:
        console.json_line(shown.as_json())
    else:
        reports.model_report(shown)
    raise typer.Exit(0 if shown.runs else 1)


def list_models(
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="Only this source, such as ollama; may be repeated."),
    ] = None,
    folder: FolderOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the GGUF models on this disk: ours, and those of other tools, which stay where they are.

    Sources: localspec, hugging-face, llama.cpp, lm-studio, ollama, jan, gpt4all.
    """
    from localspec.display import models as listing
    from localspec.library.local_models import find_models, parse_source

    chosen = [parse_source(text) for text in source or ()] or None
    inventory = find_models(chosen, folder or ())
    if as_json:
        models = [listing.model_json(model) for model in inventory.models]
        console.json_line({"models": models, "notes": list(inventory.notes)})
    else:
        listing.models(inventory)


def suggest(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=f"The big model. {_MODEL}")],
    folder: FolderOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Rank drafts for a target: from this disk first, then known pairs; and say why others fail."""
    from localspec.display import models as listing
    from localspec.library.acquire import header_of
    from localspec.library.pairs import drafts_for
    from localspec.library.resolve import choose

    name = choose(target, None).target
    header = header_of(name, voice())
    if not header.can_roll_back:
        raise IncompatiblePair(
            f"{name} ({header.architecture}) cannot drop rejected tokens, so no draft helps it.",
            "It runs plain; what the text repeats is still proposed.",
        )
    found = drafts_for(header, folder or ())
    if as_json:
        console.json_line(
            {
                "drafts": [draft.as_json(name) for draft in found.drafts],
                "refused": [refusal.as_json() for refusal in found.refused],
                "known_pairs": [pair.name for pair in found.known],
            }
        )
    else:
        listing.suggestions(found, name)
    raise typer.Exit(0 if found.drafts or found.known else 1)


def pairs(
    family: Annotated[
        str | None, typer.Option("--family", help="Only pairs of this family, such as qwen.")
    ] = None,
    fits: Annotated[bool, typer.Option("--fits", help="Only what fits this machine.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List known pairs of target and draft, your own first."""
    from localspec.display import models as listing
    from localspec.library.pairs import pair_rows

    rows = [row for row in pair_rows(family) if not fits or row.fits]
    if not rows and not as_json:
        console.note("No known pair fits this machine's memory.")
        return
    if as_json:
        console.json_line({"pairs": [row.as_json() for row in rows]})
    else:
        listing.pairs(rows)


def download(
    names: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="A pair's name, or models on the Hub."),
    ],
    yes: YesOption = False,
    as_json: JsonFlag = False,
) -> None:
    """Fetch a pair, or single models, into the models folder; what was interrupted goes on.

    Both headers of a pair are checked first. Every file is compared with the Hub's sha256.
    """
    from localspec.library.acquire import ensure_local, groups_of

    try:
        files = [
            path
            for group, lenient in groups_of(names)
            for path in ensure_local(group, voice(yes), lenient=lenient)
        ]
    except KeyboardInterrupt:
        console.note("Stopped. What came is kept: the same command goes on from there.")
        raise typer.Exit(130) from None
    if as_json:
        console.json_line({"files": [str(path) for path in files]})
    else:
        for path in files:
            console.text(f"{path}\n")


def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Files, references or a pair; default: all."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare files with the sha256 recorded when they came; needs no network."""
    from localspec.core import paths
    from localspec.display import models as listing
    from localspec.hub import provenance
    from localspec.library.acquire import files_of, kept_hashes

    wanted = [path for name in names or () for path in files_of(name)]
    kept = kept_hashes(names)
    folders = [folder for folder in (paths.models_folder(),) if folder.is_dir()]
    folders += [path for path in kept if not path.is_relative_to(paths.models_folder())]
    with progress(in_bytes=True) as on_progress:
        coming = provenance.verify(wanted or folders, on_progress, kept)
        found = list(coming) if as_json else listing.verdicts(coming)
    if as_json:
        console.json_line({"files": [listing.verdict_json(verdict) for verdict in found]})
    elif not found:
        console.note("Nothing was downloaded yet; fetch a pair with: localspec download NAME")
    raise typer.Exit(0 if all(verdict.state == "right" for verdict in found) else 1)


pair_app = typer.Typer(
    help="Keep pairs of your own under a name; show and forget them.", no_args_is_help=True
)


@pair_app.command("add")
@spread_groups
def pair_add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, . - and _.")],
    models: ModelFlags,
    sampling: SamplingFlags,
) -> None:
    """Name a pair, with its settings: localspec pair add mine --target big.gguf --draft small.gguf.

    The pair is checked, and the hashes of its files are kept for verify.
    """
    from localspec.library import user_pairs
    from localspec.library.acquire import file_hashes, judge
    from localspec.library.resolve import FIND, canonical_name, choose

    user_pairs.require_free(name)
    draft = models.draft_options().model
    if models.target is not None:
        choice = choose(models.target, draft)
        models, draft = replace(models, target=choice.target), choice.draft
    if unkept := unkept_flags(models):
        raise UsageError(
            f"A pair cannot keep {', '.join(unkept)}: they belong to a machine or a run.",
            "Leave them out here, and give them to run, chat or bench.",
        )
    if models.target is None or draft is None or draft == FIND:
        raise UsageError(
            "A pair needs a target and a draft.",
            f"Type: localspec pair add {shlex.quote(name)} --target BIG.gguf --draft SMALL.gguf",
        )
    verdict = judge(models.target, draft, voice(), lenient=models.lenient)
    if not verdict.report.compatible:
        reports.pair_report(verdict.report, verdict.target, verdict.draft)
        raise typer.Exit(1)
    target, draft = canonical_name(models.target), canonical_name(draft)
    with progress(in_bytes=True) as on_progress:
        hashes = file_hashes([target, draft], on_progress)
    user_pairs.add(name, target, draft, kept_settings(models, sampling), hashes)
    console.note(f"Kept. Talk with it: localspec chat {name}")


@pair_app.command("show")
def pair_show(
    name: Annotated[str, typer.Argument(metavar="NAME")], as_json: JsonFlag = False
) -> None:
    """Everything known about a pair, yours or a known one."""
    from localspec.display import models as listing
    from localspec.library import user_pairs
    from localspec.library.pairs import pair_row

    row, settings = pair_row(name), user_pairs.find(name).settings
    if as_json:
        console.json_line(row.as_json() | {"settings": dict(settings)})
    else:
        listing.pair(row, settings)


@pair_app.command("remove")
def pair_remove(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Forget a pair of yours; its models stay where they are."""
    from localspec.library import user_pairs

    user_pairs.remove(name)
    console.note(f"Forgotten: {name}. Its models stay where they are.")


def register(app: typer.Typer) -> None:
    """Add these commands to the program, in a panel of their own in its help."""
    panel = "Models and pairs"
    app.command(rich_help_panel=panel)(check)
    app.command(rich_help_panel=panel)(inspect)
    app.command("list", rich_help_panel=panel)(list_models)
    app.command(rich_help_panel=panel)(suggest)
    app.command(rich_help_panel=panel)(pairs)
    app.add_typer(pair_app, name="pair", rich_help_panel=panel)
    app.command(rich_help_panel=panel)(download)
    app.command("pull", hidden=True)(download)
    app.command(rich_help_panel=panel)(verify)
