"""A row of the option table as a flag: spellings, parser of its text, completions."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from localspec.commands.flags.completion import drafts, models
from localspec.core.options.option import Bounds, Option, options

Given = Mapping[str, Any]  # values by the names of their rows, those that were given alone


def choice(*allowed: str) -> Callable[[str], str]:
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


def source_of(context: typer.Context, name: str) -> str:
    """COMMANDLINE, ENVIRONMENT or DEFAULT: the origin of a parameter's value."""
    source = context.get_parameter_source(name)
    return "DEFAULT" if source is None else source.name


def given_flags(group: object) -> list[str]:
    return [
        flag_for(row, getattr(group, row.name))
        for row in options(type(group)).values()
        if getattr(group, row.name) != row.default
    ]


def flag_for(row: Option, value: object) -> str:
    on, _, off = row.flags[0].partition("/")
    return off if off and value is False else on


def variable_of(row: Option) -> str:
    return row.envvar or f"LOCALSPEC_{row.name.upper()}"


def value_of(row: Option, given: object) -> Any:
    """The value of a setting in a file or text; raises typer.BadParameter, ValueError."""
    if isinstance(given, bool):
        if row.item is bool or given in row.words.values():
            return given
        raise ValueError("this is not a switch")
    text = given if isinstance(given, str) else f"{given!r}"
    parse = parser_of(row)
    if parse is not None:
        return parse(text)
    if row.item is bool:
        raise ValueError(f"{text[:99]!r} is neither true nor false")
    return row.item(text)


def completion_of(row: Option) -> Callable[[], list[str]] | None:
    """The shell's completions for the value; files if there are none."""
    if (row.metavar or "").startswith("MODEL"):
        return models if row.metavar == "MODEL" else drafts
    words = list(dict.fromkeys((*row.choices, *row.words)))
    return (lambda: words) if words else None


def metavar_of(row: Option) -> str | None:
    names = {int: "N", float: "N", Path: "FILE", str: "TEXT"}
    return row.metavar or "|".join(row.choices) or names.get(row.item)


def parser_of(row: Option) -> Callable[[str], Any] | None:
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
