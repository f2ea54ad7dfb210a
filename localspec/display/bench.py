"""Benchmarks in the terminal: a table that grows with the results, and a sentence of advice."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from localspec.bench.advice import explained, fastest, length_name
from localspec.bench.comparison import Comparison, together
from localspec.bench.figures import Figures
from localspec.chat.stats import Interval, SameText
from localspec.core.formatting import count, duration, number, one_line, percent, size
from localspec.display.answer import by_position
from localspec.display.terminal.console import labelled_rows, make_console, note, sentence
from localspec.llama.memory.use import MemoryUse

if TYPE_CHECKING:
    from localspec.bench.demo import DemoResult

_WIDTHS = {
    "task": 4, "draft": 5, "tok/s": 6, "speedup": 7, "90% CI": 9, "accept": 6, "tok/rnd": 7,
    "TTFT": 5, "text": 9,
}  # fmt: skip
_FIRST_TO_GO = ("TTFT", "90% CI", "tok/rnd", "accept")  # if a terminal is too narrow
_LONGEST_TASK = 20
_TOO_FAST = "1.00x: checking several tokens at once costs too much here"
_DEMO_SPEEDS = (90, 12)  # tokens per second on a fast machine and on a slow one


class Scoreboard:
    """A table that grows by the rows of one comparison after the other, a line at a time.

    Its heading comes with the first rows: notes stand above it.
    """

    def __init__(self, out: Console, tasks: Iterable[str]) -> None:
        self._out, self._is_headed = out, False
        self._so_far: tuple[Text, ...] = ()
        task = min(_LONGEST_TASK, max(cell_len(one_line(name)) for name in tasks))
        self._widths = _WIDTHS | {"task": max(_WIDTHS["task"], task)}
        room = out.width if out.is_terminal else 10**6
        for name in _FIRST_TO_GO:
            if self._total(2) > room:
                del self._widths[name]
        self._gap = " " * (2 if self._total(2) <= room else 1)

    def add(self, comparison: Comparison) -> None:
        """The rows of one comparison, plain first."""
        self._so_far = ()
        for line in (*self._heading(), *self._lines(comparison)):
            self._out.print(line)
        self._is_headed = True

    def update(self, comparison: Comparison, left: float | None = None) -> None:
        """The rows of a task that goes on, or a note without a terminal; ``left`` seconds."""
        self._so_far = (*self._heading(), *self._lines(comparison, so_far=True))
        if not make_console(stderr=True).is_terminal:
            _note_so_far(comparison, left)

    def so_far(self) -> tuple[Text, ...]:
        return self._so_far

    def _lines(self, comparison: Comparison, *, so_far: bool = False) -> Iterator[Text]:
        """The rows; of a task that goes on no speedup before its interval, as it may be far off."""
        figures, left_out = comparison.figures(), comparison.looping()
        task = one_line(comparison.task)
        for i, row in enumerate(figures):
            unclear = i == 0 or (so_far and row.speedup_interval is None)
            yield self._line(
                _cells("" if i else task, row, plain=i == 0, unclear=unclear), _style(row)
            )
        if left_out:
            name = _fit("" if figures else task, self._widths["task"])
            note = f"left out, repeats itself: {one_line(', '.join(left_out))}"
            yield Text(f"{name}{self._gap}{note}", "dim")

    def finish(
        self,
        comparisons: Sequence[Comparison],
        kinds: Mapping[str, str],
        memory: Mapping[str, MemoryUse | None] | None,
        text_equality: str | None = None,
    ) -> None:
        """The rows over all comparisons, and a sentence of advice; details if memory is given.

        ``kinds`` are those of the prompts, by name.
        """
        if len(comparisons) > 1:
            self.add(together(comparisons))
        for each in comparisons:
            _by_kind(self._out, each, kinds)
        if comparisons:
            summary(self._out, together(comparisons), verbose=memory is not None)
            if text_equality is not None:
                self._out.print(text_equality, markup=False)
        if memory is not None:
            shown = memory if memory["draft"] else {"target": memory["target"]}
            used = [(name, str(use)) for name, use in shown.items()]
            _rows(self._out, "Memory", used)

    def _total(self, gap: int) -> int:
        return sum(self._widths.values()) + gap * (len(self._widths) - 1)

    def _heading(self) -> list[Text]:
        return (
            [] if self._is_headed else [self._line({name: name for name in self._widths}, "bold")]
        )

    def _line(self, cells: Mapping[str, str], style: str) -> Text:
        line = self._gap.join(
            _fit(cells[name], width) if name in ("task", "text") else f"{cells[name]:>{width}}"
            for name, width in self._widths.items()
        )
        return Text(line.rstrip(), style)


def _note_so_far(comparison: Comparison, left: float | None) -> None:
    figures = comparison.figures()
    found = [
        f"draft {row.draft_tokens} {row.speedup:.2f}x"
        if i
        else f"plain {number(row.generation_tps)} tok/s"
        for i, row in enumerate(figures)
        if i == 0 or row.speedup_interval is not None
    ]
    prompts = len(comparison.names)
    counted = "the first prompt" if prompts == 1 else f"{prompts} prompts"
    more = "" if left is None else f"; about {duration(left)} left"
    shown = ", ".join(found) or "left out, repeats itself"
    note(f"{comparison.task}, {counted}: {shown}{more}")


def _fit(text: str, width: int) -> str:
    """Exactly ``width`` columns of a terminal; wide characters take two."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def _cells(task: str, row: Figures, *, plain: bool, unclear: bool) -> dict[str, str]:
    return {
        "task": task,
        "draft": length_name(row.draft_tokens),
        "tok/s": number(row.generation_tps),
        "speedup": "" if unclear else f"{row.speedup:.2f}x",
        "90% CI": _span(row.speedup_interval, "-"),
        "accept": percent(row.acceptance_rate) if row.drafted else "",
        "tok/rnd": number(row.mean_accepted_length, 2),
        "TTFT": f"{row.ttft_s:.2f}s" if row.ttft_s < 10 else f"{row.ttft_s:.0f}s",
        "text": "" if plain and row.text == "same" else row.text.replace("different", "DIFFERENT"),
    }


def _style(row: Figures) -> str:
    if row.text == "different":
        return "bold red"
    if not row.drafted or row.speedup_interval is None:
        return ""
    low, high = row.speedup_interval
    return "green" if low > 1 else "yellow" if high < 1 else ""


def _span(interval: Interval | None, between: str) -> str:
    return "" if interval is None else f"{interval[0]:.2f}{between}{interval[1]:.2f}"


def summary(out: Console, comparison: Comparison, *, verbose: bool = False) -> None:
    """One sentence of advice, and the problems; with ``verbose`` also the detailed figures."""
    figures = comparison.figures()
    sentences = [fastest(figures, comparison.plain_noise())] if figures else []
    sentences += _differences(comparison, verbose=verbose)
    for each in sentences:
        sentence(out, each)
    if verbose and figures:
        _details(out, comparison, figures)


def _by_kind(out: Console, comparison: Comparison, kinds: Mapping[str, str]) -> None:
    """The speedups of each kind of prompt, if several were measured as one task.

    Without them a kind that loses would hide one that gains.
    """
    left_out = comparison.looping()
    found: dict[str, list[str]] = {}
    for name in comparison.names:
        if name not in left_out:
            found.setdefault(kinds[name], []).append(name)
    shown = [
        f"{one_line(kind)} " + ", ".join(f"{row.speedup:.2f}x" for row in rows)
        for kind, names in found.items()
        if (rows := comparison.figures(names)[1:])
    ]
    if len(shown) > 1:
        counts = sorted({len(names) for names in found.values()})
        each = " to ".join(str(n) for n in (counts[0], counts[-1])[: len(counts)])
        prompts = "prompt" if counts == [1] else "prompts"
        sentence(out, f"By kind of text ({each} {prompts} each): {', '.join(shown)}.")


def _details(out: Console, comparison: Comparison, figures: list[Figures]) -> None:
    """Tables of the cost of a round, and of acceptance by position."""
    measured = [(f"--draft {row.draft_tokens}", _cost(row)) for row in figures[1:] if row.drafted]
    if (costs := comparison.costs()) is not None and costs.ceilings:
        most = max(costs.ceilings)
        value = f"{most:.2f}x, {costs.ceilings.index(most)} a round"
        measured.append(("estimate: every drafted token right", value if most > 1 else _TOO_FAST))
    _rows(out, "Measured (cost in plain tokens)", measured)
    _rows(out, "Accepted by position in the draft", _positions(figures))


def _positions(rows: Iterable[Figures]) -> list[tuple[str, str]]:
    return [
        (f"--draft {row.draft_tokens}", by_position(row.acceptance_by_position))
        for row in rows
        if row.acceptance_by_position
    ]


def _cost(row: Figures) -> str:
    return f"{row.mean_accepted_length:.2f} tokens a round, cost {row.round_cost:.2f}"


def _ci(interval: Interval | None) -> str:
    return f" (90% CI {_span(interval, ' to ')})" if interval else ""


def _rows(out: Console, heading: str, rows: Sequence[tuple[str, str]]) -> None:
    if rows:
        out.print(heading, style="bold", markup=False)
        labelled_rows(out, [(f"  {label}", value) for label, value in rows])


def _differences(comparison: Comparison, *, verbose: bool) -> list[str]:
    """A sentence for each text that is not the plain one; proven rounding is only a detail."""
    return [explained(each) for each in comparison.differences if verbose or not each.is_rounding]


def demo_intro(draft_tokens: object, n_tokens: int) -> None:
    """The work and the duration of the demo, on stderr."""
    few, many = (math.ceil(n_tokens / speed / 60) for speed in _DEMO_SPEEDS)
    minutes = f"{few} to {many} minutes" if few < many else "about a minute"
    note(
        "The bundled pair is a toy that fits into the processor's cache: drafting gains "
        "nothing there, so it is padded with zeros to a realistic size first. "
        f"Draft length {draft_tokens}, greedy, plain and drafted taking turns. "
        f"This takes {minutes}, depending on the machine; Ctrl-C ends it."
    )


def demo_end(results: "Sequence[DemoResult]", next_command: str, *, is_busy: bool) -> None:
    """One sentence on the result, the place of the files, and the next command, on stderr.

    If the machine ``is_busy``, speeds are named only if intervals show which is the faster side.
    """
    from localspec.bench.demo import demo_folder

    seen = []
    texts = set[SameText]()
    for result in results:
        rows = result.comparison.figures()[1:]
        texts.update(row.text for row in rows)
        if rows:
            best = max(rows, key=lambda row: row.speedup)
            interval = best.speedup_interval
            is_busy = is_busy and (interval is None or interval[0] <= 1 <= interval[1])
            gain = f"{best.speedup:.2f}x the speed of plain decoding{_ci(interval)}"
            seen.append(f"{gain} in {result.quantization}")
    rounded = "the same text up to rounding" if "rounding" in texts else "the same text"
    text = "ANOTHER text" if "different" in texts else rounded
    speeds = f" at {' and '.join(seen)}"
    if is_busy:
        speeds = "; this machine is too busy to tell at which speed"
    note(f"You saw drafting give {text}{speeds}.")
    stored = sum(file.stat().st_size for file in demo_folder().glob("*.gguf"))
    note(f"The padded models stay in {demo_folder()}: delete its {size(stored)} when you like.")
    note(f"Next, with a real model: {next_command}")


def demo_result(result: "DemoResult", *, verbose: bool = False) -> None:
    out, comparison = make_console(stderr=False), result.comparison
    target, draft = result.bundled
    out.print(
        f"{comparison.task}: the {count(target.parameters)} target padded to "
        f"{count(result.padded[0].parameters)} parameters, the {count(draft.parameters)} draft to "
        f"{count(result.padded[1].parameters)}: same text, the cost of bigger models",
        markup=False,
    )
    Scoreboard(out, [comparison.task]).add(comparison)
    if verbose:
        _details(out, comparison, comparison.figures())
    for each in _differences(comparison, verbose=verbose):
        sentence(out, each)
