"""The command ``run``: one prompt, from arguments, a pipe or a file, and one answer."""

import errno
import os
import re
import select
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec import __version__
from localspec.chat.message import Message
from localspec.commands import session
from localspec.commands.chat.flags import ConversationFlags
from localspec.commands.flags.answer import PANEL, AnswerFlags, JsonFlag
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.rows import Given, given_flags
from localspec.commands.flags.settings import default_target
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.run.batch import BatchFlags, run_batch
from localspec.core import machine
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_stream, read_text
from localspec.core.formatting import one_line
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.option import option
from localspec.core.options.sampling_params import SamplingParams
from localspec.display import answer as answers
from localspec.display.pieces import AnswerStyle, AnswerWriter, unseen_answer
from localspec.display.terminal import console
from localspec.display.trace import write_trace

if TYPE_CHECKING:
    from localspec.chat.answer import Answer, Piece
    from localspec.engine.engine import Engine

# Bytes or characters: more than contexts hold; a model given by mistake is far larger.
_MOST = 2**26

_STDIN = "-"  # as a prompt or as the name of its file: read standard input

_prompt = partial(option, panel=PANEL)


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """The prompt of one answer, in a chat template or as it is."""

    prompt: tuple[str, ...] = option(
        (), text="Piped text is added below it; -: that alone.", metavar="PROMPT", everyday=True
    )
    prompt_option: str | None = _prompt(
        None, "--prompt -p", "The prompt, as the argument.", metavar="PROMPT"
    )
    file: Path | None = _prompt(
        None, "--file -f", "Read the prompt from a file, or -.", everyday=True
    )
    raw: bool = _prompt(False, "--raw", "Use no chat template.", everyday=True)
    special: bool = _prompt(
        False, "--special -sp", "With --raw: show control tokens in the answer."
    )

    def check(self, answering: AnswerFlags, templating: TemplateFlags) -> None:
        """Refuse two prompts, flags of the chat template if none is used, and a bad template."""
        if self.prompt and self.prompt_option is not None:
            raise UsageError(
                "Two prompts were given.", "Give one, as the argument or with --prompt."
            )
        system = ["--system"] if answering.system is not None else []
        if self.raw and (flags := [*system, *given_flags(templating)]):
            raise UsageError(
                f"--raw uses no template, so {flags[0]} has no place.", "Leave one out."
            )
        if self.special and not self.raw:
            raise UsageError(
                "--special belongs to --raw: a chat shows no control tokens.",
                "Add --raw, or leave --special out.",
            )
        templating.check()

    def read(self) -> str:
        """The prompt from argument, file and stdin, joined by blank lines; raises FileProblem."""
        typed = " ".join(self.prompt) or self.prompt_option or ""
        parts = ["" if typed == _STDIN else typed]
        piped = self.file is None and sys.stdin is not None and not sys.stdin.isatty()
        if self.file is not None and str(self.file) != _STDIN:
            text = read_text(self.file, _MOST, what="The prompt file ")
            parts.append(text.replace("\r\n", "\n").removesuffix("\n"))  # as in llama.cpp
        if piped or _STDIN in (typed, str(self.file)):
            parts.append(_read_stdin())
        text = "\n\n".join(part for part in parts if part.strip())
        if not text:
            raise UsageError(
                "There is no prompt.",
                'Type: localspec run MODEL "your question", or pipe text in. '
                "To talk with it: localspec chat MODEL.",
            )
        return text


def _read_stdin() -> str:
    """Standard input without its last newline; a note if a pipe stays silent for long."""
    try:
        silent = not select.select([sys.stdin], [], [], 1)[0]
    except (OSError, ValueError):
        silent = False  # nothing that can be waited for
    if silent:
        console.note("Waiting for the end of standard input (none wanted: add </dev/null).")
    try:
        return read_stream(sys.stdin, _MOST).removesuffix("\n")
    except ValueError as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeError) else "is not a prompt"
        raise FileProblem(f"The piped input {reason}: {error}.", "Pipe UTF-8 text in.") from error
    except OSError as error:
        if error.errno == errno.EBADF:
            return ""  # write-only, as nohup makes it in a terminal: nothing was piped in
        raise FileProblem(
            f"Standard input cannot be read: {error.strerror}.", "Pipe text in, or add </dev/null."
        ) from error


@spread_groups
def run(
    *,
    name: NameArgument = None,
    prompting: PromptFlags,
    answering: AnswerFlags,
    templating: TemplateFlags,
    constraining: GrammarFlags,
    given: PairFlags,
    batching: BatchFlags,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also answer without drafting.", rich_help_panel=PANEL)
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a page, .html: answer by origin."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Answer one prompt, or chat without one: text on stdout, figures on stderr."""
    from localspec.chat.answer import agreement, collect

    console.be_quiet(answering.quiet)
    if name is not None and _is_prompt(name, given):
        prompting, name = replace(prompting, prompt=(name, *prompting.prompt)), None
    _require_model(name)
    modes = {"--compare": compare, "--trace": trace is not None, "--json": as_json}
    one_answer = prompting != PromptFlags() or batching.batch is not None or any(modes.values())
    if console.is_dialogue() and not one_answer:
        from localspec.commands.chat.chat import talk

        console.note("No prompt was given, so this is localspec chat.")
        talk(answering, templating, constraining, ConversationFlags(), given, name)
        return
    prompting.check(answering, templating)
    batching.check([*_no_batch(prompting, answering), *(flag for flag, on in modes.items() if on)])
    grammar = constraining.read()
    if batching.batch is not None:
        run_batch(batching, answering, templating, grammar, session.make_request(name, given))
        return
    _require_writable_forms(answering, trace, as_json)
    request = session.make_request(name, given)
    session.require_prompt_cache(answering)
    text = prompting.read()
    if compare and not as_json:
        console.note_other_work()
        shorter = "" if answering.max_tokens else ", -n 100 is shorter"
        console.note(f"Answering twice, drafted and plain in turn; Ctrl-C stops{shorter}.")
    with session.open_engine(request) as engine:
        ids = _encode(engine, text, prompting, templating, answering)
        asked = templating.limited(answering.options(request.draft_tokens, grammar))
        options = session.generate_options(engine, request, asked)
        if trace is not None:
            options = replace(options, logprobs=0)
        traced: list[Piece] = []
        look = AnswerStyle.asked(answering.hide_reasoning, answering.show_draft, answering.stats)
        with (
            session.lookup_cache(engine, request, default=False),
            session.prompt_cache(engine, answering) as save_prompt,
            _streams(engine, ids, options, save_prompt, compare, progress=not as_json) as streams,
        ):
            pieces, plain_pieces = streams
            keep = traced.append if trace else lambda piece: None
            answer = collect(pieces, keep) if as_json else _written(pieces, look, keep)
            if not as_json:
                _show_figures(answer, options.sampling, full=look.stats, estimate=not compare)
            plain, measured = None, ""
            if compare and answer.finish_reason != "cancelled":
                with unseen_answer("plain", expected=len(answer.tokens)) as show:
                    plain = collect(plain_pieces, show)
        if as_json:
            settings = _settings(engine, options, prompting.raw)
            document = {"seed": options.sampling.seed, "settings": settings}
            compared = {} if plain is None else _comparison(answer, plain)
            console.json_line(answer.as_json() | document | compared)
        elif plain is not None and plain.finish_reason != "cancelled":
            agreed = agreement(engine.stream, ids, options, answer, plain)
            measured = answers.compared(answer, plain, agreed)
        if trace is not None:
            totals = answers.figures_line(
                answer.stats, answer.finish_reason, None, answer.status, estimate=not compare
            )
            loaded = (engine.target, engine.draft)
            models = " + ".join(each.header.path.name for each in loaded if each is not None)
            totals = " · ".join(filter(None, (totals, measured)))
            write_trace(trace, traced, totals, text, models)
    ended = {answer.finish_reason, None if plain is None else plain.finish_reason}
    raise typer.Exit(130 if "cancelled" in ended else 0)


def _require_writable_forms(answering: AnswerFlags, trace: Path | None, as_json: bool) -> None:
    """Raise UsageError for flags of the output that do not go together, or a page's odd name."""
    if trace is not None and trace.suffix != ".html":
        raise UsageError(
            f"--trace writes HTML, and {trace} does not end in .html.",
            "Name a file that ends in .html.",
        )
    if as_json and answering.show_draft:
        raise UsageError(
            "--show-draft colours a text, and --json prints none.",
            "Leave one out; sources and accepted_at of the document count the drafted tokens.",
        )


def _no_batch(prompting: PromptFlags, answering: AnswerFlags) -> list[str]:
    own = replace(answering, system=None, max_tokens=None, stop=())
    own = replace(own, hide_reasoning=False, stats=False, quiet=False)
    prompt = ["A prompt"] if prompting.prompt else []
    return [*prompt, *given_flags(replace(prompting, prompt=())), *given_flags(own)]


def _is_prompt(name: str, given: Given) -> bool:
    """Whether the first word is not a model, because flags or settings name one."""
    if given.get("target") is not None:
        return True
    return _is_sentence(name) and default_target() is not None


def _is_sentence(name: str) -> bool:
    return re.search(r"\s", name.strip()) is not None and not os.path.exists(name)


def _require_model(name: str | None) -> None:
    if name is not None and _is_sentence(name):
        raise UsageError(
            f"No model was given: {one_line(name[:60])!r} was read as the model.",
            "The first argument names the model, unless -m does: "
            + shlex.join(["localspec", "run", "MODEL", one_line(name[:60])]),
        )


def _streams(
    engine: "Engine",
    ids: list[int],
    options: GenerateOptions,
    on_prompt: "Callable[[], None] | None",
    compare: bool,
    *,
    progress: bool,
) -> "AbstractContextManager[tuple[Iterator[Piece], Iterator[Piece]]]":
    """The pieces of the answer, and of a plain one to compare it with, if one is wanted."""
    if compare:
        return engine.stream_with_plain(
            ids, options, console.note, on_prompt=on_prompt, reports_progress=progress
        )
    pieces = engine.stream(ids, options, on_prompt=on_prompt, reports_progress=progress)
    return nullcontext((pieces, iter(())))


def _comparison(answer: "Answer", plain: "Answer") -> dict[str, object]:
    gain = round(answers.gain_over(answer.stats, plain.stats), 3)
    same = answer.tokens == plain.tokens
    return {"plain": plain.as_json(), "measured_speedup": gain, "same_text": same}


def _written(
    pieces: "Iterator[Piece]", look: AnswerStyle, keep: "Callable[[Piece], object]"
) -> "Answer":
    from localspec.chat.answer import collect

    writer = AnswerWriter(look)

    def write(piece: "Piece") -> None:
        keep(piece)
        writer.write(piece)

    try:
        return collect(pieces, write)
    finally:
        writer.end(line=True)


def _show_figures(answer: "Answer", params: SamplingParams, *, full: bool, estimate: bool) -> None:
    from localspec.engine.advice import advise

    seed = None if params.greedy else params.seed
    line = answers.figures_line(
        answer.stats, answer.finish_reason, seed, answer.status, full=full, estimate=estimate
    )
    console.note(line, asked=full)
    answers.only_thoughts(answer)
    if (advice := advise(answer.stats, params)) is not None and not machine.is_busy():
        console.note(advice)


def _settings(engine: "Engine", options: GenerateOptions, raw: bool) -> dict[str, object]:
    return {
        **engine.settings(),
        "draft_tokens": options.draft_tokens,
        "sampling": asdict(options.sampling),
        "grammar": options.grammar,
        "version": __version__,
        "template": None if raw else engine.template.settings(),
    }


def _encode(
    engine: "Engine",
    text: str,
    prompting: PromptFlags,
    templating: TemplateFlags,
    answering: AnswerFlags,
) -> list[int]:
    if prompting.raw:
        return engine.encode_text(text, special=prompting.special)
    session.use_template(engine, templating, answering.system)
    messages: list[Message] = [{"role": "user", "content": text}]
    if answering.system is not None:
        messages.insert(0, {"role": "system", "content": answering.system})
    return engine.encode_chat(messages)
