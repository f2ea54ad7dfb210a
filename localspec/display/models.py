"""Lists drawn: models on this disk, known pairs, drafts for a target, what a check of files found.

This room owns how lists look: a table on a terminal, lines of tab-separated fields in a pipe. It
decides nothing; figures of answers and comparisons are drawn elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.cells import cell_len, set_cell_size

from localspec.core.formatting import one_line, size
from localspec.display.console import console, labelled, note
from localspec.hub.provenance import Progress, Verdict
from localspec.library.catalog import PairSpec
from localspec.library.local_models import Inventory, LocalModel
from localspec.library.pairs import PairRow
from localspec.library.suggest import Suggestions

_SHOWN_REFUSALS = 5
_GAP = "  "
_MOST_GAIN = 24  # columns
_STATE_STYLES = {"right": "green", "wrong": "bold red", "missing": "red"}


def table(
    names: Sequence[str], rows: Iterable[Sequence[str]], first_to_go: Sequence[str] = ()
) -> None:
    """Rows below their names on stdout; on a narrow terminal ``first_to_go`` are left out first.

    In a pipe no names, nothing cut, and tabs between the fields.
    """
    out = console(False)
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not out.is_terminal:  # not through rich, which would turn tabs into spaces
        for line in lines:
            out.file.write("\t".join(line) + "\n")
        return
    widths = [max(map(cell_len, column)) for column in zip(names, *lines, strict=True)]
    shown = list(range(len(names)))
    for name in first_to_go:
        if _total(widths, shown) > out.width:
            shown.remove(names.index(name))
    excess = _total(widths, shown) - out.width
    if excess > 0:  # the widest column gives way
        widest = max(shown, key=lambda i: widths[i])
        widths[widest] = max(len(names[widest]), widths[widest] - excess)
    for i, line in enumerate([list(names), *lines]):
        text = _GAP.join(_fit(line[column], widths[column]) for column in shown).rstrip()
        out.print(text, style="bold" if i == 0 else None, markup=False, no_wrap=True)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[i] for i in shown) + len(_GAP) * (len(shown) - 1)


def _fit(cell: str, width: int) -> str:
    if cell_len(cell) <= width:
        return set_cell_size(cell, width)
    head = width - 1 - (width - 1) // 3  # a name's end tells its quantisation
    tail = cell[len(cell) - (width - 1 - head) :] if width > 1 + head else ""
    return set_cell_size(set_cell_size(cell, head) + "…" + tail, width)


def models(inventory: Inventory) -> None:
    """The models of ``list``; what was left out is told on stderr."""
    if inventory.models:
        table(
            ("MODEL", "SIZE", "SOURCE", "PATH"),
            (_model_cells(model) for model in inventory.models),
            ("PATH",),
        )
    else:
        folders = ", ".join(str(folder) for folder in inventory.folders)
        note(f"There are no GGUF models in the folders searched: {folders}.")
    for sentence in inventory.notes:
        note(sentence)


def _model_cells(model: LocalModel) -> tuple[str, ...]:
    sources = "+".join([model.source, *model.also_in])
    return model.name, size(model.n_bytes), sources, str(model.path)


def model_json(model: LocalModel) -> dict[str, object]:
    """A model of the list as plain data."""
    return {
        "name": model.name,
        "path": str(model.path),
        "source": model.source,
        "also_in": list(model.also_in),
        "size": model.n_bytes,
        "parts": [str(part) for part in model.parts],
        "sha256": model.sha256,
        "repo": model.repo,
    }


def pairs(rows: Sequence[PairRow]) -> None:
    """Known pairs, one a line, the user's own first."""
    table(
        ("PAIR", "SIZE", "HERE", "FITS", "GAIN", "FAMILY", "LICENCES"),
        (_pair_cells(row) for row in rows),
        ("LICENCES", "GAIN", "FAMILY"),
    )
    note(
        "localspec pair show NAME tells more, localspec download NAME fetches both models, "
        "localspec chat NAME talks with them."
    )


def _pair_cells(row: PairRow) -> tuple[str, ...]:
    target, draft = row.here
    here = "both" if target and draft else "target" if target else "draft" if draft else "–"
    gain = "" if row.gain is None else row.gain.what
    if row.gain is not None and row.gain.standing != "reported":
        gain += " (?)"
    if console(False).is_terminal and cell_len(gain) > _MOST_GAIN:
        gain = _fit(gain, _MOST_GAIN)
    return (
        row.name,
        "" if row.size is None else size(row.size),
        here,
        {True: "yes", False: "no", None: "?"}[row.fits],
        gain,
        row.family,
        "/".join(dict.fromkeys(license for license in row.licenses if license)),
    )


def pair(row: PairRow, settings: Mapping[str, object]) -> None:
    """Everything about one pair, a fact a line."""
    out = console(False)
    facts = [("pair", row.name), ("family", row.family), ("target", row.target)]
    facts.append(("draft", row.draft))
    if row.size is not None:
        facts.append(("size", size(row.size)))
    here = [name for name, there in zip(("target", "draft"), row.here, strict=True) if there]
    facts.append(("on this disk", ", ".join(here) or "nothing yet"))
    facts += [("setting", f"{name} = {value}") for name, value in settings.items()]
    if row.spec is not None:
        facts += _known_facts(row.spec)
    width = max(len(label) for label, _ in facts)
    for label, words in facts:
        labelled(out, f"{label:<{width}}  ", "", words)


def _known_facts(spec: PairSpec) -> Iterator[tuple[str, str]]:
    yield "licences", f"target {spec.target.license}, draft {spec.draft.license}"
    yield (
        "vocabularies",
        {
            "predicted": "should fit, by what is published of both models",
            "reported": "fit, as somebody reported",
            "preset": "fit: the pair ships with llama.cpp",
            "made-for": "fit: the draft was made for this target",
            "unknown": "not known to fit",
        }[spec.vocab],
    )
    if spec.gain is not None:
        source = f" ({spec.gain.source})" if spec.gain.source else ""
        yield "gain", f"{spec.gain.standing}: {spec.gain.what}{source}"
    yield "advice", spec.advice
    for gotcha in spec.gotchas:
        yield "note", gotcha
    for source in spec.sources:
        yield "source", source


def suggestions(found: Suggestions, target: str) -> None:
    """Drafts for a target, the best first, each with its reasons and the command to type next."""
    out = console(False)
    for i, draft in enumerate(found.drafts, 1):
        out.print(f"{i}. {draft.name}", style="bold", markup=False)
        out.print(one_line(f"   {'; '.join(draft.reasons)}"), markup=False)
        out.print(one_line(f"   {draft.command(target)}"), markup=False, soft_wrap=True)
    if not found.drafts:
        out.print("No model on this disk can draft for it.", markup=False)
        for refusal in found.refused[:_SHOWN_REFUSALS]:
            out.print(one_line(f"   {refusal.name}: {refusal.reason}"), markup=False)
    if found.refused and not found.drafts and found.refused[0].harmless:
        note("The nearest runs with --lenient: what differs there cannot corrupt text.")
    for known in found.known:
        out.print(
            f"known pair: {known.name}, draft {known.draft.reference} "
            f"({known.draft.size_gb:g} GB); fetch it with: localspec download {known.name}",
            markup=False,
            soft_wrap=True,
        )
    if not found.drafts and not found.known:
        note("See the known pairs with: localspec pairs")


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """What became of a file, as plain data."""
    return {
        "path": str(verdict.path),
        "state": verdict.state,
        "message": verdict.message,
        "expected": verdict.expected,
        "found": verdict.found,
    }


def verdicts(found: Iterable[Verdict]) -> list[Verdict]:
    """A line for each file as it is judged; hands them back."""
    out, told = console(False), []
    for verdict in found:
        style = _STATE_STYLES.get(verdict.state, "yellow")
        labelled(out, f"{verdict.state:<14}", style, f"{verdict.message} {verdict.hint}")
        told.append(verdict)
    return told


@contextmanager
def transfer() -> Iterator[Progress]:
    """A bar for bytes on stderr, with speed and the time left; nothing without a terminal."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import (
        Progress as Bars,
    )

    out = console(True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=out, transient=True, disable=not out.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int) -> None:
            name = one_line(name)
            if name not in tasks:
                for other in tasks.values():
                    bars.update(other, visible=False)
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield report
