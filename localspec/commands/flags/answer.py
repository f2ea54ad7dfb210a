"""Flags for what comes before an answer, where it ends, and how it is shown."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@dataclass(frozen=True, slots=True)
class AnswerFlags:
    """What comes before an answer, and where it ends."""

    system: Annotated[str | None, typer.Option("--system", "-sys", help="A system message.")] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            min=-2,
            help="Most tokens of an answer; 0 only reads the prompt. Default: -1, the context.",
        ),
    ] = None
    stop: Annotated[
        list[str], typer.Option("--stop", help="End before this text; may be repeated.")
    ] = field(default_factory=list)
