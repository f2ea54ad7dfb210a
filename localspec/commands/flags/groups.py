"""Flags of commands, made of the rows of the option table."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from localspec.commands.flags.rows import (
    completion_of,
    metavar_of,
    parser_of,
    source_of,
    variable_of,
)
from localspec.commands.flags.settings import filled_in, places_of
from localspec.core.errors import LocalspecError
from localspec.core.options.option import Option, options


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with the advanced options too, and end."""
    if wanted and not context.resilient_parsing:
        context.meta["help_all"] = True
        context.get_help()
        raise typer.Exit


_HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options.")
]


def spread_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: each row of a group becomes a flag of the command.

    A group is a dataclass, or ``Annotated[Given, ...]`` with dataclasses, whose given values
    the command gets. Typer reads the flags from a signature, so the wrapper carries one with
    the groups spread out.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = [_keyword("context", typer.Context, inspect.Parameter.empty)]
    # An optional name stands for --target; but in `run`, words next to --target are the prompt.
    asked = inspect.signature(function).parameters
    may_be_target = "name" in asked and asked["name"].default is None and "prompting" not in asked
    groups: dict[str, tuple[Any, list[Option]]] = {}
    for parameter in asked.values():
        annotation = hints[parameter.name]
        hinted = (annotation, *getattr(annotation, "__metadata__", ()))
        classes = [each for each in hinted if is_dataclass(each)]
        if not classes:
            parameters.append(_keyword(parameter.name, annotation, parameter.default))
            continue
        rows = [row for row in options(*classes).values() if row.help]
        groups[parameter.name] = (annotation if annotation in classes else dict, rows)
        parameters += map(_parameter, rows)

    @functools.wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        values.pop("help_all", None)
        if may_be_target and values["name"] is not None:
            if source_of(context, "target") == "ENVIRONMENT":
                values["target"] = None
        everything = dict(values)
        try:
            for name, (make, rows) in groups.items():
                given = {row.name: _given(row, values) for row in rows}
                given = {key: each for key, each in given.items() if each is not None}
                values[name] = make(**{**filled_in(make, everything), **given})
            function(**values)
        except LocalspecError as problem:
            places = places_of(context, problem.message)
            problem.hint = " ".join((*places, problem.hint)).strip()
            raise

    advanced = {row.name for _, rows in groups.values() for row in rows if not row.everyday}
    if advanced:
        parameters.append(_keyword("help_all", _HelpAll, False))
    del command.__wrapped__  # its signature would win over ours
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.advanced = advanced  # type: ignore[attr-defined]
    return command


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _parameter(row: Option) -> inspect.Parameter:
    parse = parser_of(row)
    kind: Any = str if parse is not None else row.item
    kind = list[kind] if row.many else kind
    known: dict[str, Any] = {"help": row.help_text, "metavar": metavar_of(row), "parser": parse}
    known |= {"rich_help_panel": row.panel, "show_default": False}
    known |= {"envvar": variable_of(row), "show_envvar": row.envvar is not None}
    known |= {"autocompletion": completion_of(row)}
    made = typer.Option(*row.flags, **known) if row.flags else typer.Argument(**known)
    return _keyword(row.name, Annotated[kind | None, made], None)


def _given(row: Option, values: dict[str, Any]) -> Any:
    """The value of a row, taken from those of the parameters; None if it was not given."""
    value = values.pop(row.name)
    if row.many:
        return tuple(value) if value else None
    turns_off = row.flags and "/" not in row.flags[0]  # such as --no-mmap
    if row.item is bool and row.default is True and not row.words and turns_off:
        return None if value is None else not value
    return value
