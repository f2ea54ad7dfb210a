"""Flags for how a conversation becomes a prompt: the chat template and what it is told."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.commands.flags.groups import choice
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text

_PANEL = "Thinking and chat template"
# The levels of llama.cpp; a template knows some of them.
_efforts = choice("default", "minimal", "low", "medium", "high", "xhigh", "max")
_MAX_TEMPLATE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TemplateFlags:
    """How a conversation becomes a prompt."""

    thinking: Annotated[
        bool | None,
        typer.Option(
            "--think/--no-think",
            help="Let the model think before it answers, or not, if its template knows both.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            "--reasoning-effort",
            parser=_efforts,
            metavar="low|medium|high",
            help="How much the model thinks, if its template knows that.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template",
            metavar="TEXT|chatml",
            help="A Jinja template in place of the model's own.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    chat_template_file: Annotated[
        Path | None,
        typer.Option(
            "--chat-template-file", help="Read the template from this file.", rich_help_panel=_PANEL
        ),
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            "--chat-template-kwargs",
            metavar="JSON",
            help="What else the template is told: '{\"enable_thinking\": false}'.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    def given(self) -> list[str]:
        """The flags of this group that were given."""
        values = {
            "--think" if self.thinking else "--no-think": self.thinking,
            "--reasoning-effort": self.reasoning_effort,
            "--chat-template": self.chat_template,
            "--chat-template-file": self.chat_template_file,
            "--chat-template-kwargs": self.chat_template_kwargs,
        }
        return [flag for flag, value in values.items() if value is not None]

    def check(self) -> None:
        """Raise UsageError, FileProblem or TemplateError for what no model could use."""
        from localspec.chat.sandbox import names_read

        self.variables()
        if (source := self.source()) is not None:
            names_read(source)

    def source(self) -> str | None:
        """The template to use in place of the model's own; raises UsageError, FileProblem."""
        from localspec.chat.template import NAMED

        text, file = self.chat_template, self.chat_template_file
        if text is not None and file is not None:
            raise UsageError("Two chat templates were given.", "Give a text or a file.")
        if file is not None:
            return _read_template(file)
        if text is None or _is_jinja(text):
            return text
        if text not in NAMED:
            raise UsageError(
                f"{text!r} is no chat template: it has no Jinja in it, and no template has that "
                "name.",
                f"Known by name: {', '.join(NAMED)}. Others: --chat-template-file FILE.",
            )
        return NAMED[text]

    def variables(self) -> Mapping[str, Any]:
        """What the template is told besides the messages; raises UsageError."""
        effort = self.reasoning_effort
        variables = {} if effort in (None, "default") else {"reasoning_effort": effort}
        if self.chat_template_kwargs is None:
            return variables
        try:
            given = json.loads(self.chat_template_kwargs)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"--chat-template-kwargs is no JSON: {error}.", _EXPECTED_KWARGS
            ) from error
        if not isinstance(given, dict):
            raise UsageError("--chat-template-kwargs is no JSON object.", _EXPECTED_KWARGS)
        if kept := given.keys() & {"messages", "add_generation_prompt"}:
            raise UsageError(
                f"--chat-template-kwargs cannot set {min(kept)}: localspec does.", _EXPECTED_KWARGS
            )
        return variables | given


_EXPECTED_KWARGS = """Expected something like '{"enable_thinking": false}'."""


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text


@cache
def _read_template(file: Path) -> str:
    """What is in the file, which may be a pipe: read once."""
    wanted = "a Jinja template"
    text = read_text(file, _MAX_TEMPLATE_BYTES, what="The chat template ", expected=wanted)
    if not _is_jinja(text):
        raise FileProblem(f"The chat template {file} has no Jinja in it.", f"Give {wanted}.")
    return text
