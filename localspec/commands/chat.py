"""The command ``chat``: a conversation, turn by turn."""

import typer

from localspec.commands.conversations import (
    begin,
    pair_document,
    sessions_app,
    system_message,
    with_saved_pair,
)
from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.conversation import ConversationFlags
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.llama_command import LlamaCommand
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.session import (
    generate_options,
    lookup_cache,
    make_request,
    open_engine,
    prompt_cache,
    require_prompt_cache,
    use_template,
)
from localspec.display import console


@spread_groups
def chat(
    answering: AnswerFlags,
    templating: TemplateFlags,
    constraining: GrammarFlags,
    storing: ConversationFlags,
    given: PairFlags,
    name: NameArgument = None,
) -> None:
    """Chat with a model, turn by turn; /help lists the commands."""
    from localspec.chat.conversation import Chat
    from localspec.chat.input_loop import run
    from localspec.display.chat import open_screen
    from localspec.display.pieces import AnswerStyle

    console.be_quiet(answering.quiet)
    grammar = constraining.read()
    saved = storing.read()
    name, given, settings = with_saved_pair(saved, name, given)
    request = make_request(name, given, conversation=settings)
    system = system_message(saved, name, answering.system)
    length = request.draft_tokens
    templating.check()
    require_prompt_cache(answering)
    look = AnswerStyle.asked(answering.hide_reasoning, answering.show_draft, answering.stats)
    with open_engine(request) as engine, open_screen(look) as screen:
        use_template(engine, templating, system)
        conversation = Chat(
            engine,
            screen,
            generate_options(engine, request, length, answering, grammar),
            pair=pair_document(name, given, request, engine),
        )
        begin(conversation, saved, engine, shown=screen.interactive)
        conversation.system = system
        conversation.autosave = storing.autosave(saved, conversation)
        with (
            lookup_cache(engine, request, default=True),
            prompt_cache(engine, answering, answers=True),
        ):
            failed = run(conversation)
    if failed and not screen.interactive:
        raise typer.Exit(1)  # a person has seen the errors, a script has not


def register(app: typer.Typer) -> None:
    """Add this command and those about its conversations to the program."""
    app.command(cls=LlamaCommand)(chat)
    app.add_typer(sessions_app, name="sessions")
