"""The command ``chat``: a conversation, turn by turn."""

from typing import Annotated

import typer

from localspec.commands.flags import (
    AnswerFlags,
    ModelFlags,
    NameArgument,
    SamplingFlags,
    spread_groups,
)
from localspec.commands.session import make_request, open_engine, sampling_for, usable_length


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

    request = make_request(name, models, sampling)
    length = request.draft_tokens
    with open_engine(request) as engine, open_screen() as screen:
        Chat(
            engine,
            screen,
            sampling_for(engine, request),
            usable_length(engine, length, request),
            suffix=request.suffix,
            system=answering.system,
            thinking=thinking,
            max_tokens=answering.max_tokens,
            stop=tuple(answering.stop),
        ).run()


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    app.command()(chat)
