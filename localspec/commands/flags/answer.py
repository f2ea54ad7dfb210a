"""Flags for what comes before an answer, where it ends, and how it is shown."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

PANEL = "Prompt and answer"  # of the help
JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@dataclass(frozen=True, slots=True)
class AnswerFlags:
    """What comes before an answer, and where it ends."""

    system: Annotated[
        str | None,
        typer.Option("--system", "-sys", help="A system message.", rich_help_panel=PANEL),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            metavar="N",
            min=-2,
            help="Most tokens of an answer; 0 only reads the prompt. Default: -1, the context.",
            rich_help_panel=PANEL,
        ),
    ] = None
    stop: Annotated[
        list[str],
        typer.Option(
            "--stop", help="End before this text; may be repeated.", rich_help_panel=PANEL
        ),
    ] = field(default_factory=list)
    hide_reasoning: Annotated[
        bool,
        typer.Option(
            "--hide-reasoning",
            help="Show the answer without the model's thoughts.",
            rich_help_panel=PANEL,
        ),
    ] = False
    show_draft: Annotated[
        bool,
        typer.Option(
            "--show-draft",
            help="Colour each token by where it came from: the draft, prompt lookup, an earlier "
            "answer, a grammar's only choice, the target's correction. Marks where there is no "
            "colour.",
            rich_help_panel=PANEL,
        ),
    ] = False
    prompt_cache: Annotated[
        Path | None,
        typer.Option(
            "--prompt-cache",
            help="Keep the KV cache in this file, so that the same beginning is read once.",
            rich_help_panel=PANEL,
        ),
    ] = None
    prompt_cache_ro: Annotated[
        bool,
        typer.Option(
            "--prompt-cache-ro", help="Use that file, but do not write it.", rich_help_panel=PANEL
        ),
    ] = False
