"""The chat on a terminal or through pipes: prompt line, Markdown, thoughts, live meter."""

import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

from localspec.chat.answer import Answer, Piece
from localspec.chat.input_loop import read_message
from localspec.chat.slash_commands import ALIASES, COMMANDS, Command
from localspec.chat.stats import GenerationStats
from localspec.chat.templates.sandbox import MAX_CHARACTERS
from localspec.core import paths
from localspec.core.errors import FileProblem, LocalspecError, UsageError
from localspec.core.interrupt import end_suspension, held_interrupt, on_suspension
from localspec.display import answer as answers
from localspec.display.pieces import PLAIN, AnswerStyle, AnswerWriter, unseen_answer
from localspec.display.terminal import clipboard, console
from localspec.display.terminal.keys import Echo, of_any_length, require_whole
from localspec.display.trace import write_trace
from localspec.speculative.loop import DraftStatus

if TYPE_CHECKING:
    from rich.live import Live

    from localspec.display.terminal.growing_text import PlainText

_REFRESH_SECONDS = 0.08
_DRAWING_SHARE = 0.1  # of the time, at most
_THOUGHT_ROWS = 6  # of thoughts that will be folded


@contextmanager
def open_screen(
    look: AnswerStyle = PLAIN,
    *,
    markdown: bool = False,
    keep_input: bool = True,
    models: Callable[[], Iterable[str]] = tuple,
) -> Iterator["ChatScreen | PlainChat"]:
    """The screen for this process's streams: a terminal for both, or plain lines.

    A terminal shows ``markdown`` formatted, unless ``look`` colours tokens by origin, and completes
    the names of ``models``. Without ``keep_input`` nothing typed is written to the disk. Without
    Markdown and with --quiet nothing is redrawn: screen readers would read it again.
    """
    if not console.is_dialogue():
        yield PlainChat(look)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    commands = {**COMMANDS, "/model": replace(COMMANDS["/model"], names=models)}
    commands |= {alias: commands[name] for alias, name in ALIASES.items()}
    history, redraws = paths.history_file(), _redraws(markdown)
    screen = ChatScreen(commands, history, look, markdown, keep_input, redraws)
    try:
        yield screen
    finally:
        screen.close()


def kept_whole(*, markdown: bool) -> AbstractContextManager[None]:
    """A block in which the terminal cuts nothing that is pasted, also before there is a screen."""
    is_dumb = not console.is_dialogue() or console.is_dumb()
    return nullcontext() if is_dumb or not _redraws(markdown) else of_any_length()


def _redraws(markdown: bool) -> bool:
    return markdown or not console.is_quiet()


class _Screen:
    """The common part of both screens: each message ends the unfinished part of an answer."""

    interactive: bool
    _look: AnswerStyle

    def _settle(self) -> None:
        raise NotImplementedError

    def follow(
        self, what: str, expected: int | None, limit: int | None
    ) -> AbstractContextManager[Callable[[Piece], None]]:
        """A line on how far an answer is whose text is not shown."""
        return unseen_answer(what, expected, limit)

    def compare(self, drafted: Answer, plain: Answer, text: str) -> None:
        self._show(drafted, estimate=False)
        answers.compared(drafted, plain, text)

    def trace(
        self, path: Path, pieces: Sequence[Piece], answer: Answer, question: str, models: str
    ) -> None:
        totals = answers.figures_line(answer.stats, answer.finish_reason, None, answer.status)
        write_trace(path, pieces, totals, question, models)
        self.say(f"The trace is in {path}.")

    def recall(self, answer: str) -> None:
        for line in answer.splitlines():
            self.say(line.expandtabs(4))

    def show_thoughts(self, thoughts: str) -> None:
        self._settle()
        console.styled(console.make_console(stderr=not self.interactive), thoughts + "\n", "dim")

    def end_answer(self, answer: Answer, filled: float) -> None:
        self._settle()
        self._show(answer, filled)
        answers.only_thoughts(answer)
        if self.interactive and not console.is_quiet():
            console.note("")  # sets the next question off

    def _show(self, answer: Answer, filled: float | None = None, *, estimate: bool = True) -> None:
        stats, full = answer.stats, self._look.stats
        line = answers.figures_line(
            stats, answer.finish_reason, None, answer.status, filled, full=full, estimate=estimate
        )
        console.note(line, asked=full)

    def show_stats(self, stats: GenerationStats, status: DraftStatus) -> None:
        line = answers.figures_line(stats, "stop", None, status)
        number = f"{stats.answers} answer{'' if stats.answers == 1 else 's'}"
        console.note(f"{line} · {number} so far", asked=True)
        if stats.drafted:
            shares = stats.acceptance_by_position
            words = f"accepted by position in the draft: {answers.by_position(shares)}"
            bars = (
                f"  {answers.small_bars(shares)}"
                if console.make_console(stderr=True).is_terminal
                else ""
            )
            console.note(words + bars, asked=True)

    def say(self, sentence: str) -> None:
        self._settle()
        console.note(sentence, asked=True)

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        self._settle()
        console.labelled_rows(console.make_console(stderr=True), rows)

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
        typed = console.is_typed()  # and stdout is a pipe: chat | tee
        if typed:
            console.prompt("... " if continued else ">>> ")
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
        line = line.rstrip("\r\n")
        return require_whole(line) if typed else line

    def stream(self, piece: Piece) -> None:
        """Write a piece of the answer; its thoughts go to stderr."""
        self._writer.write(piece)

    def fold_thoughts(self, fold: bool) -> None:
        """Nothing to do: the thoughts are not on stdout."""

    def copy(self, text: str) -> None:
        """Refuse: there is no terminal with a clipboard."""
        raise UsageError("/copy needs a terminal.", "Redirect the output to a file.")

    def end_answer(self, answer: Answer, filled: float) -> None:
        if not answer.text:
            console.text("\n")
        super().end_answer(answer, filled)

    def _settle(self) -> None:
        self._writer.end(line=True)


class ChatScreen(_Screen):
    """A chat on a terminal: prompt line with history, answer and meter drawn together.

    Final text is printed once; the rest is in a block with the meter below it, which is redrawn
    and would overwrite other text printed there.
    """

    interactive = True

    def __init__(
        self,
        commands: Mapping[str, Command],
        history: Path,
        look: AnswerStyle,
        markdown: bool,
        keep_input: bool,
        redraws: bool,
    ) -> None:
        from localspec.display.terminal.growing_text import MarkdownText, PlainText
        from localspec.display.terminal.line_editor import LineEditor

        self._console: Console = console.make_console(stderr=False)
        self._editor = LineEditor(commands, history, keep_input, redraws)
        self._writer = None if redraws else AnswerWriter(look)
        self._live: Live | None = None
        self._look = look
        # Text that shows the origin of its tokens, or that cannot be redrawn, stays as it is.
        self._fold = look.origins == "hidden" and not self._console.is_dumb_terminal
        self._plain = PlainText
        self._formatted = MarkdownText if markdown and self._fold else PlainText
        self._draw_at = 0.0
        self._echo = Echo(lines=self._editor.lines)
        self._begin_answer()

    def read(self) -> str:
        self._echo.show()
        text = read_message(lambda more: self._editor.read("... " if more else ">>> "))
        if not text.startswith("/"):  # a command may take long
            self._echo.hide()
        return text

    def stream(self, piece: Piece) -> None:
        """Print the final text, redraw the rest with the meter a few times a second."""
        if self._writer is not None:
            on_suspension(self._echo.show, self._echo.hide)
            self._writer.write(piece)
            return
        on_suspension(self._remove_block, lambda: None)  # first: the block delays known handlers
        with held_interrupt():
            live = self._open()
            self._take(piece)
            began = time.monotonic()
            if began >= self._draw_at:
                live.update(self._block(piece), refresh=True)
                ended = time.monotonic()
                self._draw_at = ended + max(_REFRESH_SECONDS, (ended - began) / _DRAWING_SHARE)

    def recall(self, answer: str) -> None:
        """Draw an earlier answer as it was drawn when it came."""
        if self._writer is not None:
            super().recall(answer)
            return
        self._settle()
        self._answer.add(answer)
        self._settle()

    def fold_thoughts(self, fold: bool) -> None:
        """Replace thoughts by one line when they end, or leave them."""
        self._fold = fold

    def copy(self, text: str) -> None:
        taken = clipboard.copy(text)
        unsure = "" if taken else " Some terminals refuse that: then mark it with the mouse."
        self.say(f"{len(text)} characters copied to the clipboard.{unsure}")

    def close(self) -> None:
        """Finish a line that was begun, and restore the terminal."""
        self._settle()
        self._echo.show()
        self._editor.close()

    def _begin_answer(self) -> None:
        self._thoughts: PlainText | None = None
        self._thought_tokens = 0
        self._answer = self._formatted(self._console)

    def _take(self, piece: Piece) -> None:
        """Add the texts of a piece; the first text of the answer ends the thoughts."""
        if piece.reasoning:
            said = sum(not part.reasoning for part in piece.parts)
            self._thought_tokens = piece.stats.tokens - said
        for part in self._look.parts(piece):
            style = self._look.style_of(part)
            if part.reasoning:
                self._thoughts = self._thoughts or self._plain(self._console)
                self._thoughts.add(part.text, style)
                continue
            if self._thoughts is not None:
                self._end_thoughts(fold=self._fold)
            self._answer.add(part.text, style)

    def _end_thoughts(self, fold: bool) -> None:
        thoughts, self._thoughts = self._thoughts, None
        if fold:
            count = f"Thought for {self._thought_tokens} tokens; /think shows them."
            self._console.print(count, style="dim")
        elif thoughts is not None:
            self._print(thoughts.end())
        self._console.print()

    def _print(self, texts: Iterable[RenderableType]) -> None:
        for text in texts:
            self._console.print(text, soft_wrap=True)

    def _settle(self) -> None:
        """Remove the meter and print the unfinished text."""
        with held_interrupt():
            if self._writer is not None:
                self._writer.end(line=True)
            self._remove_block()
            if self._thoughts is not None:
                self._end_thoughts(fold=False)
            self._print(self._answer.end())
            self._begin_answer()

    def _open(self) -> "Live":
        if self._live is None:
            from rich.live import Live

            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live = console.resizable(live)
            self._live.start()
            self._echo.hide()
        return self._live

    def _remove_block(self) -> None:
        """Remove the text that may still change, with the meter; the next piece draws it again."""
        end_suspension()
        if self._live is not None:
            self._echo.show()  # first: drawing may fail
            self._live.stop()
            self._live = None
            self._draw_at = 0.0

    def _block(self, piece: Piece) -> RenderableType:
        """The text that may still change, as much as fits, and the meter below it."""
        # With the meter and the line below it, no higher than the window: rows that scroll out
        # cannot be removed again.
        height = self._console.height
        rows = max(1, height - 3) if height > 2 else 0
        growing = self._thoughts or self._answer
        if self._thoughts is not None and self._fold:
            rows = min(rows, _THOUGHT_ROWS)
        else:
            self._print(growing.final(rows))
        lines = growing.unfinished(rows)
        # A terminal may write ^C after the meter: in the last column it would wrap.
        room = max(1, self._console.width - 2)
        full, progress = self._look.stats, piece.progress
        words = (
            answers.reading(progress.read, progress.total, progress.seconds_left) if progress
            else answers.meter(piece.stats, room, piece.status, full=full)
        )  # fmt: skip
        last = Text(words, style="dim")
        last.truncate(room, overflow="ellipsis")
        return Group(*lines) if console.is_quiet() else Group(*lines, last)


def _leave(number: int, frame: object) -> None:
    """End in order, terminal restored, on a signal."""
    raise SystemExit(128 + number)
