"""The commands about models: check, inspect, list, suggest, download and verify."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands.flags import completion
from localspec.commands.flags.answer import HeaderFlag, JsonFlag
from localspec.commands.flags.pair import model_argument
from localspec.commands.session import download_ui
from localspec.core import paths
from localspec.core.errors import IncompatiblePair, LocalspecError, UsageError
from localspec.display import reports
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress
from localspec.download import verify as verify_files
from localspec.library.local_models import current_folder, find_models, parse_source
from localspec.library.pairs import user_pairs
from localspec.library.resolve import Resolver

if TYPE_CHECKING:
    from localspec.hub.remote_header import PairCheck

_MODEL = "A GGUF file, or one on the Hub: org/repo:Q4_K_M, hf:org/repo/file.gguf."

FolderOption = Annotated[
    list[Path] | None, typer.Option("--folder", help="Search this folder too; may be repeated.")
]
TargetArgument = Annotated[str | None, model_argument("TARGET", f"The big model. {_MODEL}")]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-m",
        "--model",
        help="Instead of the argument.",
        autocompletion=completion.models,
    ),
]


def check(
    target_name: TargetArgument = None,
    draft_name: Annotated[
        str | None,
        model_argument(
            "DRAFT", "The small model, named likewise; or mtp, the prediction heads of the target."
        ),
    ] = None,
    target: TargetOption = None,
    draft: Annotated[
        str | None,
        typer.Option("--draft", "--draft-model", "-md", help="Instead of the argument DRAFT."),
    ] = None,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Only warn of differences that cannot corrupt text.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check whether a draft model is compatible with a target, and why not.

    Of a file on the Hub only the header is read; one on this disk also decodes a few tokens, in a
    process of its own, unless it did so before. A pair's name stands for both models. Exit code 0
    if they are compatible, 1 if not, 2 if the check failed.
    """
    from localspec.engine.loading.exact_passes import exact_findings
    from localspec.library.acquire import proven
    from localspec.pairing import report_json

    given = [name for name in (target_name, draft_name, target, draft) if name is not None]
    try:
        verdict = _judge(given, target, lenient)
        if verdict.report.compatible:
            verdict = proven(verdict)
    except LocalspecError as problem:
        problem.exit_code = UsageError.exit_code  # 1 is a verdict
        raise
    exact = exact_findings(verdict.target)
    if as_json:
        document = report_json(verdict.report, verdict.target, verdict.draft)
        console.json_line(document | {"bytes_read": verdict.bytes_read, "exact": exact})
    else:
        reports.pair_report(verdict.report, verdict.target, verdict.draft)
        for sentence in exact:
            console.note(sentence, asked=True)
    raise typer.Exit(0 if verdict.report.compatible else 1)


def _judge(given: list[str], target: str | None, lenient: bool) -> "PairCheck":
    from localspec.library.acquire import judge

    resolver, ui = Resolver(), download_ui()
    if len(given) == 1:
        named = resolver.choose(given[0])
        given = [each for each in (named.target, named.draft) if each is not None]
        lenient = lenient or bool(named.settings.get("lenient"))
    if len(given) != 2:
        raise UsageError(
            f"check compares two models, not {len(given)}.", "Type: localspec check TARGET DRAFT"
        )
    first = target or given[0]
    given.remove(first)
    try:
        return judge(first, given[0], resolver, ui, lenient=lenient, weights_needed=False)
    except IncompatiblePair as problem:  # mtp without heads: the report names the missing part
        console.note(problem.message)
        alone = resolver.choose(first).target
        return judge(alone, alone, resolver, ui)


def inspect(
    name: Annotated[str | None, model_argument("MODEL", f"{_MODEL} Or a pair's name.")] = None,
    target: TargetOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a model's metadata, memory estimate and problems; reads only the header.

    Of a pair both models, and the memory that they take together.
    """
    from localspec.library.acquire import header_of
    from localspec.library.model_info import model_info, together
    from localspec.llama.memory.probe import memory_for_models

    resolver, ui, free = Resolver(), download_ui(), memory_for_models()
    models = resolver.choose(_one_model(name, target)).models
    shown = [model_info(header_of(each, resolver, ui), free) for each in models]
    both = together([each.header for each in shown]) if len(shown) > 1 else {}
    if as_json:
        documents = [each.as_json() for each in shown]
        document = {"models": documents, "together": both} if both else documents[0]
        console.json_line(document)
    else:
        reports.model_reports(shown, both)
    raise typer.Exit(0 if all(each.usable for each in shown) else 1)


def _one_model(name: str | None, target: str | None) -> str:
    if (found := name or target) is None:
        raise UsageError("No model was given.", "Name a GGUF file, or see: localspec list")
    if None not in (name, target):
        raise UsageError(f"Two models were given: {name} and {target}.", "Name one.")
    return found


def list_models(
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="Only this source, such as ollama; may be repeated."),
    ] = None,
    folder: FolderOption = None,
    as_json: JsonFlag = False,
    header: HeaderFlag = True,
) -> None:
    """List GGUF models on this disk, also those of the current folder, Ollama and other tools.

    Files that only draft for a model (MTP heads, EAGLE-3, DFlash) are listed below it, with a plus.
    Sources: localspec, hugging-face, llama.cpp, lm-studio, ollama, jan, gpt4all,
    bundled.
    """
    from localspec.display import models as lists

    chosen = [parse_source(text) for text in source or ()] or None
    inventory = find_models(chosen, folder or (() if source else current_folder()))
    if as_json:
        console.json_line(lists.inventory_json(inventory))
    else:
        lists.models(inventory, header=header)


def suggest(
    name: TargetArgument = None,
    target: TargetOption = None,
    folder: FolderOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Rank drafts for a target on this disk, name known pairs, and say why other models fail."""
    from localspec.display import models as lists
    from localspec.library.acquire import header_of, heads_on_hub
    from localspec.library.suggest import drafts_for

    resolver, ui = Resolver(folder or ()), download_ui()
    name = resolver.choose(_one_model(name, target)).target
    found = drafts_for(header_of(name, resolver, ui), resolver.inventory.files)
    on_hub = heads_on_hub(name, resolver, ui)
    if as_json:
        console.json_line(
            {
                "own_heads": found.own_heads,
                "in_repository": [str(heads.reference) for heads in on_hub],
                "drafts": [draft.as_json(name) for draft in found.drafts],
                "by_text": [draft.as_json(name) for draft in found.by_text],
                "refused": [refusal.as_json() for refusal in found.refused],
                "known_pairs": [pair.name for pair in found.known],
            }
        )
    else:
        lists.sidecars_on_hub(on_hub, name)
        lists.suggestions(found, name)
    offered = found.own_heads or found.drafts or found.known or on_hub
    raise typer.Exit(0 if offered else 1)


def download(
    names: Annotated[list[str], model_argument("MODEL", "A pair's name, or models on the Hub.")],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before a large download.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Download a pair, or single models, into the models folder; resumes interrupted downloads.

    Both headers of a pair are checked first. Every file is compared with the Hub's sha256.
    """
    from localspec.library.acquire import fetch_groups

    resolver, ui = Resolver(), download_ui(yes)
    try:
        files = fetch_groups(names, resolver, ui)
    except KeyboardInterrupt:
        console.note("Stopped. Run the same command again to resume.")
        raise typer.Exit(130) from None
    if as_json:
        console.json_line({"files": [str(path) for path in files]})
    else:
        for path in files:
            console.text(f"{path}\n")


def verify(
    names: Annotated[
        list[str] | None, model_argument("MODEL", "Files, references or a pair; default: all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Verify files against the sha256 recorded at their download; needs no network."""
    from localspec.display import models as lists

    resolver = Resolver()
    wanted = [path for name in names or () for path in resolver.files_of(name)]
    kept = user_pairs.stored_hashes(names)
    ours = paths.models_folder()
    everything = [ours] if ours.is_dir() else []
    everything += [path for path in kept if not path.is_relative_to(ours)]
    with progress(in_bytes=True) as on_progress:
        coming = verify_files(wanted or everything, on_progress, kept)
        found = list(coming) if as_json else lists.verdicts(coming)
    if as_json:
        console.json_line({"files": [lists.verdict_json(verdict) for verdict in found]})
    elif not found:
        console.note("Nothing was downloaded yet. Download a pair: localspec download NAME")
    raise typer.Exit(0 if all(verdict.state == "right" for verdict in found) else 1)
