"""The pieces of an answer as they are shown: thoughts dimmed or hidden, drafted tokens coloured."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.display import console
from localspec.display.origins import STYLES, Origins, legend, marked, visible_origins

if TYPE_CHECKING:
    from rich.text import Text

    from localspec.chat.answer import Piece, TextPart


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How answers are shown: without the thoughts, or with the origin of each token."""

    hide_reasoning: bool = False
    origins: Origins = "hidden"

    @classmethod
    def asked(cls, hide_reasoning: bool, show_draft: bool) -> "AnswerStyle":
        """What the flags ask for, as far as stdout has colours; the legend is said once."""
        if not show_draft:
            return cls(hide_reasoning)
        look = cls(hide_reasoning, visible_origins(console.make_console(stderr=False)))
        console.make_console(stderr=True).print(legend(look.origins))
        return look

    def pieces(self, response: "Piece") -> "Iterable[TextPart]":
        """What is to be shown of a round."""
        shown = (piece for piece in response.parts if not (piece.reasoning and self.hide_reasoning))
        return marked(shown) if self.origins == "marks" else shown

    def style_of(self, piece: "TextPart") -> str:
        """Rich's style for a piece, empty for none."""
        colour = STYLES[piece.origin] if self.origins == "colours" else ""
        return f"dim {colour}".strip() if piece.reasoning else colour


def append(line: "Text", text: str, style: str) -> None:
    """Add text to a line; what is in the style of the text before becomes one span with it."""
    start = len(line)
    last = line.spans[-1] if line.spans else None
    if last is not None and last.style == style and last.end == start:
        start = line.spans.pop().start
    line.append(text)
    if style:
        line.stylize(style, start)


PLAIN = AnswerStyle()


class ShownPieces:
    """What is shown of one answer; a blank line parts thoughts from answer."""

    def __init__(self, look: AnswerStyle = PLAIN) -> None:
        self._look = look
        self._reasoning: bool | None = None  # whether the last text was a thought

    def styled(self, response: "Piece") -> Iterator[tuple[str, str]]:
        """Each text that is to be shown, with its style."""
        for piece in self._look.pieces(response):
            if self._reasoning is not None and piece.reasoning != self._reasoning:
                yield "\n\n", ""
            self._reasoning = piece.reasoning
            yield piece.text, self._look.style_of(piece)


class AnswerWriter:
    """Streams answers to stdout.

    On a terminal the thoughts go there too; else they go to stderr, and stdout carries the answer
    alone.
    """

    def __init__(self, look: AnswerStyle = PLAIN) -> None:
        self._together = sys.stdout.isatty()
        self._look = look
        self._shown = ShownPieces(look)
        self._thoughts = console.make_console(stderr=not self._together)
        self._open = False  # whether a line of thoughts on stderr wants its end
        self._midline = False  # and one of stdout

    def write(self, response: "Piece") -> None:
        """The text of one round."""
        if self._together:
            for text, style in self._shown.styled(response):
                if style:
                    console.styled(self._thoughts, text, style)
                else:
                    console.text(text)
                self._midline = not text.endswith("\n")
            return
        for piece in self._look.pieces(response):
            if not piece.reasoning:
                self._end_line()
                console.text(piece.text)
                self._midline = not piece.text.endswith("\n")
            else:
                console.styled(self._thoughts, piece.text, "dim")
                self._open = True

    def end(self, *, line: bool = False) -> None:
        """End the answer, also one that an error cut short, and its line of thoughts on stderr.

        On a terminal, where figures or an error follow, its last line ends too; elsewhere with
        ``line``.
        """
        self._shown = ShownPieces(self._look)
        self._end_line()
        if self._midline and (line or self._together):
            console.text("\n")
        self._midline = False

    def _end_line(self) -> None:
        if self._open:
            self._thoughts.print()
            self._open = False
