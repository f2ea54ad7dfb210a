"""Flag groups: a dataclass whose fields become options of a command."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer

from localspec.core.config import Bounds


def choice(*allowed: str) -> Callable[[str], str]:
    """A parser that accepts only the given words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(allowed)}.")
        return text

    return parse


def parsed_by(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser whose ValueError becomes a usage error."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text[:99]!r}: {error}.") from None

    return parsed


def whole(bounds: Bounds, words: Mapping[str, int]) -> Callable[[str], int]:
    """A parser of a whole number within bounds, and of words that stand for numbers."""

    def parse(text: str) -> int:
        if text in words:
            return words[text]
        if not text.isdecimal() or not bounds.low <= int(text[:20]) <= bounds.high:
            others = "".join(f", or {word}" for word in words)
            raise typer.BadParameter(
                f"{text[:99]!r} is no number from {bounds.low} to {bounds.high}{others}."
            )
        return int(text)

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """A parser of a number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # also false for NaN
            raise typer.BadParameter(f"{text[:99]!r} is no number from {low:g} to {high:g}.")
        return value

    return parse


def spread_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command take flag groups: each field of a group becomes an option of the command.

    Typer reads the options from a signature, so the wrapper carries one with the groups spread
    out, and gathers the values again before it calls ``function``.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints[parameter.name]
        if is_dataclass(annotation):
            assert isinstance(annotation, type)
            groups[parameter.name] = annotation
            parameters += _options(annotation)
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=keyword, annotation=annotation))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        function(**values)

    del command.__wrapped__  # its signature would win over ours
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(group)
    ]
