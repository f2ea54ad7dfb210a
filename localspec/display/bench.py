"""A bench run in the terminal: a table that grows with the results, and sentences that judge it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from localspec.bench.comparison import Comparison, together
from localspec.bench.equality import Audit, Difference
from localspec.bench.figures import AutoOverFixed, Figures, Limits
from localspec.bench.spent import FEWEST_PROMPTS, Interval
from localspec.core.config import DraftTokens
from localspec.core.formatting import count, number, one_line, percent
from localspec.display.console import make_console, note
from localspec.llama.memory.use import MemoryUse

if TYPE_CHECKING:
    from rich.console import Console

    from localspec.bench.demo import PairResult
    from localspec.bench.hybrid import HybridResult

_WIDTHS = {
    "task": 4, "draft": 5, "tok/s": 6, "speedup": 7, "90% CI": 9, "accept": 6, "tok/rnd": 7,
    "TTFT": 5, "text": 9,
}  # fmt: skip
_FIRST_TO_GO = ("TTFT", "90% CI", "tok/rnd", "accept")  # where a terminal is too narrow
_LONGEST_TASK = 20
_TEXT = {"same": "same", "rounding": "rounding", "different": "DIFFERENT", "redrawn": "redrawn"}


class Scoreboard:
    """A table that grows by the rows of one comparison after the other, a line at a time."""

    def __init__(self, out: "Console", tasks: Iterable[str]) -> None:
        self._out = out
        task = min(_LONGEST_TASK, max(cell_len(one_line(name)) for name in tasks))
        self._widths = _WIDTHS | {"task": max(_WIDTHS["task"], task)}
        room = out.width if out.is_terminal else 10**6
        for name in _FIRST_TO_GO:
            if self._total(2) > room:
                del self._widths[name]
        self._gap = " " * (2 if self._total(2) <= room else 1)
        self._print({name: name for name in self._widths}, "bold")

    def add(self, comparison: Comparison, *, plain: bool = True) -> None:
        """The rows of one comparison, plain first, unless the plain side was shown before."""
        figures, left_out = comparison.figures(), comparison.looping()
        task, first = one_line(comparison.task), 0 if plain else 1
        for i, row in enumerate(figures[first:], first):
            self._print(_cells(task if i == first else "", row, plain=i == 0), _style(row))
        if left_out and plain:
            name = _fit("" if figures else task, self._widths["task"])
            note = f"left out, repeats itself: {one_line(', '.join(left_out))}"
            self._out.print(f"{name}{self._gap}{note}", style="dim", markup=False)

    def finish(
        self, comparisons: Sequence[Comparison], target: MemoryUse, draft: MemoryUse | None
    ) -> None:
        """The rows over all comparisons, what they say in sentences, and the memory it took."""
        if len(comparisons) > 1:
            self.add(together(comparisons))
        if comparisons:
            summary(self._out, together(comparisons))
        self._out.print(memory_line(target, draft), markup=False)

    def _total(self, gap: int) -> int:
        return sum(self._widths.values()) + gap * (len(self._widths) - 1)

    def _print(self, cells: Mapping[str, str], style: str) -> None:
        line = self._gap.join(
            _fit(cells[name], width) if name in ("task", "text") else f"{cells[name]:>{width}}"
            for name, width in self._widths.items()
        )
        self._out.print(line.rstrip(), style=style, markup=False)


def _fit(text: str, width: int) -> str:
    """Exactly ``width`` columns of a terminal; wide characters take two."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    return set_cell_size(text, width)


def _cells(task: str, row: Figures, plain: bool) -> dict[str, str]:
    return {
        "task": task,
        "draft": _length(row.draft_tokens),
        "tok/s": number(row.generation_tps),
        "speedup": "" if plain else f"{row.speedup:.2f}x",
        "90% CI": _span(row.speedup_interval, "-"),
        "accept": percent(row.acceptance_rate) if row.drafted else "",
        "tok/rnd": number(row.mean_accepted_length, 2),
        "TTFT": f"{row.ttft_s:.2f}s" if row.ttft_s < 10 else f"{row.ttft_s:.0f}s",
        "text": "" if plain and row.text == "same" else _TEXT[row.text],
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


def _length(length: DraftTokens) -> str:
    return str(length) if length else "off"


def summary(out: "Console", comparison: Comparison) -> None:
    """What the figures say, in sentences."""
    sentences = [_fastest(figures)] if (figures := comparison.figures()) else []
    if (ratio := comparison.auto_over_fixed()) is not None:
        sentences.append(_auto(ratio))
    if left_out := len(comparison.looping()):
        sentences.append(
            f"{left_out} of {len(comparison.names)} prompts have answers that repeat themselves "
            "too much, and are left out of the figures."
        )
    if (limits := comparison.limits()) is not None:
        sentences += _limited(limits, figures)
    sentences += [_explain(each) for each in comparison.differences]
    if comparison.audits:
        sentences.append(_audited(comparison.audits))
    for sentence in sentences:
        out.print(sentence, markup=False)


def _fastest(figures: list[Figures]) -> str:
    plain, *others = figures
    if not others:
        return f"Plain decoding: {number(plain.generation_tps)} tok/s. Name a draft to compare it."
    if not any(row.drafted for row in others) and others[-1].draft_tokens == "auto":
        rate = number(plain.generation_tps)
        return f"Plain decoding: {rate} tok/s; auto found nothing worth drafting."
    if not any(row.drafted for row in others):
        return "Nothing was drafted: the answers are too short, or the draft's context is full."
    drafted = [row for row in others if row.drafted and row.text != "different"]
    if not drafted:
        return "No draft length can be recommended: each gives another text than plain."
    best = max(drafted, key=lambda row: row.speedup)
    choice = _length(best.draft_tokens) if best.speedup > 1 else "off"
    return f"Fastest here: --draft {choice}. {_verdict(best)}"


def _verdict(row: Figures) -> str:
    if row.speedup_interval is None:
        outcome = f"Fewer than {FEWEST_PROMPTS} prompts decide nothing"
    else:
        low, high = row.speedup_interval
        outcome = (
            "Drafting pays" if low > 1 else "Drafting loses" if high < 1
            else "Drafting hardly matters, or more prompts must tell"
        )  # fmt: skip
    return (
        f"{outcome}: with length {row.draft_tokens} a round gives {row.mean_accepted_length:.2f} "
        f"tokens and costs as much as {row.round_cost:.2f} plain ones."
    )


def _auto(found: AutoOverFixed) -> str:
    said = f"auto is {found.ratio:.2f}x the best fixed length ({found.length})"
    return f"{said}, {span}." if (span := _span(found.interval, " to ")) else f"{said}."


def _limited(limits: Limits, figures: list[Figures]) -> list[str]:
    if limits.ceiling_length == 0:
        return ["Limits here: no draft can pay, were each of its tokens right."]
    fastest = max(figures[1:], key=lambda row: row.speedup)
    judged = next((row for row in figures if row.draft_tokens == "auto"), fastest)
    shares = " ".join(f"{share:.0%}" for share in limits.shares)
    name = _length(judged.draft_tokens)
    said = (
        f"Limits here: {limits.ceiling:.2f}x if every token drafted were right "
        f"({limits.ceiling_length} a round); with this draft {limits.oracle:.2f}x by the best "
        f"length in every round, known beforehand, of which {name} reached "
        f"{judged.speedup / limits.oracle:.0%}, {limits.causal:.2f}x by the best policy that knows "
        f"only the draft's margins, of which {name} reached {judged.speedup / limits.causal:.0%}, "
        f"and {limits.fixed:.2f}x by {limits.fixed_length} in all."
    )
    if limits.prompt_lookup:
        said += (
            " They leave out prompt lookup, which auto used: --prompt-lookup off compares fairly."
        )
    return [
        said,
        f"The draft gets 1, 2, ... {len(limits.shares)} tokens right in a row: {shares}.",
    ]


def _explain(difference: Difference) -> str:
    margin = difference.margin
    lead = "has no runner-up" if margin is None else f"leads by {margin:.2g} logits"
    where = (
        f"{one_line(difference.prompt)}, draft {_length(difference.draft_tokens)}: differs after "
        f"{difference.position} equal tokens, where the plain pick {lead}."
    )
    if not difference.repeatable:
        return f"{where} NOT repeatable: answered again, the texts are others. Please report this."
    if difference.proven_at is None:
        return (
            f"{where} NOT rounding: with passes of equal width the texts still differ. Please "
            "report this."
        )
    return (
        f"{where} Rounding: one text when every pass is {difference.proven_at} tokens wide or more."
    )


def _audited(audits: Sequence[Audit]) -> str:
    tokens, same = sum(each.tokens for each in audits), sum(each.identical for each in audits)
    shorts = [short for each in audits for _, short in each.misses]
    said = f"Audit: {tokens:,} tokens of {len(audits)} drafted answers read again by plain decoding"
    if None in shorts:
        said += f", {len(shorts)} of them not its pick, some past the edge of truncation"
    elif shorts:
        most = max(short for short in shorts if short is not None)
        said += f", {len(shorts)} of them not its pick, short of it by {most:.2g} logits at most"
    else:
        said += ", each its own pick"
    return f"{said}; {same} of {len(audits)} answers are the same as plain's."


def memory_line(target: MemoryUse, draft: MemoryUse | None) -> str:
    """Memory of the target, and of the pair, on one line."""
    line = f"memory: target {target}"
    return line if draft is None else f"{line}; with the draft {target + draft}"


def demo_intro(model: str, draft_tokens: object) -> None:
    """What the demo of the "pair" or the "hybrid" does, said plainly, on stderr."""
    note(
        f"The bundled {model} is a toy that fits into the processor's cache, where drafting has "
        "nothing to win, so it is padded with zeros to a realistic size first. "
        f"Draft length {draft_tokens}, greedy, plain and drafted taking turns."
    )


def demo_result(result: "PairResult") -> None:
    """One quantisation as a small table with sentences around it, on stdout."""
    out = make_console(stderr=False)
    comparison = result.comparison
    target, draft = result.bundled
    out.print(
        f"{comparison.task}: the {count(target.parameters)} target padded to "
        f"{count(result.target.parameters)} parameters, the {count(draft.parameters)} draft to "
        f"{count(result.draft.parameters)}: same text, the cost of bigger models",
        markup=False,
    )
    Scoreboard(out, [comparison.task]).add(comparison)
    summary(out, comparison)


def hybrid_result(result: "HybridResult") -> None:
    """One quantisation as a table of all ways, with sentences around it, on stdout."""
    out = make_console(stderr=False)
    out.print(
        f"{result.quantization}: the {count(result.bundled.parameters)} hybrid padded to "
        f"{count(result.target.parameters)} parameters: same text, the cost of a bigger model",
        markup=False,
    )
    first, ways = result.comparisons[0], result.comparisons
    board = Scoreboard(out, [way.task for way in ways])
    board.add(replace(first, task="plain", sides=first.sides[:1], differences=()))
    for way in ways:
        board.add(way, plain=False)
    if rows := {way.task: way.figures()[1] for way in ways if way.figures()}:
        best = max(rows, key=lambda name: rows[name].speedup)
        name = best if rows[best].speedup > 1 else "plain"
        out.print(f"Fastest here: {name}. {_verdict(rows[best])}", markup=False)
    for way in ways:
        for each in way.differences:
            out.print(f"{way.task}: {_explain(each)}", markup=False)
