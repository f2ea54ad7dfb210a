"""Settings that stay: values of options in the user's file, below flags and variables."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import typer

from localspec.commands.flags.rows import source_of, value_of
from localspec.core import paths
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_text
from localspec.core.options.option import Option, options

_MOST_BYTES = 2**20
# Flags that select the work of one command.
_NEVER_KEPT = (
    *("draft", "draft_model", "recalibrate", "yes"),
    *("prompt_cache", "prompt_cache_ro", "show_draft", "resume", "session"),
)
# They have no place in `run --raw`.
_CHAT = ("system", "thinking", "reasoning_effort", "chat_template", "chat_template_kwargs")
MODELS = "models"  # the table of settings for one model each


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of options by name: those for all models, and those for one by the model's name."""

    path: Path
    shared: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of_model(self, model: str | None) -> Mapping[str, Any]:
        """Those for a model, as it was named, or by the name of its file."""
        names = [] if model is None else [model, Path(model).name, Path(model).stem]
        return next((self.models[name] for name in names if name in self.models), {})


@cache
def setting_rows() -> dict[str, Option]:
    from localspec.commands.flags.pair import PAIR_ROWS

    rows = {**options(*groups_with_settings()), **PAIR_ROWS}
    return {name: row for name, row in rows.items() if row.help and name not in _NEVER_KEPT}


@cache
def groups_with_settings() -> tuple[type[Any], ...]:
    """The groups of flags for which the file fills in, in addition to those of a pair."""
    from localspec.commands.chat.flags import ConversationFlags
    from localspec.commands.flags.answer import AnswerFlags
    from localspec.commands.flags.serving import ServingFlags
    from localspec.commands.flags.template import TemplateFlags

    return AnswerFlags, ConversationFlags, TemplateFlags, ServingFlags


def read_settings() -> Settings:
    path = paths.config_file()
    try:
        document = tomllib.loads(settings_text(path))
        models = document.pop(MODELS, {})
        if not isinstance(models, dict):
            raise ValueError(f"{MODELS} is not a table")
        each = {name: _values(table, f"{MODELS}.{name}") for name, table in models.items()}
        return Settings(path, _values(document), each)
    except (ValueError, RecursionError, UsageError) as error:
        reason = f"{error.message} {error.hint}" if isinstance(error, UsageError) else f"{error}."
        raise FileProblem(
            f"{path}: {reason}", "Mend it: localspec config edit, or localspec config unset NAME."
        ) from error


def settings_text(path: Path) -> str:
    """The text of the user's file, "" without one; raises FileProblem."""
    try:
        return read_text(path, _MOST_BYTES, what="The settings ")
    except FileProblem as problem:
        if isinstance(problem.__cause__, FileNotFoundError | NotADirectoryError):
            return ""
        raise


def default_target() -> str | None:
    target: str | None = read_settings().shared.get("target")
    return target


def filled_in(group: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The file's values for a group of flags, for a command that got these values."""
    if group not in groups_with_settings():
        return {}
    settings = read_settings()
    first = next(iter(values.get("names") or ()), None)  # of several models
    found = {
        **settings.shared,
        **settings.of_model(values.get("target") or first or values.get("name")),
    }
    rows = [name for name in options(group) if name in found]
    return {name: found[name] for name in rows if not (values.get("raw") and name in _CHAT)}


def places_of(context: typer.Context, message: str) -> Iterator[str]:
    """The places where values that an error names were set, if not on the command line."""
    settings = read_settings()
    tables = {"": settings.shared, **{f", {MODELS}.{m}": t for m, t in settings.models.items()}}
    for param in context.command.params:
        name = param.name or ""
        source = source_of(context, name)
        if source == "ENVIRONMENT":
            found = [(str(param.envvar), os.environ[str(param.envvar)])]
        elif source == "DEFAULT":
            found = [(f"{settings.path}{k}", t[name]) for k, t in tables.items() if name in t]
        else:
            continue
        for place, value in found:
            if any(_names(message, word) for word in (*param.opts, str(value))):
                yield f"{place} sets {name}."


def _names(message: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", message) is not None


def setting_name(text: str) -> str:
    """The name of an option, given as its name or as a flag; raises UsageError with near names."""
    rows = setting_rows()
    flags = {flag.partition("/")[0]: n for n, row in rows.items() for flag in row.flags}
    known = {flag.lstrip("-"): n for flag, n in flags.items()} | {name: name for name in rows}
    wanted = text.lstrip("-")
    for spelling in (wanted, wanted.replace("_", "-"), wanted.replace("-", "_")):
        if spelling in known:
            return known[spelling]
    near = get_close_matches(wanted.replace("-", "_"), setting_rows(), 3)
    hint = f"Did you mean {' or '.join(near)}?" if near else "See: localspec config --all"
    raise UsageError(f"There is no setting {text[:99]!r}.", hint)


def setting_value(name: str, given: object) -> Any:
    """The value of an option as a flag would have it; raises UsageError."""
    row = setting_rows()[name]
    texts = given if isinstance(given, list | tuple) else [given]
    try:
        values = [value_of(row, each) for each in texts]
    except (typer.BadParameter, ValueError) as error:
        reason = error.message if isinstance(error, typer.BadParameter) else f"{error}."
        raise UsageError(f"{name}: {reason}", row.help) from None
    if row.many:
        return tuple(values)
    if len(values) != 1:
        raise UsageError(f"{name} takes one value.", row.help)
    return values[0]


def _values(table: object, place: str = "the file") -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ValueError(f"{place} is not a table")
    for name in table:
        if name not in setting_rows():
            setting_name(name)
            raise ValueError(f"{name} is a flag; the setting is {setting_name(name)}")
    return {name: setting_value(name, given) for name, given in table.items()}
