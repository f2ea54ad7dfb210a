"""Whole numbers from one to another, as GBNF."""

from collections.abc import Iterator


def integer_rule(low: int, high: int) -> str:
    """GBNF for the whole numbers from ``low`` to ``high``, written without leading zeros."""
    patterns = []
    if low < 0:
        patterns += [f'"-" {each}' for each in _patterns(max(1, -high), -low)]
    if high >= 0:
        patterns += _patterns(max(0, low), high)
    return " | ".join(patterns)


def _patterns(low: int, high: int) -> Iterator[str]:
    """Patterns that together match each number between, both 0 or above, and no other."""
    while low <= high:
        last = _last_alike(low, high)
        yield " ".join(_digits(str(low), str(last)))
        low = last + 1


def _last_alike(low: int, high: int) -> int:
    """The last number up to which one pattern of digits does: low's last ones run up to 9."""
    last, unit = low, 1
    while low % (10 * unit) == 0 and low > 0 and low + 10 * unit - 1 <= high:
        unit *= 10
        last = low + unit - 1
    # The digit before those may rise too, as long as it is one digit.
    rises = min(9 - low // unit % 10, (high - last) // unit)
    return last + rises * unit


def _digits(low: str, high: str) -> Iterator[str]:
    for a, b in zip(low, high, strict=True):
        yield f"[{a}-{b}]" if a != b else f'"{a}"'
