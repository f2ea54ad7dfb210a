"""Everything drawn: text, figures, notes, progress bars and reports.

This room owns both streams: generated text and results go to stdout, all else to stderr, colour
and bars only to a terminal. It decides nothing about models.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.core.errors import LocalspecError
from localspec.core.formatting import count, one_line, printable, size
from localspec.engine.stats import GenerationStats

if TYPE_CHECKING:
    from rich.console import Console

    from localspec.engine.doctor import DoctorReport
    from localspec.engine.generate import Answer
    from localspec.library.model_info import ModelInfo
    from localspec.metadata.header import HeaderStart, ModelHeader
    from localspec.pairing import Finding, PairReport

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


def ask(question: str) -> bool:
    """A question on stderr; whether the answer was yes."""
    console(True).print(one_line(f"{question} [y/N]"), end=" ", markup=False)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D leaves the cursor behind the question
        console(True).print()
    return answer.strip().lower() in ("y", "yes")


def error(problem: LocalspecError) -> None:
    """A problem and the next step, on stderr."""
    out = console(True)
    out.print("Error: " + one_line(problem.message), style="bold red", markup=False)
    if problem.hint:
        out.print(one_line(problem.hint), markup=False)


def figures(stats: GenerationStats, finish_reason: str, seed: int | None, status: str = "") -> None:
    """The last line of an answer, on stderr; ``status`` says why nothing was drafted in the end."""
    if stats.rounds == 0:
        note("cancelled while reading the prompt")
        return
    parts = [f"{stats.tokens} tokens", f"{number(stats.generation_tps)} tok/s"]
    if stats.drafted:
        parts.append(
            f"acceptance {percent(stats.acceptance_rate)} "
            f"({stats.accepted} of {stats.drafted} drafted)"
        )
        parts.append(f"{number(stats.mean_accepted_length, 2)} tokens/round")
    if status not in ("", "off"):
        parts.append(f"draft off ({status})")
    if stats.estimated_speedup is not None:
        parts.append(f"about {stats.estimated_speedup:.2f}x plain")
    prompt = f"prompt {stats.prompt_tokens} tokens"
    if stats.prompt_tps is not None:
        prompt += f" at {number(stats.prompt_tps)} tok/s"
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


def compared(answer: "Answer", plain: "Answer", seed_decides: bool = True) -> None:
    """What drafting gained against the plain answer to the same prompt, as measured; on stderr."""
    ours, theirs = answer.stats, plain.stats
    if not (ours.tokens and theirs.tokens):
        return
    seconds = ours.seconds + ours.draft_prompt_seconds
    gain = (theirs.seconds / theirs.tokens) / (seconds / ours.tokens) if seconds else 0.0
    text = (
        "the same text" if answer.tokens == plain.tokens
        else "another text; localspec bench finds out why" if seed_decides
        else "another text, as rejection draws"
    )  # fmt: skip
    note(f"Without drafting {number(theirs.generation_tps)} tok/s: {gain:.2f}x, {text}.")


def meter(stats: GenerationStats, draft_tokens: int, width: int, status: str = "") -> str:
    """The figures so far, on one line; in few words where ``width`` columns do not hold them."""
    speed = f"{number(stats.generation_tps)} tok/s"
    draft = f"draft {draft_tokens or 'off'}"
    if status and status != "off":
        draft += f" ({status})"
    if not stats.drafted:
        return f"{speed} · {draft}"
    rate, length = percent(stats.acceptance_rate), number(stats.mean_accepted_length, 2)
    full = f"{speed} · acceptance {rate} · {length} tokens/round · {draft}"
    return full if len(full) <= width else f"{speed} {rate} {length}/round {draft}"


def number(value: float | None, digits: int = 1) -> str:
    """A figure, or a dash for None."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share in whole percent, or a dash for None."""
    return "–" if value is None else f"{100 * value:.0f}%"


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, fed with (label, done, total); silent without a terminal.

    A bar that is full vanishes: whatever is printed next must not land on its line.
    """
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    out = console(True)
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), TextColumn("{task.percentage:.0f}%"))
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def report(label: str, done: int, total: int) -> None:
            label = one_line(label)
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total)
            bar.update(tasks[label], completed=done, total=total)
            if done >= total:
                bar.remove_task(tasks.pop(label))
                bar.refresh()

        yield report


def pair_report(
    report: "PairReport",
    target: "ModelHeader | HeaderStart",
    draft: "ModelHeader | HeaderStart",
) -> None:
    """The verdict of ``check`` and its findings, on stdout."""
    out = console(False)
    for role, header in (("target", target), ("draft", draft)):
        out.print(one_line(f"{role:<7} {_headline(header)}"), markup=False)
    _findings(out, report.findings)
    verdict = "compatible" if report.compatible else "not compatible"
    theirs = "accepts" if report.llama_cpp_accepts else f"refuses ({report.llama_cpp_rule})"
    out.print(
        f"{verdict}; llama.cpp's own rule {theirs} this pair",
        style="bold green" if report.compatible else "bold red",
        markup=False,
    )


def portrait(shown: "ModelInfo") -> None:
    """The facts of a model file and the findings on it, on stdout."""
    out = console(False)
    width = max(len(label) for label, _ in shown.facts)
    for label, words in shown.facts:
        labelled(out, f"{label:<{width}}  ", "", words)
    _findings(out, shown.findings)


def labelled(out: "Console", label: str, style: str, words: str) -> None:
    """One line of a label and words; where it wraps, at words, and the label counts."""
    from rich.text import Text

    out.print(Text(label, style) + Text(one_line(words.rstrip())))


def _findings(out: "Console", findings: "Iterable[Finding]") -> None:
    for finding in findings:
        style = _LEVEL_STYLES[finding.level]
        labelled(out, f"{finding.level:<8}", style, f"{finding.message} {finding.hint}")


def _headline(header: "ModelHeader | HeaderStart") -> str:
    from localspec.metadata.header import HeaderStart

    if isinstance(header, HeaderStart):
        tokens = "" if header.n_tokens is None else f", {header.n_tokens} tokens"
        return f"{header.path.name}: {header.architecture}{tokens}; read no further"
    n_vocab = len(header.vocab) if header.vocab else 0
    return (
        f"{header.path.name}: {header.architecture}, {count(header.parameters)} parameters, "
        f"{header.quantization}, {n_vocab} tokens, context {header.context_length}"
    )


def examination(result: "DoctorReport") -> None:
    """The facts of ``doctor`` on stdout, the advice below them."""
    out = console(False)
    for name, value in result.facts.items():
        label = name.replace("_", " ")
        if name == "devices" and isinstance(value, list):
            for device in value:
                out.print(
                    f"{'device':<17} {device['name']}: {device['description']} "
                    f"({device['kind']}, {size(device['free'])} of "
                    f"{size(device['total'])} free)",
                    markup=False,
                )
            continue
        shown = size(value) if name.startswith("memory") and isinstance(value, int) else value
        out.print(f"{label:<17} {one_line(str(shown))}", markup=False)
    for sentence in result.advice:
        out.print(f"advice: {one_line(sentence)}", style="yellow", markup=False)
