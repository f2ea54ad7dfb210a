"""The commands config: settings that stay, and the origin of each value."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.commands.flags.answer import HeaderFlag, JsonFlag
from localspec.commands.flags.completion import models
from localspec.commands.flags.rows import variable_of
from localspec.commands.flags.settings import (
    MODELS,
    read_settings,
    setting_name,
    setting_rows,
    setting_value,
    settings_document,
    write_settings,
)
from localspec.commands.flags.tuned import origin
from localspec.core import paths
from localspec.core.errors import FileProblem, UsageError
from localspec.core.formatting import one_line
from localspec.display.terminal import console
from localspec.hub.reference import parse_reference
from localspec.library.pairs import user_pairs
from localspec.library.resolve import Resolver, is_known

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A setting, such as temperature.",
        autocompletion=lambda: list(setting_rows()),
    ),
]
_Model = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="MODEL", help="Only for this pair or file name.", autocompletion=models
    ),
]
_SECRET = ("api_key",)
_SWITCHES = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}  # of a variable
_ANY_SPELLING = {"ignore_unknown_options": True}  # temperature, or --temp
config_app = typer.Typer(
    help="Settings that stay: list them, set and unset them.", invoke_without_command=True
)


@config_app.callback()
def config(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also list defaults.")] = False,
    as_json: JsonFlag = False,
    header: HeaderFlag = True,
) -> None:
    """List settings, each with its origin: a variable, the file or the default.

    A flag wins over a variable, that over the file's value for a model, that over a pair's own
    setting, that over the file's value for all models.
    """
    if context.invoked_subcommand is not None:
        return
    from localspec.display import models as lists

    rows = [
        (name, "(hidden)" if value and name in _SECRET else value, place)
        for name, value, place in _listed()
        if everything or place != "default"
    ]
    if as_json:
        named = [{"name": n, "value": _plain(n, v), "from": place} for n, v, place in rows]
        console.json_line({"settings": named})
    elif rows:
        cells = [(n, _shown(v), place) for n, v, place in rows]
        lists.table(("SETTING", "VALUE", "FROM"), cells, header=header)
    else:
        console.note("Nothing is set. To set something: localspec config set temperature 0.7")
        console.note("All settings with their defaults: localspec config --all")


config_app.command("list", hidden=True)(config)


@config_app.command("get", context_settings=_ANY_SPELLING)
def config_get(name: _Name) -> None:
    """Print the value of a setting: that of a variable, of the file, or the default."""
    name = setting_name(name)
    value = next(value for found, value, _ in _listed() if found == name)
    console.text(f"{_shown(value)}\n")


def _listed() -> Iterator[tuple[str, Any, str]]:
    settings = read_settings()
    for name, row in setting_rows().items():
        variable = variable_of(row)
        if variable in os.environ:
            yield name, _from_variable(name, os.environ[variable], variable), variable
        elif name in settings.shared:
            yield name, settings.shared[name], str(settings.path)
        else:
            yield name, row.default, "default"
    for model, table in settings.models.items():
        for name, value in table.items():
            yield name, value, f"{settings.path}, {MODELS}.{model}"
    for model, found in settings.tuned.items():
        for name, value in found.values.items():
            yield name, value, f"localspec tune, {model}, {origin(found)}"


def _from_variable(name: str, text: str, variable: str) -> Any:
    """The value as a flag would have it, so that a setting has one type wherever it is set."""
    row = setting_rows()[name]
    given: object = text
    if row.many:
        given = text.split(os.pathsep if row.item is Path else None)  # as the parser of flags does
    elif row.item is bool and not row.words:
        given = _SWITCHES.get(text.strip().lower(), text)
    try:
        return setting_value(name, given)
    except UsageError as problem:
        raise UsageError(problem.message, f"The variable {variable} sets it.") from None


def _plain(name: str, value: object) -> object:
    """The value as data, of one type for each setting: numbers, switches and lists, else text."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [_plain(name, each) for each in value]
    if value == "auto" and name in setting_rows() and setting_rows()[name].item is int:
        return -1  # which such a setting reads as auto
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "–" if value is None else str(value)


@config_app.command("set", context_settings=_ANY_SPELLING)
def config_set(
    name: _Name,
    values: Annotated[list[str], typer.Argument(metavar="VALUE...")],
    model: _Model = None,
) -> None:
    """Keep a value for every command, or --for one model."""
    name = setting_name(name)
    many = setting_rows()[name].many
    given: list[Any] = values if many else [_typed(value) for value in values]
    value = setting_value(name, given)
    if name == "target" and os.path.isfile(os.path.expanduser(str(value))):
        value = Path(str(value))  # else it is the name of a model
    files = [path for path in (value if many else (value,)) if isinstance(path, Path)]
    if files:  # the setting counts in every folder, so a path from this one is made absolute
        given = [os.path.abspath(path.expanduser()) for path in files]
    document = settings_document()
    table = document
    if model is not None:
        table = document.setdefault(MODELS, {}).setdefault(model, {})
    table[name] = given if many else given[0]
    write_settings(document)
    named = str(value) if name == "target" else model
    if named is not None and not _is_here(named):
        console.note(f"No pair or model here is called {named!r}: see localspec pairs and list.")
    for path in files:
        if not os.path.exists(path):
            place = one_line(str(path))
            console.note(f"{name} is set, but there is no {place} yet: commands that use it fail.")


def _is_here(model: str) -> bool:
    if user_pairs.spellings(model) or is_known(model) or parse_reference(model) is not None:
        return True
    files = (each.path for each in Resolver().inventory.files)
    return os.path.exists(model) or any(model in (path.name, path.stem) for path in files)


@config_app.command("unset", context_settings=_ANY_SPELLING)
def config_unset(name: _Name, model: _Model = None) -> None:
    """Forget a value."""
    document = settings_document()
    table = document if model is None else document.get(MODELS, {}).get(model, {})
    if name not in table:  # names that no version knows can be unset too
        name = setting_name(name)
    if name not in table:
        console.note(f"Nothing to unset: {name} is not set.")
        return
    del table[name]
    if model is not None and not table:
        del document[MODELS][model]
    write_settings(document)


@config_app.command("path")
def config_path() -> None:
    """Print the path of the file."""
    console.text(f"{paths.config_file()}\n")


@config_app.command("edit")
def config_edit() -> None:
    """Open the file in $VISUAL or $EDITOR."""
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), str(path)]).returncode
        reason = f"its exit code is {code}"
    except (OSError, ValueError) as error:
        code, reason = 1, getattr(error, "strerror", None) or str(error)
    if code:
        hint = "Set EDITOR to an editor of yours."
        raise FileProblem(f"{editor} did not edit {path}: {reason}.", hint)
    read_settings()


def _typed(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
