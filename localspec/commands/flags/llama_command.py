"""Commands that take llama.cpp's spellings, and whose help shows the options of every day."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand

from localspec.commands.flags.rows import source_of
from localspec.core.errors import UsageError
from localspec.display.terminal import console

_ALONE = ("-fa", "--flash-attn")  # options that may stand alone, which means on
# llama.cpp's spellings of options that have another name here, and an older one of ours, with their
# replacements; a spelling that a command has itself is left alone. A second word is put before the
# value.
_OURS = {
    spelling: ours
    for spellings, ours in (
        ("-hf -hfr --hf-repo", "--target hf:"),
        ("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "--draft-model hf:"),
        ("--model-draft --spec-draft-model", "--draft-model"),
        ("--draft-n --draft-max --spec-draft-n-max", "--draft-tokens"),
        ("--threads-draft --spec-draft-threads", "--draft-threads"),
        ("--device-draft --spec-draft-device", "--draft-device"),
        ("--gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", "--draft-n-gpu-layers"),
        ("--spec-draft-type-k", "-ctkd"),
        ("--spec-draft-type-v", "-ctvd"),
        ("--spec-draft-override-tensor", "-otd"),
        ("--gpu-layers", "-ngl"),
        ("--predict --n-predict", "--max-tokens"),
        ("-r --reverse-prompt", "--stop"),
        ("--system-prompt", "--system"),
        ("-no-cnv --no-conversation", "--raw"),
        ("--suffix", "--prompt-lookup"),
    )
    for spelling in spellings.split()
}
# Options of llama.cpp that are left out with a note, and whether a value follows them.
_IGNORED = {
    **dict.fromkeys(("--draft-min", "--draft-n-min", "--spec-draft-n-min"), True),
    **dict.fromkeys(("--draft-p-min", "--spec-draft-p-min"), True),
    **dict.fromkeys(("--draft-p-split", "--spec-draft-p-split"), True),
    **dict.fromkeys(("--jinja", "--no-warmup", "-st", "--single-turn"), False),
    **dict.fromkeys(("-co", "--color", "--log-disable", "-e", "--escape"), False),
}
_COMMANDS = {"-cnv": "localspec chat", "-i": "localspec chat", "-no-cnv": "localspec run --raw"}
# Guesses whose nearest spelling means something else.
_MEANT = {"--no-draft": "--draft off", "--num-predict": "--max-tokens", "--quick": "-n 32"}
_FLAG = re.compile(r"--?[A-Za-z][\w-]*(=.*)?", re.DOTALL)
_SHORT = re.compile(r"-[A-Za-z]{2}[A-Za-z-]*")
_FLAGS = "docs/reference/llama-cpp-flags.md"
_TABLE = f"Names of llama.cpp's flags here: {_FLAGS}."
_PROMPT = "A prompt that begins with a dash comes after -- or -p"
# Panels that the short help shows as one.
_SHORT_PANELS: dict[str | None, str] = {
    "Thinking and chat template": "Prompt and answer",
    "Lookup": "Drafting",
    "Devices": "Loading",
}
_UsageError: Any = typer.BadParameter.__mro__[1]  # which Typer does not export


class LlamaCommand(TyperCommand):
    """A command that takes llama.cpp's flags; for an unknown one it names the list of them."""

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
        known: dict[str, Any] = {
            name: param for param in self.params for name in (*param.opts, *param.secondary_opts)
        }
        if not ctx.resilient_parsing:  # while the shell completes a line, nothing is refused
            args = _translated(args, known)
            for unknown, _ in _unknown(args, known):
                if not _SHORT.fullmatch(unknown) and unknown not in _COMMANDS:
                    continue
                ctx.fail(f"No such option: {unknown}.{_near(unknown, known)}")
        try:
            return super().parse_args(ctx, complete(args))
        except _UsageError as error:
            if hasattr(error, "possibilities"):  # NoSuchOption; its own are not near
                written = (each for each, _ in _unknown(args, known))
                whole = (each for each in written if each.startswith(error.option_name))
                error.message += f".{_near(next(whole, error.option_name), known)}"
                error.possibilities = None
            _name_source(error, ctx)
            raise


def _name_source(error: Any, context: Any) -> None:
    """Let the error of a value name the variable that it came from."""
    param = getattr(error, "param", None)
    if param is None:
        return
    if source_of(context, param.name) == "ENVIRONMENT":
        error.param_hint = f"'{param.envvar}'"
        if param.is_flag:
            error.message = "expected true or false."


def _unknown(arguments: Sequence[str], known: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Flags that a command does not have, such as ``-cnv``, else read as ``-c nv``; their places.

    Left out are values of flags that it has, and arguments after ``--``.
    """
    is_value = False
    for place, argument in enumerate(arguments):
        if argument == "--":
            return
        if is_value:
            is_value = False
        elif argument in known:
            is_value = argument not in _ALONE and not getattr(known[argument], "is_flag", True)
        elif argument.startswith("-"):
            yield argument, place


def _translated(arguments: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """The arguments with llama.cpp's spellings replaced by those that the command has."""
    made: list[str] = []
    done = 0
    for argument, place in _unknown(arguments, known):
        flag, equals, value = argument.partition("=")
        ours, _, prefix = _OURS.get(flag, "").partition(" ")
        if place < done or (flag not in _IGNORED and ours not in known):
            continue
        made += arguments[done:place]
        takes_value = _IGNORED[flag] if flag in _IGNORED else not known[ours].is_flag
        done = place + (2 if takes_value and not equals else 1)
        if flag in _IGNORED:
            console.note(f"{flag} has no effect here, see {_FLAGS}.")
            continue
        values = [value] if equals else arguments[place + 1 : done]
        if takes_value and (not values or (prefix and values[0].startswith("-"))):
            hint = f"Write {flag} org/repo:Q4_K_M." if prefix else f"See {_FLAGS}."
            raise UsageError(f"{flag} has no value.", hint)
        made += [ours, *(prefix + each.removeprefix(prefix) for each in values)]
    return [*made, *arguments[done:]]


def _near(flag: str, known: Mapping[str, Any]) -> str:
    """The likely meaning of an unknown flag: another one, or a prompt."""
    if _FLAG.fullmatch(flag) is None and "--prompt" in known:
        return f" {_PROMPT}: -p {shlex.quote(flag)}"
    if flag in _COMMANDS:
        return f" That is the command: {_COMMANDS[flag]}. {_TABLE}"
    doubled = [f"-{flag}"] if f"-{flag}" in known else []
    near = [_MEANT[flag]] if flag in _MEANT else doubled
    near = near or get_close_matches(flag, [each for each in known if len(each) > 2], n=1)
    words = [f"Did you mean {near[0]}?" if near else "", _TABLE]
    words += [f"{_PROMPT}."] if "--prompt" in known else []
    return " " + " ".join(filter(None, words))


def _short(param: Any) -> Any:
    param = copy(param)
    panel = getattr(param, "rich_help_panel", None)
    param.rich_help_panel = _SHORT_PANELS.get(panel, panel)
    return param


def complete(arguments: Sequence[str]) -> list[str]:
    """The arguments with a value after each option that was given without one."""
    completed: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--":
            return [*completed, *arguments[i:]]
        completed.append(argument)
        if argument in _ALONE and arguments[i + 1 : i + 2] not in (["on"], ["off"], ["auto"]):
            completed.append("on")
    return completed
