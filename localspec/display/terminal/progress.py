"""The progress bar on stderr, for steps or for bytes; silent without a terminal."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from localspec.core.formatting import one_line
from localspec.core.interrupt import end_suspension, on_suspension
from localspec.display.terminal.console import is_quiet, make_console, notes_above, resizable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import ProgressColumn, Task
    from rich.table import Table
    from rich.text import Text

OnProgress = Callable[[str, int, int], None]  # label, done, total


@contextmanager
def progress(
    *,
    in_bytes: bool = False,
    in_seconds: bool = False,
    elapsed: bool = False,
    above: "Callable[[], Iterable[Text]]" = tuple,
) -> Iterator[OnProgress]:
    """A progress bar, updated with (label, done, total), one label at a time.

    It shows the time left, which ``in_seconds`` is the rest, and ``in_bytes`` sizes and speed; for
    work of unknown length the time ``elapsed`` alone. A bar of seconds moves by itself, except with
    a ``total`` of 1, which stands for an unknown one. The lines ``above`` it are drawn again with
    it. A full bar is removed with them, so that the next output does not land on its line. The
    first update draws it: with none nothing changes.
    """
    draw: OnProgress | None = None

    def report(label: str, done: int, total: int) -> None:
        nonlocal draw
        draw = draw or drawn.enter_context(
            _bar(_columns(in_bytes, in_seconds, elapsed), in_seconds, above)
        )
        draw(label, done, total)

    with ExitStack() as drawn:
        yield report


@contextmanager
def _bar(
    columns: "list[ProgressColumn]", expand: bool, above: "Callable[[], Iterable[Text]]"
) -> Iterator[OnProgress]:
    from rich.progress import Progress, TaskID

    class Bar(Progress):
        def get_renderables(self) -> "Iterable[RenderableType]":
            for task in self.tasks if expand else ():
                passed = self.get_time() - task.fields["at"]
                task.completed = min(task.fields["done"] + passed, (task.total or 1) - 1)
            if self.tasks:
                yield from above()
            yield from super().get_renderables()

        def make_tasks_table(self, tasks: "Iterable[Task]") -> "Table":
            table = super().make_tasks_table(tasks)
            if expand:  # with room for ^C: in a full line, its echo would leave a line above
                table.width = max(1, out.width - 3)
            return table

    out = make_console(stderr=True)
    hidden = is_quiet() or not out.is_terminal
    bar = Bar(*columns, console=out, transient=True, disable=hidden, expand=expand)
    resizable(bar.live)
    with bar, nullcontext() if hidden else notes_above(out):
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            label = one_line(label)
            if label not in tasks:
                while tasks:
                    bar.remove_task(tasks.popitem()[1])
                tasks[label] = bar.add_task(label, total=total, at=bar.get_time(), done=done)
            bar.update(tasks[label], completed=done, total=total, at=bar.get_time(), done=done)
            if done >= total:
                bar.remove_task(tasks.pop(label))
                bar.refresh()

        if not hidden:
            on_suspension(lambda: out.show_cursor(True), lambda: out.show_cursor(False))
        try:
            yield report
        finally:
            if not hidden:
                end_suspension()


def _columns(in_bytes: bool, in_seconds: bool, elapsed: bool) -> "list[ProgressColumn]":
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.table import Column

    label = TextColumn("{task.description}", markup=False)
    if elapsed:
        return [label, TimeElapsedColumn()]
    if in_seconds:  # labels change while the bar goes on: it keeps its place, and they are cut
        cut = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        return [
            BarColumn(20),
            TextColumn("{task.percentage:>3.0f}%"),
            _rest(),
            TextColumn("{task.description}", markup=False, table_column=cut),
        ]
    share = TextColumn("{task.percentage:.0f}%")
    if not in_bytes:
        return [label, BarColumn(), share, TimeRemainingColumn()]
    sizes = (DownloadColumn(), TransferSpeedColumn())
    return [label, BarColumn(), *sizes, TimeRemainingColumn()]


def _rest() -> "ProgressColumn":
    """The rest of a task in seconds, once some are done."""
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class Rest(ProgressColumn):
        def render(self, task: Task) -> Text:
            shown = timedelta(seconds=round(task.remaining or 0)) if task.completed >= 1 else ""
            return Text(str(shown), "progress.remaining")

    return Rest()
