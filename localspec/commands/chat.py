"""The command ``chat``: a conversation, turn by turn."""

from typing import Annotated

import typer

from localspec.commands.flags.answer import AnswerFlags
from localspec.commands.flags.groups import spread_groups
from localspec.commands.flags.kept import FlagGroups
from localspec.commands.flags.loading import LoadingFlags
from localspec.commands.flags.models import ModelFlags, NameArgument
from localspec.commands.flags.sampling import SamplingFlags
from localspec.commands.session import make_request, open_engine, sampling_for, usable_length


@spread_groups
def chat(
    models: ModelFlags,
    loading: LoadingFlags,
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
    from localspec.engine.chat.conversation import Chat
    from localspec.engine.chat.input_loop import run

    grammar = answering.read_grammar()
    request = make_request(name, FlagGroups(models, loading, sampling))
    length = request.draft_tokens
    with open_engine(request) as engine, open_screen() as screen:
        conversation = Chat(
            engine,
            screen,
            sampling_for(engine, request),
            usable_length(engine, length, request),
            suffix=request.suffix,
            system=answering.system,
            thinking=thinking,
            max_tokens=answering.max_tokens,
            stop=tuple(answering.stop),
            grammar=grammar,
        )
        run(conversation)


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    app.command()(chat)
