"""Result of a search for a self-draft: a table of its trials, and the verdict in words."""

from pathlib import Path

from localspec.chat.stats import Interval
from localspec.core.formatting import one_line, percent, size
from localspec.display.console import make_console
from localspec.display.models import table
from localspec.metadata.draft_kind import n_layers
from localspec.self_draft.selection import Selection
from localspec.self_draft.store import StoredDraft
from localspec.self_draft.trial import Trial
from localspec.self_draft.verdict import DraftVerdict

_COLUMNS = ("draft", "size", "agrees", "step", "predicted")
_TEXT = {
    "same": "the same text",
    "rounding": "the same text but for proven rounding",
    "different": "ANOTHER TEXT, please report this",
    "redrawn": "redrawn text",
}


def result(found: Selection, kept: StoredDraft | None, output: Path | None) -> None:
    """The trials, the best first, and what was measured of it, on stdout."""
    layers = n_layers(found.source)
    trials = sorted(found.search.trials, key=lambda each: -each.predicted_speedup)
    table(_COLUMNS, [_cells(trial, layers) for trial in trials], first_to_go=("size",))
    out = make_console(stderr=False)
    best = found.recipe.describe(layers)
    failed = [
        f"Not possible: {recipe.describe(layers)}. {problem.message}"
        for recipe, problem in found.search.failed.items()
    ]
    for sentence in (*failed, _verdict(best, found.verdict), _place(kept, output)):
        out.print(one_line(sentence), markup=False)


def as_json(found: Selection, kept: StoredDraft | None, output: Path | None) -> dict[str, object]:
    """The same as plain data."""
    return {
        "target": str(found.target.path),
        "output": None if output is None else str(output),
        "source": str(found.source.path),
        "kept": None if kept is None or kept.path is None else str(kept.path),
        "draft": found.search.best.trial.as_json(),
        "trials": [trial.as_json() for trial in found.search.trials],
        "failed": [
            recipe.as_json() | {"reason": problem.message}
            for recipe, problem in found.search.failed.items()
        ],
        "stopped": found.search.stopped,
        "verdict": None if found.verdict is None else found.verdict.as_json(),
    }


def _cells(trial: Trial, layers: int) -> tuple[str, ...]:
    return (
        trial.recipe.describe(layers),
        size(trial.n_bytes),
        percent(trial.agreement),
        f"{trial.step_cost:.2f}",
        f"{trial.predicted_speedup:.2f}x",
    )


def _verdict(best: str, verdict: DraftVerdict | None) -> str:
    if verdict is None:
        return f"The best found: {best}. Stopped: whether it pays was not measured."
    outcome = "It pays" if verdict.pays else "It does NOT pay"
    said = (
        f"{outcome}: {best} gives {verdict.speedup:.2f}x plain{_span(verdict.speedup_interval)}, "
        f"and {verdict.over_lookup:.2f}x prompt lookup alone"
        f"{_span(verdict.over_lookup_interval)}, with {_TEXT[verdict.text]}. "
        f"A round gives {verdict.mean_accepted_length:.2f} tokens; memory "
        f"{size(verdict.draft_memory)}."
    )
    if verdict.acceptance_rate is not None:
        said += f" The target accepted {percent(verdict.acceptance_rate)} of its tokens."
    if verdict.looping:
        said += f" {verdict.looping} of {verdict.prompts} answers repeat themselves."
    return f"{said} {verdict.reason}".rstrip()


def _span(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"


def _place(kept: StoredDraft | None, output: Path | None) -> str:
    """Where the draft is, and how it is used."""
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
