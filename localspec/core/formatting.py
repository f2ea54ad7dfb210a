"""Bytes to printable text: whole characters, stop strings held back, no control sequences.

This room owns what happens between a token's bytes and the text a person or a pipe receives, and
how sizes of models are written. It knows no model and prints nothing.
"""

import codecs
import re
from collections.abc import Sequence

# C0 and C1 controls (but tab and newline) and the marks that reorder a line (Trojan Source,
# CVE-2021-42574): a model's text must not move the cursor, retitle the window or hide itself.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]",
)


def printable(text: str) -> str:
    """The text with every control character shown instead of obeyed.

    Carriage returns vanish, because a newline behind them says the same; the other C0 controls
    become their Unicode pictures (U+2400 block), the rest U+FFFD.
    """
    return _CONTROLS.sub(_picture, text)


def one_line(text: str) -> str:
    """The text with all that is not printable escaped: for names and texts read from a file."""
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


class TextStream:
    """Turns the bytes of tokens into text that ends before the first stop string.

    Text that may be the beginning of a stop string, or the first bytes of a character, is held
    back until it is decided.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = [text for text in stop if text]
        self._held = ""
        self.stopped = False

    def push(self, data: bytes, final: bool = False) -> str:
        """Text that can be shown now; ``final`` releases what was held back.

        After a stop string was found, ``stopped`` is true and nothing more comes.
        """
        if self.stopped:
            return ""
        self._held += self._decoder.decode(data, final)
        starts = [(self._held.find(text), len(text)) for text in self._stop]
        found = [(at + length, at) for at, length in starts if at >= 0]
        if found:
            # The one that ends first, as if the text had come character by character.
            self.stopped = True
            ready, self._held = self._held[: min(found)[1]], ""
            return ready
        keep = 0 if final else max((self._overlap(text) for text in self._stop), default=0)
        split = len(self._held) - keep
        ready, self._held = self._held[:split], self._held[split:]
        return ready

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins ``stop``."""
        most = min(len(stop) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if stop.startswith(self._held[-n:])), 0)


def repeated_share(tokens: Sequence[int], n: int = 8) -> float:
    """Share of the n-grams of ``tokens`` that occurred before: how much the text loops, 0 to 1."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def count(number: int) -> str:
    """A number of weights in the unit people use: 8.9M, 283M, 7.6B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            value = number / size
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(number)


def size(n_bytes: int | None) -> str:
    """Bytes as a person reads them."""
    if n_bytes is None:
        return "unknown"
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n_bytes >= 2**power:
            return f"{n_bytes / 2**power:.{1 if unit == 'GiB' else 0}f} {unit}"
    return f"{n_bytes} byte{'' if n_bytes == 1 else 's'}"
