"""Answers side by side while they grow, by draft length: plain decoding and drafting."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table
from rich.text import Text

from localspec.chat.answer import Piece
from localspec.core.formatting import printable
from localspec.core.options.load_options import DraftTokens
from localspec.display.pieces import AnswerStyle, ShownPieces, legend, visible_origins
from localspec.display.terminal import console

Show = Callable[[DraftTokens, Piece], None]


@contextmanager
def side_by_side(lengths: Sequence[DraftTokens]) -> Iterator[Show]:
    """A growing answer for each draft length; the first runs again next to the second: a race."""
    out = console.make_console(stderr=False)
    look = AnswerStyle(origins=visible_origins(out))
    columns = {length: _Column(length, look) for length in lengths}
    out.print(legend(look.origins))
    with console.resizable(Live(console=out, auto_refresh=False)) as live:
        first, now, recorded = lengths[0], 0.0, deque[Piece]()

        def add(length: DraftTokens, piece: Piece) -> None:
            columns[length].add(piece)
            live.update(_table([*columns.values()]), refresh=True)

        def show(length: DraftTokens, piece: Piece) -> None:
            nonlocal now
            if length == first:
                recorded.append(piece)
            elif not now:
                columns[first] = _Column(first, look)
            now = 0.0 if length == first else piece.stats.seconds
            while now and recorded and recorded[0].stats.seconds <= now:
                add(first, recorded.popleft())
            add(length, piece)

        yield show
        while now and recorded:
            time.sleep(max(0.0, recorded[0].stats.seconds - now))
            now = recorded[0].stats.seconds
            add(first, recorded.popleft())


class _Column:
    """One answer so far, with the number of its tokens above it.

    No speed: one answer on a busy machine says little, and the result of the demo rests on more.
    """

    def __init__(self, length: DraftTokens, look: AnswerStyle) -> None:
        self.name = f"drafted ({length})" if length else "plain"
        self.title, self.text = Text(self.name, "bold"), Text()
        self._shown = ShownPieces(look)

    def add(self, piece: Piece) -> None:
        for text, style in self._shown.styled(piece):
            self.text.append(printable(text), style)
        self.title = Text(f"{self.name}: {piece.stats.tokens} tokens", "bold")


def _table(columns: Sequence[_Column]) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0), expand=True)
    for _ in columns:
        table.add_column(ratio=1, overflow="fold")
    table.add_row(*(column.title for column in columns))
    table.add_row(*(column.text for column in columns))
    return table
