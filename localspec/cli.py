"""Parse, call, show: the localspec command.

This room joins the others and decides nothing about models. Rooms that need llama.cpp are
imported inside commands, so that ``--help`` and ``check`` start at once.
"""

import errno
import os
import select
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from localspec import __version__
from localspec.commands.flags import (
    AnswerFlags,
    JsonFlag,
    ModelFlags,
    SamplingFlags,
    settle,
    spread_groups,
)
from localspec.commands.models import register, voice
from localspec.core import machine
from localspec.core.config import (
    DraftTokens,
    SamplingParams,
    choose_draft,
    choose_sampling,
    default_length,
    require_fixed_length,
)
from localspec.core.errors import (
    FileProblem,
    IncompatiblePair,
    LocalspecError,
    TemplateError,
    UsageError,
)
from localspec.core.interrupt import held_interrupt
from localspec.display import console as display

if TYPE_CHECKING:
    from localspec.bench.prompts import Prompt
    from localspec.bench.report import Report
    from localspec.bench.run import BenchPlan, Comparison
    from localspec.engine.chat_template import Message
    from localspec.engine.engine import Engine
    from localspec.engine.generate import Answer, GenerationResponse

app = typer.Typer(
    name="localspec",
    help="Local language models, answered faster with the same text: a small draft model proposes "
    "tokens, the big target model verifies them in one pass (speculative decoding on llama.cpp).",
    epilog="Start with: localspec demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", help="A pair's name, or the target instead of --target."),
]
BENCH_LENGTHS: tuple[DraftTokens, ...] = (2, 4, 8)
_BENCH_SAMPLING = {"temperature": 0, "seed": 0}


def main() -> NoReturn:
    """Run the command line; what the user can mend becomes two lines and an exit code."""
    display.prepare_streams()
    try:
        app()
    except LocalspecError as problem:
        display.error(problem)
        sys.exit(problem.exit_code)
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the rest is tried again at exit
        display.error(LocalspecError(f"The output cannot be written: {problem.strerror}."))
        sys.exit(1)
    sys.exit(0)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"localspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Holds --version; commands hold the rest."""


@app.command()
def demo(
    draft_tokens: Annotated[
        str, typer.Option("--draft-tokens", "--draft", metavar="N|auto", help="Draft length.")
    ] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved repeats.")] = 3,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, max=256, help="Tokens an answer.")
    ] = 64,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="Default: physical cores.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """See the bundled pair at work: plain beside drafted, no network."""
    from localspec.bench.demo import run_demo
    from localspec.display import bench as scoreboard
    from localspec.engine.engine import missing_gpu

    length = choose_draft([], None, draft_tokens).one_length("auto")
    if length == 0:
        raise UsageError("The demo shows drafting.", "Give a draft length from 1 on, or auto.")
    for sentence in missing_gpu():
        display.note(sentence)
    if not as_json:
        scoreboard.demo_intro(length)
    results = []
    with display.progress() as on_progress:
        for result in run_demo(
            draft_tokens=length,
            repeats=repeats,
            max_tokens=max_tokens,
            threads=threads,
            on_progress=on_progress,
        ):
            results.append(result)
            if not as_json:
                scoreboard.demo_result(result)
    if as_json:
        settings = {"repeats": repeats, "max_tokens": max_tokens, "temperature": 0}
        machine_facts = {"cpu": machine.cpu_name(), "threads": threads or machine.physical_cores()}
        pairs = [result.as_json() for result in results]
        display.json_line(
            {"version": __version__, "settings": settings | machine_facts, "pairs": pairs}
        )


@app.command()
def doctor(as_json: JsonFlag = False) -> None:
    """Look at build, devices, cores, memory and folders, and run the demo pair once."""
    from localspec.engine.doctor import examine

    result = examine()
    if as_json:
        display.json_line(asdict(result))
    else:
        display.examination(result)
    raise typer.Exit(0 if result.healthy else 1)


@app.command()
@spread_groups
def run(
    models: ModelFlags,
    sampling: SamplingFlags,
    answering: AnswerFlags,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; what is piped in is added below it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the prompt from a file, not a pipe.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it is, without chat template.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Answer again without drafting, and say what that gained."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Answer one prompt: the text on stdout, the figures on stderr."""
    from localspec.engine.advice import advise

    if raw and answering.system is not None:
        raise UsageError("--raw uses no template, so --system has no place.", "Leave one out.")
    models, sampling = _named(None, models, sampling)
    text = _read_prompt(prompt, file)
    length = _length(models, sampling)
    with _open(models) as engine:
        params = _sampling_for(engine, sampling)
        messages = _messages(answering.system, text)
        ids = engine.encode_text(text) if raw else engine.encode_chat(messages)
        length = _usable(engine, length, models)
        ask = partial(_ask, engine, ids, params, models.suffix == "on", answering)
        answer = ask(length, _quiet if as_json else _show)
        if not as_json:
            display.end_text(answer.text)
            seed = None if params.greedy else params.seed
            display.figures(answer.stats, answer.finish_reason, seed, answer.status)
            advice = advise(answer.stats, params)
            if advice is not None:
                display.note(advice)
        plain = None
        if compare and answer.finish_reason != "cancelled":
            plain = ask(0, _quiet)
        if as_json:
            document = {"seed": params.seed, "settings": _settings(engine, params, length)}
            compared = {} if plain is None else {"plain": plain.as_json()}
            display.json_line(answer.as_json() | document | compared)
        elif plain is not None and plain.finish_reason != "cancelled":
            display.compared(answer, plain, params.seed_decides)
    ended = {answer.finish_reason, None if plain is None else plain.finish_reason}
    raise typer.Exit(130 if "cancelled" in ended else 0)


@app.command()
@spread_groups
def chat(
    models: ModelFlags,
    sampling: SamplingFlags,
    answering: AnswerFlags,
    name: NameArgument = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="For models that can think before they answer."),
    ] = None,
) -> None:
    """Talk with a model, turn by turn; /help lists the commands."""
    from localspec.display.chat import open_screen
    from localspec.engine.conversation import Chat

    models, sampling = _named(name, models, sampling)
    length = _length(models, sampling)
    with _open(models) as engine, open_screen() as screen:
        Chat(
            engine,
            screen,
            _sampling_for(engine, sampling),
            _usable(engine, length, models),
            suffix=models.suffix == "on",
            system=answering.system,
            thinking=thinking,
            max_tokens=answering.max_tokens,
            stop=tuple(answering.stop),
        ).run()


@app.command()
@spread_groups
def bench(
    models: ModelFlags,
    sampling: SamplingFlags,
    name: NameArgument = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help='Prompts of your own, one JSON object a line: {"task": "code", "prompt": "..."}.',
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Only these, comma-separated: code,edit.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", "-r", min=1, help="Interleaved repeats.")
    ] = 3,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="Tokens an answer.")
    ] = 64,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Read every drafted answer again by plain decoding, token by token."
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep the JSON document in this file.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON document on stdout; the table goes to stderr."),
    ] = False,
) -> None:
    """Measure plain decoding against draft lengths, task by task, and compare the texts.

    Plain is always measured; --draft-tokens 2,4,8,auto unless given. Greedy and with seed 0
    unless flags say otherwise. Exit code 1 if a text differs from plain for no proven reason.
    """
    from localspec.bench.prompts import SHIPPED, by_task, read_prompts
    from localspec.bench.report import Report, require_writable
    from localspec.bench.run import BenchPlan, require_room

    groups = by_task(read_prompts(prompts or SHIPPED), tasks)
    models, sampling = _named(name, models, sampling)
    lengths = _sides(models, sampling)
    if output is not None:
        require_writable(output)
    with _open(models) as engine:
        params = _sampling_for(engine, sampling, _BENCH_SAMPLING)
        sides = tuple(dict.fromkeys(_usable(engine, each, models) for each in lengths))
        if audit and not params.seed_decides:
            raise UsageError(
                "--audit checks tokens against what the seed decides, which rejection does not.",
                "Use --acceptance coupled or match, or leave --audit out.",
            )
        plan = BenchPlan(params, sides, repeats, max_tokens, models.suffix == "on", audit)
        ids = _encode_prompts(engine, groups)
        require_room(engine, ids, plan)
        report = Report(engine, plan, groups, output)
        found, problem = _measure(engine, ids, plan, report, stderr=as_json)
        with held_interrupt():  # a second Ctrl-C must not lose what the first one kept
            try:
                report.keep(found, complete=problem is None)
            finally:
                if as_json:
                    display.json_line(report.document)
    if isinstance(problem, LocalspecError):
        raise problem
    unexplained = any(d.proven_at is None for one in found for d in one.differences)
    raise typer.Exit(130 if problem is not None else 1 if unexplained else 0)


def _length(models: ModelFlags, sampling: SamplingFlags) -> DraftTokens:
    """The draft length asked for, or the default; bad flags are told before models load."""
    params, _ = choose_sampling(sampling.given(), {})
    length = models.draft_options().one_length(default_length(params))
    require_fixed_length(length, params)
    return length


def _sides(models: ModelFlags, sampling: SamplingFlags) -> tuple[DraftTokens, ...]:
    """The draft lengths to compare, plain first, each once; bad flags are told."""
    params, _ = choose_sampling(_unless_given(sampling, _BENCH_SAMPLING), {})
    options, default = models.draft_options(), default_length(params)
    usual = tuple(dict.fromkeys((*BENCH_LENGTHS, default))) if options.model else (default,)
    lengths = options.lengths or usual
    for length in lengths:
        require_fixed_length(length, params)
    return (0, *dict.fromkeys(length for length in lengths if length != 0))


def _encode_prompts(
    engine: "Engine", groups: "Mapping[str, Sequence[Prompt]]"
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


def _measure(
    engine: "Engine",
    tasks: dict[str, list[list[int]]],
    plan: "BenchPlan",
    report: "Report",
    *,
    stderr: bool,
) -> "tuple[list[Comparison], BaseException | None]":
    """Fill the table and say what it means, each result kept first; also what ended it early."""
    from localspec.bench.run import run_bench
    from localspec.display.bench import Scoreboard

    board = Scoreboard(display.console(stderr), [*tasks, "all"])
    found: list[Comparison] = []
    done = Counter[str]()
    problem: BaseException | None = None
    try:
        with display.progress() as on_progress:

            def on_answer(task: str) -> None:
                done[task] += 1
                label = f"{task} ({len(found) + 1} of {len(tasks)})"
                on_progress(label, done[task], plan.answers(len(tasks[task])))

            for comparison in run_bench(engine, tasks, plan, on_answer):
                found.append(comparison)
                report.keep(found, complete=False)
                board.add(comparison)
    except (KeyboardInterrupt, LocalspecError) as error:
        problem = error
    with held_interrupt():
        if problem is not None:
            display.note(f"Stopped early: {sum(len(one.names) for one in found)} prompts measured.")
        draft = None if engine.draft is None else engine.draft.memory
        board.finish(found, engine.target.memory, draft)
    return found, problem


def _ask(
    engine: "Engine",
    prompt: list[int],
    params: SamplingParams,
    suffix: bool,
    answering: AnswerFlags,
    length: DraftTokens,
    on_response: "Callable[[GenerationResponse], None]",
) -> "Answer":
    """One answer, with this draft length."""
    from localspec.engine.generate import collect, stream_generate

    responses = stream_generate(
        engine,
        prompt,
        params,
        length,
        suffix=suffix,
        max_tokens=answering.max_tokens,
        stop=answering.stop,
    )
    return collect(responses, on_response)


def _quiet(response: "GenerationResponse") -> None:
    """For --json, where the text comes at the end."""


def _show(response: "GenerationResponse") -> None:
    display.text(response.text)


def _named(
    name: str | None, models: ModelFlags, sampling: SamplingFlags
) -> tuple[ModelFlags, SamplingFlags]:
    """The flags with a pair's name, or ``name`` in place of --target, spelt out in them."""
    from localspec.library.resolve import choose

    if name is not None and models.target is not None:
        raise UsageError(f"Two targets were given: {name} and {models.target}.", "Name one.")
    options = models.draft_options()
    choice = choose(name or models.target, options.model)
    if choice.note:
        display.note(choice.note)
    lengths = ",".join("off" if each == 0 else str(each) for each in options.lengths)
    models = replace(
        models,
        target=choice.target,
        draft=[],
        draft_model=choice.draft,
        draft_tokens=lengths or None,
    )
    return settle(models, sampling, choice.settings)


def _files(models: ModelFlags) -> tuple[Path, Path | None]:
    """The files of target and draft, fetched from the Hub where they are named but missing."""
    from localspec.library.acquire import ensure_local
    from localspec.library.resolve import FIND

    assert models.target is not None
    options = models.draft_options()
    if options.model is None and any(length not in (0, "auto") for length in options.lengths):
        raise UsageError(
            "A draft length was given, but no draft model.",
            "Name one with --draft FILE.gguf, or leave the length out.",
        )
    draft = None if options.lengths == (0,) else options.model
    if draft == FIND:
        (target,) = ensure_local([models.target], voice())
        return target, _find_draft(target, models.lenient)
    names = [models.target, *([] if draft is None else [draft])]
    target, *rest = ensure_local(names, voice(), lenient=models.lenient)
    return target, rest[0] if rest else None


def _find_draft(target: Path, lenient: bool) -> Path:
    """The best draft on this disk that is worth using, named."""
    from localspec.library.pairs import drafts_for
    from localspec.metadata.header import read_header

    found = drafts_for(read_header(target), lenient=lenient).drafts
    if not found or found[0].worth <= 1:
        raise IncompatiblePair(
            f"No model on this disk can draft for {target}.",
            "See why, and what there is elsewhere: "
            + shlex.join(["localspec", "suggest", str(target)]),
        )
    display.note(f"Draft: {found[0].path} ({', '.join(found[0].reasons)}).")
    return found[0].path


def _open(models: ModelFlags) -> "Engine":
    """Load what the flags name, and say what the user should know about it."""
    target, draft = models.load_options(*_files(models))
    from localspec.engine import llama_library
    from localspec.engine.engine import Engine

    llama_library.log.verbose = models.verbose
    engine = Engine.load(target, draft, lenient=models.lenient, say=display.note)
    for sentence in engine.notes:
        display.note(sentence)
    return engine


def _usable(engine: "Engine", length: DraftTokens, models: ModelFlags) -> DraftTokens:
    """The length that what was loaded allows; auto measures a pair that is new here."""
    if engine.draft is None and not (
        length == "auto" and models.suffix == "on" and engine.target.can_roll_back
    ):
        return 0
    if length == "auto":
        if models.recalibrate:
            engine.forget()
        engine.introduce(display.note)
    return length


def _unless_given(
    flags: SamplingFlags, defaults: Mapping[str, float | int]
) -> dict[str, float | int | str]:
    """Values of flags that were given, over a command's own defaults."""
    given = {name: value for name, value in flags.given().items() if value is not None}
    return {**defaults, **given}


def _sampling_for(
    engine: "Engine", flags: SamplingFlags, defaults: Mapping[str, float | int] | None = None
) -> SamplingParams:
    """Flags over the model's own recommendation, which is shown when it decides anything."""
    given = _unless_given(flags, defaults or {})
    params, recommended = choose_sampling(given, engine.target.header.sampling)
    if recommended:
        values = ", ".join(f"{name} {getattr(params, name):g}" for name in recommended)
        display.note(f"Sampling recommended by the model: {values}.")
    return params


def _settings(engine: "Engine", params: SamplingParams, length: DraftTokens) -> dict[str, object]:
    """What an answer depends on, for ``--json``."""
    return {
        "target": engine.target.settings(),
        "draft": None if engine.draft is None else engine.draft.settings(),
        "draft_tokens": length,
        "sampling": asdict(params),
        "version": __version__,
    }


def _messages(system: str | None, text: str) -> "list[Message]":
    user: Message = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from argument, file and standard input, joined by blank lines."""
    parts = [] if argument is None else [argument]
    if file is not None:
        try:
            parts.append(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise FileProblem(
                f"The prompt file {file} cannot be read: {reason}.", "Give a UTF-8 text file."
            ) from error
    if file is None and sys.stdin is not None and not sys.stdin.isatty():
        try:
            parts.append(_read_stdin())
        except UnicodeDecodeError as error:
            raise FileProblem(
                f"What was piped in is not UTF-8 text: {error}.", "Pipe UTF-8 text in."
            ) from error
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UsageError(
            "There is no prompt.",
            'Type: localspec run --target FILE.gguf "your question", or pipe text in.',
        )
    return text


def _read_stdin() -> str:
    """All of standard input; a pipe that stays silent gets a note, since it may never end."""
    try:
        silent = not select.select([sys.stdin], [], [], 1)[0]
    except (OSError, ValueError):
        silent = False  # nothing that can be waited for
    if silent:
        display.note("Waiting for the end of standard input (none wanted: add </dev/null).")
    return sys.stdin.read()


register(app)
