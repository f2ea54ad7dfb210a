"""The chat on a terminal or through pipes: prompt line, history, live meter."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat.answer import Answer, Piece
from localspec.chat.input_loop import read_message
from localspec.chat.sandbox import MAX_CHARACTERS
from localspec.chat.slash_commands import ALIASES, COMMANDS
from localspec.chat.stats import GenerationStats
from localspec.core import paths
from localspec.core.errors import FileProblem, LocalspecError
from localspec.core.formatting import printable
from localspec.core.interrupt import held_interrupt
from localspec.display import console
from localspec.display.answer import figures, meter, only_thoughts
from localspec.display.line_editor import Echo, LineEditor
from localspec.display.pieces import PLAIN, AnswerStyle, AnswerWriter, ShownPieces

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

_REFRESH_SECONDS = 0.08


@contextmanager
def open_screen(look: AnswerStyle = PLAIN) -> Iterator["ChatScreen | PlainChat"]:
    """The screen for this process's streams: a terminal for both, or plain lines."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield PlainChat(look)
        return
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    screen = ChatScreen([*COMMANDS, *ALIASES], paths.history_file(), look)
    console.note("/help lists the commands; Ctrl-D leaves.")
    try:
        yield screen
    finally:
        screen.close()


class _Screen:
    """What both screens have in common: each message ends what is unfinished of an answer."""

    _look: AnswerStyle

    def _settle(self) -> None:
        raise NotImplementedError

    def end_answer(self, answer: Answer, filled: float) -> None:
        """End the answer and show its figures."""
        self._settle()
        full = self._look.stats
        figures(answer.stats, answer.finish_reason, None, answer.status, filled, full=full)
        only_thoughts(answer)

    def show_stats(self, stats: GenerationStats) -> None:
        """The sums of the conversation."""
        figures(stats, "stop", None)

    def say(self, sentence: str) -> None:
        """A message that is no answer."""
        self._settle()
        console.note(sentence, asked=True)

    def complain(self, problem: LocalspecError) -> None:
        """A problem and the next step; it may have cut an answer short."""
        self._settle()
        console.error(problem)


class PlainChat(_Screen):
    """A chat without a terminal: messages from stdin, answers on stdout, the rest on stderr."""

    interactive = False

    def __init__(self, look: AnswerStyle = PLAIN) -> None:
        self._look = look
        self._writer = AnswerWriter(look)

    def read(self) -> str:
        """The next message of stdin; EOFError at its end."""
        return read_message(self._line)

    def _line(self, continued: bool) -> str:
        try:
            line = sys.stdin.readline(MAX_CHARACTERS + 2) if sys.stdin is not None else ""
        except UnicodeDecodeError as error:
            raise FileProblem(
                f"Standard input is not UTF-8 text: {error}.", "Pipe UTF-8 text in."
            ) from error
        except OSError as error:  # nohup makes a terminal's stdin write-only
            raise FileProblem(
                f"Standard input cannot be read: {error.strerror}.",
                "Pipe messages in, or start the chat in a terminal.",
            ) from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def stream(self, piece: Piece) -> None:
        """Write a piece of the answer; its thoughts go to stderr."""
        self._writer.write(piece)

    def end_answer(self, answer: Answer, filled: float) -> None:
        if not answer.text:
            console.text("\n")
        super().end_answer(answer, filled)

    def _settle(self) -> None:
        self._writer.end(line=True)


class ChatScreen(_Screen):
    """A chat on a terminal: prompt line with history, answer and meter drawn together.

    Finished lines are printed for good; the unfinished one is in a block with the meter below it,
    which is redrawn: text printed beside such a block would be overwritten by it.
    """

    interactive = True

    def __init__(self, commands: Sequence[str], history: Path, look: AnswerStyle) -> None:
        from rich.text import Text

        self._console: Console = console.make_console(stderr=False)
        self._editor = LineEditor(commands, history)
        self._live: Live | None = None
        self._line = Text()
        self._look = look
        self._shown = ShownPieces(look)
        self._drawn = 0.0
        self._echo = Echo()

    def read(self) -> str:
        """A message typed at the prompt."""
        return read_message(lambda more: self._editor.read("... " if more else ">>> "))

    def stream(self, piece: Piece) -> None:
        """Print whole lines, redraw the rest with the meter a few times a second."""
        with held_interrupt():
            live = self._open()
            for text, style in self._shown.styled(piece):
                _append(self._line, printable(text), style)
            *whole, self._line = self._line.split("\n", allow_blank=True)
            for line in whole:
                live.console.print(line, soft_wrap=True)
            now = time.monotonic()
            if now - self._drawn >= _REFRESH_SECONDS:
                self._drawn = now
                live.update(self._block(piece), refresh=True)

    def close(self) -> None:
        """Save the input history for the next time."""
        self._settle()
        self._editor.save()

    def _settle(self) -> None:
        """Remove the meter and print what is unfinished."""
        with held_interrupt():
            if self._live is not None:
                self._echo.show()  # first: drawing may fail
                self._live.stop()
                self._live = None
            if self._line:
                self._console.print(self._line, soft_wrap=True)
            self._line = self._line.blank_copy()
            self._shown = ShownPieces(self._look)

    def _open(self) -> "Live":
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._echo.hide()
        return self._live

    def _block(self, piece: Piece) -> "RenderableType":
        """The end of the unfinished line, as much as fits, and the meter below it."""
        from rich.console import Group
        from rich.text import Text

        # With the meter and the line below it, no higher than the window: what scrolls out of it
        # cannot be removed again.
        height = self._console.height
        rows = max(1, height - 3) if height > 2 else 0
        wrapped = self._line.wrap(self._console, self._console.width)
        lines = wrapped[len(wrapped) - rows :] if rows < len(wrapped) else wrapped
        # A terminal without termios writes ^C behind the meter: in the last column it would wrap.
        room = max(1, self._console.width - 2)
        last = Text(meter(piece.stats, room, piece.status, full=self._look.stats), style="dim")
        last.truncate(room, overflow="ellipsis")
        return Group(*lines) if console.is_quiet() else Group(*lines, last)


def _append(line: "Text", text: str, style: str) -> None:
    """Add text to a line; after text of the same style it extends that one's span."""
    start = len(line)
    last = line.spans[-1] if line.spans else None
    if last is not None and last.style == style and last.end == start:
        start = line.spans.pop().start
    line.append(text)
    if style:
        line.stylize(style, start)


def _leave(number: int, frame: object) -> None:
    """End in order, terminal restored, on a signal."""
    raise SystemExit(128 + number)
