"""The command ``run``: one prompt, one answer."""

import errno
import select
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec import __version__
from localspec.commands.flags.answer import PANEL, AnswerFlags, JsonFlag
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.kept import FlagGroups
from localspec.commands.flags.loading import LoadingFlags
from localspec.commands.flags.models import ModelFlags
from localspec.commands.flags.sampling import SamplingFlags
from localspec.commands.flags.spellings import LlamaCommand
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.session import (
    make_request,
    open_engine,
    prompt_cache,
    require_prompt_cache,
    sampling_for,
    usable_length,
    use_template,
)
from localspec.core.config import DraftTokens
from localspec.core.errors import FileProblem, UsageError
from localspec.core.sampling_params import SamplingParams
from localspec.display import answer as answers
from localspec.display import console
from localspec.display.pieces import AnswerWriter, Look

if TYPE_CHECKING:
    from localspec.engine.answer import Answer, GenerationResponse
    from localspec.engine.chat.template import Message
    from localspec.engine.engine import Engine


@spread_groups
def run(
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; what is piped in is added below it.")
    ] = None,
    prompt_option: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="PROMPT",
            help="The prompt, as the argument.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="Read the prompt from this file, not from stdin.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Complete the text as it is, without chat template.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    special: Annotated[
        bool,
        typer.Option(
            "--special",
            "-sp",
            help="With --raw: obey markup in the prompt, show it in the answer.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    answering: AnswerFlags,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Answer again without drafting, and say what that gained.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    templating: TemplateFlags,
    constraining: GrammarFlags,
    models: ModelFlags,
    sampling: SamplingFlags,
    loading: LoadingFlags,
    as_json: JsonFlag = False,
) -> None:
    """Answer one prompt: the text on stdout, the figures on stderr."""
    if prompt is not None and prompt_option is not None:
        raise UsageError("Two prompts were given.", "Give one, as the argument or with --prompt.")
    _require_template(raw, special, answering, templating)
    grammar = constraining.read()
    if as_json and answering.show_draft:
        raise UsageError(
            "--show-draft colours a text, and --json prints none.",
            "Leave one out; sources and accepted_at of the document count the drafted tokens.",
        )
    request = make_request(None, FlagGroups(models, loading, sampling))
    require_prompt_cache(answering)
    text = _read_prompt(prompt_option if prompt is None else prompt, file)
    length = request.draft_tokens
    with open_engine(request) as engine:
        params = sampling_for(engine, request)
        if raw:
            ids = engine.encode_text(text, special=special)
        else:
            use_template(engine, templating, answering.system)
            ids = engine.encode_chat(_messages(answering.system, text))
        length = usable_length(engine, length, request)
        ask = partial(_ask, engine, ids, params, request.suffix, answering, grammar)
        writer = AnswerWriter(Look.asked(answering.hide_reasoning, answering.show_draft))
        try:
            with prompt_cache(engine, answering) as keep_prompt:
                answer = ask(length, _quiet if as_json else writer.write, keep_prompt)
        finally:
            writer.end()
        if not as_json:
            _show_figures(answer, params)
        plain = ask(0, _quiet) if compare and answer.finish_reason != "cancelled" else None
        if as_json:
            settings = _settings(engine, params, length, grammar)
            settings["template"] = None if raw else engine.template.settings()
            document = {"seed": params.seed, "settings": settings}
            compared = {} if plain is None else {"plain": plain.as_json()}
            console.json_line(answer.as_json() | document | compared)
        elif plain is not None and plain.finish_reason != "cancelled":
            answers.compared(answer, plain, params.seed_decides)
    ended = {answer.finish_reason, None if plain is None else plain.finish_reason}
    raise typer.Exit(130 if "cancelled" in ended else 0)


def _require_template(
    raw: bool, special: bool, answering: AnswerFlags, templating: TemplateFlags
) -> None:
    """Refuse flags of the chat template where none is used, and a template that cannot be."""
    flags = [*(["--system"] if answering.system is not None else []), *templating.given()]
    if raw and flags:
        raise UsageError(f"--raw uses no template, so {flags[0]} has no place.", "Leave one out.")
    if special and not raw:
        raise UsageError(
            "--special belongs to --raw: a chat template's markup is always obeyed.",
            "Add --raw, or leave --special out.",
        )
    templating.check()


def _ask(
    engine: "Engine",
    prompt: list[int],
    params: SamplingParams,
    suffix: bool,
    answering: AnswerFlags,
    grammar: str | None,
    length: DraftTokens,
    on_response: "Callable[[GenerationResponse], None]",
    on_prompt: Callable[[], None] | None = None,
) -> "Answer":
    """One answer, with this draft length."""
    from localspec.engine.answer import collect
    from localspec.engine.generate import stream_generate

    responses = stream_generate(
        engine,
        prompt,
        params,
        length,
        suffix=suffix,
        max_tokens=answering.max_tokens,
        stop=answering.stop,
        on_prompt=on_prompt,
        grammar=grammar,
    )
    return collect(responses, on_response)


def _quiet(response: "GenerationResponse") -> None:
    """For --json, where the text comes at the end."""


def _show_figures(answer: "Answer", params: SamplingParams) -> None:
    """The figures below an answer, and advice where they give a reason for it."""
    from localspec.engine.advice import advise

    seed = None if params.greedy else params.seed
    answers.figures(answer.stats, answer.finish_reason, seed, answer.status)
    answers.only_thoughts(answer)
    advice = advise(answer.stats, params)
    if advice is not None:
        console.note(advice)


def _settings(
    engine: "Engine", params: SamplingParams, length: DraftTokens, grammar: str | None
) -> dict[str, object]:
    """What an answer depends on, for ``--json``."""
    return {
        "target": engine.target.settings(),
        "draft": None if engine.draft is None else engine.draft.settings(),
        "draft_tokens": length,
        "sampling": asdict(params),
        "grammar": grammar,
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
            parts.append(file.read_text(encoding="utf-8").removesuffix("\n"))  # as llama.cpp does
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
        console.note("Waiting for the end of standard input (none wanted: add </dev/null).")
    try:
        return sys.stdin.read()
    except OSError as error:
        if error.errno == errno.EBADF:
            return ""  # write-only, as nohup makes it in a terminal: nothing was piped in
        raise FileProblem(
            f"Standard input cannot be read: {error.strerror}.", "Pipe text in, or add </dev/null."
        ) from error


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    app.command(cls=LlamaCommand)(run)
