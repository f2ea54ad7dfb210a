"""The pieces of an answer as they are shown: thoughts dimmed or hidden, drafted tokens coloured."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from localspec.core.origins import ORIGINS
from localspec.display.answer import reading, writing
from localspec.display.terminal import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from localspec.chat.answer import Piece, TextPart

Origins = Literal["hidden", "colours", "marks"]
_REDRAW_SECONDS = 0.2
_QUEUED_SECONDS = 0.005  # between two pieces that had waited: their time says nothing


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How answers are shown: without thoughts, with token origins, with all figures (``stats``)."""

    hide_reasoning: bool = False
    origins: Origins = "hidden"
    stats: bool = False

    @classmethod
    def asked(cls, hide_reasoning: bool, show_draft: bool, stats: bool = False) -> "AnswerStyle":
        """The style that the flags ask for, if stdout has colours; prints the legend."""
        quiet = console.is_quiet()
        hide_reasoning, stats = hide_reasoning or quiet, stats and not quiet
        if not show_draft:
            return cls(hide_reasoning, stats=stats)
        look = cls(hide_reasoning, visible_origins(console.make_console(stderr=False)), stats)
        if not quiet:
            console.make_console(stderr=True).print(legend(look.origins))
        return look

    def parts(self, piece: "Piece") -> "Iterable[TextPart]":
        shown = (part for part in piece.parts if not (part.reasoning and self.hide_reasoning))
        return marked(shown) if self.origins == "marks" else shown

    def style_of(self, part: "TextPart") -> str:
        colour = ORIGINS[part.origin].style if self.origins == "colours" else ""
        return f"dim {colour}".strip() if part.reasoning else colour


PLAIN = AnswerStyle()


class ShownPieces:
    """The texts shown of one answer; a blank line separates thoughts and answer."""

    def __init__(self, look: AnswerStyle = PLAIN) -> None:
        self._look = look
        self._reasoning: bool | None = None  # whether the last text was a thought

    def styled(self, piece: "Piece") -> Iterator[tuple[str, str]]:
        """Each text of a piece that is to be shown, with its style."""
        for part in self._look.parts(piece):
            if self._reasoning is not None and part.reasoning != self._reasoning:
                yield "\n\n", ""
            self._reasoning = part.reasoning
            yield part.text, self._look.style_of(part)


class AnswerWriter:
    """Streams answers to stdout.

    On a terminal thoughts go there too; otherwise they go to stderr, and stdout carries the answer
    alone.
    """

    def __init__(self, look: AnswerStyle = PLAIN) -> None:
        self._together = sys.stdout.isatty()
        self._look = look
        self._shown = ShownPieces(look)
        self._thoughts = console.make_console(stderr=not self._together)
        self._open = False  # whether a line of thoughts on stderr is unfinished
        self._midline = False  # and one of stdout
        self._progress = False  # whether the prompt's progress is on the terminal

    def write(self, piece: "Piece") -> None:
        """Write the text of one piece; on a terminal, how much of the prompt is read until then."""
        self._show_progress(piece)
        if self._together:
            for text, style in self._shown.styled(piece):
                if style:
                    console.styled(self._thoughts, text, style)
                else:
                    console.text(text)
                self._midline = not text.endswith("\n")
            return
        for part in self._look.parts(piece):
            if part.reasoning:
                console.styled(self._thoughts, part.text, "dim")
                self._open = True
            else:
                self._end_thoughts()
                console.text(part.text)
                self._midline = not part.text.endswith("\n")

    def end(self, *, line: bool = False) -> None:
        """End the answer and its thoughts; the last line too on a terminal, or with ``line``."""
        self._shown = ShownPieces(self._look)
        self._show_progress(None)
        self._end_thoughts()
        if self._midline and (line or self._together):
            console.text("\n")
        self._midline = False

    def _show_progress(self, piece: "Piece | None") -> None:
        """Redraw the line of the prompt's progress; without a progress, remove it."""
        progress = piece and piece.progress
        if progress or self._progress:
            console.redraw_line(
                reading(progress.read, progress.total, progress.seconds_left) if progress else ""
            )
        self._progress = progress is not None

    def _end_thoughts(self) -> None:
        if self._open:
            self._thoughts.print()
            self._open = False


@contextmanager
def unseen_answer(
    what: str, expected: int | None = None, limit: int | None = None
) -> "Iterator[Callable[[Piece], None]]":
    """Show on a terminal how far an answer is whose text is not shown; the end removes the line.

    ``expected`` is the number of its tokens if it is likely to be an earlier answer again.
    """
    drawn_at = came_at = -math.inf
    since: tuple[float, int] | None = None  # a time, and the tokens that had come then

    def show(piece: "Piece") -> None:
        nonlocal drawn_at, came_at, since
        now, tokens = time.monotonic(), piece.stats.tokens
        if since is None or not since[1] or now - came_at < _QUEUED_SECONDS:
            since = now, tokens
        came_at = now
        if now - drawn_at < _REDRAW_SECONDS:
            return
        pace = (now - since[0]) / max(1, tokens - since[1])
        at = piece.progress
        far = (
            reading(at.read, at.total, at.seconds_left) if at
            else writing(tokens, expected, limit, pace)
        )  # fmt: skip
        console.redraw_line(f"{what}: {far}")
        drawn_at = now

    try:
        yield show
    finally:
        console.redraw_line("")


def visible_origins(out: "Console") -> Origins:
    """Colours on a terminal that has them, else marks, also if FORCE_COLOR is set."""
    coloured = out.color_system is not None and not out.no_color
    return "colours" if coloured and out.file.isatty() else "marks"


def legend(origins: Origins) -> "Text":
    """The meaning of the colours or marks, on one line of 80 columns."""
    from rich.text import Text

    parts = (
        Text(row.label, row.style) if origins == "colours" else Text(_between(row.label, name))
        for name, row in ORIGINS.items()
    )
    return Text(" · ").join(parts)


def marked(parts: "Iterable[TextPart]") -> "Iterator[TextPart]":
    """The parts of one piece; those of one origin are joined, between its marks."""
    for (origin, reasoning), run in groupby(parts, key=lambda part: part[1:3]):
        first, *rest = run
        text = "".join(part.text for part in (first, *rest))
        yield first._replace(text=_between(text, origin), origin=origin, reasoning=reasoning)


def _between(text: str, origin: str) -> str:
    """The text between its marks; line ends stay outside, so that a text still ends its line."""
    body = text.rstrip("\n")
    marks = ORIGINS[origin].marks
    return f"{marks[:1]}{body}{marks[1:]}{text[len(body) :]}" if body else text
