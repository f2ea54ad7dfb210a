"""What `localspec tune` tried and found, as tables and one sentence."""

from collections.abc import Iterable
from typing import Any

from localspec.bench.tuning.candidates import Candidate, shown
from localspec.bench.tuning.search import UNTRIED, Finalist, Outcome, Ratioed, TriedType
from localspec.core.formatting import duration, number, size
from localspec.display.models import table
from localspec.display.terminal import console

_ROUNDS = "may round otherwise"


def candidates(found: Iterable[Candidate]) -> None:
    """What would be tried."""
    table(("SETTING", ""), [(each.shown, _remark(each)) for each in found])


def _remark(candidate: Candidate) -> str:
    return _ROUNDS if candidate.rounds else ""


def result(outcome: Outcome, said: str) -> None:
    """Both tables on stdout, the sentence on stderr."""
    tried = [
        (
            each.candidate.shown,
            "–" if each.speedup is None else f"{each.speedup:.2f}x",
            each.reason or _remark(each.candidate),
        )
        for each in outcome.tried
    ]
    table(("TRIED", "PREDICTED", ""), tried)
    console.text("\n")
    table(
        ("SETTINGS", "TOK/S", "SPEEDUP", "90% CI", "TTFT", "MEMORY"),
        [_row(each) for each in outcome.finalists],
        first_to_go=("MEMORY", "TTFT", "90% CI"),
    )
    if outcome.types:
        console.text("\n")
        table(
            ("TYPE", "SIZE", "PREDICTED", "DRAFT", ""),
            [_type_row(each) for each in outcome.types],
            first_to_go=("DRAFT", "SIZE"),
        )
        console.note("Another type of the target writes another text, so none was chosen.")
    console.note(said)


def _type_row(each: TriedType) -> tuple[str, ...]:
    found = each.costs
    if each.speedup is None:
        return found.type, "–", "–", "", found.reason
    here = "" if found.path is None else f"{found.path.name} is here"
    return found.type, size(found.n_bytes), f"{each.speedup:.2f}x", each.draft, here


def _row(each: Finalist) -> tuple[str, ...]:
    return (
        shown(each.values),
        number(each.answered.per_second),
        f"{each.speedup.times:.2f}x",
        _span(each.speedup) if each.values else "",
        f"{each.answered.ttft:.2f} s",
        size(each.memory),
    )


def _span(found: Ratioed) -> str:
    interval = found.interval
    return "too few prompts" if interval is None else "{:.2f} to {:.2f}".format(*interval)


def sentence(outcome: Outcome, model: str) -> str:
    """The result in one sentence, and what to do with it."""
    best, seconds = outcome.best, outcome.seconds
    spent = duration(seconds) if seconds > 120 else f"{seconds:.0f} seconds"
    if best is outcome.now:
        untried = any(each.reason == UNTRIED for each in outcome.tried)
        longer = "; a longer --time tries the others" if untried else ""
        return (
            f"Nothing that was tried is clearly faster than the current settings ({spent}){longer}."
        )
    rounds = ", which may round otherwise" if best.rounds else ""
    faster = f"{best.speedup.times:.2f}"
    return (
        f"Kept for {model}: {shown(best.values)}{rounds}. Whole answers come {faster} "
        f"times as fast (measured for {spent}). Back: localspec tune --undo {model}"
    )


def as_json(outcome: Outcome, model: str) -> dict[str, Any]:
    """Plain data: seconds end in ``_s``, tokens per second in ``_tps``."""
    return {
        "model": model,
        "sentence": sentence(outcome, model),
        "seconds": outcome.seconds,
        "kept": dict(outcome.best.values),
        "tried": [
            {
                "settings": dict(each.candidate.values),
                "shown": each.candidate.shown,
                "predicted_speedup": each.speedup,
                "remark": each.reason or _remark(each.candidate),
            }
            for each in outcome.tried
        ],
        "types": [
            {
                "type": each.costs.type,
                "size": each.costs.n_bytes,
                "path": None if each.costs.path is None else str(each.costs.path),
                "predicted_speedup": each.speedup,
                "draft": each.draft,
                "remark": each.costs.reason,
            }
            for each in outcome.types
        ],
        "measured": [
            {
                "settings": dict(each.values),
                "shown": shown(each.values),
                "predicted_speedup": each.predicted,
                "speedup": each.speedup.times,
                "speedup_interval": each.speedup.interval,
                "generation_tps": each.answered.per_second,
                "ttft_s": each.answered.ttft,
                "memory": each.memory,
            }
            for each in outcome.finalists
        ],
    }
