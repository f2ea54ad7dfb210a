"""The localspec program: its commands, and errors turned into exit codes."""

import copy
import functools
import inspect
import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from localspec import __version__
from localspec.commands import config, doctor, draft, export, start
from localspec.commands.bench import bench, demo, tune
from localspec.commands.chat import chat, conversations
from localspec.commands.flags.completion import pairs as pair_names
from localspec.commands.flags.llama_command import LlamaCommand
from localspec.commands.models import models, pairs, remove
from localspec.commands.run import run
from localspec.commands.serve import serve, servers
from localspec.core.errors import LocalspecError
from localspec.core.limits import REFUSALS, refusal
from localspec.display.terminal import console

# Commands of other programs, and the equivalent ones here.
_OURS = {
    word: ours
    for words, ours in (
        ("help", "--help"),
        ("version", "--version"),
        ("models", "list"),
        ("ask prompt generate complete completion", "run MODEL PROMPT"),
        ("info", "inspect MODEL"),
        ("search catalog library", "pairs"),
        ("install get fetch", "download MODEL"),
        ("create", "pair add NAME"),
        ("start server", "serve MODEL"),
        ("settings set", "config"),
    )
    for word in words.split()
}

# By panel of the help, in its order; further names of a command are hidden.
_COMMANDS: dict[str | None, dict[str, Any]] = {
    None: {
        "demo": demo.demo,
        "doctor": doctor.doctor,
        "run": run.run,
        "chat": chat.chat,
        "sessions": conversations.sessions_app,
        "serve": serve.serve,
        "ps": servers.ps,
        "top": servers.top,
        "stop": servers.stop,
        "bench": bench.bench,
        "tune": tune.tune,
    },
    "Models and pairs": {
        "draft": draft.draft_app,
        "check": models.check,
        "inspect show": models.inspect,
        "list ls": models.list_models,
        "suggest": models.suggest,
        "pairs": pairs.pairs,
        "pair": pairs.pair_app,
        "download pull": models.download,
        "verify": models.verify,
        "rm remove": remove.remove,
        "export": export.export,
        "config": config.config_app,
    },
}


class _Commands(TyperGroup):
    """The commands; words of other programs are answered with the command that is meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if word not in self.commands and not ctx.resilient_parsing:
            ours = _OURS.get(word)
            if ours is None and (word.endswith(".gguf") or word in pair_names()):
                ours = f"chat {word}"
            if ours is not None:
                ctx.fail(f"No such command '{word}'. Here it is: localspec {ours}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="localspec",
    cls=_Commands,
    help="Local language models, answered faster with the same text: a small draft model proposes "
    "tokens, the big target model verifies them in one pass (speculative decoding on llama.cpp).",
    epilog="Start with: localspec demo",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Run the command line; an error that the user can mend becomes two lines and an exit code."""
    console.prepare_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, no child has a code
    try:
        _program(*sys.argv[1:2])()
    except LocalspecError as problem:
        console.error(problem)
        sys.exit(problem.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except REFUSALS as problem:
        refused = refusal(problem)
        if refused is None:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the rest is tried again at exit
        console.error(refused)
        sys.exit(refused.exit_code)
    sys.exit(0)


@functools.cache
def _program(word: str = "") -> typer.Typer:
    """The app, with one command if ``word`` names it: to build all takes a third of a start."""
    found = copy.copy(app)
    commands = [each for each in app.registered_commands if each.name == word]
    groups = [each for each in app.registered_groups if each.name == word]
    if commands or groups:
        found.registered_commands, found.registered_groups = commands, groups
    return found


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"localspec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Without a command: advice for this machine."""
    if context.invoked_subcommand is None:
        start.start(context)


def _join_lines(group: typer.Typer) -> None:
    """Make each paragraph of the help one line, which the terminal wraps; Typer would not."""
    for each in group.registered_commands:
        paragraphs = (inspect.getdoc(each.callback) or "").split("\n\n")
        each.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _join_lines(inner.typer_instance)


for panel, commands in _COMMANDS.items():
    for names, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=names, rich_help_panel=panel)
            continue
        name, *others = names.split()
        cls = LlamaCommand if hasattr(command, "advanced") else None
        app.command(name, cls=cls, rich_help_panel=panel)(command)
        for other in others:
            app.command(other, hidden=True)(command)
_join_lines(app)
