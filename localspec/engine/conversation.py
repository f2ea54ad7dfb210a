"""Multi-turn chat: the messages, their settings, the slash commands; it draws nothing."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from localspec.core.config import (
    MAX_SEED,
    DraftTokens,
    SamplingParams,
    change_sampling,
    parse_draft_tokens,
    require_fixed_length,
    sampling_fields,
)
from localspec.core.errors import FileProblem, LocalspecError, UsageError
from localspec.core.files import appearing_when_complete, read_at_most
from localspec.engine.chat_template import Message, parse_message
from localspec.engine.generate import (
    Answer,
    GenerationResponse,
    TextEngine,
    collect,
    stream_generate,
)
from localspec.engine.stats import GenerationStats

MAX_SAVED_BYTES = 64 * 2**20


class ChatEngine(TextEngine, Protocol):
    """An engine that also knows the model's chat template."""

    def encode_chat(
        self, messages: Sequence[Message], *, thinking: bool | None = None
    ) -> list[int]:
        """Token ids of a conversation, up to the assistant's turn."""
        ...


class ChatUI(Protocol):
    """User interface of a chat: reads messages, shows answers."""

    def read(self) -> str:
        """One message; EOFError at the end of input, KeyboardInterrupt at Ctrl-C."""
        ...

    def stream(self, response: GenerationResponse) -> None:
        """Show a piece of the answer, and the figures so far."""
        ...

    def end_answer(self, answer: Answer) -> None:
        """Close the answer and show its figures."""
        ...

    def show_stats(self, stats: GenerationStats) -> None:
        """Show the sums of the conversation."""
        ...

    def say(self, sentence: str) -> None:
        """Tell something that is no answer."""
        ...

    def complain(self, problem: LocalspecError) -> None:
        """Tell what went wrong and what to do."""
        ...


@dataclass(slots=True)
class Chat:
    """A conversation with one engine. ``max_tokens`` bounds each answer, None is the context.

    ``file`` is where the conversation was saved or loaded last: saving it there again is safe.
    """

    engine: ChatEngine
    ui: ChatUI
    params: SamplingParams
    draft_tokens: DraftTokens
    suffix: bool = True
    system: str | None = None
    thinking: bool | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    turns: list[Message] = field(default_factory=list)
    total: GenerationStats = field(default_factory=GenerationStats)
    file: Path | None = None

    def run(self) -> None:
        """Read, answer or obey, until the end of input or /exit."""
        hinted = False
        while True:
            try:
                text = self.ui.read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if hinted:
                    return
                hinted = True
                self.ui.say("Ctrl-C stops an answer. To leave: /exit, Ctrl-D, or Ctrl-C again.")
                continue
            hinted = False
            try:
                if not self.handle(text):
                    return
            except LocalspecError as problem:
                self.ui.complain(problem)
            except KeyboardInterrupt:  # just before an answer, or just behind one
                self.ui.say("Stopped.")

    def handle(self, text: str) -> bool:
        """Obey a command or answer a message; False when the conversation is to end."""
        if text.startswith("/") and not text.startswith("//"):
            return self._obey(text)
        if text.strip():
            text = text.removeprefix("/")  # of two: a message that begins with one
            self._answer([*self.turns, {"role": "user", "content": text}])
        return True

    def _answer(self, turns: list[Message]) -> None:
        """Answer the last user turn and keep both, also when Ctrl-C ended the answer.

        An answer that did not begin leaves the conversation as it was.
        """
        messages = turns
        if self.system is not None:
            messages = [{"role": "system", "content": self.system}, *turns]
        prompt = self.engine.encode_chat(messages, thinking=self.thinking)
        responses = stream_generate(
            self.engine,
            prompt,
            self.params,
            self.draft_tokens,
            suffix=self.suffix,
            max_tokens=self.max_tokens,
            stop=self.stop,
        )
        answer = collect(responses, self.ui.stream)
        if answer.tokens:
            self.turns = [*turns, {"role": "assistant", "content": answer.text}]
        self.total.merge(answer.stats)
        self.ui.end_answer(answer)

    def _obey(self, line: str) -> bool:
        name, _, rest = line.strip().partition(" ")
        command = COMMANDS.get(ALIASES.get(name, name))
        if command is None:
            raise UsageError(f"There is no command {name}.", "Type /help for the commands.")
        command.run(self, rest.strip())
        return command.run is not _exit


def read_message(read_line: Callable[[bool], str]) -> str:
    """One message from lines: a block between triple quotes, or lines that end in a backslash.

    A block is never a command: where it begins with a slash, the slash is doubled. ``read_line`` is
    told whether the line continues a message; its EOFError then ends the message.
    """
    line = read_line(False)
    if not line.lstrip().startswith('"""'):
        parts = [line]
        while parts[-1].endswith("\\"):
            parts[-1] = parts[-1][:-1]
            try:
                parts.append(read_line(True))
            except EOFError:
                break
        return "\n".join(parts)
    block = _read_block(line.lstrip()[3:], read_line).strip("\n")
    return f"/{block}" if block.startswith("/") else block


def _read_block(block: str, read_line: Callable[[bool], str]) -> str:
    while not block.rstrip().endswith('"""'):
        try:
            block += "\n" + read_line(True)
        except EOFError:
            return block
    return block.rstrip()[:-3]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command: what follows its name, what it does, and the function that does it."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]


def _help(chat: Chat, rest: str) -> None:
    width = max(len(f"{name} {command.usage}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        chat.ui.say(f"{f'{name} {command.usage}':<{width}}  {command.help}")
    chat.ui.say('Several lines: begin and end with """, or end a line with a backslash.')
    chat.ui.say("A message that begins with a slash: type two of them.")


def _exit(chat: Chat, rest: str) -> None:
    """Ending is the caller's part."""


def _clear(chat: Chat, rest: str) -> None:
    chat.turns, chat.file = [], None
    chat.ui.say("The conversation is forgotten.")


def _regenerate(chat: Chat, rest: str) -> None:
    turns = list(chat.turns)
    if turns and turns[-1]["role"] == "assistant":
        turns.pop()
    if not turns:
        raise UsageError("There is nothing to answer again.", "Ask something first.")
    # The same seed would give the same answer.
    chat.params = replace(chat.params, seed=secrets.randbelow(MAX_SEED + 1))
    chat._answer(turns)


def _undo(chat: Chat, rest: str) -> None:
    asked = [i for i, turn in enumerate(chat.turns) if turn["role"] == "user"]
    if not asked:
        raise UsageError("There is nothing to undo.", "Ask something first.")
    chat.turns = chat.turns[: asked[-1]]
    chat.ui.say("The last question and its answer are forgotten.")


def _stats(chat: Chat, rest: str) -> None:
    if chat.total.rounds == 0:
        chat.ui.say("There are no answers yet.")
        return
    chat.ui.show_stats(chat.total)


def _draft(chat: Chat, rest: str) -> None:
    lengths = parse_draft_tokens(rest) if rest else ()
    if lengths is None or len(lengths) > 1:
        raise UsageError(
            f"{rest!r} is no draft length.", "Type /draft N, /draft auto or /draft off."
        )
    if lengths and lengths[0] not in (0, "auto") and chat.engine.draft is None:
        raise UsageError("No draft model is loaded.", "Start chat with --draft FILE.gguf.")
    if lengths:
        require_fixed_length(lengths[0], chat.params)
        chat.draft_tokens = lengths[0]
    if chat.draft_tokens == "auto" and (
        chat.engine.draft or (chat.suffix and chat.engine.can_roll_back)
    ):
        chat.engine.profile.introduce(chat.ui.say)
    chat.ui.say(f"Draft length: {chat.draft_tokens or 'off'}.")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.system = None if rest == "off" else rest
    chat.ui.say(f"System message: {chat.system or 'none'}")


def _set(chat: Chat, rest: str) -> None:
    if not rest:
        for name in sampling_fields():
            chat.ui.say(f"{name} {getattr(chat.params, name)}")
        return
    name, _, value = rest.partition(" ")
    params = change_sampling(chat.params, name, value.strip())
    require_fixed_length(chat.draft_tokens, params)
    chat.params = params
    name = name.replace("-", "_")
    chat.ui.say(f"{name} {getattr(chat.params, name)}")


def _save(chat: Chat, rest: str) -> None:
    path = _named(rest, "/save")
    document = {"system": chat.system, "messages": chat.turns}
    try:
        if path.is_file() and path != chat.file:
            raise FileProblem(f"{path} exists already.", "Choose another name, or remove it first.")
        text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
        with appearing_when_complete(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: half a surrogate pair, a NUL in the name
        raise FileProblem(f"{path} cannot be written: {error}.", "Try another name.") from error
    chat.file = path
    chat.ui.say(f"{len(chat.turns)} messages saved to {path}.")


def _load(chat: Chat, rest: str) -> None:
    path = _named(rest, "/load")
    try:
        document = json.loads(read_at_most(path, MAX_SAVED_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileProblem(
            f"{path} cannot be read: {error}.", "Give a file that /save wrote."
        ) from error
    chat.system, chat.turns = _parse_saved(document, path)
    chat.file = path
    chat.ui.say(f"{len(chat.turns)} messages loaded from {path}.")


def _named(rest: str, command: str) -> Path:
    if not rest:
        raise UsageError(f"{command} needs a file name.", f"Type {command} FILE.")
    try:
        return Path(rest).expanduser()
    except RuntimeError as error:  # ~ and a name that is nobody's
        raise FileProblem(f"{rest} cannot be found: {error}", "Try another name.") from error


def _parse_saved(document: Any, path: Path) -> tuple[str | None, list[Message]]:
    """Check what a file says before it replaces the conversation."""
    problem = FileProblem(f"{path} holds no saved conversation.", "Give a file that /save wrote.")
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        raise problem
    try:
        turns = [parse_message(entry) for entry in document["messages"]]
    except ValueError as error:
        raise problem from error
    system = document.get("system")
    if system is not None and not isinstance(system, str):
        raise problem
    return system, turns


COMMANDS = {
    "/help": Command("", "show this", _help),
    "/exit": Command("", "leave, as Ctrl-D does", _exit),
    "/clear": Command("", "forget the conversation", _clear),
    "/regen": Command("", "answer the last question again, with another seed", _regenerate),
    "/undo": Command("", "forget the last question and its answer", _undo),
    "/stats": Command("", "figures of the whole conversation", _stats),
    "/draft": Command("N|auto|off", "change the draft length", _draft),
    "/system": Command("TEXT|off", "change the system message", _system),
    "/set": Command("NAME VALUE", "change sampling, such as: /set temperature 0.7", _set),
    "/save": Command("FILE", "write the conversation to a file", _save),
    "/load": Command("FILE", "continue a saved conversation", _load),
}
ALIASES = {"/?": "/help", "/bye": "/exit", "/quit": "/exit", "/regenerate": "/regen"}
