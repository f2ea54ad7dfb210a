"""Both output streams: generated text and results on stdout, everything else on stderr.

Colour goes to a terminal only; control sequences in text are shown there, not obeyed.
"""

import atexit
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.core import machine
from localspec.core.errors import LocalspecError
from localspec.core.formatting import one_line, printable
from localspec.display.terminal.keys import as_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_CUTTING = ("linux", "screen", "st")  # terminals that cut long lines in a narrower window
# What a line on a terminal is not broken in: a command, a flag with its value, a word.
_UNBROKEN = re.compile(
    r"(?:(?<=: )|(?<=  ))localspec [a-z].*?(?:[.;,](?= |$)|(?= \()|$)|--?[a-z][\w-]* [^\s-]\S*|\S+"
)
_LOADING = ("run", "chat", "serve", "bench", "tune", "demo")  # commands that load models
_NOTHING_BEFORE = ("-h", "--help", "--help-all", "-q", "--quiet")
_quiet = False
_is_starting = False  # whether the line of `sign_of_life` stands there
_below: "Console | None" = None  # draws a block on stderr, which notes must not hit
_redrawn = ""  # the line that `redraw_line` drew last


def make_console(stderr: bool) -> "Console":
    """A console for stdout or stderr that wraps at words on a terminal, and never in a pipe.

    No variable, as FORCE_COLOR, makes a terminal of a pipe: columns and tabs depend on it.
    """
    from rich.console import Console

    end_start()
    stream = sys.stderr if stderr else sys.stdout
    made = Console(stderr=stderr, highlight=False, emoji=False, force_terminal=stream.isatty())
    made.soft_wrap = not made.is_terminal
    return made


def sign_of_life() -> None:
    """Say on a terminal that a command starts which loads models; the next output removes it.

    Imports alone may take seconds. The cursor stays at the beginning of the line, so that output
    which does not come from here covers it.
    """
    global _is_starting
    command, *rest = sys.argv[1:] or [""]
    is_shown = command in _LOADING and not {*rest} & {*_NOTHING_BEFORE}
    if is_shown and sys.stderr is not None and sys.stderr.isatty() and not is_dumb():
        sys.stderr.write(f"\x1b[2mStarting {command} ...\x1b[0m\r")
        sys.stderr.flush()
        _is_starting = True
        atexit.register(end_start)


def end_start() -> None:
    """Remove the line of `sign_of_life`, if it stands there."""
    global _is_starting
    if _is_starting:
        _is_starting = False
        sys.stderr.write("\r\x1b[2K")  # Ctrl-C leaves ^C there
        sys.stderr.flush()


def is_dumb() -> bool:
    """Whether the terminal cannot redraw a line."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def prepare_streams() -> None:
    """Let both streams take any text: a closed one drops it, a narrow encoding shows ``?``.

    Bytes from a terminal that are not text are read as U+FFFD. In a pipe they are an error in every
    locale: in some, Python would return surrogates. Window sizes in the environment are removed if
    invalid, as rich would draw nothing, or fail; and if the terminal has one, as they may be
    those of another window.
    """
    be_quiet(False)
    known = _has_size(1) or _has_size(2)
    for name in ("COLUMNS", "LINES"):
        if known or not re.fullmatch("0*[1-9][0-9]{0,4}", os.environ.get(name, "1")):
            os.environ.pop(name, None)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace" if sys.stdin.isatty() else "strict")


def _has_size(descriptor: int) -> bool:
    """Whether a descriptor is a terminal that knows its size."""
    try:
        return all(os.get_terminal_size(descriptor))
    except OSError:
        return False


def is_typed() -> bool:
    """Whether standard input, which may be closed, is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def is_dialogue() -> bool:
    """Whether somebody types, and sees the results in the terminal too."""
    return is_typed() and sys.stdout.isatty()


def text(piece: str) -> None:
    """Write generated text; on a terminal control sequences are shown, not obeyed."""
    end_start()
    sys.stdout.write(printable(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


def styled(out: "Console", piece: str, style: str) -> None:
    """Write generated text in a style, which only a terminal shows.

    As a segment, which is written unchanged: rich would expand tabs as if the text began a line.
    """
    from rich.segment import Segment, Segments

    shown = printable(piece) if out.is_terminal else piece
    out.print(Segments([Segment(shown, out.get_style(style))]), end="", soft_wrap=True)


def json_line(document: Mapping[str, object]) -> None:
    """One JSON document as one line of stdout."""
    # On a terminal nothing but ASCII: a name or a text may hold control sequences.
    line = json.dumps(document, ensure_ascii=sys.stdout.isatty())
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # a narrow encoding, or a name that is not Unicode
        line = json.dumps(document)
    line = line.replace("\x7f", "\\u007f")
    end_start()
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def redraw_line(words: str) -> None:
    """Replace the last, unended line of a terminal's stderr; dimmed, cut to its width."""
    out = make_console(stderr=True)
    if _quiet or not out.is_terminal or out.is_dumb_terminal:
        return
    from rich.control import Control
    from rich.segment import ControlType

    global _redrawn
    up = rows_in_view([_redrawn], out.width) - 1
    erase, above = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
    out.control(Control(ControlType.CARRIAGE_RETURN, erase, *(above, erase) * up))
    _redrawn = words[: out.width - 1]
    if words:
        out.print(_redrawn, style="dim", end="", markup=False, soft_wrap=True)


def rows_in_view(lines: Sequence[str], width: int) -> int:
    """How many rows lines take that were written in a wider window; some terminals cut them."""
    from rich.cells import chop_cells

    kind = os.environ.get("TERM", "").partition("-")[0]
    if "TMUX" not in os.environ and (kind in _CUTTING or "XTERM_VERSION" in os.environ):
        return len(lines)
    return sum(max(1, len(chop_cells(line, width))) for line in lines)


def resizable(live: "Live") -> "Live":
    """Let a block be removed whole when the window has become narrower since it was drawn."""
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.control import Control
    from rich.live_render import LiveRender
    from rich.segment import Segment

    class Wrapped(LiveRender):
        lines: Sequence[str] = ()

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            parts = [*super().__rich_console__(console, options)]
            self.lines = "".join(part.text for part in parts if isinstance(part, Segment)).split(
                "\n"
            )
            yield from parts

        def position_cursor(self) -> Control:
            self._measure()
            return super().position_cursor()

        def restore_cursor(self) -> Control:
            self._measure()
            return super().restore_cursor()

        def _measure(self) -> None:
            if self.last_render_height:
                self._shape = 0, rows_in_view(self.lines, live.console.width)

    live._live_render = Wrapped(live.get_renderable(), vertical_overflow=live.vertical_overflow)
    return live


def be_quiet(wanted: bool) -> None:
    """Show no notes and no progress from here on: nothing but results and errors."""
    global _quiet
    _quiet = wanted
    if wanted:
        end_start()


def is_quiet() -> bool:
    return _quiet


@contextmanager
def notes_above(out: "Console") -> Iterator[None]:
    """Let notes appear above the block that this console draws at the end of stderr."""
    global _below
    _below = out
    try:
        yield
    finally:
        _below = None


def note(words: str, *, asked: bool = False) -> None:
    """A sentence for the user, dimmed, on stderr; ``asked`` for, it is shown with --quiet too."""
    if _quiet and not asked:
        return
    sentence(_below or make_console(stderr=True), words, "dim")


def note_other_work() -> bool:
    """Warn, next to speeds, that other programs use this machine; whether they do."""
    if (words := machine.other_work()) is not None:
        note(words)
    return words is not None


def prompt(words: str) -> None:
    """Ask for a line on stderr, where stdout is a pipe."""
    end_start()
    sys.stderr.write(words)
    sys.stderr.flush()


def ask(question: str) -> bool:
    make_console(stderr=True).print(one_line(f"{question} [y/N]"), end=" ", markup=False)
    with as_lines():
        answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D leaves the cursor after the question
        make_console(stderr=True).print()
    return answer.strip().lower() in ("y", "yes")


def error(problem: LocalspecError) -> None:
    out = make_console(stderr=True)
    sentence(out, f"Error: {problem.message}", "bold red")
    if problem.hint:
        sentence(out, problem.hint)


def sentence(out: "Console", words: str, style: str = "") -> None:
    """Print words on one line, or on a terminal wrapped so that commands can be copied."""
    line = one_line(words)
    shown = _wrapped(line, out.width) if out.is_terminal else line
    out.print(shown, style=style, markup=False, soft_wrap=True)


def _wrapped(line: str, width: int) -> str:
    """Lines at most so wide; commands, and flags with their value, are not broken if they fit.

    A longer command continues after a backslash, as a shell reads it. A longer word is left to the
    terminal, which joins it again when it is copied.
    """
    from rich.cells import cell_len

    rows, end = [""], 0
    indent = line[: len(line) - len(line.lstrip())]
    for found in _UNBROKEN.finditer(line):
        gap, part, end = line[end : found.start()], found.group(), found.end()
        fits = cell_len(indent + part) <= width
        pieces = [part] if fits or "'" in part else re.split(" (?=--?[a-z])", part)
        for i, piece in enumerate(pieces):
            more = 2 if i + 1 < len(pieces) else 0  # columns of a backslash
            if rows[-1].strip() and gap and cell_len(rows[-1] + gap + piece) + more > width:
                rows[-1] += " \\" if i else ""
                rows.append(indent)
                gap = "  " if i else ""
            rows[-1] += gap + piece
            gap = " "
    return "\n".join(rows)


def labelled_rows(out: "Console", rows: Sequence[tuple[str, str]]) -> None:
    """Lines of labels and words, the words below each other, also those that wrap."""
    width = max(len(label) for label, _ in rows)
    if not out.is_terminal or 2 * width > out.width:  # a grid would add blanks, or break words
        for label, words in rows:
            labelled(out, f"{label:<{width}}  ", "", words)
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for label, words in rows:
        grid.add_row(Text(label), Text(_wrapped(one_line(words.rstrip()), out.width - width - 2)))
    out.print(grid)


def labelled(out: "Console", label: str, style: str, words: str) -> None:
    from rich.text import Text

    line = one_line(label + words.rstrip())
    shown = Text(_wrapped(line, out.width) if out.is_terminal else line)
    shown.stylize(style, 0, len(label))
    out.print(shown, soft_wrap=True)
