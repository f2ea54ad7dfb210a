"""The command ``chat``: a conversation, turn by turn."""

from collections.abc import Iterable
from functools import cache
from typing import Annotated

import typer

from localspec.commands.flags.answer import PANEL, AnswerFlags
from localspec.commands.flags.grammar import GrammarFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.llama_command import LlamaCommand
from localspec.commands.flags.pair import NameArgument, PairFlags
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.loaded_pair import LoadedPair
from localspec.commands.session import make_request, require_prompt_cache


@spread_groups
def chat(
    answering: AnswerFlags,
    templating: TemplateFlags,
    constraining: GrammarFlags,
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
    from localspec.display.chat import open_screen
    from localspec.display.pieces import AnswerStyle

    grammar = constraining.read()
    request = make_request(name, given)
    templating.check()
    require_prompt_cache(answering)
    look = AnswerStyle.asked(answering.hide_reasoning, answering.show_draft)
    with LoadedPair(request, given, answering, templating, grammar) as pair:
        engine, options = pair.open(request, answering.system)
        with open_screen(look, markdown=not plain, models=_model_names) as screen:
            conversation = Chat(engine, screen, options, answering.system, load_pair=pair.change)
            failed = run(conversation)
    if failed and not screen.interactive:
        raise typer.Exit(1)  # a person has seen the errors, a script has not


@cache
def _model_names() -> Iterable[str]:
    """What /model completes: the pairs, and the models on this disk."""
    from localspec.library.local_models import find_models
    from localspec.library.pairs import user_pairs
    from localspec.library.pairs.catalog import load_catalog

    known = [user_pairs.BUNDLED, *(pair.name for pair in load_catalog())]
    local = [model.name for model in find_models().models]
    return list(dict.fromkeys([*user_pairs.names(), *known, *local]))


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    app.command(cls=LlamaCommand)(chat)
