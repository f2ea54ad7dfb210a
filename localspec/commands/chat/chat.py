"""The command ``chat``: a conversation, turn by turn."""

from functools import cache
from typing import Annotated

import typer

from localspec.commands.chat import conversations
from localspec.commands.chat.flags import ConversationFlags
from localspec.commands.chat.loaded_pair import LoadedPair
from localspec.commands.flags.answer import PANEL, AnswerFlags
from localspec.commands.flags.completion import models
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.settings import default_target
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.session import make_request, require_prompt_cache
from localspec.commands.start import choose_model
from localspec.display.pieces import AnswerStyle
from localspec.display.terminal import console


@spread_groups
def chat(
    answering: AnswerFlags,
    templating: TemplateFlags,
    constraining: GrammarFlags,
    storing: ConversationFlags,
    given: PairFlags,
    name: NameArgument = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Show Markdown as the model writes it.", rich_help_panel=PANEL
        ),
    ] = False,
) -> None:
    """Chat with a model, turn by turn; /help lists the commands."""
    from localspec.chat.conversation import Chat
    from localspec.chat.input_loop import run
    from localspec.display.chat import kept_whole, open_screen

    console.be_quiet(answering.quiet)
    grammar = constraining.read()
    saved = storing.read()
    name, given, settings = conversations.with_saved_pair(saved, name, given)
    if not (name or given.get("target") or default_target()) and console.is_dialogue():
        name = choose_model()
        if name is None:
            raise typer.Exit
    request = make_request(name, given, conversation=settings)
    system = conversations.system_message(saved, name, answering.system)
    templating.check()
    require_prompt_cache(answering)
    look = AnswerStyle.asked(answering.hide_reasoning, answering.show_draft, answering.stats)
    with (
        kept_whole(markdown=not plain),
        LoadedPair(request, given, answering, templating, grammar) as pair,
    ):
        engine, options = pair.open(request, system)
        with open_screen(
            look, markdown=not plain, keep_input=storing.save is not False, models=cache(models)
        ) as screen:
            document = conversations.pair_document(name, given, request, engine)
            conversation = Chat(engine, screen, options, pair=document, load_pair=pair.change)
            if screen.interactive:
                console.note_other_work()
            conversations.begin(conversation, saved, engine, shown=screen.interactive)
            conversation.system = system
            conversation.autosave = storing.autosave(saved, conversation)
            failed = run(conversation)
            if screen.interactive:
                conversations.end(conversation)
    if failed and not screen.interactive:
        raise typer.Exit(1)  # a person has seen the errors, a script has not
