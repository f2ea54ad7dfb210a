"""The command ``bench``: plain decoding against draft lengths, measured and compared."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.commands import session
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.template import TemplateFlags
from localspec.core import machine
from localspec.core.errors import LocalspecError, TemplateError, UsageError
from localspec.core.files import or_stream
from localspec.core.interrupt import held_interrupt, terminated_as_interrupted
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.option import Bounds, option
from localspec.core.options.sampling_params import default_length
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress

if TYPE_CHECKING:
    from localspec.bench.comparison import Comparison
    from localspec.bench.forecast import Forecast, Limit
    from localspec.bench.plan import BenchPlan
    from localspec.bench.prompts import BenchPrompt
    from localspec.bench.report.report import Report
    from localspec.chat.answer import Answer
    from localspec.display.bench import Scoreboard
    from localspec.engine.engine import Engine
    from localspec.library.pairs.request import PairRequest

THOROUGH_LENGTHS: tuple[DraftTokens, ...] = (2, 4, 8)
THOROUGH_REPEATS = 2
QUICK_SECONDS = 120.0  # all prompts take an hour with a slow model: users stop it before the end
_SAMPLING = {"temperature": 0, "seed": 0}
_WARM_UP = "warming up"
_USUAL_TOKENS, _FEWEST_TOKENS = 64, 16  # of an answer
_OF_ANSWERS = 0.5  # of the quick time: prompts are read, too
_everyday = partial(option, everyday=True)


@dataclass(frozen=True, slots=True)
class BenchFlags:
    """The prompts to measure, the number of repeats, and the files of the results."""

    prompts: Path | None = _everyday(
        None,
        "--prompts",
        'Own prompts, one a line: text or JSON, {"task": "code", "prompt": "..."}.',
    )
    tasks: str | None = _everyday(
        None, "--tasks", "Only these: answer, code, edit, maths, summarise, translate, write."
    )
    thorough: bool = _everyday(
        False, "--thorough", "Every prompt, twice, with the lengths 2, 4, 8 and auto."
    )
    repeats: int | None = option(
        None,
        "--repeats -r",
        "Repeats. Default: 1, or 2 with --thorough.",
        bounds=Bounds(1, 10**6),
    )
    max_tokens: int | None = _everyday(
        None, "--max-tokens -n", "Longest answer in tokens. Default: 64.", bounds=Bounds(1, 2**31)
    )
    output: Path | None = _everyday(None, "--output -o", "Save the JSON document to this file.")
    report: Path | None = _everyday(
        None, "--report", "Save figures and tables to this file, as a page (HTML)."
    )


@spread_groups
def bench(
    measuring: BenchFlags,
    given: PairFlags,
    templating: TemplateFlags,
    name: NameArgument = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON document on stdout, table on stderr.")
    ] = False,
) -> None:
    """Measure draft lengths against plain decoding, and compare the texts.

    Default: greedy, seed 0, auto, for two minutes at most. Exit code 1 if a text differs from
    plain for no proven reason. --verbose adds costs.
    """
    from localspec.bench.forecast import Limit
    from localspec.bench.prompts import SHIPPED, by_task, in_turn, read_prompts
    from localspec.bench.report.report import Report, require_writable

    if given.keys() & {"lookup_cache", "lookup_files"}:
        raise UsageError(
            "bench repeats each prompt, so earlier answers would only be copied.",
            "Leave out --lookup-cache and --lookup-files.",
        )
    if templating.limited(GenerateOptions()) != GenerateOptions():
        raise UsageError(
            "bench compares whole answers, thoughts included.",
            "Leave out --reasoning-budget; --max-tokens bounds answers.",
        )
    prompts = read_prompts(or_stream(measuring.prompts or SHIPPED, "stdin"))
    groups = by_task(prompts, measuring.tasks)
    kinds = len(groups)
    if not measuring.thorough:
        groups = in_turn(groups)
    request = session.make_request(name, given, _SAMPLING)
    _sides(request, measuring, drafts=True)  # raises for bad flags before anything is loaded
    templating.check()
    for path in filter(None, (measuring.output, measuring.report)):
        require_writable(path)
    busy = machine.other_work()
    if busy is not None:
        console.note(busy)
    with session.open_engine(request) as engine:
        lengths = _sides(request, measuring, drafts=engine.draft is not None)
        plan = _plan(engine, request, lengths, measuring)
        session.use_template(engine, templating)
        command = shlex.join(["localspec", *sys.argv[1:]])
        report = Report(engine, plan, groups, measuring.output, measuring.report, command, busy)
        verbose = request.models.verbose
        limit = None if measuring.thorough else Limit(QUICK_SECONDS, kinds)
        found, problem = _run(engine, plan, groups, report, limit, as_json=as_json, verbose=verbose)
    if isinstance(problem, LocalspecError):
        raise problem
    unexplained = any(not d.is_rounding for one in found for d in one.differences)
    raise typer.Exit(130 if problem is not None else 1 if unexplained else 0)


def _plan(
    engine: "Engine", request: "PairRequest", lengths: Sequence[DraftTokens], measuring: BenchFlags
) -> "BenchPlan":
    from localspec.bench.plan import BenchPlan

    plain = GenerateOptions(draft_tokens=0, max_tokens=measuring.max_tokens or _USUAL_TOKENS)
    plain = session.generate_options(engine, request, plain)
    sides = [replace(plain, draft_tokens=each).allowed(engine) for each in lengths]
    for each in sides:
        session.measure(engine, request, each)
    return BenchPlan(
        plain.sampling,
        tuple(dict.fromkeys(each.draft_tokens for each in sides)),
        measuring.repeats or (THOROUGH_REPEATS if measuring.thorough else 1),
        measuring.max_tokens or (_USUAL_TOKENS if measuring.thorough else _affordable(engine)),
        plain.prompt_lookup,
    )


def _affordable(engine: "Engine") -> int:
    """Tokens of an answer with which four prompts, answered twice, fit into the quick time."""
    from localspec.bench.figures import FEWEST_PROMPTS

    known = engine.profile.known
    if known is None:
        return _USUAL_TOKENS
    answers = 2 * FEWEST_PROMPTS * known.verify.seconds(1, 0)
    return max(_FEWEST_TOKENS, min(_USUAL_TOKENS, round(_OF_ANSWERS * QUICK_SECONDS / answers)))


def _run(
    engine: "Engine",
    plan: "BenchPlan",
    groups: "Mapping[str, Sequence[BenchPrompt]]",
    report: "Report",
    limit: "Limit | None",
    *,
    as_json: bool,
    verbose: bool,
) -> "tuple[list[Comparison], BaseException | None]":
    """Measure and show it; returns the error that ended it early, with the report saved."""
    from localspec.bench.comparison import together
    from localspec.bench.forecast import Forecast
    from localspec.bench.plan import require_prompts_fit
    from localspec.bench.report.report import memory_use
    from localspec.display.bench import Scoreboard

    ids = _encode_prompts(engine, groups)
    require_prompts_fit(engine, ids, plan)
    out = console.make_console(as_json)
    board = Scoreboard(out, [*groups, "all"])
    found, problem = _measure(engine, ids, Forecast(plan, ids, limit), report, board)
    with held_interrupt():  # a second Ctrl-C must not lose the results that the first one left
        measured = sum(len(one.names) for one in found)
        if problem is not None:
            prompts = "1 prompt" if measured == 1 else f"{measured} prompts"
            console.note(f"Stopped early: {prompts} measured.")
        elif measured < (every := sum(map(len, ids.values()))):
            why = "The result is clear" if together(found).is_clear() else "The time is over"
            console.note(f"{why}: measured {measured} of {every} prompts; --thorough measures all.")
        kinds = {
            f"{task} {i}": each.task
            for task, group in groups.items()
            for i, each in enumerate(group, 1)
        }
        memory = memory_use(engine) if verbose else None
        if found and report.other_work is not None:
            console.note("The machine was busy with other programs: take these figures as rough.")
        board.finish(found, kinds, memory, engine.text_equality)
        try:
            report.save(found, complete=problem is None)
            if report.page is not None:
                console.note(f"Report: {report.page}")
        finally:
            if as_json:
                console.json_line(report.document)
    return found, problem


def _measure(
    engine: "Engine",
    tasks: dict[str, list[list[int]]],
    forecast: "Forecast",
    report: "Report",
    board: "Scoreboard",
) -> "tuple[list[Comparison], BaseException | None]":
    """Fill the table, each result saved first; also returns the error that ended it early."""
    from localspec.bench.run import run_bench

    found: list[Comparison] = []
    try:
        with (
            terminated_as_interrupted(),
            progress(in_seconds=True, above=board.so_far) as on_progress,
        ):
            of_prompt = forecast.plan.answers
            most = "at most " if forecast.is_limited else ""

            def draw(step: str) -> None:
                spent, left = round(forecast.spent()), forecast.left()
                done, total = (0, 1) if left == math.inf else (spent, spent + 1 + round(left))
                on_progress(step, done, total)

            def place(task: str, step: str) -> str:
                of_tasks = f" ({len(found) + 1} of {len(tasks)})" if len(tasks) > 1 else ""
                return f"{task}{of_tasks}, {step}"

            def on_answer(task: str, done: int, total: int, answer: "Answer | None") -> None:
                if answer is not None:
                    forecast.answered(answer)
                elif not found:
                    forecast.begin()
                if done == 2 and not found:
                    console.note(forecast.extent() + ".")
                is_last = done > 0 and done % of_prompt == 0
                prompt = f"prompt {done // of_prompt + 1} of {most}{total // of_prompt}"
                draw(place(task, "comparing the texts" if is_last else prompt))

            def on_prompt(so_far: "Comparison") -> None:
                forecast.explained()
                board.update(so_far, forecast.left())
                prompt = f"prompt {len(so_far.names) + 1} of {most}{len(tasks[so_far.task])}"
                draw(place(so_far.task, prompt))

            draw(_WARM_UP)

            for comparison in run_bench(
                engine, tasks, forecast.plan, on_answer, on_prompt, forecast.is_enough, console.note
            ):
                forecast.explained()
                on_progress(comparison.task, 1, 1)  # an interrupt leaves the bar
                found.append(comparison)
                report.save(found, complete=False)
                board.add(comparison)
    except (KeyboardInterrupt, LocalspecError) as error:
        return found, error
    return found, None


def _sides(
    request: "PairRequest", measuring: BenchFlags, *, drafts: bool
) -> tuple[DraftTokens, ...]:
    """The draft lengths to compare, plain first, each once; raises UsageError for bad flags."""
    default = default_length(request.params)
    several = THOROUGH_LENGTHS if drafts and measuring.thorough else ()
    usual = tuple(dict.fromkeys((*several, default)))
    lengths = request.draft.lengths_for(request.params, usual)
    return (0, *dict.fromkeys(length for length in lengths if length != 0))


def _encode_prompts(
    engine: "Engine", groups: "Mapping[str, Sequence[BenchPrompt]]"
) -> dict[str, list[list[int]]]:
    """Token ids by task; a template's complaint names the prompt."""
    ids: dict[str, list[list[int]]] = {task: [] for task in groups}
    for task, group in groups.items():
        for i, prompt in enumerate(group):
            try:
                ids[task].append(engine.encode_chat(prompt.messages))
            except TemplateError as problem:
                raise TemplateError(f"{task} {i + 1}: {problem.message}", problem.hint) from problem
    return ids
