"""Facts and findings as labelled lines on stdout: check, inspect, doctor."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from localspec.core.formatting import size
from localspec.display.terminal.console import labelled, labelled_rows, make_console, sentence

if TYPE_CHECKING:
    from rich.console import Console

    from localspec.engine.doctor import DoctorReport
    from localspec.library.model_info import ModelInfo
    from localspec.metadata.header import ModelHeader
    from localspec.pairing import Finding, PairReport

_LEVEL_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def pair_report(report: "PairReport", target: "ModelHeader", draft: "ModelHeader") -> None:
    """The verdict of ``check`` and its findings, on stdout."""
    from localspec.metadata.draft_kind import draft_kind

    out = make_console(stderr=False)
    for role, header in (("target", target), ("draft", draft))[: 1 if target is draft else 2]:
        sentence(out, f"{role:<7} {_headline(header)}")
    _findings(out, report.findings)
    verdict = "compatible" if report.compatible else "not compatible"
    theirs = "accepts" if report.llama_cpp_accepts else f"refuses ({report.llama_cpp_rule})"
    kind = draft_kind(draft)
    if target is draft:
        verdict += " as draft-mtp, with heads of its own"
    elif report.by_text:
        verdict += " by text"
    elif not kind.is_model:
        verdict += f" as {kind.spec_type}"
    out.print(
        f"{verdict}; llama.cpp's own rule {theirs} this pair",
        style="bold green" if report.compatible else "bold red",
        markup=False,
    )


def model_reports(shown: "Sequence[ModelInfo]", both: "Mapping[int, int]") -> None:
    """Facts of model files and findings on them; ``both``: a pair's bytes by the context."""
    out = make_console(stderr=False)
    for each in shown:
        labelled_rows(out, each.facts)
        _findings(out, each.findings)
    if both:
        sizes = (f"{size(n_bytes)} for {ctx:,} tokens of context" for ctx, n_bytes in both.items())
        labelled_rows(out, [("both models", f"about {', '.join(sizes)}")])


def _findings(out: "Console", findings: "Iterable[Finding]") -> None:
    for finding in findings:
        style = _LEVEL_STYLES[finding.level]
        labelled(out, f"{finding.level:<8}", style, f"{finding.message} {finding.hint}")


def _headline(header: "ModelHeader") -> str:
    if not header.complete:
        tokens = "" if header.n_tokens is None else f", {header.n_tokens} tokens"
        return f"{header.path.name}: {header.architecture}{tokens}; read no further"
    tokens = f"{len(header.vocab) if header.vocab else 0} tokens"
    if header.trimmed is not None:
        tokens = f"proposes {header.trimmed.describe()}"
    return (
        f"{header.path.name}: {header.architecture}, {header.size_label} parameters, "
        f"{header.quantization}, {tokens}, context {header.context_length}"
    )


def doctor_report(result: "DoctorReport") -> None:
    """The facts of ``doctor`` on stdout, the advice below them."""
    out, rows = make_console(stderr=False), list[tuple[str, str]]()
    for name, value in result.facts.items():
        if name == "devices" and isinstance(value, list):
            for each in value:
                own = f", {size(each['free'])} of {size(each['total'])} free"
                memory = "" if each["kind"] == "CPU" else own  # that of the machine, shown above
                words = f"{each['name']}: {each['description']} ({each['kind']}{memory})"
                rows.append(("device", words))
            continue
        shown = size(value) if name.startswith("memory") and isinstance(value, int) else value
        rows.append((name.replace("_", " "), str(shown)))
    labelled_rows(out, rows)
    for each in result.advice:
        sentence(out, f"advice: {each}", "yellow")
