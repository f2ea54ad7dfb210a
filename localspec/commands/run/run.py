"""The command ``run``: one prompt and one answer, a batch, or a chat."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from localspec.commands import session
from localspec.commands.chat.flags import ConversationFlags
from localspec.commands.flags.answer import PANEL, AnswerFlags, JsonFlag
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.rows import Given, given_flags
from localspec.commands.flags.settings import default_target
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.run.answer import Asked, Output, write_answer
from localspec.commands.run.batch import BatchFlags, run_batch
from localspec.commands.run.prompt import PromptFlags
from localspec.core.errors import UsageError
from localspec.core.formatting import one_line
from localspec.display.terminal import console


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
    console.be_quiet(answering.quiet)
    if name is not None and _is_prompt(name, given):
        prompting, name = replace(prompting, prompt=(name, *prompting.prompt)), None
    _require_model(name)
    output = Output(compare, trace, as_json)
    is_chat = prompting == PromptFlags() and batching.batch is None and not output.given()
    if is_chat and console.is_dialogue():
        from localspec.commands.chat.chat import talk

        console.note("No prompt was given, so this is localspec chat.")
        talk(answering, templating, constraining, ConversationFlags(), given, name)
        return
    prompting.check(answering, templating)
    batching.check([*_no_batch(prompting, answering), *output.given()])
    grammar = constraining.read()
    if batching.batch is not None:
        run_batch(batching, answering, templating, grammar, session.make_request(name, given))
        return
    output.check(answering)
    request = session.make_request(name, given)
    session.require_prompt_cache(answering)
    text = prompting.read()
    output.say(answering)
    with session.open_engine(request) as engine:
        ids = prompting.encode(engine, text, templating, answering.system)
        wanted = templating.limited(answering.options(request.draft_tokens, grammar))
        options = session.generate_options(engine, request, wanted)
        asked = Asked(text, ids, prompting.raw, options)
        stopped = write_answer(engine, request, asked, answering, output)
    raise typer.Exit(130 if stopped else 0)


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
