"""Flags of the chat template and its variables."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.option import Bounds, option

# The levels of llama.cpp; a template knows some of them.
Effort = Literal["default", "minimal", "low", "medium", "high", "xhigh", "max"]
_MAX_TEMPLATE_BYTES = 2**20

_template = partial(option, None, panel="Thinking and chat template")


@dataclass(frozen=True, slots=True)
class TemplateFlags:
    """How a conversation becomes a prompt."""

    thinking: bool | None = _template(
        "--think/--no-think",
        "Let the model think first, or not, if its template supports both.",
        everyday=True,
    )
    reasoning_effort: Effort | None = _template(
        "--reasoning-effort",
        "How much the model thinks, if its template supports that.",
        metavar="low|medium|high",
    )
    reasoning_budget: int | None = _template(
        "--reasoning-budget",
        "Most tokens of thoughts; then their closing mark is forced. Default: -1, no limit.",
        bounds=Bounds(-1, 2**31),
    )
    reasoning_budget_message: str | None = _template(
        "--reasoning-budget-message", "Text before the mark that then ends them."
    )
    chat_template: str | None = _template(
        "--chat-template",
        "Jinja template in place of the model's own, or chatml.",
        metavar="TEXT|NAME",
    )
    chat_template_file: Path | None = _template(
        "--chat-template-file", "Read the chat template from this file."
    )
    chat_template_kwargs: str | None = _template(
        "--chat-template-kwargs",
        "Variables of the template: '{\"enable_thinking\": false}'.",
        metavar="JSON",
    )

    def limited(self, options: GenerateOptions) -> GenerateOptions:
        return replace(
            options,
            reasoning_budget=self.reasoning_budget,
            reasoning_budget_message=self.reasoning_budget_message,
        )

    def check(self) -> None:
        """Raise the errors of `source` and `Renderer.names_read` for unusable flags."""
        from localspec.chat.templates.renderer import SHARED

        self.variables()
        if (source := self.source()) is not None:
            SHARED.names_read(source, self.name())

    def source(self) -> str | None:
        from localspec.chat.templates.template import template_text

        text, file = self.chat_template, self.chat_template_file
        if text is not None and file is not None:
            raise UsageError("Two chat templates were given.", "Give a text or a file.")
        if file is not None:
            return _read_template(file)
        return None if text is None else template_text(text)

    def name(self) -> str:
        file = self.chat_template_file
        return "The chat template" if file is None else f"The chat template {file.name}"

    def variables(self) -> Mapping[str, Any]:
        effort = self.reasoning_effort
        variables = {} if effort in (None, "default") else {"reasoning_effort": effort}
        if self.chat_template_kwargs is None:
            return variables
        try:
            given = json.loads(self.chat_template_kwargs)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"--chat-template-kwargs is not JSON: {error}.", _EXPECTED_KWARGS
            ) from error
        if not isinstance(given, dict):
            raise UsageError("--chat-template-kwargs is not a JSON object.", _EXPECTED_KWARGS)
        if kept := given.keys() & {"messages", "add_generation_prompt"}:
            raise UsageError(
                f"--chat-template-kwargs cannot set {min(kept)}: localspec does.", _EXPECTED_KWARGS
            )
        return variables | given


_EXPECTED_KWARGS = """Expected something like '{"enable_thinking": false}'."""


@cache
def _read_template(file: Path) -> str:
    """The text of the file, which may be a pipe: read once."""
    from localspec.chat.templates.template import is_jinja

    wanted = "a Jinja template"
    text = read_text(file, _MAX_TEMPLATE_BYTES, what="The chat template ", expected=wanted)
    if not is_jinja(text):
        raise FileProblem(f"The chat template {file} has no Jinja in it.", f"Give {wanted}.")
    return text
