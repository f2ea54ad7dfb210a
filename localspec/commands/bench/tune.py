"""The command ``tune``: the settings with which a pair is fastest here, found and kept."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from localspec.commands import session
from localspec.commands.flags import tuned
from localspec.commands.flags.answer import JsonFlag
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.settings import read_settings
from localspec.core import machine
from localspec.core.errors import UsageError
from localspec.core.formatting import duration
from localspec.core.interrupt import terminated_as_interrupted
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress

if TYPE_CHECKING:
    from localspec.bench.tuning.candidates import Candidate, PairFiles
    from localspec.bench.tuning.search import OnStep, Outcome
    from localspec.bench.tuning.types import TypeCosts
    from localspec.library.pairs.request import PairRequest

Kind = Literal["chat", "code", "edit", "agent"]
_RECORDED = 3  # prompts: the others prove what these predict
_SHORTEST, _LONGEST = 30, 24 * 3600  # seconds
_BUSY = 1.5  # times the time, where other programs use cores
_MOST_TRIALS = 4  # pairs that are loaded at the same time


@spread_groups
def tune(
    given: PairFlags,
    name: NameArgument = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--for", help="The texts that it is to be fast for. Default: all."),
    ] = None,
    time: Annotated[
        str, typer.Option("--time", metavar="3m", help="About how long, such as 90s or 10m.")
    ] = "3m",
    types: Annotated[
        bool,
        typer.Option(
            "--types",
            help="Also predict the speed of the target in other types, by copies of a few of its "
            "layers. It takes longer, and nothing is changed.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be tried, and measure nothing.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Forget the settings that were found for MODEL.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Save both tables as a page.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the settings with which a pair answers fastest on this machine, and keep them.

    Each setting is measured in its own process. Then the best ones and the current ones answer in
    turn, and only what is clearly faster is kept, for this pair. A flag given later wins over it.
    Ctrl-C changes nothing; while types are measured, it only ends that.
    """
    from localspec.bench.report.page import render_tuning
    from localspec.bench.report.report import require_writable, write_report
    from localspec.display import tune as display

    seconds = _seconds(time)
    request = session.make_request(name, given)
    if undo:
        _undo(request)
        return
    if "rpc" in request.given:
        raise UsageError("tune measures this machine alone.", "Leave --rpc out.")
    pair, found = _candidates(request)
    wanted = _types(pair) if types else {}
    if dry_run:
        _list(pair, found, seconds, [*wanted], as_json=as_json)
        return
    if report is not None:
        require_writable(report)
    busy = machine.other_work()
    if busy is not None:
        console.note(f"{busy} Measuring takes longer for that.")
        seconds *= _BUSY
    try:
        with terminated_as_interrupted(), _shown_progress() as on_step:
            outcome = _search(pair, found, kind, seconds, on_step, wanted)
    except KeyboardInterrupt:
        console.note("Stopped: the settings stay as they are.")
        raise
    document = display.as_json(outcome, _keep(request, outcome)) | {
        "date": date.today().isoformat(),
        "cpu": machine.cpu_name(),
        "busy": busy,
        "command": shlex.join(["localspec", *sys.argv[1:]]),
    }
    if report is not None:
        write_report(report, render_tuning(document))
        console.note(f"Report: {report}")
    if as_json:
        console.json_line(document)
    else:
        display.result(outcome, document["sentence"])
    if outcome.stopped:
        console.note(f"Stopped: {len(outcome.types)} of {len(wanted)} types were measured.")
        raise KeyboardInterrupt


def _list(
    pair: "PairFiles", found: "list[Candidate]", seconds: float, types: list[str], *, as_json: bool
) -> None:
    """What would be tried."""
    from localspec.bench.tuning.candidates import modes
    from localspec.bench.tuning.search import LENGTHS
    from localspec.display import tune as display

    every = [*modes(pair, LENGTHS), *found]
    if as_json:
        tried = [dict(each.values) for each in every]
        listed = {"seconds": seconds, "candidates": tried, "types": types}
        console.json_line(listed)
        return
    display.candidates(every)
    console.note(f"With this time: about {duration(seconds)}.")
    if types:
        console.note(f"Then for some minutes types of the target: {', '.join(types)}.")


def _keep(request: "PairRequest", outcome: "Outcome") -> str:
    """Add faster settings to those kept before; returns the model's name."""
    model, draft = _name(request), request.models.draft_options().model
    if outcome.best is not outcome.now:
        before, _ = tuned.tuned_values(read_settings(), model, draft, ())
        tuned.keep(model, draft, {**before, **outcome.best.values})
    return model


def _undo(request: "PairRequest") -> None:
    model = _name(request)
    if tuned.undo(model):
        console.note(f"The settings that tune found for {model} are forgotten.")
    else:
        console.note(f"Nothing to undo: tune has kept no settings for {model}.")


def _name(request: "PairRequest") -> str:
    """The name for which settings are kept: that of the pair, or of the target's file."""
    target = Path(request.target)
    return request.pair or (target.stem if target.suffix == ".gguf" else request.target)


def _seconds(text: str) -> float:
    """Read ``90s``, ``3m`` or ``1h``; raises UsageError."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise UsageError(
            f"--time {text[:20]!r} is not a time from 30s to 24h.", "Give one such as 3m."
        )
    return seconds


def _candidates(request: "PairRequest") -> "tuple[PairFiles, list[Candidate]]":
    """The pair with its files, checked, and its candidates."""
    from localspec.bench.tuning.candidates import PairFiles, candidates
    from localspec.engine.loading.pair import usable_pair
    from localspec.library.local_models import find_models
    from localspec.library.suggest import drafts_for
    from localspec.llama import llama_library, row_kernels
    from localspec.self_draft import store

    target, draft = session.find_files(request)
    # Checks alone: the processes that try settings load the files.
    placed = usable_pair(target, draft, lenient=request.models.lenient, trial=False).placed
    header, local = placed.target.header, find_models().models
    own = store.find(header)  # made by `draft make`
    here = [*([] if own is None else [own]), *(d.path for d in drafts_for(header, local).drafts)]
    others = tuple(path for path in here if draft is None or not path.samefile(draft.path))
    length = request.draft_tokens
    answers = {
        "draft_tokens": {0: "off"}.get(length, str(length)) if length != "auto" else "auto",
        "prompt_lookup": request.models.prompt_lookup,
    }
    pair = PairFiles(request.given, target, draft, answers, others)
    usual, every = machine.physical_cores(), machine.logical_cores()
    cores = dict.fromkeys((usual, max(1, usual - 1), every))
    has_gpu = any(device.is_gpu for device in llama_library.devices())
    layers = (header.block_count or 0) if has_gpu else 0
    kernels = row_kernels.form() is not None and row_kernels.refusal() is None
    return pair, candidates(pair, list(cores), has_kernels=kernels, layers=layers)


def _search(
    pair: "PairFiles",
    found: "list[Candidate]",
    kind: Kind | None,
    seconds: float,
    on_step: "OnStep",
    types: "dict[str, Callable[[], TypeCosts]]",
) -> "Outcome":
    from localspec.bench.figures import FEWEST_PROMPTS
    from localspec.bench.prompts import by_task, in_turn, read_prompts
    from localspec.bench.tuning import candidates
    from localspec.bench.tuning.search import Search

    own = Path(candidates.__file__).with_name("prompts.jsonl")
    (prompts,) = in_turn(by_task(read_prompts(own), kind)).values()
    few = min(_RECORDED, len(prompts) - FEWEST_PROMPTS)
    recorded, held = prompts[:few], prompts[few:]
    return Search(pair, found, recorded, held, seconds, _room(pair), types, on_step).run()


def _types(pair: "PairFiles") -> "dict[str, Callable[[], TypeCosts]]":
    """What measures other types of the target, those of files here too."""
    from localspec.bench.tuning.types import type_costs
    from localspec.library.local_models import find_models
    from localspec.library.suggest import same_models
    from localspec.metadata.header import read_header

    same = same_models(read_header(pair.target.path), find_models().models)
    return type_costs(pair, {each.quantization: each.path for each in same})


def _room(pair: "PairFiles") -> int:
    """How many times the pair fits into free memory, at least once."""
    from localspec.llama.memory.probe import memory_for_models, pair_bytes
    from localspec.metadata.header import read_header

    free = memory_for_models()
    if free is None:
        return 1
    headers = [read_header(each.path) for each in (pair.target, pair.draft) if each is not None]
    one = pair_bytes(headers[0], headers[-1], pair.target.ctx_size or 8192)
    return max(1, min(_MOST_TRIALS, free // max(1, one)))


@contextmanager
def _shown_progress() -> "Iterator[OnStep]":
    """A bar of the time."""
    at = ""

    def on_step(what: str, spent: float, total: float) -> None:
        nonlocal at
        if not console.make_console(stderr=True).is_terminal and what != at:
            console.note(f"{spent:.0f} s: {what}.")
        at = what
        on_progress(what, round(spent), max(round(total), round(spent) + 1))

    with progress(in_seconds=True) as on_progress:
        yield on_step
