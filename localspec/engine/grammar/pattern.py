"""Regular expressions of a JSON schema as GBNF, for what stands between a string's quotes."""

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from localspec.core.errors import GrammarError
from localspec.engine.grammar.gbnf import quoted

_LAST = 0x10FFFF
# Inside a JSON string these need an escape, or are no characters: control characters, surrogates.
_APART = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))
_DIGIT = ((0x30, 0x39),)
_WORD = (*_DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((9, 13), (0x20, 0x20))
_CATEGORIES = {
    "CATEGORY_DIGIT": _DIGIT, "CATEGORY_WORD": _WORD, "CATEGORY_SPACE": _SPACE,
}  # fmt: skip

Ranges = Sequence[tuple[int, int]]


class _Beyond(Exception):
    """What a grammar cannot say: references to groups, looks ahead or behind, flags."""


def pattern_rule(pattern: str) -> str | None:
    """GBNF for the JSON strings, quotes left out, in which a pattern is found.

    None for a pattern that a grammar cannot express. Digits, word characters and white space are
    ASCII's, as in ECMAScript. Python's own parser reads it. Raises GrammarError for what is no
    pattern.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            parsed = re._parser.parse(pattern)  # type: ignore[attr-defined, unused-ignore]
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarError(
            f"A pattern of the JSON schema is no regular expression: {error}.", "Mend it."
        ) from error
    try:
        if parsed.state.flags != re.UNICODE:
            raise _Beyond
        return _found(list(parsed))
    except (_Beyond, RecursionError):
        return None


def _found(items: list[Any]) -> str:
    """The pattern, with anything before and behind it where it is not anchored."""
    if len(items) == 1 and str(items[0][0]) == "BRANCH":
        return " | ".join(_found(list(each)) for each in items[0][1][1])
    begins = bool(items) and str(items[0][1]) == "AT_BEGINNING"
    ends = bool(items) and str(items[-1][1]) == "AT_END"
    inside = items[begins : len(items) - ends]
    return f"{'' if begins else 'char*'} {_sequence(inside)} {'' if ends else 'char*'}"


def _sequence(items: Iterable[Any]) -> str:
    return " ".join(_item(str(kind), value) for kind, value in items)


def _item(kind: str, value: Any) -> str:
    if kind == "LITERAL":
        return _class([(value, value)])
    if kind == "NOT_LITERAL":
        return _class(_complement([(value, value)]))
    if kind == "ANY":
        return _class([(0, _LAST)])
    if kind == "IN":
        return _class(_members(value))
    if kind == "BRANCH":
        return f"( {' | '.join(map(_sequence, value[1]))} )"
    if kind == "SUBPATTERN" and not value[1] and not value[2]:
        return f"( {_sequence(value[3])} )"
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inside = value
        upper = "" if str(most) == "MAXREPEAT" else int(most)
        return f"( {_sequence(inside)} ){{{least},{upper}}}"
    raise _Beyond


def _members(items: Iterable[Any]) -> Ranges:
    """The code points of a class between brackets."""
    ranges: list[tuple[int, int]] = []
    negated = False
    for kind, value in items:
        name = str(kind)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            ranges.append((value, value))
        elif name == "RANGE":
            ranges.append(value)
        elif (category := str(value)) in _CATEGORIES:
            ranges += _CATEGORIES[category]
        elif (category := category.replace("_NOT_", "_")) in _CATEGORIES:
            ranges += _complement(_CATEGORIES[category])
        else:
            raise _Beyond
    return _complement(ranges) if negated else ranges


def _complement(ranges: Ranges) -> Ranges:
    """All other code points, in rising order."""
    others, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            others.append((start, low - 1))
        start = max(start, high + 1)
    return [*others, (start, _LAST)] if start <= _LAST else others


def _class(ranges: Ranges) -> str:
    """One of these code points in a JSON string, quote and backslash with their escapes."""
    apart = [*_complement(ranges), *_APART]
    plain = "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in _complement(apart))
    ways = [f"[{plain}]"] if plain else []
    for text in ('"', "\\"):
        if any(low <= ord(text) <= high for low, high in ranges):
            ways.append(quoted(f"\\{text}"))
    if not ways:
        raise _Beyond
    return ways[0] if len(ways) == 1 else f"( {' | '.join(ways)} )"
