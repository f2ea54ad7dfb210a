"""Running servers: a block of lines for each model, refreshed on a terminal, once elsewhere."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from localspec.core.formatting import number, one_line, percent, size
from localspec.core.origins import ORIGINS
from localspec.display.answer import by_position, reading, small_bars
from localspec.display.terminal.console import make_console, note
from localspec.display.terminal.keys import pressed, unseen

if TYPE_CHECKING:
    from localspec.server.watch import ModelFigures, ServerFigures

    Look = Callable[[], Sequence[ServerFigures]]

Tokens = Mapping[tuple[str, str], tuple[float, int]]  # time and count, by address and model

_LABEL, _LONGEST_BAR = 20, 24  # columns
_FIGURE, _COUNT = 6, 3  # columns of figures that grow: the words after them keep their places
_POSITIONS = 8  # of a draft, whose acceptance is shown
_UNKNOWN = "unknown: set LOCALSPEC_API_KEY"


def watch(look: "Look", interval: float) -> None:
    """Show all servers every ``interval`` seconds, until q, Ctrl-C or none is left; else once."""
    out = make_console(stderr=False)
    before: Tokens = {}
    now = look()
    if not out.is_terminal or out.is_dumb_terminal:
        for text in _lines(now, {}, bars=0):
            out.print(text, style="")
        return
    try:
        with unseen(), Live(console=out, auto_refresh=False) as live:
            while now:
                live.update(_block(now, before, out.width), refresh=True)
                before = _tokens(now)
                if pressed("q", interval):
                    return
                now = look()
    except KeyboardInterrupt:
        return
    note("No server is running any more.")


def _tokens(servers: "Sequence[ServerFigures]") -> Tokens:
    return {
        (each.url, model.model): (each.at, model.tokens)
        for each in servers
        for model in each.models
    }


def _block(servers: "Sequence[ServerFigures]", before: Tokens, width: int) -> Text:
    bars = max(0, min(_LONGEST_BAR, width - _LABEL - _FIGURE - 1))
    lines = [*_lines(servers, before, bars)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _lines(servers: "Sequence[ServerFigures]", before: Tokens, bars: int) -> Iterator[Text]:
    """Those of all servers; bars are at most so many columns wide."""
    for each in servers:
        for model in each.models:
            yield Text(one_line(f"{model.model}: {model.state}"), "bold")
            yield _row("address", each.url)
            moment, tokens = before.get((each.url, model.model), (each.at, 0))
            passed = each.at - moment
            speed = max(0, model.tokens - tokens) / passed if passed > 0 else None
            for label, words in _rows(model, speed):
                yield _row(label, words)
            if shares := [*_shares(model)]:
                yield _row("share of the text", "")
            for label, share in shares:
                yield _row(f"  {label}", f"{percent(share)} {'█' * round(bars * min(1.0, share))}")
        yield _row("memory", size(each.memory) if each.memory else "unknown")


def _row(label: str, words: str) -> Text:
    """A label and its words; the first word, a figure, ends in the same column in all rows."""
    figure, _, rest = words.partition(" ")
    return Text(one_line(f"  {label:<{_LABEL - 2}}{figure:>{_FIGURE}} {rest}".rstrip()))


def _rows(model: "ModelFigures", speed: float | None) -> Iterator[tuple[str, str]]:
    """Labels and figures; an unknown figure has a row too, so that no row moves."""
    if not model.known:
        from localspec.server.watch import LOADING, UNANSWERED

        if model.state not in (LOADING, *UNANSWERED):
            yield "requests", _UNKNOWN
        return
    yield "requests", f"{model.running} running, {model.waiting:>{_COUNT}} waiting"
    if model.slots:
        yield "slots", f"{model.busy} of {model.slots} busy"
    first, *more = [
        reading(*each).removeprefix("reading the prompt: ").replace(" tokens", "")
        for each in model.prompts
    ] or ["–"]
    yield "prompt", f"{first}{f'; {len(more)} more' if more else ''}"
    average = number(model.generation_tps)
    yield "tok/s", f"{number(speed)} now, average {average:>{_FIGURE}}"
    a_round = f", {model.answered / model.rounds:5.2f} a round" if model.rounds else ""
    yield "tokens", f"{model.tokens:,} so far{a_round}"
    if model.drafted:
        if model.times_plain is not None:
            yield "gain", f"about {model.times_plain:.1f}x plain"
        yield "accepted", f"{percent(model.accepted / model.drafted)} of {model.drafted:,} drafted"
    if model.drafts:
        shares = [n / model.drafts for n in model.by_position[:_POSITIONS]]
        yield "  first n right", f"{by_position(shares)}  {small_bars(shares)}"


def _shares(model: "ModelFigures") -> Iterator[tuple[str, float]]:
    """Shares of all tokens by origin."""
    for name, accepted in model.by_source.items():
        if accepted and model.answered:
            yield ORIGINS[name].drafter if name in ORIGINS else name, accepted / model.answered
