"""Colours, or marks, for where each token of an answer came from (``--show-draft``)."""

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from localspec.core.formatting import printable

if TYPE_CHECKING:
    from rich.text import Text

    from localspec.engine.generate import Origin, TextPiece

# From the palette of Okabe and Ito (2008), told apart by people with any colour vision, and on
# dark and light ground; with attributes, for terminals of eight colours.
_STYLES: "dict[Origin, str]" = {
    "draft": "#56b4e9",
    "suffix": "italic #cc79a7",
    "corrected": "underline #d55e00",
    "plain": "",
}
_MARKS: "dict[Origin, str]" = {"draft": "[]", "suffix": "{}", "corrected": "<>", "plain": ""}
_WORDS: "dict[Origin, str]" = {
    "draft": "drafted and accepted",
    "suffix": "from prompt lookup and accepted",
    "corrected": "corrected by the target",
    "plain": "plain",
}


def legend(coloured: bool) -> "Text":
    """What the colours or marks mean, on one line."""
    from rich.text import Text

    parts = (
        Text(words, _STYLES[origin]) if coloured else Text(_marked(words, origin))
        for origin, words in _WORDS.items()
    )
    return Text(" · ").join(parts)


def styled(pieces: "Sequence[TextPiece]") -> "Text":
    """The pieces of one round in their colours; control sequences are shown, not obeyed."""
    from rich.text import Text

    text = Text()
    for piece in pieces:
        text.append(printable(piece.text), _STYLES[piece.origin])
    return text


def marked(pieces: "Sequence[TextPiece]") -> str:
    """The pieces of one round, each run of one origin between its marks."""
    said = (piece for piece in pieces if piece.text)
    runs = groupby(said, key=lambda piece: piece.origin)
    return "".join(_marked("".join(piece.text for piece in run), origin) for origin, run in runs)


def _marked(text: str, origin: "Origin") -> str:
    return f"{_MARKS[origin][:1]}{text}{_MARKS[origin][1:]}"
