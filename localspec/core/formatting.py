"""Numbers and sizes as people read them, and text with its control characters neutralised."""

import re

# C0 and C1 controls (but tab and newline) and the marks that reorder a line (Trojan Source,
# CVE-2021-42574): a model's text must not move the cursor, retitle the window or hide itself.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with control characters as pictures (U+2400 block) or U+FFFD, without returns."""
    return _CONTROLS.sub(_picture, text)


def one_line(text: str) -> str:
    """The text with unprintable characters escaped: for names and texts read from a file."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 0x0D:
        return ""
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def count(number: int) -> str:
    """A number of weights, such as 8.9M, 283M or 7.6B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            value = number / size
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(number)


def size(n_bytes: int | None) -> str:
    """Bytes in decimal units, as the Hub and shops have them: 12 bytes, 3 kB or 2.5 GB."""
    if n_bytes is None:
        return "unknown"
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if n_bytes >= 10**power:
            return f"{n_bytes / 10**power:.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{n_bytes} byte{'' if n_bytes == 1 else 's'}"


def duration(seconds: float) -> str:
    """A rough time, such as 3 seconds, 20 seconds, 4 minutes or 3 hours."""
    if seconds < 55:
        amount, unit = max(1, round(seconds) if seconds < 9.5 else round(seconds, -1)), "second"
    elif seconds < 5400:
        amount, unit = round(seconds / 60), "minute"
    else:
        amount, unit = round(seconds / 3600), "hour"
    return f"{amount:.0f} {unit}{'' if amount == 1 else 's'}"


def number(value: float | None, digits: int = 1) -> str:
    """A decimal number, or a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A ratio in whole percent, or a dash for None."""
    return "–" if value is None else f"{100 * value:.0f}%"
