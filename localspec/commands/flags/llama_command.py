"""Commands that take llama.cpp's spellings, and whose help shows the options of every day."""

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

import typer
from typer.core import TyperCommand

# An option that may stand alone, the values that may follow it, and what it means alone.
_ALONE = {flag: (("on", "off", "auto"), "on") for flag in ("-fa", "--flash-attn")}
_TABLE = "What llama.cpp's flags are called here: docs/llama-cpp-flags.md."
# Panels that the short help shows as one.
_SHORT_PANELS: dict[str | None, str] = {
    "Thinking and chat template": "Prompt and answer",
    "Lookup": "Drafting",
    "Devices": "Loading",
}
_UsageError: Any = typer.BadParameter.__mro__[1]  # which Typer does not export


class LlamaCommand(TyperCommand):
    """A command that takes llama.cpp's flags; of one that is not there it says where to look."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the options of every day, or with --help-all all of them."""
        everything = self.params
        advanced = () if ctx.meta.get("help_all") else getattr(self.callback, "advanced", ())
        self.epilog = f"All options: {ctx.command_path} --help-all" if advanced else None
        if advanced:
            self.params = [_short(each) for each in everything if each.name not in advanced]
        try:
            super().format_help(ctx, formatter)
        finally:
            self.params = everything

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # While a line is being completed in the shell, nothing is refused.
        unknown = None if ctx.resilient_parsing else self._unknown_short_flag(args)
        if unknown:
            ctx.fail(f"No such option: {unknown}. {_TABLE}")
        try:
            return super().parse_args(ctx, complete(args))
        except _UsageError as error:
            if hasattr(error, "possibilities"):  # NoSuchOption
                error.message = f"{error.message}. {_TABLE}"
            raise

    def _unknown_short_flag(self, arguments: Sequence[str]) -> str | None:
        """A flag such as ``-cnv``, which would else be read as ``-c nv``."""
        known: dict[str, Any] = {name: param for param in self.params for name in param.opts}
        is_value = False
        for argument in arguments:
            if argument == "--":
                break
            if is_value:
                is_value = False
            elif argument in known:
                is_value = argument not in _ALONE and not getattr(known[argument], "is_flag", True)
            elif re.fullmatch(r"-[A-Za-z]{2,}", argument):
                return argument
        return None


def _short(param: Any) -> Any:
    """The parameter in the panel where the short help shows it."""
    param = copy(param)
    panel = getattr(param, "rich_help_panel", None)
    param.rich_help_panel = _SHORT_PANELS.get(panel, panel)
    return param


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
