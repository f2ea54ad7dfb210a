"""Flags for which models, and how far to draft."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from localspec.commands.flags.groups import choice, whole
from localspec.core.config import BRANCHES, Branches, DraftOptions, choose_draft

NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A pair's name, or the target instead of --target."),
]
AUTO_BRANCHES = 0  # as many as pay
_DRAFTING = "Drafting"
_LOOKUP = "Lookup"


@dataclass(frozen=True, slots=True)
class PairFlags:
    """Which models are a pair, and the draft length."""

    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-m",
            "--model",
            metavar="MODEL",
            help="The big model: a GGUF file, a file on the Hub (org/repo:Q4_K_M, "
            "hf:org/repo/file.gguf), which is fetched if it is not here, or a pair's name, which "
            "names the draft too.",
        ),
    ] = None
    draft: Annotated[
        list[str],
        typer.Option(
            "--draft",
            help="Draft model (a file, one on the Hub, mtp: the prediction heads of the target or "
            "beside it, find: the best one on this disk, or self: one made of the target, see "
            "draft make), or draft length (a number, auto or off). May be given twice, once for "
            "each.",
            metavar="MODEL|mtp|find|self|N|auto|off",
            rich_help_panel=_DRAFTING,
        ),
    ] = field(default_factory=list)
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            "-md",
            metavar="MODEL",
            help="The small model, named as the big one; or an EAGLE-3, DFlash or MTP sidecar.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    draft_tokens: Annotated[
        str | None,
        typer.Option(
            "--draft-tokens",
            help="Draft length, in tokens a round: a number, off, or auto, the default: as many "
            "as pay, by measured costs and acceptance. bench takes several: 0,2,4,auto.",
            metavar="N|auto|off",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    lenient: Annotated[
        bool,
        typer.Option(
            "--lenient",
            help="Accept pairs that llama.cpp refuses for harmless reasons: control or unused "
            "tokens, BOS and EOS ids, vocabulary size.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False

    def draft_options(self) -> DraftOptions:
        """What ``--draft`` and its long forms mean together."""
        return choose_draft(self.draft, self.draft_model, self.draft_tokens)


@dataclass(frozen=True, slots=True)
class ModelFlags(PairFlags):
    """Which models, and how far to draft."""

    prompt_lookup: Annotated[
        str,
        typer.Option(
            "--suffix",
            parser=choice("on", "off"),
            metavar="on|off",
            help="Let auto use prompt lookup: tokens that followed the same n-gram earlier in the "
            "text, with a draft model or without.",
            rich_help_panel=_LOOKUP,
        ),
    ] = "on"
    lookup_cache: Annotated[
        Path | None,
        typer.Option(
            "--lookup-cache",
            help="Save answers to this file, and draft from the answers saved in it.",
            rich_help_panel=_LOOKUP,
        ),
    ] = None
    lookup_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--lookup-files",
            help="Draft from these files or folders of text too, such as a repository; may be "
            "repeated.",
            rich_help_panel=_LOOKUP,
        ),
    ] = None
    branches: Annotated[
        int | None,
        typer.Option(
            "--branches",
            metavar="1|2|3|auto",
            parser=whole(BRANCHES, {"auto": AUTO_BRANCHES}),
            help="Most drafted tokens that may compete for one place, verified in the same pass. "
            "More than 1 pays where wide passes cost little, as on GPUs, and the draft is weak. "
            "Default: auto, as many as pay by measured costs.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Forget what auto learnt about this pair, and measure again.",
            rich_help_panel=_DRAFTING,
        ),
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show llama.cpp's log on stderr.")
    ] = False

    @property
    def most_branches(self) -> Branches:
        """Candidates at one place, at most."""
        return self.branches or "auto"
