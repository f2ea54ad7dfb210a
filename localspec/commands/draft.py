"""The commands about drafts made out of a target: draft make."""

import os
from pathlib import Path
from typing import Annotated

import typer

from localspec.commands.flags.answer import JsonFlag
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.llama_command import LlamaCommand
from localspec.commands.flags.pair import LoadingFlags, model_argument
from localspec.commands.session import download_ui
from localspec.core.errors import FileProblem, UsageError
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress
from localspec.library.pairs.options import pair_load_options
from localspec.library.resolve import Resolver
from localspec.self_draft.recipe import SelfDraftOptions

draft_app = typer.Typer(help="Make a draft out of a target itself.", no_args_is_help=True)


@draft_app.command("make", cls=LlamaCommand)
@spread_groups
def draft_make(
    target: Annotated[str, model_argument("TARGET", "The big model, as in run.")],
    loading: LoadingFlags,
    asked: SelfDraftOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the draft to this file as well.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a draft of a target, of fewer layers, a lower type or fewer output rows.

    Of a target with MTP heads it is by default the heads with as many output rows as its answers
    need. It is stored, and --draft self uses it; localspec tune measures whether it pays.
    """
    from localspec.bench.prompts import read_prompts
    from localspec.display import self_draft as shown
    from localspec.library.acquire import ensure_local
    from localspec.self_draft.making import make_and_store

    _require_trimming(asked, output)
    resolver = Resolver()
    (path,) = ensure_local([resolver.choose(target, None).target], resolver, download_ui())
    if output is not None:
        _require_free(output, path, asked.source)
    options, _ = pair_load_options(loading, path, None)
    prompts = [prompt.messages for prompt in read_prompts()]
    found = make_and_store(options, asked, output, prompts, console.note, progress)
    if as_json:
        console.json_line(shown.as_json(found, output))
    else:
        shown.result(found, output)


def _require_trimming(asked: SelfDraftOptions, output: Path | None) -> None:
    """Raise UsageError if a draft is given for anything but fewer output rows in a new file."""
    if asked.source is None:
        return
    if asked.vocab is None or output is None or asked.layers or asked.type:
        raise UsageError(
            "--draft only trims the vocabulary of a draft that exists.",
            "Give --vocab N and --output FILE with it, and no --layers or --type.",
        )


def _require_free(output: Path, target: Path, draft: Path | None) -> None:
    """Refuse, before minutes are spent, a place that holds something else or takes nothing."""
    from localspec.bench.report.report import require_writable
    from localspec.metadata.header import read_header
    from localspec.self_draft.make import require_free_place

    require_free_place(read_header(target), output)
    there = draft is not None and os.path.exists(draft) and os.path.exists(output)
    if draft is not None and there and output.samefile(draft):
        raise FileProblem(f"{output} is the draft itself.", "Name another file with --output.")
    require_writable(output)
