"""Slash commands of a chat: names, help, functions."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.chat.conversation import Chat, unseen
from localspec.chat.conversation_store import read_conversation, write_conversation
from localspec.core.errors import FileProblem, UsageError
from localspec.core.formatting import percent
from localspec.core.model_options import parse_draft_tokens
from localspec.core.sampling_choice import change_sampling, written
from localspec.core.sampling_params import (
    MAX_SEED,
    require_fixed_length,
    sampling_fields,
)


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command; ``usage`` shows its arguments."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]


def _help(chat: Chat, rest: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        chat.ui.say(f"{f'{name} {command.usage}':<{width}}  {command.help}")
    chat.ui.say(
        'Several lines: paste them, begin and end with """, or end a line with a backslash.'
    )
    chat.ui.say("A message that begins with a slash: type two of them.")


def _exit(chat: Chat, rest: str) -> None:
    """`obey` tells the caller to end."""


def _clear(chat: Chat, rest: str) -> None:
    chat.ui.say(chat.begin_again())


def _regenerate(chat: Chat, rest: str) -> None:
    turns = list(chat.turns)
    if turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise UsageError("There is nothing to answer again.", "Ask something first.")
    if chat.options.sampling.greedy:
        chat.ui.say(
            "At temperature 0 the same question gets the same answer. For another one: "
            "/set temperature 0.8, then /regen."
        )
    # The same seed would give the same answer.
    sampling = replace(chat.options.sampling, seed=secrets.randbelow(MAX_SEED + 1))
    chat.options = replace(chat.options, sampling=sampling)
    chat.answer(turns)


def _undo(chat: Chat, rest: str) -> None:
    asked = [i for i, turn in enumerate(chat.turns) if turn["role"] == "user"]
    if not asked:
        raise UsageError("There is nothing to undo.", "Ask something first.")
    chat.turns = chat.turns[: asked[-1]]
    if chat.oldest >= len(chat.turns):
        chat.oldest = 0  # the turns that did not fit are gone
    chat.ui.say("The last question and its answer are forgotten.")


def _stats(chat: Chat, rest: str) -> None:
    if chat.total.rounds == 0:
        chat.ui.say("There are no answers yet.")
        return
    chat.ui.show_stats(chat.total)


def _context(chat: Chat, rest: str) -> None:
    turns = chat.turns
    if not turns or turns[-1]["role"] != "user":
        turns = [*turns, {"role": "user", "content": ""}]  # templates require it
    used = len(chat.encode(turns, chat.oldest))
    system = 0
    if chat.system is not None:
        # Compared with one of a letter: without any, many templates write a default one.
        letter = len(replace(chat, system="a").encode(turns, chat.oldest))
        system = max(0, used - letter + 1)
    n_ctx = chat.engine.target.n_ctx
    free = max(0, n_ctx - used)
    chat.ui.say(
        f"Context of {n_ctx} tokens: system message {system}, turns and template {used - system}, "
        f"free {free} ({percent(free / n_ctx)})."
    )
    if left_out := unseen(chat.turns[: chat.oldest]):
        chat.ui.say(left_out)


def _draft(chat: Chat, rest: str) -> None:
    lengths = parse_draft_tokens(rest) if rest else ()
    if lengths is None or len(lengths) > 1:
        raise UsageError(
            f"{rest!r} is not a draft length.", "Type /draft N, /draft auto or /draft off."
        )
    if lengths and lengths[0] not in (0, "auto") and chat.engine.draft is None:
        raise UsageError("No draft model is loaded.", "Start chat with --draft FILE.gguf.")
    if lengths:
        require_fixed_length(lengths[0], chat.options.sampling)
        chat.options = replace(chat.options, draft_tokens=lengths[0])
    if chat.options.draft_tokens == "auto" and (
        chat.engine.draft or (chat.options.prompt_lookup and chat.engine.can_roll_back)
    ):
        chat.engine.profile.introduce(chat.ui.say)
    chat.ui.say(f"Draft length: {chat.options.draft_tokens or 'off'}.")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.system = None if rest == "off" else rest
    chat.ui.say(f"System message: {chat.system or 'none'}")
    if rest:
        _say_ignored(chat)


def _say_ignored(chat: Chat) -> None:
    """Show what the template ignores of a new system message, or because of it."""
    for sentence in () if chat.system is None else chat.engine.system_notes(chat.system):
        chat.ui.say(sentence)


def _set(chat: Chat, rest: str) -> None:
    if not rest:
        for name in sampling_fields():
            chat.ui.say(f"{name} {written(chat.options.sampling, name)}")
        return
    name, _, value = rest.partition(" ")
    params = change_sampling(chat.options.sampling, name, value.strip())
    require_fixed_length(chat.options.draft_tokens, params)
    chat.engine.token_rules(params)  # refuses a bias of no token
    chat.options = replace(chat.options, sampling=params)
    name = name.replace("-", "_")
    chat.ui.say(f"{name} {written(chat.options.sampling, name)}")


def _save(chat: Chat, rest: str) -> None:
    path = _named(rest, "/save")
    try:
        if path.is_file() and path != chat.file:
            raise FileProblem(f"{path} exists already.", "Choose another name, or remove it first.")
        write_conversation(path, chat.document())
    except (OSError, ValueError) as error:  # ValueError: half a surrogate pair, a NUL in the name
        raise FileProblem(f"{path} cannot be written: {error}.", "Try another name.") from error
    chat.file = path
    chat.ui.say(f"{len(chat.turns)} messages saved to {path}.")


def _load(chat: Chat, rest: str) -> None:
    path = _named(rest, "/load")
    saved = read_conversation(path)
    chat.resume(saved)
    chat.file = path
    chat.ui.say(f"{len(chat.turns)} messages loaded from {path}.")
    chat.show_end()
    _say_ignored(chat)


def _named(rest: str, command: str) -> Path:
    if not rest:
        raise UsageError(f"{command} needs a file name.", f"Type {command} FILE.")
    try:
        return Path(rest).expanduser()
    except RuntimeError as error:  # ~ with an unknown user name
        raise FileProblem(f"{rest} cannot be found: {error}", "Try another name.") from error


COMMANDS = {
    "/help": Command("", "show this", _help),
    "/exit": Command("", "leave, as Ctrl-D does", _exit),
    "/clear": Command("", "forget the conversation", _clear),
    "/regen": Command("", "answer the last question again, with another seed", _regenerate),
    "/undo": Command("", "forget the last question and its answer", _undo),
    "/stats": Command("", "figures of the whole conversation", _stats),
    "/context": Command("", "how full the context is", _context),
    "/draft": Command("N|auto|off", "change the draft length", _draft),
    "/system": Command("TEXT|off", "change the system message", _system),
    "/set": Command("NAME VALUE", "change sampling, such as: /set temperature 0.7", _set),
    "/save": Command("FILE", "write the conversation to a file", _save),
    "/load": Command("FILE", "continue a saved conversation", _load),
}
ALIASES = {"/?": "/help", "/bye": "/exit", "/quit": "/exit", "/regenerate": "/regen"}


def names_command(text: str) -> bool:
    """Whether the first word is a command."""
    return _split(text)[0] in {*COMMANDS, *ALIASES}


def obey(chat: Chat, line: str) -> bool:
    """Run the command in ``line``; False when the conversation is to end."""
    name, rest = _split(line)
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        raise UsageError(f"There is no command {name}.", "Type /help for the commands.")
    command.run(chat, rest)
    return command.run is not _exit


def _split(line: str) -> tuple[str, str]:
    """The first word, and what follows it."""
    name, *rest = line.split(maxsplit=1) or [""]
    return name, "".join(rest).strip()
