"""Colours, or marks, for where each token of an answer came from (``--show-draft``)."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from localspec.chat.answer import Origin, TextPart

Origins = Literal["hidden", "colours", "marks"]

# After the palette of Okabe and Ito (2008), told apart by people with any colour vision, on dark
# and on light ground; the purple is stronger, or 16 colours would make it white.
STYLES: "dict[Origin, str]" = {
    "draft": "#56b4e9",
    "lookup": "italic #c850b0",
    "history": "italic #0072b2",
    "forced": "#2ca02c",
    "corrected": "underline #d55e00",
    "plain": "",
}
_MARKS: "dict[Origin, str]" = {
    "draft": "[]",
    "lookup": "{}",
    "history": "()",
    "forced": "||",
    "corrected": "<>",
    "plain": "",
}
_WORDS: "dict[Origin, str]" = {
    "draft": "drafted",
    "lookup": "prompt lookup",
    "history": "earlier answer",
    "forced": "forced",
    "corrected": "corrected",
    "plain": "plain",
}


def visible_origins(out: "Console") -> Origins:
    """Colours on a terminal that has them, else marks, also where FORCE_COLOR is set."""
    coloured = out.color_system is not None and not out.no_color
    return "colours" if coloured and out.file.isatty() else "marks"


def legend(origins: Origins) -> "Text":
    """What the colours or marks mean, on one line of 80 columns."""
    from rich.text import Text

    parts = (
        Text(words, STYLES[origin]) if origins == "colours" else Text(_between(words, origin))
        for origin, words in _WORDS.items()
    )
    return Text(" · ").join(parts)


def marked(pieces: "Iterable[TextPart]") -> "Iterator[TextPart]":
    """The pieces of one round, those that have one origin joined, between its marks."""
    for (origin, reasoning), run in groupby(pieces, key=lambda piece: piece[1:]):
        first, *rest = run
        text = "".join(piece.text for piece in (first, *rest))
        yield first._replace(text=_between(text, origin), origin=origin, reasoning=reasoning)


def _between(text: str, origin: "Origin") -> str:
    """The text between its marks; line ends stay behind them, where what ends a line looks."""
    body = text.rstrip("\n")
    if not body:
        return text
    return f"{_MARKS[origin][:1]}{body}{_MARKS[origin][1:]}{text[len(body) :]}"
