"""Saved conversations: their models and settings for ``chat``, and the commands ``sessions``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.chat import conversation_store
from localspec.chat.conversation_store import SavedConversation
from localspec.commands.flags.answer import AnswerFlags, JsonFlag
from localspec.commands.flags.completion import conversations
from localspec.commands.flags.pair import stored_settings
from localspec.commands.flags.rows import Given
from localspec.commands.flags.settings import filled_in, setting_rows, setting_value
from localspec.core.errors import UsageError
from localspec.core.files import fingerprint
from localspec.core.options.model_options import ModelOptions
from localspec.display.terminal import console
from localspec.hub.provenance import known_sha256
from localspec.library.pairs.options import picked
from localspec.library.resolve import FIND, MTP, SELF

if TYPE_CHECKING:
    from localspec.chat.conversation import Chat
    from localspec.engine.engine import Engine
    from localspec.library.pairs.request import PairRequest
    from localspec.metadata.header import ModelHeader

sessions_app = typer.Typer(
    help="Conversations of chat: list, show and remove them.", invoke_without_command=True
)


def with_saved_pair(
    saved: SavedConversation | None, name: str | None, given: Given
) -> tuple[str | None, Given, dict[str, Any]]:
    """Model, flags and settings to continue with; flags win, and another model gets no settings."""
    model = None if saved is None else saved.pair.get("model")
    named = name or given.get("target")
    if saved is None or model is None:
        return name, given, {}
    if named is not None and model not in (named, str(Path(named).absolute())):
        return name, given, {}
    settings = _settings(saved)
    if ModelOptions(**picked(given, ModelOptions)).draft_options().model is not None:
        settings.pop("draft_tokens", None)  # it may have been off
    elif saved.pair.get("draft") is not None:
        given = {**given, "draft_model": saved.pair["draft"]}
    return name if named else model, given, settings


def _settings(saved: SavedConversation) -> dict[str, Any]:
    settings = {}
    for name, value in saved.pair.get("settings", {}).items():
        try:
            if name in setting_rows():
                settings[name] = setting_value(name, value)
        except UsageError as problem:
            console.note(f"A setting of {saved.path} is not used. {problem.message}")
    return settings


def pair_document(
    name: str | None, given: Given, request: "PairRequest", engine: "Engine"
) -> dict[str, Any]:
    """The models of a chat, their files and the flags given, as a conversation stores them."""

    def lasting(named: str | None) -> str | None:
        """The name that means the same in any folder."""
        if named is None or named in (FIND, MTP, SELF) or request.resolver.is_pair(named):
            return named
        return request.resolver.canonical_name(named)

    models = ModelOptions(**picked(given, ModelOptions))
    loaded = [engine.target, *([] if engine.draft is None else [engine.draft])]
    return {
        "model": lasting(name or models.target),
        "draft": lasting(models.draft_options().model),
        "files": [_file(model.header) for model in loaded],
        "settings": stored_settings(given),
    }


def _file(header: "ModelHeader") -> dict[str, object]:
    """A model's file, identified without reading all of it."""
    return {
        "path": str(header.path),
        "size": sum(path.stat().st_size for path in header.paths),
        "fingerprint": fingerprint(header.paths),
        "sha256": known_sha256(header.path),
    }


def system_message(
    saved: SavedConversation | None, model: str | None, given: str | None
) -> str | None:
    """The system message: that of a flag, else of the conversation, and not of the settings."""
    if saved is None or given not in (None, filled_in(AnswerFlags, {"name": model}).get("system")):
        return given
    return saved.system


def begin(chat: "Chat", saved: SavedConversation | None, engine: "Engine", *, shown: bool) -> None:
    """Name the models, and continue a saved conversation; its end is ``shown`` in a terminal."""
    target = engine.target.header.path
    if shown:
        chat.ui.say(_introduction(engine))
    if saved is None:
        return
    chat.resume(saved)
    if shown:
        chat.ui.say(f"{saved.name} continues ({len(saved.messages)} messages, {_date(saved)}).")
        chat.show_end()
    if not saved.uses(chat.pair):
        before = Path(str(saved.pair["files"][0].get("path")))
        changed = f"{target.name} has changed since this conversation."
        other = f"This conversation was with {before.name}; now {target.name} answers."
        chat.ui.say(changed if before == target else other)


def end(chat: "Chat") -> None:
    """Say under which name the conversation is saved, if it is, and how to continue it."""
    if chat.turns and chat.autosave is not None and chat.autosave.name is not None:
        name = chat.autosave.name
        chat.ui.say(f"Saved as {name}. Continue it: localspec chat --session {name}")


def _introduction(engine: "Engine") -> str:
    target, draft = engine.target.header.path, "no draft model"
    if engine.draft is not None:
        path = engine.draft.header.path
        draft = "its prediction heads as draft" if path == target else f"draft {path.name}"
    context = f"context of {engine.target.n_ctx:,} tokens"
    return f"Target {target.name}, {draft}, {context}. /help lists the commands; Ctrl-D leaves."


@sessions_app.callback()
def sessions(context: typer.Context, as_json: JsonFlag = False) -> None:
    """List saved conversations, the newest first. Continue one: localspec chat --session NAME."""
    if context.invoked_subcommand is not None:
        return
    from localspec.display import models as lists

    found = list(conversation_store.stored(console.error))
    if as_json:
        console.json_line({"sessions": [_as_json(saved) for saved in found]})
    elif found:
        rows = [
            (each.name, _date(each), each.models, str(len(each.messages)), each.first_words)
            for each in found
        ]
        names = ("name", "saved", "models", "messages", "begins with")
        lists.table(names, rows, ("messages",))
    else:
        console.note("No conversation is saved yet. Begin one: localspec chat MODEL")


@sessions_app.command("show")
def sessions_show(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=conversations)],
    as_json: JsonFlag = False,
) -> None:
    """Print a conversation; with --json, also its models, their hashes and its settings."""
    saved = conversation_store.find(name)
    if as_json:
        own = {"system": saved.system, "turns": saved.messages, "pair": saved.pair}
        console.json_line(_as_json(saved) | own)
        return
    for turn in saved.messages:
        prompt = ">>> " if turn["role"] == "user" else ""
        console.text(f"{prompt}{turn['content'].rstrip()}\n\n")


@sessions_app.command("rm")
def sessions_rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", autocompletion=conversations)],
) -> None:
    """Remove conversations."""
    for name in names:
        conversation_store.remove(name)
        console.note(f"Removed: {name}.")


def _as_json(saved: SavedConversation) -> dict[str, object]:
    return {
        "name": saved.name,
        "path": str(saved.path),
        "updated": int(saved.updated),
        "models": saved.models,
        "messages": len(saved.messages),
        "begins_with": saved.first_words,
    }


def _date(saved: SavedConversation) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(saved.updated))
