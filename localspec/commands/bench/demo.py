"""The command ``demo``: the bundled pair, plain decoding against drafting."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from localspec import __version__
from localspec.commands.flags.answer import JsonFlag
from localspec.core import machine
from localspec.core.errors import UsageError
from localspec.core.options.load_options import THREADS
from localspec.core.options.model_options import choose_draft
from localspec.core.options.sampling_params import SamplingParams
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress
from localspec.library.local_models import current_folder, find_models

if TYPE_CHECKING:
    from localspec.bench.demo import DemoResult
    from localspec.bench.plan import BenchPlan


def demo(
    draft_tokens: Annotated[
        str, typer.Option("--draft-tokens", "--draft", metavar="N|auto", help="Draft length.")
    ] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Repeats, plain and drafted in turn.")] = 1,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, max=256, help="Most tokens of an answer.")
    ] = 64,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", "-t", min=THREADS.low, max=THREADS.high, help="Default: physical cores."
        ),
    ] = None,
    all_quantizations: Annotated[
        bool, typer.Option("--all", help="F16 and Q4_0; default: F16 alone, about a minute.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also the cost of a round.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare plain and speculative decoding on the bundled models; no network."""
    from localspec.bench.demo import QUANTIZATIONS, demo_tokens, run_demo
    from localspec.bench.plan import BenchPlan
    from localspec.display import bench as bench_display
    from localspec.engine.loading.notes import missing_gpu

    length = choose_draft([], None, draft_tokens).one_length("auto")
    if length == 0:
        raise UsageError("The demo shows drafting.", "Give a draft length from 1 on, or auto.")
    for sentence in missing_gpu():
        console.note(sentence)
    plan = BenchPlan(SamplingParams(temperature=0), (0, length), repeats, max_tokens)
    quantizations = QUANTIZATIONS if all_quantizations else QUANTIZATIONS[:1]
    is_busy = False
    if not as_json:
        is_busy = console.note_other_work()
        bench_display.demo_intro(length, demo_tokens(plan, len(quantizations)))
    if not as_json and console.make_console(stderr=False).is_terminal:
        _watch(plan, threads)
    board = bench_display.Scoreboard(console.make_console(as_json), quantizations)
    results = []
    with progress(above=board.so_far) as on_progress:
        update = (lambda comparison: None) if as_json else board.update
        for result in run_demo(plan, threads, on_progress, quantizations, update):
            results.append(result)
            if not as_json:
                bench_display.demo_result(result, verbose=verbose)
    if as_json:
        console.json_line(_document(plan, threads, results))
    else:
        bench_display.demo_end(results, _next_command(), is_busy=is_busy or machine.is_busy())


def _watch(plan: "BenchPlan", threads: int | None) -> None:
    from localspec.bench.demo import QUANTIZATIONS, padded_pair, watch_demo
    from localspec.display.side_by_side import side_by_side

    with progress() as on_progress:
        files = padded_pair(QUANTIZATIONS[0], on_progress)
    with side_by_side(plan.lengths) as show:
        for length, piece in watch_demo(plan, files, threads):
            show(length, piece)


def _document(
    plan: "BenchPlan", threads: int | None, results: Sequence["DemoResult"]
) -> dict[str, object]:
    settings = {
        **{"repeats": plan.repeats, "max_tokens": plan.max_tokens, "temperature": 0},
        **{"cpu": machine.cpu_name(), "threads": threads or machine.physical_cores()},
    }
    found = [each.as_json() for each in results]
    return {"version": __version__, "settings": settings, "pairs": found}


def _next_command() -> str:
    """The command to type next: a chat with the pair that is recommended for this machine."""
    from localspec.display.models import chat_command
    from localspec.library.pairs.listing import pair_rows, recommended

    best = recommended(pair_rows(find_models(extra=current_folder()).files))
    return "localspec pairs" if best is None else chat_command(best)
