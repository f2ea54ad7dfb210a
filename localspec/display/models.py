"""Lists on stdout: models on this disk, known pairs, drafts for a target, verified files.

A table on a terminal, lines of tab-separated fields in a pipe.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from localspec.core.formatting import one_line, size
from localspec.display.console import labelled, make_console, note
from localspec.hub.client import RemoteModel
from localspec.hub.provenance import Verification
from localspec.library.catalog import MTP, PairSpec
from localspec.library.local_models import Inventory, LocalModel
from localspec.library.pairs import PairRow
from localspec.library.sidecars import by_model
from localspec.library.suggest import Suggestions
from localspec.metadata.findings import counted

if TYPE_CHECKING:  # which takes pydantic a while
    from localspec.library.pair_schema import Setting

_SHOWN_REFUSALS = 5
_GAP = 2  # columns between two columns
_MOST_GAIN = 24  # columns
_STATE_STYLES = {"right": "green", "wrong": "bold red", "missing": "red"}


def table(
    names: Sequence[str], rows: Iterable[Sequence[str]], first_to_go: Sequence[str] = ()
) -> None:
    """Rows below their names on stdout; on a narrow terminal ``first_to_go`` are left out first.

    In a pipe no names, nothing cut, and tabs between the fields.
    """
    out = make_console(stderr=False)
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not out.is_terminal:  # not through rich, which would turn tabs into spaces
        for line in lines:
            out.file.write("\t".join(line) + "\n")
        return
    widths = _column_widths([names, *lines], first_to_go, out.width)
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for width in widths.values():
        grid.add_column(width=width, no_wrap=True)
    for i, line in enumerate([list(names), *lines]):
        cells = (Text(_fit(line[column], width)) for column, width in widths.items())
        grid.add_row(*cells, style="bold" if i == 0 else None)
    out.print(grid)


def _column_widths(
    lines: Sequence[Sequence[str]], first_to_go: Sequence[str], room: int
) -> dict[int, int]:
    """Columns that are shown, with the width of each; the widest gives way where all do not fit."""
    names = lines[0]
    widths = {i: max(map(cell_len, column)) for i, column in enumerate(zip(*lines, strict=True))}
    for name in first_to_go:
        if _total(widths) > room:
            del widths[names.index(name)]
    if (excess := _total(widths) - room) > 0:
        widest = max(widths, key=lambda i: widths[i])
        widths[widest] = max(len(names[widest]), widths[widest] - excess)
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _fit(cell: str, width: int) -> str:
    """The cell, cut in its middle: a name's end tells its quantisation."""
    if cell_len(cell) <= width:
        return cell
    head = width - 1 - (width - 1) // 3
    tail = cell[len(cell) - (width - 1 - head) :] if width > 1 + head else ""
    return set_cell_size(set_cell_size(cell, head) + "…" + tail, width)


def models(inventory: Inventory) -> None:
    """The models of ``list``, below each the sidecars that draft for it.

    What was left out is told on stderr.
    """
    if inventory.files:
        served, alone = by_model(inventory)
        rows = [
            row
            for model, heads in zip(inventory.models, served, strict=True)
            for row in (_model_cells(model), *(_model_cells(each, "+ ") for each in heads))
        ]
        rows += [_model_cells(each, "+ ") for each in alone]
        table(("MODEL", "SIZE", "SOURCE", "PATH"), rows, ("PATH",))
    else:
        folders = ", ".join(str(folder) for folder in inventory.folders)
        note(f"There are no GGUF models in the folders searched: {folders}.")
    for sentence in inventory.notes:
        note(sentence)


def _model_cells(model: LocalModel, mark: str = "") -> tuple[str, ...]:
    sources = "+".join([model.source, *model.also_in])
    return mark + model.name, size(model.n_bytes), sources, str(model.path)


def inventory_json(inventory: Inventory) -> dict[str, object]:
    """The list as plain data; ``sidecars`` at the top are those whose model is not here."""
    served, alone = by_model(inventory)
    return {
        "models": [
            model_json(model) | {"sidecars": [model_json(each) for each in heads]}
            for model, heads in zip(inventory.models, served, strict=True)
        ],
        "sidecars": [model_json(each) for each in alone],
        "notes": list(inventory.notes),
    }


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
    if make_console(stderr=False).is_terminal and cell_len(gain) > _MOST_GAIN:
        gain = _fit(gain, _MOST_GAIN)
    return (
        row.name,
        "" if row.size is None else size(row.size),
        here,
        {True: "yes", False: "no", None: "?"}[row.fits],
        gain,
        row.family,
        "/".join(dict.fromkeys(name for name in row.licenses if name)),
    )


def pair(row: PairRow, settings: "Mapping[str, Setting]") -> None:
    """Everything about one pair, a fact a line; settings as in its file."""
    from localspec.library.pair_schema import toml_value

    out = make_console(stderr=False)
    facts = [("pair", row.name), ("family", row.family), ("target", row.target)]
    facts.append(("draft", "prediction heads of the target" if row.draft == MTP else row.draft))
    if row.spec is not None:
        facts.append(("kind", row.spec.spec_type))
    if row.size is not None:
        facts.append(("size", size(row.size)))
    here = [name for name, there in zip(("target", "draft"), row.here, strict=True) if there]
    facts.append(("on this disk", ", ".join(here) or "nothing yet"))
    facts += [("setting", f"{name} = {toml_value(value)}") for name, value in settings.items()]
    if row.spec is not None:
        facts += _known_facts(row.spec)
    width = max(len(label) for label, _ in facts)
    for label, words in facts:
        labelled(out, f"{label:<{width}}  ", "", words)


def _known_facts(spec: PairSpec) -> Iterator[tuple[str, str]]:
    draft = f", draft {spec.draft.license}" if spec.draft else ""
    yield "licences", f"target {spec.target.license}{draft}"
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
    out = make_console(stderr=False)
    if found.own_heads:
        command = shlex.join(["localspec", "chat", "--target", target, "--draft", MTP])
        out.print("mtp: prediction heads in the target's own file", style="bold", markup=False)
        out.print(f"   {counted(found.own_heads, 'head')}; nothing to fetch", markup=False)
        out.print(one_line(f"   {command}"), markup=False, soft_wrap=True)
    for i, draft in enumerate(found.drafts, 1):
        out.print(f"{i}. {draft.name}", style="bold", markup=False)
        out.print(one_line(f"   {'; '.join(draft.reasons)}"), markup=False)
        out.print(one_line(f"   {draft.command(target)}"), markup=False, soft_wrap=True)
    if not found.drafts and not found.own_heads:
        out.print("No model on this disk can draft for it.", markup=False)
        for refusal in found.refused[:_SHOWN_REFUSALS]:
            out.print(one_line(f"   {refusal.name}: {refusal.reason}"), markup=False)
    if found.refused and not found.drafts and found.refused[0].harmless:
        note("The nearest runs with --lenient: what differs there cannot corrupt text.")
    for known in found.known:
        out.print(
            f"known pair: {known.name}, {_draft_of(known)}; "
            f"fetch it with: localspec download {known.name}",
            markup=False,
            soft_wrap=True,
        )
    if not found.drafts and not found.known and not found.own_heads:
        note("See the known pairs with: localspec pairs")


def _draft_of(known: PairSpec) -> str:
    if known.draft is None:
        return f"heads in {known.target.reference} ({known.target.size_gb:g} GB)"
    return f"draft {known.draft.reference} ({known.draft.size_gb:g} GB)"


def sidecars_on_hub(found: Sequence[RemoteModel], target: str) -> None:
    """Heads in a target's own repository, each with the command that judges it."""
    out = make_console(stderr=False)
    for heads in found:
        command = shlex.join(["localspec", "check", target, str(heads.reference)])
        out.print(
            one_line(
                f"in its repository: {heads.reference} ({size(heads.size)}); check: {command}"
            ),
            markup=False,
            soft_wrap=True,
        )


def verdict_json(verdict: Verification) -> dict[str, object]:
    """What became of a file, as plain data."""
    return {
        "path": str(verdict.path),
        "state": verdict.state,
        "message": verdict.message,
        "expected": verdict.expected,
        "found": verdict.found,
    }


def verdicts(found: Iterable[Verification]) -> list[Verification]:
    """A line for each file as it is judged; hands them back."""
    out, told = make_console(stderr=False), []
    for verdict in found:
        style = _STATE_STYLES.get(verdict.state, "yellow")
        labelled(out, f"{verdict.state:<14}", style, f"{verdict.message} {verdict.hint}")
        told.append(verdict)
    return told
