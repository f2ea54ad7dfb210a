"""The chat on a terminal or through pipes: prompt line, history, live meter."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.core import paths
from localspec.core.errors import FileProblem, LocalspecError
from localspec.core.formatting import printable
from localspec.core.interrupt import held_interrupt
from localspec.display import console
from localspec.display.answer import figures, meter
from localspec.engine.chat.input_loop import read_message
from localspec.engine.chat.slash_commands import ALIASES, COMMANDS
from localspec.engine.generate import Answer, GenerationResponse
from localspec.engine.stats import GenerationStats

try:
    import readline
except ImportError:  # some builds of Python have none: no history, but a chat
    readline = None  # type: ignore[assignment]

try:
    import termios
except ImportError:  # not a POSIX system
    termios = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_REFRESH_SECONDS = 0.08
_HISTORY_LINES = 1000
_LOCAL = 3  # the place of the local modes in what tcgetattr returns


@contextmanager
def open_screen() -> Iterator["ChatScreen | PlainChat"]:
    """The screen for this process's streams: a terminal on both sides, or plain lines."""
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield PlainChat()
        return
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    screen = ChatScreen([*COMMANDS, *ALIASES], paths.history_file())
    screen.say("/help lists the commands; Ctrl-D leaves.")
    try:
        yield screen
    finally:
        screen.close()


class PlainChat:
    """A chat without a terminal: messages from stdin, answers on stdout, the rest on stderr."""

    interactive = False

    def read(self) -> str:
        """The next message of stdin; EOFError at its end."""
        return read_message(self._line)

    def _line(self, continued: bool) -> str:
        try:
            line = sys.stdin.readline() if sys.stdin is not None else ""
        except UnicodeDecodeError as error:
            raise FileProblem(
                f"What was piped in is not UTF-8 text: {error}.", "Pipe UTF-8 text in."
            ) from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def stream(self, response: GenerationResponse) -> None:
        """The text alone."""
        console.text(response.text)

    def end_answer(self, answer: Answer, filled: float) -> None:
        """A line end after the text, the figures on stderr."""
        if not answer.text.endswith("\n"):
            console.text("\n")
        figures(answer.stats, answer.finish_reason, None, answer.status, filled)

    def show_stats(self, stats: GenerationStats) -> None:
        figures(stats, "stop", None)

    def say(self, sentence: str) -> None:
        console.note(sentence)

    def complain(self, problem: LocalspecError) -> None:
        console.error(problem)


class ChatScreen:
    """A chat on a terminal: prompt line with history, answer and meter drawn together.

    Finished lines are printed for good; the unfinished one lives above the meter in a block that
    is redrawn, because text streamed beside such a block would be eaten by it.
    """

    interactive = True

    def __init__(self, commands: Sequence[str], history: Path) -> None:
        self._console: Console = console.make_console(stderr=False)
        self._history = history
        self._live: Live | None = None
        self._line = ""
        self._drawn = 0.0
        self._echo = _Echo()
        self._load_history(commands)

    def read(self) -> str:
        """A message typed at the prompt."""
        return read_message(self._typed)

    def _typed(self, continued: bool) -> str:
        try:
            return input("... " if continued else ">>> ")
        except (EOFError, KeyboardInterrupt):
            self._console.print()  # nobody pressed Return
            raise

    def stream(self, response: GenerationResponse) -> None:
        """Print whole lines, redraw the rest with the meter a few times a second."""
        with held_interrupt():
            live = self._open()
            *whole, self._line = (self._line + printable(response.text)).split("\n")
            for line in whole:
                live.console.print(line, markup=False, soft_wrap=True)
            now = time.monotonic()
            if now - self._drawn >= _REFRESH_SECONDS:
                self._drawn = now
                live.update(self._block(response), refresh=True)

    def end_answer(self, answer: Answer, filled: float) -> None:
        """Print what is unfinished, take the meter away, show the figures."""
        self._settle()
        figures(answer.stats, answer.finish_reason, None, answer.status, filled)

    def show_stats(self, stats: GenerationStats) -> None:
        """The sums of the conversation."""
        figures(stats, "stop", None)

    def say(self, sentence: str) -> None:
        """A line that is no answer."""
        self._settle()
        console.note(sentence)

    def complain(self, problem: LocalspecError) -> None:
        """A problem and the next step; it may have cut an answer short."""
        self._settle()
        console.error(problem)

    def close(self) -> None:
        """Keep the input history for the next time."""
        self._settle()
        if readline is None:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(_HISTORY_LINES)
            readline.write_history_file(self._history)
            self._history.chmod(0o600)
        except OSError:
            console.note(f"The input history could not be saved to {self._history}.")

    def _settle(self) -> None:
        """Take the meter away and print what is unfinished."""
        with held_interrupt():
            if self._live is not None:
                self._echo.show()  # first: a drawing may fail
                self._live.stop()
                self._live = None
            if self._line:
                self._console.print(self._line, markup=False, soft_wrap=True)
            self._line = ""

    def _open(self) -> "Live":
        if self._live is None:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
            self._echo.hide()
        return self._live

    def _block(self, response: GenerationResponse) -> "RenderableType":
        """The end of the unfinished line, as much as fits, and the meter below it."""
        from rich.console import Group
        from rich.text import Text

        # With the meter and the line below it, no higher than the window: what scrolls out of it
        # cannot be taken away again.
        height = self._console.height
        rows = max(1, height - 3) if height > 2 else 0
        wrapped = Text(self._line).wrap(self._console, self._console.width)
        lines = wrapped[len(wrapped) - rows :] if rows < len(wrapped) else wrapped
        # A terminal without termios writes ^C behind the meter: in the last column it would wrap.
        room = max(1, self._console.width - 2)
        figures_so_far = meter(response.stats, response.draft_tokens, room, response.status)
        last = Text(figures_so_far, style="dim")
        last.truncate(room, overflow="ellipsis")
        return Group(*lines, last)

    def _load_history(self, commands: Sequence[str]) -> None:
        if readline is None:
            return
        try:
            readline.read_history_file(self._history)
        except OSError:
            pass  # no history yet
        readline.set_completer_delims(" ")
        readline.set_completer(lambda text, i: dict(enumerate(_matching(commands, text))).get(i))
        readline.parse_and_bind("tab: complete")


class _Echo:
    """The terminal's echo of what is typed, hidden while an answer is drawn.

    In a block that is redrawn, keys would stand in the middle of the answer; hidden, they wait for
    the next prompt.
    """

    def __init__(self) -> None:
        self._before: Any = None  # the modes to return to

    def hide(self) -> None:
        """Show no keys from now on."""
        if termios is None or self._before is not None:
            return
        try:
            modes = termios.tcgetattr(sys.stdin)
            self._before = list(modes)
            modes[_LOCAL] &= ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)
        except (termios.error, ValueError, OSError):
            self._before = None  # stdin is no terminal any more

    def show(self) -> None:
        """Return to what the terminal did before."""
        if self._before is None:
            return
        before, self._before = self._before, None
        try:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        except (termios.error, ValueError, OSError):
            return  # stdin is no terminal any more


def _leave(number: int, frame: object) -> None:
    """End in order, terminal restored, when the process is told to."""
    raise SystemExit(128 + number)


def _matching(commands: Sequence[str], text: str) -> list[str]:
    return [command + " " for command in commands if text and command.startswith(text)]
