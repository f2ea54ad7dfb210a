"""Flags of commands, made of the rows of the option table."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from localspec.commands.flags.completion import drafts, models
from localspec.core.errors import LocalspecError
from localspec.core.options.option import Bounds, Option, options

Given = Mapping[str, Any]  # values by the names of their rows, those that were given alone
_HIDDEN = "_hidden"  # ends the name of the parameter for an older spelling


def _show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with the advanced options too, and end."""
    if wanted and not context.resilient_parsing:
        context.meta["help_all"] = True
        context.get_help()
        raise typer.Exit


_HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options.")
]


def choice(*allowed: str) -> Callable[[str], str]:
    """A parser that accepts only the given words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}.")
        return text

    return parse


def number(
    bounds: Bounds[Any], words: Mapping[str, object], kind: type[float] = int
) -> Callable[[str], object]:
    """A parser of a number within bounds, and of words that stand for values."""
    digits, shown = (r"\s*[+-]?\d{1,20}\s*", "d") if kind is int else (r".+", "g")

    def parse(text: str) -> object:
        if text in words:
            return words[text]
        try:
            value = kind(text) if re.fullmatch(digits, text, re.ASCII) else math.nan
        except ValueError:
            value = math.nan
        if not bounds.low <= value <= bounds.high:  # also for NaN
            others = "".join(f", or {word}" for word in words)
            low, high = format(bounds.low, shown), format(bounds.high, shown)
            numeral = "a number" if kind is float else "a whole number"
            raise typer.BadParameter(
                f"expected {numeral} from {low} to {high}{others}, not {text[:99]!r}."
            )
        return value

    return parse


def spread_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: each row of a group becomes a flag of the command.

    A group is a dataclass, or ``Annotated[Given, ...]`` with dataclasses, of which the command
    gets what was given. Typer reads the flags from a signature, so the wrapper carries one with
    the groups spread out.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = [_keyword("context", typer.Context, inspect.Parameter.empty)]
    # An optional name stands for --target; but in `run`, words beside a target are the prompt.
    asked = inspect.signature(function).parameters
    may_be_target = "name" in asked and asked["name"].default is None and "prompting" not in asked
    groups: dict[str, tuple[Any, list[Option]]] = {}
    for parameter in asked.values():
        annotation = hints[parameter.name]
        classes = [each for each in (annotation, *_metadata(annotation)) if is_dataclass(each)]
        if not classes:
            parameters.append(_keyword(parameter.name, annotation, parameter.default))
            continue
        rows = [row for row in options(*classes).values() if row.help]
        groups[parameter.name] = (annotation if annotation in classes else dict, rows)
        parameters += [each for row in rows for each in _parameters(row)]

    @functools.wraps(function)
    def command(context: typer.Context, **values: Any) -> None:
        # The module imports the groups.
        from localspec.commands.flags.settings import filled_in, places_of

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


def source_of(context: typer.Context, name: str) -> str:
    """COMMANDLINE, ENVIRONMENT or DEFAULT: where a parameter's value came from."""
    source = context.get_parameter_source(name)
    return "DEFAULT" if source is None else source.name


def given_flags(group: object) -> list[str]:
    """The flags of a dataclass whose values are not the defaults."""
    return [
        flag_for(row, getattr(group, row.name))
        for row in options(type(group)).values()
        if getattr(group, row.name) != row.default
    ]


def flag_for(row: Option, value: object) -> str:
    """The flag that gives this value."""
    on, _, off = row.flags[0].partition("/")
    return off if off and value is False else on


def variable_of(row: Option) -> str:
    """The environment variable that stands for a flag."""
    return row.envvar or f"LOCALSPEC_{row.name.upper()}"


def value_of(row: Option, given: object) -> Any:
    """The value that a setting stands for, of a file or as text.

    Raises typer.BadParameter or ValueError.
    """
    if isinstance(given, bool):
        if row.item is bool or given in row.words.values():
            return given
        raise ValueError("this is no switch")
    text = given if isinstance(given, str) else f"{given!r}"
    parse = _parser(row)
    if parse is not None:
        return parse(text)
    if row.item is bool:
        raise ValueError(f"{text[:99]!r} is neither true nor false")
    return row.item(text)


def _metadata(annotation: Any) -> Sequence[Any]:
    return getattr(annotation, "__metadata__", ())


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=annotation)


def _parameters(row: Option) -> list[inspect.Parameter]:
    """The parameters of a row: that of its flag, and that of its older spelling."""
    parse = _parser(row)
    kind: Any = str if parse is not None else row.item
    kind = list[kind] if row.many else kind
    known: dict[str, Any] = {"help": row.help_text, "metavar": _metavar(row), "parser": parse}
    known |= {"rich_help_panel": row.panel, "show_default": False}
    known |= {"envvar": variable_of(row), "show_envvar": row.envvar is not None}
    known |= {"autocompletion": _completion(row)}
    made = typer.Option(*row.flags, **known) if row.flags else typer.Argument(**known)
    found = [_keyword(row.name, Annotated[kind | None, made], None)]
    if row.hidden_flag is not None:
        hidden = typer.Option(row.hidden_flag, hidden=True, **known)
        found.append(_keyword(row.name + _HIDDEN, Annotated[kind | None, hidden], None))
    return found


def _completion(row: Option) -> Callable[[], list[str]] | None:
    """What the shell offers for the value; where that is nothing, files."""
    if (row.metavar or "").startswith("MODEL"):
        return models if row.metavar == "MODEL" else drafts
    words = list(dict.fromkeys((*row.choices, *row.words)))
    return (lambda: words) if words else None


def _metavar(row: Option) -> str | None:
    """What stands for the value in the help."""
    names = {int: "N", float: "N", Path: "FILE", str: "TEXT"}
    return row.metavar or "|".join(row.choices) or names.get(row.item)


def _parser(row: Option) -> Callable[[str], Any] | None:
    """What reads the text of a flag, unless Typer does."""
    if row.parse is not None:
        return _parsed_by(row.parse)
    if row.choices:
        return choice(*row.choices)
    if row.bounds is not None:
        return number(row.asked or row.bounds, row.words, row.item)
    if row.words:
        return lambda word: row.words[choice(*row.words)(word)]
    return None


def _parsed_by(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser whose ValueError becomes a usage error."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text[:99]!r}: {error}.") from None

    return parsed


def _given(row: Option, values: dict[str, Any]) -> Any:
    """The value of a row, taken from those of the parameters; None if it was not given."""
    value, old = values.pop(row.name), values.pop(row.name + _HIDDEN, None)
    value = old if value is None else value
    if row.many:
        return tuple(value) if value else None
    if row.item is bool and row.default is True and not row.words:
        return None if value is None else not value
    return value
