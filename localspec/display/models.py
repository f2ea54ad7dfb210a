"""Tables and lists on stdout: models on this disk, known pairs, drafts, verified files.

A table on a terminal, lines of tab-separated fields in a pipe.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from localspec.core.formatting import one_line, size
from localspec.display.terminal.console import labelled, labelled_rows, make_console, note, sentence
from localspec.hub.client import RemoteModel
from localspec.hub.provenance import Verification
from localspec.library.local_models import Inventory, LocalModel
from localspec.library.pairs.catalog import MTP, Gain, PairSpec
from localspec.library.pairs.listing import PairRow
from localspec.library.sidecars import by_model
from localspec.library.suggest import Suggestions
from localspec.metadata.findings import counted

if TYPE_CHECKING:  # which takes pydantic a while
    from localspec.library.pairs.schema import Setting

_SHOWN_REFUSALS = 5
_SHOWN_BY_TEXT = 3
_GAP = 2  # columns between two columns
_VOCABULARIES = {
    "predicted": "should fit, by the published facts of both models",
    "reported": "fit, according to a report",
    "preset": "fit: the pair ships with llama.cpp",
    "made-for": "fit: the draft was made for this target",
    "unknown": "not known to fit",
}
_STATE_STYLES = {"right": "green", "wrong": "bold red", "missing": "red"}


class _Cell(NamedTuple):
    """A text that is cut in its middle if it does not fit: a name's end is its quantisation."""

    text: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, cell_len(self.text)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(_fit(self.text, options.max_width))


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    first_to_go: Sequence[str] = (),
    *,
    header: bool = True,
) -> None:
    """Rows below their names; ``first_to_go`` leave a narrow terminal first. Uncut in a pipe."""
    out = make_console(stderr=False)
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not out.is_terminal:  # not through rich, which would turn tabs into spaces
        for line in [names, *lines] if header else lines:
            out.file.write("\t".join(line) + "\n")
        return
    columns = dict(zip(names, zip(names, *lines, strict=True), strict=True))
    for name in first_to_go:
        if sum(max(map(cell_len, cells)) + _GAP for cells in columns.values()) - _GAP > out.width:
            del columns[name]
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for i, row in enumerate(zip(*columns.values(), strict=True)):
        if i or header:
            grid.add_row(*map(_Cell, row), style=None if i else "bold")
    out.print(grid)


def _fit(text: str, width: int) -> str:
    """The text in ``width`` columns, cut in its middle if it is longer."""
    if cell_len(text) <= width:
        return text
    head = width - 1 - (width - 1) // 3
    tail = text[len(text) - (width - 1 - head) :] if width > 1 + head else ""
    return set_cell_size(set_cell_size(text, head) + "…" + tail, width)


def models(inventory: Inventory, *, header: bool = True) -> None:
    """The models of ``list``, below each the sidecars that draft for it; notes go to stderr."""
    if inventory.files:
        served, alone = by_model(inventory)
        rows = [
            row
            for model, heads in zip(inventory.models, served, strict=True)
            for row in (_model_cells(model), *(_model_cells(each, "+ ") for each in heads))
        ]
        rows += [_model_cells(each, "+ ") for each in alone]
        table(("MODEL", "SIZE", "SOURCE", "PATH"), rows, ("PATH",), header=header)
    else:
        folders = ", ".join(str(folder) for folder in inventory.folders)
        note(f"There are no GGUF models in the folders searched: {folders}.")
    for each in (*_unverified(inventory), *inventory.notes):
        note(each)


def _unverified(inventory: Inventory) -> list[str]:
    """A sentence on the downloads that no hash of the Hub vouches for."""
    names = [one_line(model.name) for model in inventory.files if model.unverified]
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    return [f"Unverified, as the Hub listed no sha256: {listed}."] if names else []


def _model_cells(model: LocalModel, mark: str = "") -> tuple[str, ...]:
    sources = "+".join([model.source, *model.also_in])
    return mark + model.name, size(model.n_bytes), sources, str(model.path)


def inventory_json(inventory: Inventory) -> dict[str, object]:
    """The list as plain data; ``sidecars`` at the top are those without their model here."""
    served, alone = by_model(inventory)
    return {
        "models": [
            model_json(model) | {"sidecars": [*map(model_json, heads)]}
            for model, heads in zip(inventory.models, served, strict=True)
        ],
        "sidecars": [*map(model_json, alone)],
        "notes": list(inventory.notes),
    }


def model_json(model: LocalModel) -> dict[str, object]:
    known = {n: getattr(model, n) for n in ("name", "source", "sha256", "unverified", "repo")}
    lists = {"also_in": list(model.also_in), "parts": [*map(str, model.parts)]}
    return {**known, **lists, "path": str(model.path), "size": model.n_bytes}


def pairs(
    rows: Sequence[PairRow],
    best: PairRow | None,
    machine: str,
    both: PairRow | None = None,
    *,
    header: bool = True,
) -> None:
    """Known pairs, one a line, the user's own first; the ``best`` for the machine is marked.

    ``both`` is the one for RAM and GPU together.
    """
    table(
        ("PAIR", "SIZE", "HERE", "FITS", "GAIN", "FAMILY", "LICENCES"),
        (_pair_cells(row, row is best) for row in rows),
        ("LICENCES", "FAMILY", "HERE", "SIZE"),
        header=header,
    )
    if best is not None:
        note(f"Recommended for {machine}: {chat_command(best)}")
    if both is not None:
        moved = "the experts stay in RAM" if both.experts else "the layers that fit go to the GPU"
        note(f"In RAM and on the GPU together: {chat_command(both, shared=True)}; {moved}.")
    note(
        "A gain with (?) is an estimate. Details: localspec pair show NAME; download both models: "
        "localspec download NAME; chat with them: localspec chat NAME."
    )


def chat_command(row: PairRow, *, shared: bool = False) -> str:
    """The command that starts a chat with a pair, and the size of its download.

    A ``shared`` pair gets the flags that split it between RAM and GPU.
    """
    download = "on this disk" if all(row.here) else f"downloads {size(row.size)}"
    experts = " -ncmoe 999" if shared and row.experts else ""
    return f"localspec chat {row.name}{experts} ({download})"


def _pair_cells(row: PairRow, is_best: bool) -> tuple[str, ...]:
    target, draft = row.here
    here = "both" if target and draft else "target" if target else "draft" if draft else "–"
    gain = "" if row.gain is None else row.gain.what
    if make_console(stderr=False).is_terminal:
        gain = gain.partition(";")[0]  # the figure alone
    if row.gain is not None and (row.gain.source is None or row.gain.standing == "estimated"):
        gain += " (?)"
    return (
        row.name,
        "" if row.size is None else size(row.size),
        here,
        "best" if is_best else {True: "yes", False: "no", None: "?"}[row.fits],
        gain,
        row.family,
        "/".join(dict.fromkeys(name for name in row.licenses if name)),
    )


def pair(row: PairRow, settings: "Mapping[str, Setting]") -> None:
    """Everything about one pair, a fact a line; settings as in its file."""
    facts = [*_facts(row, settings), *(_known_facts(row.spec, row.gain) if row.spec else ())]
    labelled_rows(make_console(stderr=False), facts)


def _facts(row: PairRow, settings: "Mapping[str, Setting]") -> Iterator[tuple[str, str]]:
    import tomlkit

    yield "pair", row.name
    yield "family", row.family
    yield "target", row.target
    yield "draft", "prediction heads of the target" if row.draft == MTP else row.draft
    if row.spec is not None:
        yield "kind", row.spec.spec_type
    if row.size is not None:
        yield "size", f"{size(row.size)}; about {size(row.memory)} with caches and buffers"
    here = [name for name, there in zip(("target", "draft"), row.here, strict=True) if there]
    yield "on this disk", ", ".join(here) or "nothing yet"
    for name, value in settings.items():
        yield "setting", f"{name} = {tomlkit.item(value).as_string()}"


def _known_facts(spec: PairSpec, gain: Gain | None) -> Iterator[tuple[str, str]]:
    draft = f", draft {spec.draft.license}" if spec.draft else ""
    yield "licences", f"target {spec.target.license}{draft}"
    yield "vocabularies", _VOCABULARIES[spec.vocab]
    if gain is not None:
        source = f" ({gain.source})" if gain.source else ""
        yield "gain", f"{gain.standing}: {gain.what}{source}"
    yield "advice", spec.advice
    if spec.unseen:
        yield "note", "The draft is known from public documents; its file was not opened here."
    yield from (("note", gotcha) for gotcha in spec.gotchas)
    yield from (("source", source) for source in spec.sources)


def suggestions(found: Suggestions, target: str) -> None:
    """Drafts for a target, the best first, each with its reasons and the command to type next."""
    if found.own_heads:
        _headline("mtp: prediction heads in the target's own file")
        _line(f"   {counted(found.own_heads, 'head')}; nothing to fetch")
        _line("   " + shlex.join(["localspec", "chat", "--target", target, "--draft", MTP]))
    for i, draft in enumerate(found.drafts, 1):
        _headline(f"{i}. {draft.name}")
        _line(f"   {'; '.join(draft.reasons)}")
        _line(f"   {draft.command(target)}")
    if not found.drafts and not found.own_heads:
        _line("No model on this disk can draft for it in its own vocabulary.")
        for refusal in found.refused[:_SHOWN_REFUSALS]:
            _line(f"   {refusal.name}: {refusal.reason}")
        for draft in found.by_text[:_SHOWN_BY_TEXT]:
            _headline(draft.name)
            _line(f"   {'; '.join(draft.reasons)}")
            _line(f"   {draft.command(target)}")
    if found.refused and not found.drafts and found.refused[0].harmless:
        note("The nearest runs with --lenient: its differences cannot corrupt text.")
    for known in found.known:
        _line(
            f"known pair: {known.name}, {_draft_of(known)}; "
            f"fetch it with: localspec download {known.name}"
        )
    if not found.drafts and not found.known and not found.own_heads:
        note("See the known pairs with: localspec pairs")


def _headline(text: str) -> None:
    sentence(make_console(stderr=False), text, "bold")


def _line(text: str) -> None:
    sentence(make_console(stderr=False), text)


def _draft_of(known: PairSpec) -> str:
    model = known.draft or known.target
    place = "draft" if known.draft else "heads in"
    return f"{place} {model.reference} ({model.size_gb:g} GB)"


def sidecars_on_hub(found: Sequence[RemoteModel], target: str) -> None:
    """Heads in a target's own repository, each with the command that checks them."""
    for heads in found:
        command = shlex.join(["localspec", "check", target, str(heads.reference)])
        _line(f"in its repository: {heads.reference} ({size(heads.size)}); check: {command}")


def verdict_json(verdict: Verification) -> dict[str, object]:
    known = {n: getattr(verdict, n) for n in ("state", "message", "expected", "found")}
    unverified = verdict.origin is not None and verdict.origin.checked == "size"
    return {"path": str(verdict.path), **known, "unverified": unverified}


def verdicts(found: Iterable[Verification]) -> list[Verification]:
    """Print a line for each file as it is verified; returns all of them."""
    out, shown = make_console(stderr=False), []
    for verdict in found:
        style = _STATE_STYLES.get(verdict.state, "yellow")
        labelled(out, f"{verdict.state:<14}", style, f"{verdict.message} {verdict.hint}")
        shown.append(verdict)
    return shown
