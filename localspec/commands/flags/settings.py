"""Settings that stay: values of options in the user's file, below flags and variables."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from localspec.commands.flags.rows import source_of, value_of
from localspec.core import paths
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import appearing_when_complete, file_problem, read_text
from localspec.core.options.option import Option, options

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_MOST_BYTES = 2**20
# Flags that select the work of one command.
_NEVER_KEPT = (
    *("draft", "draft_model", "recalibrate", "yes"),
    *("prompt_cache", "prompt_cache_ro", "show_draft", "resume", "session"),
)
# They have no place in `run --raw`.
_CHAT = ("system", "thinking", "reasoning_effort", "chat_template", "chat_template_kwargs")
MODELS = "models"  # the table of settings for one model each
TUNED = "tuned"  # the table of settings that `localspec tune` found, for one model each
_FOUND = ("date", "machine", "draft")  # of such settings
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings that `localspec tune` found for a model.

    ``machine`` is that of `tuned.this_machine`, ``draft`` the file name of the draft that a flag
    named, empty for none.
    """

    date: str
    machine: str
    draft: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of options by name: those for all models, and those for one by the model's name."""

    path: Path
    shared: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned: Mapping[str, Tuned] = field(default_factory=dict)

    def of_model(self, model: str | None) -> Mapping[str, Any]:
        """Those for a model, as it was named, or by the name of its file."""
        return _for_model(self.models, model) or {}

    def tuned_for(self, model: str | None) -> Tuned | None:
        """What `localspec tune` found for a model."""
        return _for_model(self.tuned, model)


def _for_model(tables: Mapping[str, _T], model: str | None) -> _T | None:
    names = [] if model is None else [model, Path(model).name, Path(model).stem]
    return next((tables[name] for name in names if name in tables), None)


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
        models, tuned = (_table(document.pop(name, {}), name) for name in (MODELS, TUNED))
        each = {name: _values(table, f"{MODELS}.{name}") for name, table in models.items()}
        found = {name: _tuned(table, f"{TUNED}.{name}") for name, table in tuned.items()}
        return Settings(path, _values(document), each, found)
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


def _table(found: object, place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{place} is not a table")
    return found


def _tuned(table: object, place: str) -> Tuned:
    values = dict(_table(table, place))
    date, machine, draft = (str(values.pop(name, "")) for name in _FOUND)
    other = values.pop("draft_model", None)  # no setting: flags name the draft of a command
    own = {} if other is None else {"draft_model": str(other)}
    return Tuned(date, machine, draft, _values(values, place) | own)


def _values(found: object, place: str = "the file") -> dict[str, Any]:
    table = _table(found, place)
    for name in table:
        if name not in setting_rows():
            setting_name(name)
            raise ValueError(f"{name} is a flag; the setting is {setting_name(name)}")
    return {name: setting_value(name, given) for name, given in table.items()}


def settings_document() -> "TOMLDocument":
    """The file with its comments and order."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    path = paths.config_file()
    try:
        return tomlkit.parse(settings_text(path))
    except (TOMLKitError, RecursionError) as error:
        raise FileProblem(f"{path}: {error}.", "Mend it: localspec config edit") from error


def write_settings(document: "TOMLDocument") -> None:
    path = paths.config_file()
    with file_problem(f"{path} cannot be written", "Name another: LOCALSPEC_CONFIG=FILE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with appearing_when_complete(path) as partial:
            partial.write_text(document.as_string(), encoding="utf-8")
