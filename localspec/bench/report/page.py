"""Page of a benchmark: the document of a report as one HTML file that needs no network."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.bench.advice import explained, fastest, length_name
from localspec.bench.equality import Difference
from localspec.bench.figures import Figures
from localspec.core.formatting import number, one_line, percent, size

if TYPE_CHECKING:
    from jinja2 import Environment

Document = Mapping[str, Any]
Place = tuple[float, float]  # in percent from the left and from the bottom

_INTERVALS = 5  # between ticks, about
_VERDICTS = {
    "same": "the same text as plain decoding",
    "rounding": "the same text but for rounding",
    "different": "ANOTHER TEXT, and not by rounding",
    "redrawn": "not compared: rejection draws other tokens",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from ``low`` to ``high``, with a tick at each multiple of ``step``."""

    low: float
    high: float
    step: float

    def at(self, value: float) -> float:
        """The place of a value in percent; beyond the scale that of the nearer end."""
        return 100 * min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def ticks(self) -> list[tuple[float, float]]:
        count = round((self.high - self.low) / self.step)
        values = [self.low + i * self.step for i in range(count + 1)]
        return [(self.at(value), value) for value in values]


def scale_of(values: Iterable[float]) -> Scale:
    """The narrowest scale with round ends that holds all of the values, one or more."""
    found = [*values]
    low, high = min(found), max(found)
    rough = (high - low) / _INTERVALS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    first = math.floor(low / step)
    return Scale(first * step, max(math.ceil(high / step), first + 1) * step, step)


class Line(NamedTuple):
    """A line of a chart; ``dots`` marks its places."""

    name: str
    places: Sequence[Place]
    dots: bool = True


class Chart(NamedTuple):
    """Lines above ``columns`` of equal width."""

    columns: int
    scale: Scale
    lines: Sequence[Line]


def render(document: Document) -> str:
    """The page of a report's document; names in it are untrusted, and escaped."""
    return _environment().get_template("page.html").render(_view(document))


def render_tuning(document: Document) -> str:
    """The page of what `localspec tune` found, as its JSON document."""
    return _environment().get_template("tune.html").render(document=document)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters |= {"number": number, "percent": percent, "draft": length_name, "bytes": size}
    return made


def _shown(value: object) -> object:
    """Text with unprintable characters escaped; markup, which is our own, stays."""
    return one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _view(document: Document) -> dict[str, Any]:
    """The variables of the template; ``sides`` is empty before the first prompt is measured."""
    overall, tasks = document["overall"] or {"sides": (), "left_out": ()}, document["tasks"]
    sides = [Figures(**side) for side in overall["sides"]]
    parts = ("machine", "target", "draft", "settings", "memory")
    times = [_times(row) for row in sides]
    view = {
        "document": document,
        "overall": overall,
        "facts": {part: [*flat(document[part])] for part in parts},
        "sides": sides,
    }
    if not sides:
        return view
    return view | {
        "advice": fastest(sides, overall["plain_noise"]),
        "groups": [overall, *tasks] if len(tasks) > 1 else tasks,
        "speeds": _speeds([side for group in (overall, *tasks) for side in group["sides"]]),
        "positions": _positions(sides),
        "rounds": scale_of([0, *(max(row.mean_accepted_length, row.round_cost) for row in sides)]),
        "staircase": _staircase(overall),
        "times": times,
        "spent": scale_of([0, *(sum(each.values()) for each in times)]),
        "verdicts": _VERDICTS,
        "texts": [explained(Difference(**each)) for each in overall["differences"]],
    }


def flat(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Plain data as names, joined by dots, and single values; those not set are left out."""
    if isinstance(value, Mapping):
        items = [*value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
        items = [*enumerate(value, 1)]
    else:
        if value not in (None, [], ()):
            yield name, _words(value)
        return
    for key, each in items:
        yield from flat(each, f"{name}.{key}" if name else str(key))


def _words(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _speeds(sides: Iterable[Mapping[str, Any]]) -> Scale:
    ends = (end for side in sides for end in (side["speedup"], *(side["speedup_interval"] or ())))
    return scale_of([1, *ends])


def _positions(sides: Sequence[Figures]) -> Chart | None:
    drafted = [row for row in sides if row.acceptance_by_position]
    if not drafted:
        return None
    columns = max(len(row.acceptance_by_position) for row in drafted)
    scale = scale_of([0, 1])
    lines = [
        _line(f"draft {row.draft_tokens}", row.acceptance_by_position, columns, scale)
        for row in drafted
    ]
    return Chart(columns, scale, lines)


def _line(name: str, values: Sequence[float], columns: int, scale: Scale) -> Line:
    places = [(100 * (i + 0.5) / columns, scale.at(value)) for i, value in enumerate(values)]
    return Line(name, places)


def _staircase(overall: Document) -> Chart | None:
    """The cost of passes by width, in plain passes, and their possible gain."""
    costs = overall["costs"]
    if costs is None or len(costs["pass_s"]) < 2:
        return None
    plain, *_ = costs["pass_s"]
    steps = [seconds / plain for seconds in costs["pass_s"]]
    scale = scale_of([0, *steps, *costs["ceilings"]])
    columns = len(steps)
    edges = [
        (100 * edge / columns, scale.at(cost))
        for i, cost in enumerate(steps)
        for edge in (i, i + 1)
    ]
    lines = [Line("cost of a pass", edges, dots=False)]
    if costs["ceilings"]:
        lines.append(_line("speedup if every token is right", costs["ceilings"], columns, scale))
    return Chart(columns, scale, lines)


def _times(row: Figures) -> dict[str, float]:
    rest = max(0.0, row.generation_s - row.draft_s - row.verify_s)
    parts = {"drafting": row.draft_s, "verifying": row.verify_s, "rest": rest}
    return {name: 1000 * seconds / row.tokens for name, seconds in parts.items()}
