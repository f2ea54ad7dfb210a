"""Result of ``draft make``: the verdict in words, and as plain data."""

from pathlib import Path

from localspec.bench.self_draft import MadeDraft
from localspec.chat.stats import Interval
from localspec.core.formatting import one_line, percent, size
from localspec.display.terminal.console import make_console
from localspec.metadata.draft_kind import n_layers
from localspec.self_draft.store import StoredDraft
from localspec.self_draft.verdict import DraftVerdict

_TEXT = {
    "same": "the same text",
    "rounding": "the same text but for proven rounding",
    "different": "ANOTHER TEXT, please report this",
    "redrawn": "redrawn text",
}


def result(found: MadeDraft, output: Path | None) -> None:
    """Print the verdict on a draft and the path of its file on stdout."""
    out = make_console(stderr=False)
    recipe = found.recipe.describe(n_layers(found.source))
    for sentence in (_verdict(recipe, found.verdict), _place(found.stored, output)):
        out.print(one_line(sentence), markup=False)


def as_json(found: MadeDraft, output: Path | None) -> dict[str, object]:
    kept = None if found.stored is None else found.stored.path
    return {
        "target": str(found.target.path),
        "output": None if output is None else str(output),
        "source": str(found.source.path),
        "kept": None if kept is None else str(kept),
        "draft": found.recipe.as_json() | {"n_bytes": found.n_bytes},
        "stopped": found.stopped,
        "verdict": None if found.verdict is None else found.verdict.as_json(),
    }


def _verdict(recipe: str, verdict: DraftVerdict | None) -> str:
    if verdict is None:
        return f"Made: {recipe}. Stopped: whether it pays was not measured."
    outcome = "It pays" if verdict.pays else "It does NOT pay"
    said = (
        f"{outcome}: {recipe} gives {verdict.speedup:.2f}x plain{_span(verdict.speedup_interval)}, "
        f"and {verdict.over_lookup:.2f}x prompt lookup alone"
        f"{_span(verdict.over_lookup_interval)}, with {_TEXT[verdict.text]}. "
        f"A round gives {verdict.mean_accepted_length:.2f} tokens; memory "
        f"{size(verdict.draft_memory)}."
    )
    if verdict.acceptance_rate is not None:
        said += f" The target accepted {percent(verdict.acceptance_rate)} of its tokens."
    if verdict.whole_heads is not None:
        said += f" The whole heads give {verdict.whole_heads:.2f}x plain."
    if verdict.looping:
        said += f" {verdict.looping} of {verdict.prompts} answers repeat themselves."
    return f"{said} {verdict.reason}".rstrip()


def _span(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"


def _place(kept: StoredDraft | None, output: Path | None) -> str:
    if kept is None:
        said = "It is not stored: --draft self goes on as before."
    elif kept.path is None:
        said = "It is not stored: --draft self says so, and runs without it."
    else:
        said = f"Stored for --draft self: {kept.path}."
    if output is not None:
        return f"{said} Written to {output}."
    has_file = kept is not None and kept.path is not None
    return said if has_file else f"{said} To have the file all the same, add --output FILE."
