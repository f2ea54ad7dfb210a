"""Slash commands of a chat: names, help, functions."""

import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from localspec.chat.answer import Piece, agreement, collect
from localspec.chat.conversation import Chat, ChatEngine, unseen
from localspec.chat.conversation_store import read_conversation, write_conversation
from localspec.chat.message import Message
from localspec.chat.window import require_prompt_fits
from localspec.core.errors import FileProblem, LocalspecError, UsageError
from localspec.core.files import read_at_most
from localspec.core.formatting import one_line, percent, printable
from localspec.core.options.model_options import parse_draft_tokens
from localspec.core.options.option import options
from localspec.core.options.sampling_choice import (
    change_sampling,
    described,
    sampling_field,
    written,
)
from localspec.core.options.sampling_params import MAX_SEED, SamplingParams, sampling_fields
from localspec.speculative.loop import DraftStatus

_PAGE = "Name a file that ends in .html."
_MOST_READ = 4 * 2**20  # bytes of a file for a message
_LONGEST_VALUE = 40  # characters of one setting in a list
_FENCE = re.compile(r"(?ms)^ *(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ *\1[`~]*[ \t]*$|\Z)")


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command; ``usage`` shows its arguments, and ``names`` that it takes are completed."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]
    names: Callable[[], Iterable[str]] = tuple

    def words(self) -> list[str]:
        """The words that it completes: those that the usage spells, and the names."""
        return [*re.findall("[a-z]+", self.usage), *self.names()]


def _help(chat: Chat, rest: str) -> None:
    rows = COMMANDS.items()
    chat.ui.table([(f"{name} {command.usage}", command.help) for name, command in rows])
    chat.ui.say('Several lines: paste them, end a line with a backslash, or put """ around them.')
    chat.ui.say("A message that begins with a slash: type two of them.")


def _exit(chat: Chat, rest: str) -> None:
    """`obey` tells the caller to end."""


def _clear(chat: Chat, rest: str) -> None:
    chat.attached = ""
    chat.ui.say(chat.begin_again())


def _retry(chat: Chat, rest: str) -> None:
    turns, before = _to_last_question(chat), chat.options.sampling
    sampling = change_sampling(before, "temperature", rest) if rest else before
    replace(chat.options, sampling=sampling).allowed(chat.engine)
    if sampling.greedy:
        chat.ui.say(
            "At temperature 0 the same question gets the same answer. For another one: /retry 0.8."
        )
    # The same seed would give the same answer.
    sampling = replace(sampling, seed=secrets.randbelow(MAX_SEED + 1))
    chat.options = replace(chat.options, sampling=sampling)
    try:
        chat.answer(turns)
    finally:
        sampling = replace(sampling, temperature=before.temperature)
        chat.options = replace(chat.options, sampling=sampling)


def _to_last_question(chat: Chat) -> list[Message]:
    before, asked = chat.asked or ([], [])
    if asked and before is chat.turns:
        return asked  # it was stopped before its answer began
    turns = list(chat.turns)
    if turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise UsageError("There is nothing to answer again.", "Ask something first.")
    return turns


def _compare(chat: Chat, rest: str) -> None:
    if rest:
        raise UsageError(
            "/compare takes no text: it answers the last question again.",
            "Ask that first, then type /compare alone.",
        )
    turns, engine, options = _to_last_question(chat), chat.engine, chat.options
    if engine.draft is None and not (options.prompt_lookup and engine.can_roll_back):
        raise UsageError("Nothing drafts here.", "Start chat with --draft FILE.gguf.")
    if not options.draft_tokens:
        options = replace(options, draft_tokens="auto")
        engine.profile.introduce(chat.ui.say)
    shown = chat.shown[2] if chat.shown and chat.shown[0] is chat.turns else None
    if shown and shown.finish_reason == "cancelled":
        options = replace(options, max_tokens=len(shown.tokens))  # as far as the user wanted it
    prompt = chat.encode(turns, chat.oldest)
    chat.ui.say("Answering the last question twice, drafted and plain in turn; Ctrl-C stops.")
    expected, most = len(shown.tokens) if shown else None, options.max_tokens
    streams = engine.stream_with_plain(prompt, options, chat.ui.say, reports_progress=True)
    with _without_history(engine), streams as (pieces, plain_pieces):
        with chat.ui.follow("drafted", expected, most) as show:
            plain = drafted = collect(pieces, show)
        if drafted.finish_reason != "cancelled":
            with chat.ui.follow("plain", len(drafted.tokens), most) as show:
                plain = collect(plain_pieces, show)
    if plain.finish_reason == "cancelled":
        chat.ui.say("Stopped.")
        return
    if shown and shown.finish_reason == "cancelled":
        drafted.finish_reason = "cancelled"  # as the answer that it repeats
    chat.ui.compare(drafted, plain, agreement(engine.stream, prompt, options, drafted, plain))


def _trace(chat: Chat, rest: str) -> None:
    path = _named(rest, "/trace")
    if path.suffix != ".html":
        raise UsageError(f"/trace writes HTML, and {path} does not end in .html.", _PAGE)
    turns = _to_last_question(chat)
    ended, pieces, answer = chat.shown or ([], [], None)
    if answer is None or ended is not chat.turns:
        chat.ui.say("Answering the last question again, for the facts of its rounds; Ctrl-C stops.")
        prompt, options = chat.encode(turns, chat.oldest), replace(chat.options, logprobs=0)
        pieces = []
        stream = chat.engine.stream(prompt, options, reports_progress=True)
        followed = chat.ui.follow("again", None, options.max_tokens)
        with _without_history(chat.engine), followed as show:

            def keep(piece: Piece) -> None:
                show(piece)
                pieces.append(piece)

            answer = collect(stream, keep)
    chat.ui.trace(path, pieces, answer, turns[-1]["content"], chat.models)


@contextmanager
def _without_history(engine: ChatEngine) -> Iterator[None]:
    """Look nothing up in earlier answers: the last one is the answer to be given again."""
    history, engine.history = engine.history, None
    try:
        yield
    finally:
        engine.history = history


def _model(chat: Chat, rest: str) -> None:
    if not rest or chat.load_pair is None:
        chat.ui.say(
            f"{chat.models or 'This model'}. /model NAME continues with another pair or model."
        )
        return
    chat.load_pair(chat, _unquoted(rest))
    chat.oldest = 0  # the other context may hold more


def _read(chat: Chat, rest: str) -> None:
    if rest == "off":
        chat.attached = ""
        chat.ui.say("No file begins the next message.")
        return
    path = _named(rest, "/read")
    try:
        text = read_at_most(path, _MOST_READ).decode("utf-8-sig")
        if "\0" in text:
            raise ValueError("it is not text")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileProblem(
            f"{path} cannot be read: {reason}.", "Give a text file in UTF-8."
        ) from error
    attached = f"{chat.attached}{one_line(path.name)}:\n\n{printable(text).rstrip()}\n\n"
    tokens = len(chat.encode([{"role": "user", "content": attached}], 0))
    require_prompt_fits(tokens, chat.engine.target.n_ctx)
    chat.attached = attached
    chat.ui.say(f"{path} begins the next message, of {tokens} tokens so far. /read off drops it.")


def _copy(chat: Chat, rest: str) -> None:
    if rest not in ("", "code"):
        raise UsageError(
            f"/copy takes code or nothing, not {rest!r}.", "Type /copy, or /copy code."
        )
    answers = [turn["content"] for turn in chat.turns if turn["role"] == "assistant"]
    if not answers:
        raise UsageError("There is no answer to copy.", "Ask something first.")
    text = answers[-1]
    if rest:
        blocks = [found[2] for found in _FENCE.finditer(text)]
        if not blocks:
            raise UsageError("The last answer has no code block.", "Type /copy for all of it.")
        text = blocks[-1]
    chat.ui.copy(text)


def _think(chat: Chat, rest: str) -> None:
    if rest not in ("", "show", "hide"):
        raise UsageError(f"/think takes show or hide, not {rest!r}.", "Type /think show.")
    if rest:
        chat.ui.fold_thoughts(rest == "hide")
        chat.ui.say(f"Thoughts are {'folded when they end' if rest == 'hide' else 'shown'}.")
    if rest == "hide":
        return
    thoughts = [turn.get("reasoning_content") for turn in chat.turns][-1:]
    if thoughts and thoughts[0]:
        chat.ui.show_thoughts(thoughts[0])
    elif not rest:
        chat.ui.say("The last answer has no thoughts.")


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
    chat.ui.show_stats(chat.total, chat.shown[2].status if chat.shown else DraftStatus.DRAFTING)


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
    waiting, empty = (
        len(chat.encode([{"role": "user", "content": text}], 0)) for text in (chat.attached, "")
    )
    files = waiting - empty
    n_ctx = chat.engine.target.n_ctx
    free = max(0, n_ctx - used - files)
    chat.ui.say(
        f"Context of {n_ctx} tokens: system message {system}, turns and template {used - system}, "
        f"{f'files of /read for the next message {files}, ' if chat.attached else ''}"
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
    if lengths:
        refusal = "No draft model is loaded.", "Start chat with --draft FILE.gguf."
        options = replace(chat.options, draft_tokens=lengths[0])
        chat.options = options.allowed(chat.engine, refusal)
    if chat.options.draft_tokens == "auto":
        chat.engine.profile.introduce(chat.ui.say)
    chat.ui.say(f"Draft length: {chat.options.draft_tokens or 'off'}.")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.system = None if rest == "off" else rest
    chat.ui.say(f"System message: {chat.system or 'none'}")
    if rest:
        _say_ignored(chat)


def _say_ignored(chat: Chat) -> None:
    """Warn about parts that the template ignores of a new system message, or because of it."""
    for sentence in () if chat.system is None else chat.engine.system_notes(chat.system):
        chat.ui.say(sentence)


def _set(chat: Chat, rest: str) -> None:
    if rest in ("", "all"):
        _list_settings(chat, everything=rest == "all")
        return
    name, _, value = rest.removeprefix("parameter ").partition(" ")
    if command := COMMANDS.get(f"/{name}"):  # /set system TEXT
        command.run(chat, value.strip())
        return
    if name == "max_tokens":
        _set_max_tokens(chat, value.strip())
        return
    name = sampling_field(name)
    if not value.strip():
        chat.ui.say(described(chat.options.sampling, name))
        return
    params = change_sampling(chat.options.sampling, name, value.strip())
    options = replace(chat.options, sampling=params).allowed(chat.engine)
    chat.engine.token_rules(params)  # refuses a bias of no token
    chat.options = options
    chat.ui.say(f"{name} {written(chat.options.sampling, name)}")


def _set_max_tokens(chat: Chat, value: str) -> None:
    if value:
        try:
            chat.options = replace(chat.options, max_tokens=int(value))
        except ValueError:
            raise UsageError(
                f"{value[:99]!r} is no number of tokens.", "An example: /set max_tokens 200"
            ) from None
    most = chat.options.max_tokens
    chat.ui.say(f"max_tokens {-1 if most is None else most}: of an answer; -1 has no limit")


def _list_settings(chat: Chat, *, everything: bool) -> None:
    """Show the usual settings, each with its meaning; others in a paragraph, as a list is long."""
    params, usual = chat.options.sampling, SamplingParams()
    rows = {name: options(SamplingParams)[name] for name in sampling_fields()}
    for name in (name for name, row in rows.items() if row.everyday):
        chat.ui.say(described(params, name))
    others = [
        f"{name} {_cut(written(params, name))}"
        for name, row in rows.items()
        if not row.everyday and (everything or getattr(params, name) != getattr(usual, name))
    ]
    if others:
        chat.ui.say(" · ".join(others))
    if not everything:
        chat.ui.say("The other settings have their defaults: /set all lists them.")


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def _save(chat: Chat, rest: str) -> None:
    path = _named(rest, "/save")
    try:
        if path.is_file() and path != chat.file:
            raise FileProblem(f"{path} exists already.", "Choose another name, or remove it first.")
        write_conversation(path, chat.document())
    except LocalspecError:
        raise
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
        return Path(_unquoted(rest)).expanduser()
    except RuntimeError as error:  # ~ with an unknown user name
        raise FileProblem(f"{rest} cannot be found: {error}", "Try another name.") from error


def _unquoted(name: str) -> str:
    """A name without the quotes or escapes that a terminal gives a dropped file, as for a shell.

    A file whose own name has them is taken as it is.
    """
    with suppress(ValueError, RuntimeError):  # an open quote; ~ with an unknown user name
        if not os.path.lexists(Path(name).expanduser()) and len(words := shlex.split(name)) == 1:
            return words[0]
    return name


COMMANDS = {
    "/help": Command("", "show this", _help),
    "/exit": Command("", "leave, as Ctrl-D does", _exit),
    "/clear": Command("", "forget the conversation", _clear),
    "/retry": Command(
        "[TEMPERATURE]", "answer again, with another seed; once at TEMPERATURE", _retry
    ),
    "/undo": Command("", "forget the last question and its answer", _undo),
    "/read": Command("FILE|off", "begin the next message with a text file, or with none", _read),
    "/copy": Command("[code]", "copy the last answer, or its last code block", _copy),
    "/think": Command("[show|hide]", "show the last thoughts; show or fold those to come", _think),
    "/compare": Command("", "answer the last question with and without drafts", _compare),
    "/trace": Command("FILE", "write a page about the last answer, by rounds", _trace),
    "/model": Command("[NAME]", "show the pair, or continue with another one", _model),
    "/stats": Command("", "figures of the whole conversation", _stats),
    "/context": Command("", "how full the context is", _context),
    "/draft": Command("N|auto|off", "change the draft length", _draft),
    "/system": Command("TEXT|off", "change the system message", _system),
    "/set": Command(
        "[NAME [VALUE]|all]",
        "show or change sampling: /set temperature 0.7",
        _set,
        lambda: (f"{name} " for name in sampling_fields()),
    ),
    "/save": Command("FILE", "write the conversation to a file", _save),
    "/load": Command("FILE", "continue a saved conversation", _load),
}
ALIASES = {
    **{"/?": "/help", "/bye": "/exit", "/quit": "/exit"},
    **{"/regen": "/retry", "/regenerate": "/retry"},
}


def names_command(text: str) -> bool:
    return _split(text)[0] in {*COMMANDS, *ALIASES}


def obey(chat: Chat, line: str) -> bool:
    """Run the command in ``line``; False when the conversation is to end."""
    name, rest = _split(line)
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        begun = [each for each in COMMANDS if each.startswith(name)]
        close = get_close_matches(name, [*COMMANDS, *ALIASES], 1, 0.7)
        near = begun if len(begun) == 1 else close
        raise UsageError(
            f"There is no command {name}.",
            f"{f'Did you mean {near[0]}? ' if near else ''}/help lists the commands; a message "
            "that begins with a slash needs two.",
        )
    command.run(chat, rest)
    return command.run is not _exit


def _split(line: str) -> tuple[str, str]:
    name, *rest = line.split(maxsplit=1) or [""]
    return name, "".join(rest).strip()
