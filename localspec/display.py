"""Everything drawn: text, figures, notes, progress bars and tables.

This room owns both streams: generated text and results go to stdout, all else to stderr, colour
and bars only to a terminal. It decides nothing about models.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.stats import GenerationStats
from localspec.text import one_line, printable

if TYPE_CHECKING:
    from rich.console import Console

    from localspec.bench import Figures
    from localspec.demo import PairResult
    from localspec.doctor import Examination
    from localspec.metadata import ModelHeader
    from localspec.pairing import PairReport

_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def console(stderr: bool) -> "Console":
    """A console for stdout or stderr that wraps at words on a terminal, and never in a pipe."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, emoji=False)
    made.soft_wrap = not made.is_terminal
    return made


def prepare_streams() -> None:
    """Let both streams take any text: a closed one drops it, a narrow encoding shows ``?``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def text(piece: str) -> None:
    """Stream a piece of generated text; on a terminal control sequences are shown, not obeyed."""
    sys.stdout.write(printable(piece) if sys.stdout.isatty() else piece)
    sys.stdout.flush()


def end_text(last: str) -> None:
    """End the line on a terminal, where the figures follow the text."""
    if sys.stdout.isatty() and not last.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()


def json_line(document: Mapping[str, object]) -> None:
    """One JSON document as one line of stdout."""
    # On a terminal nothing but ASCII: a name or a text may hold control sequences.
    line = json.dumps(document, ensure_ascii=sys.stdout.isatty()).replace("\x7f", "\\u007f")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def note(sentence: str) -> None:
    """Something the user should know, dimmed, on stderr."""
    console(True).print(one_line(sentence), style="dim", markup=False)


def error(problem: LocalspecError) -> None:
    """A problem and the next step, on stderr."""
    out = console(True)
    out.print("Error: " + one_line(problem.message), style="bold red", markup=False)
    if problem.hint:
        out.print(one_line(problem.hint), markup=False)


def figures(stats: GenerationStats, finish_reason: str, seed: int | None) -> None:
    """The last line of an answer, on stderr."""
    if stats.rounds == 0:
        note("cancelled while reading the prompt")
        return
    parts = [f"{stats.tokens} tokens", f"{_number(stats.generation_tps)} tok/s"]
    if stats.drafted:
        parts.append(
            f"acceptance {_percent(stats.acceptance_rate)} "
            f"({stats.accepted} of {stats.drafted} drafted)"
        )
        parts.append(f"{_number(stats.mean_accepted_length, 2)} tokens/round")
    prompt = f"prompt {stats.prompt_tokens} tokens"
    if stats.prompt_tps is not None:
        prompt += f" at {_number(stats.prompt_tps)} tok/s"
    parts.append(prompt)
    if stats.ttft_s is not None:
        parts.append(f"TTFT {stats.ttft_s:.2f} s")
    if seed is not None:
        parts.append(f"seed {seed}")
    if finish_reason == "context":
        parts.append("stopped at the end of the context (--ctx-size)")
    elif finish_reason != "stop":
        parts.append({"length": "stopped at --max-tokens"}.get(finish_reason, finish_reason))
    console(True).print(" · ".join(parts), style="dim", markup=False)


def meter(stats: GenerationStats, draft_length: int) -> str:
    """The figures so far, on one line."""
    parts = [f"{_number(stats.generation_tps)} tok/s"]
    if stats.drafted:
        parts.append(f"acceptance {_percent(stats.acceptance_rate)}")
        parts.append(f"{_number(stats.mean_accepted_length, 2)} tokens/round")
    parts.append(f"draft {draft_length or 'off'}")
    return " · ".join(parts)


def _number(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f}%"


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, fed with (label, done, total); silent without a terminal.

    A bar that is full vanishes: whatever is printed next must not land on its line.
    """
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    out = console(True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done, total=total)
            if done >= total:
                bar.remove_task(tasks.pop(label))
                bar.refresh()

        yield report


def pair_report(report: "PairReport", target: "ModelHeader", draft: "ModelHeader") -> None:
    """The verdict of ``check`` and its findings, on stdout."""
    out = console(False)
    for role, header in (("target", target), ("draft", draft)):
        out.print(one_line(f"{role:<7} {_headline(header)}"), markup=False)
    for finding in report.findings:
        style = _LEVEL_STYLES[finding.level]
        out.print(f"{finding.level:<8}", style=style, end="", markup=False)
        out.print(one_line(f"{finding.message} {finding.hint}".rstrip()), markup=False)
    verdict = "compatible" if report.compatible else "not compatible"
    theirs = "accepts" if report.llama_cpp_accepts else f"refuses ({report.llama_cpp_rule})"
    out.print(
        f"{verdict}; llama.cpp's own rule {theirs} this pair",
        style="bold green" if report.compatible else "bold red",
        markup=False,
    )


def _headline(header: "ModelHeader") -> str:
    n_vocab = len(header.vocab) if header.vocab else 0
    return (
        f"{header.path.name}: {header.architecture}, {count(header.parameters)} parameters, "
        f"{header.quantization}, {n_vocab} tokens, context {header.context_length}"
    )


def count(number: int) -> str:
    """A number of weights in the unit people use: 8.9M, 283M, 7.6B."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            value = number / size
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(number)


def _bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def demo_intro(draft_length: object) -> None:
    """What the demo does, said plainly, on stderr."""
    note(
        "The bundled pair is a toy that fits into the processor's cache, where drafting has "
        "nothing to win, so it is padded with zeros to a realistic size first. "
        f"Draft length {draft_length}, greedy, plain and drafted taking turns."
    )


def demo_result(result: "PairResult") -> None:
    """One quantisation as a small table with a sentence below it, on stdout."""
    from rich.table import Table

    out = console(False)
    target, draft = result.bundled
    title = (
        f"{result.quantization}: the {count(target.parameters)} target padded to "
        f"{count(result.target.parameters)} parameters, the {count(draft.parameters)} draft to "
        f"{count(result.draft.parameters)}: same text, the cost of bigger models"
    )
    table = Table()
    if result.plain is None or result.drafted is None:
        out.print(f"{title}: every answer loops, no figures.", markup=False)
        return
    sides = (("plain", result.plain), ("drafted", result.drafted))
    for heading in ("", *(name for name, _ in sides)):
        table.add_column(heading, justify="right" if heading else "left")
    columns = [_column(side, name == "plain") for name, side in sides]
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    out.print(title, markup=False)
    out.print(table)
    out.print(_verdict(result), markup=False)


def _column(row: "Figures", plain: bool) -> dict[str, str]:
    """The figures of one side by their labels, as they are shown."""
    low, high = min(row.speedup_by_repeat), max(row.speedup_by_repeat)
    return {
        "tok/s": _number(row.generation_tps),
        "speedup": "1" if plain else f"{row.speedup:.2f}x",
        "spread": "" if plain else f"{low:.2f} to {high:.2f}" if high > low else "one repeat",
        "acceptance": _percent(row.acceptance_rate),
        "tokens/round": _number(row.mean_accepted_length, 2),
        "TTFT": f"{row.ttft_s:.2f} s",
        "text": "" if plain else ("same" if row.same_text else "DIFFERENT"),
    }


def _verdict(result: "PairResult") -> str:
    row = result.drafted
    assert row is not None
    low, high = min(row.speedup_by_repeat), max(row.speedup_by_repeat)
    if row.drafted == 0:
        return "Nothing was drafted: the answers are too short."
    outcome = (
        "One repeat decides nothing" if len(row.speedup_by_repeat) == 1
        else "Drafting pays here" if low > 1 else "Drafting loses here" if high < 1
        else "Drafting hardly matters here"
    )  # fmt: skip
    sentence = (
        f"{outcome}: a round gives {row.mean_accepted_length:.2f} tokens and costs as much as "
        f"{row.round_cost:.2f} plain ones."
    )
    if result.left_out:
        sentence += (
            f" {result.left_out} of {result.prompts} answers repeat themselves too much and are "
            "left out of the figures."
        )
    return sentence


def examination(result: "Examination") -> None:
    """The facts of ``doctor`` on stdout, the advice below them."""
    out = console(False)
    for name, value in result.facts.items():
        label = name.replace("_", " ")
        if name == "devices" and isinstance(value, list):
            for device in value:
                out.print(
                    f"{'device':<17} {device['name']}: {device['description']} "
                    f"({device['kind']}, {_bytes(device['free'])} of "
                    f"{_bytes(device['total'])} free)",
                    markup=False,
                )
            continue
        shown = _bytes(value) if name.startswith("memory") and isinstance(value, int) else value
        out.print(f"{label:<17} {one_line(str(shown))}", markup=False)
    for sentence in result.advice:
        out.print(f"advice: {one_line(sentence)}", style="yellow", markup=False)
