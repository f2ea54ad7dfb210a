"""The pieces of an answer as they are shown: thoughts dimmed or hidden, apart from the answer."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec.display import console

if TYPE_CHECKING:
    from rich.text import Text

    from localspec.engine.generate import GenerationResponse, TextPiece


def style_of(piece: "TextPiece") -> str:
    """Rich's style for a piece, empty for none."""
    return "dim" if piece.reasoning else ""


def append(line: "Text", text: str, style: str) -> None:
    """Add text to a line; what is in the style of the text before becomes one span with it."""
    start = len(line)
    last = line.spans[-1] if line.spans else None
    if last is not None and last.style == style and last.end == start:
        start = line.spans.pop().start
    line.append(text)
    if style:
        line.stylize(style, start)


class ShownPieces:
    """What is shown of one answer, and how.

    With ``hide_reasoning`` the thoughts are left out; else a blank line parts them from the answer.
    """

    def __init__(self, hide_reasoning: bool = False) -> None:
        self._hide = hide_reasoning
        self._reasoning: bool | None = None  # whether the last text was a thought

    def styled(self, response: "GenerationResponse") -> Iterator[tuple[str, str]]:
        """Each text that is to be shown, with its style."""
        for piece in response.pieces:
            if piece.reasoning and self._hide:
                continue
            if self._reasoning is not None and piece.reasoning != self._reasoning:
                yield "\n\n", ""
            self._reasoning = piece.reasoning
            yield piece.text, style_of(piece)


class AnswerWriter:
    """Streams answers to stdout.

    On a terminal the thoughts go there too; else they go to stderr, and stdout carries the answer
    alone.
    """

    def __init__(self, hide_reasoning: bool = False) -> None:
        self._together = sys.stdout.isatty()
        self._hide = hide_reasoning
        self._shown = ShownPieces(hide_reasoning)
        self._thoughts = console.make_console(stderr=not self._together)
        self._open = False  # whether a line of thoughts on stderr wants its end

    def write(self, response: "GenerationResponse") -> None:
        """The text of one round."""
        if self._together:
            for text, style in self._shown.styled(response):
                if style:
                    console.styled(self._thoughts, text, style)
                else:
                    console.text(text)
            return
        for piece in response.pieces:
            if not piece.reasoning:
                self._end_line()
                console.text(piece.text)
            elif not self._hide:
                console.styled(self._thoughts, piece.text, style_of(piece))
                self._open = True

    def end(self) -> None:
        """End the answer, and its line of thoughts on stderr."""
        self._shown = ShownPieces(self._hide)
        self._end_line()

    def _end_line(self) -> None:
        if self._open:
            self._thoughts.print()
            self._open = False
