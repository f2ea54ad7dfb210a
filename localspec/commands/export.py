"""The command ``export``: a checked pair as a command or configuration of another engine."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, stored_settings
from localspec.commands.flags.rows import Given, choice, given_flags, number
from localspec.commands.session import download_ui, make_request
from localspec.core.errors import FileProblem, IncompatiblePair, UsageError
from localspec.core.files import appearing_when_complete, file_problem
from localspec.core.options.load_options import CTX_SIZE, TRAINED_CTX_SIZE
from localspec.core.options.model_options import PairOptions
from localspec.display.terminal import console
from localspec.export.names import DIALECTS, Repositories
from localspec.library.pairs.catalog import MTP
from localspec.library.resolve import FIND

if TYPE_CHECKING:
    from localspec.export.facts import DraftLength, Exported, PairFacts
    from localspec.hub.remote_header import PairCheck
    from localspec.library.pairs.request import PairRequest

_ON_GPUS = [name for name, dialect in DIALECTS.items() if dialect.on_gpus]


@spread_groups
def export(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ENGINE",
            parser=choice(*DIALECTS),
            autocompletion=lambda: list(DIALECTS),
            help=f"The engine that is to run the pair: {', '.join(DIALECTS)}.",
        ),
    ] = None,
    *,
    given: Annotated[Given, PairOptions],
    repositories: Repositories,
    name: NameArgument = None,
    ctx_size: Annotated[
        int | None,
        typer.Option(
            "--ctx-size",
            "-c",
            metavar="N",
            parser=number(CTX_SIZE, {"0": TRAINED_CTX_SIZE}),
            help="Context in tokens; 0: what the target was trained for. Default: the smaller of "
            "8192 and that.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a new file instead of stdout.")
    ] = None,
) -> None:
    """Print the command or configuration that runs a pair in another engine; reads only headers.

    Without a draft the target's own heads draft. Without a draft length, or with auto, it is the
    best fixed one by the figures that auto learnt of the pair on this machine, else the engine's.
    Exit code 1, with the reason, if the engine cannot run the pair.
    """
    from localspec.export.engines import export_pair

    if to is None:
        raise UsageError("No engine was given.", f"Add --to with one of: {', '.join(DIALECTS)}.")
    if to not in _ON_GPUS and (ignored := given_flags(repositories)):
        console.note(f"Ignored, since only {' and '.join(_ON_GPUS)} use it: {', '.join(ignored)}.")
    if output is not None and os.path.exists(output):
        raise FileProblem(f"{output} exists already.", "Choose another name, or remove it first.")
    if ctx_size is not None:
        given = {**given, "ctx_size": ctx_size}
    request = make_request(name, given)
    verdict = _checked(request)
    exported = export_pair(to, _facts(request, verdict, repositories))
    for sentence in exported.notes:
        console.note(sentence)
    if output is None:
        console.text(exported.text)
    else:
        _write(output, exported)


def _checked(request: "PairRequest") -> "PairCheck":
    """Check the pair by its headers; raises IncompatiblePair for models that do not fit."""
    from localspec.library.acquire import judge

    draft = request.draft.model or MTP
    if draft == FIND:
        raise UsageError(
            "--draft find does not work with export: name the draft.",
            "See which drafts fit: " + shlex.join(["localspec", "suggest", request.target]),
        )
    verdict = judge(
        request.target, draft, request.resolver, download_ui(), lenient=request.models.lenient
    )
    if not verdict.report.compatible:
        first = verdict.report.errors[0]
        raise IncompatiblePair(
            f"These models are no pair: {first.message}",
            f"{first.hint} All findings: "
            + shlex.join(["localspec", "check", request.target, draft]),
        )
    if verdict.report.by_text:
        raise IncompatiblePair(
            "The draft has another vocabulary than the target: localspec drafts with it by text, "
            "but other engines need a draft of the target's vocabulary.",
            "See drafts for it: " + shlex.join(["localspec", "suggest", request.target]),
        )
    for finding in verdict.report.warnings:
        console.note(f"{finding.message} {finding.hint}")
    return verdict


def _length(request: "PairRequest", verdict: "PairCheck") -> "DraftLength":
    from localspec.export.facts import DraftLength, learnt_length

    asked = request.draft.one_length("auto")
    if asked == 0:
        raise UsageError(
            "Draft length 0 drafts nothing, so there is nothing to export.",
            "Give a number, or leave it out.",
        )
    if asked != "auto":
        return DraftLength(asked, f"{asked}, as given or stored with the pair", given=True)
    if not (verdict.target.path.exists() and verdict.draft.path.exists()):
        return DraftLength(
            None, "the engine's default, since only of local files it is known what auto learnt"
        )
    return learnt_length(verdict.target, verdict.draft)


def _facts(request: "PairRequest", verdict: "PairCheck", repositories: Repositories) -> "PairFacts":
    from localspec.export.facts import PairFacts
    from localspec.llama.memory.plan import asked_ctx_size, default_ctx_size

    target = verdict.target
    ctx_size = asked_ctx_size(target, request.given.get("ctx_size")) or default_ctx_size(target)
    given = {name: each for name, each in request.given.items() if name not in request.sampling}
    settings = stored_settings(given)
    return PairFacts(
        target,
        verdict.draft,
        verdict.report,
        _length(request, verdict),
        ctx_size,
        settings,
        request.sampling,
        repositories,
    )


def _write(path: Path, exported: "Exported") -> None:
    """Write a new file; a script may be run by whoever may read it."""
    with file_problem(f"{path} cannot be written", "Give another --output."):
        with appearing_when_complete(path) as partial:
            partial.write_text(exported.text, encoding="utf-8")
        if exported.executable:
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o444) >> 2)
    console.note(f"Written: {path}")
