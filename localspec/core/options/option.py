"""Table of options: a dataclass field is a row, its metadata names flags, bounds and help.

    temperature: float = option(0.8, "--temp --temperature", "Sampling temperature.", ...)

The flags of the commands, the schema of pair files, the sampling fields of requests and the checks
of bounds all come from these rows.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from localspec.core.errors import UsageError

_Number = TypeVar("_Number", int, float)
AUTO = "auto"  # as a value that was given: decide as if nothing had been given
_TYPES: Mapping[Any, tuple[Any, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a text"),
    Path: (Path, "a path"),
}
DRAFTING = "Drafting"  # a panel of the help, as all that is named `panel`


class Bounds(NamedTuple, Generic[_Number]):
    """The least and the largest value of a number."""

    low: _Number
    high: _Number


class DraftFlag(NamedTuple):
    """The flag that sets the field for the draft; spellings are parted by blanks."""

    flags: str
    help: str
    takes_words: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    ``flags`` are its spellings, first the one that messages name; a row without any is an
    argument, and one without help text has only bounds. ``everyday`` options are in the short help.
    ``words`` map words that stand for values, ``parse`` reads the text of any other value and
    raises ValueError.

    ``bounds`` are those of the value; ``asked`` are wider ones for the text that users may write.
    ``stored``: a pair's file may hold it. ``request``: a request of the server may hold it, within
    narrower bounds if there are any. ``gguf_key`` below `general.sampling.` recommends it.
    ``llama_cpp``: llama.cpp has a flag of the first spelling. ``affects_speed``: speed or results
    depend on it, so measurements of a pair are stored separately for each value;
    ``state``: saved states of tokens depend on it by more than rounding.

    ``name``, ``default`` and the rest come from the field: ``item`` is the type of the value, or of
    each of ``many`` values; ``choices`` are the words that a Literal allows.
    """

    flags: tuple[str, ...] = ()
    help: str = ""
    panel: str | None = None
    metavar: str | None = None
    bounds: Bounds[Any] | None = None
    asked: Bounds[Any] | None = None
    words: Mapping[str, object] = field(default_factory=dict)
    parse: Callable[[str], Any] | None = None
    envvar: str | None = None
    everyday: bool = False
    stored: bool = False
    request: bool | Bounds[Any] = False
    gguf_key: str | None = None
    llama_cpp: bool = True
    affects_speed: bool = True
    state: bool = True
    draft: DraftFlag | None = None
    name: str = ""
    default: Any = None
    item: Any = str
    many: bool | None = None
    choices: tuple[str, ...] = ()

    @property
    def help_text(self) -> str:
        """The help with the default, if there is one that the help does not name."""
        if "Default" in self.help or self.default is None or isinstance(self.default, bool | tuple):
            return self.help
        value = f"{self.default:g}" if isinstance(self.default, float) else self.default
        return f"{self.help} Default: {value}."

    def is_auto(self, value: object) -> bool:
        """Whether a value means: decide as if nothing had been given."""
        return value == AUTO and AUTO in (*self.choices, *self.words.values())

    def require_type(self, value: object) -> None:
        """Raise UsageError for a value that the type of the field does not allow."""
        if self.choices or value in self.words.values() or (value is None is self.default):
            return
        kind, expected = _TYPES.get(self.item, (list | tuple, f"a {self.item.__name__}"))
        if not self.many:
            fits = _is_a(value, kind)
        else:
            expected = f"a list, each item {expected}"
            fits = isinstance(value, list | tuple) and all(_is_a(each, kind) for each in value)
        if not fits:
            words = "".join({f" or {v!r}": 0 for v in self.words.values() if isinstance(v, str)})
            default = "" if self.default in (None, ()) else f", {self.default}"
            raise UsageError(
                f"{self.name} is {value!r:.60}, expected {expected}{words}.",
                f"Leave it out for the default{default}.",
            )

    def require(self, value: Any) -> None:
        """Raise UsageError for a wrong type, a number outside the bounds, or a word not allowed."""
        self.require_type(value)
        hint = "" if self.default is None else f"The default is {self.default}."
        if self.choices and value is not None and value not in self.choices:
            raise UsageError(f"{self.name} {value!r} is none of: {', '.join(self.choices)}.", hint)
        if self.bounds is None or value is None or value in self.words.values():
            return
        low, high = self.bounds
        if not low <= value <= high:  # also for NaN
            raise UsageError(
                f"{self.name} is {value}, expected a value from {low} to {high}.", hint
            )


def option(default: Any, flags: str = "", text: str = "", **row: Any) -> Any:
    """A field of a dataclass with its row: spellings parted by blanks, the text of the help."""
    made = Option(flags=tuple(flags.split()), help=text, default=default, **row)
    return field(default=default, metadata={"option": made})


def options(*groups: Any) -> dict[str, Option]:
    """The rows of dataclasses by name, each followed by that of the draft's flag, if any."""
    return _options(*groups)


@cache
def _options(*groups: Any) -> dict[str, Option]:
    rows: dict[str, Option] = {}
    for group in groups:
        hints = get_type_hints(group)
        for each in fields(group):
            if (row := each.metadata.get("option")) is None:
                continue
            row = _typed(replace(row, name=each.name), hints[each.name])
            rows[row.name] = row
            if row.draft is not None:
                rows[f"draft_{row.name}"] = _draft_row(row, row.draft)
    return rows


def _typed(row: Option, hint: Any) -> Option:
    is_union = get_origin(hint) in (Union, types.UnionType)
    kinds = [kind for kind in (get_args(hint) if is_union else [hint]) if kind is not type(None)]
    literals = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    others = [kind for kind in kinds if get_origin(kind) is not Literal]
    if not others:
        return replace(row, choices=tuple(literals))
    words = {word: word for word in literals} | dict(row.words)
    many = get_origin(others[0]) is tuple if row.many is None else row.many
    return replace(row, words=words, many=many, item=get_args(others[0])[0] if many else others[0])


def _draft_row(row: Option, draft: DraftFlag) -> Option:
    return replace(
        row,
        name=f"draft_{row.name}",
        flags=tuple(draft.flags.split()),
        help=draft.help,
        words=row.words if draft.takes_words else {},
        default=() if row.many else None,
        panel=DRAFTING,
        everyday=False,
        draft=None,
    )


def _is_a(value: object, kind: Any) -> bool:
    """`isinstance`, but True and False are not numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def require_bounds(checked: object) -> None:
    """Raise UsageError for a field of a dataclass that has a wrong type or is out of bounds."""
    for row in options(type(checked)).values():
        if hasattr(checked, row.name):  # the draft's rows have no field
            row.require(getattr(checked, row.name))
