"""Spellings of llama.cpp that Typer alone does not take: options that may stand without a value."""

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

# An option that may stand alone, the values that may follow it, and what it means alone.
_ALONE = {flag: (("on", "off", "auto"), "on") for flag in ("-fa", "--flash-attn")}
_TABLE = "What llama.cpp's flags are called here: docs/llama-cpp-flags.md."
_UsageError: Any = typer.BadParameter.__mro__[1]  # which Typer does not export


class LlamaCommand(TyperCommand):
    """A command that takes llama.cpp's flags; of one that is not there it says where to look."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, complete(args))
        except _UsageError as error:
            if hasattr(error, "possibilities"):  # NoSuchOption
                error.message = f"{error.message}. {_TABLE}"
            raise


def complete(arguments: Sequence[str]) -> list[str]:
    """The arguments with a value behind each option that was given without one."""
    completed: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return [*completed, *arguments[i:]]
        completed.append(argument)
        values, alone = _ALONE.get(argument, ((), ""))
        if alone and not (i + 1 < len(arguments) and arguments[i + 1] in values):
            completed.append(alone)
    return completed
