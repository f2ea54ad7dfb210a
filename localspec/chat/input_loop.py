"""Reads messages, answers them or obeys slash commands, until the end of input."""

from collections.abc import Callable

from localspec.chat.conversation import Chat
from localspec.chat.slash_commands import names_command, obey
from localspec.core.errors import LocalspecError


def run(chat: Chat) -> int:
    """Read, answer or obey, until the end of input or /exit; how many lines failed."""
    hinted, failed = False, 0
    while True:
        try:
            text = chat.ui.read()
        except EOFError:
            return failed
        except KeyboardInterrupt:
            if hinted:
                return failed
            hinted = True
            chat.ui.say("Ctrl-C stops an answer. To leave: /exit, Ctrl-D, or Ctrl-C again.")
            continue
        hinted = False
        try:
            if not handle(chat, text):
                return failed
        except LocalspecError as problem:
            failed += 1
            chat.ui.complain(problem)
        except KeyboardInterrupt:  # just before an answer, or just behind one
            chat.ui.say("Stopped.")


def handle(chat: Chat, text: str) -> bool:
    """Obey a command or answer a message; False when the conversation is to end."""
    if text.startswith("/") and not text.startswith("//"):
        return obey(chat, text)
    if text.strip():
        text = text.removeprefix("/")  # of two: a message that begins with one
        chat.answer([*chat.turns, {"role": "user", "content": text}])
    return True


def read_message(read_line: Callable[[bool], str]) -> str:
    """One message: a line, a block between triple quotes, or lines that end in a backslash.

    Neither a block nor several lines that came at once, pasted, are a command, unless the paste
    names one: where the message begins with a slash, the slash is doubled. ``read_line`` is told
    whether the line continues a message; its EOFError then ends the message.
    """
    line = read_line(False).strip("\n")
    quoted = line.lstrip().startswith('"""')
    if "\n" in line and not (quoted and line.rstrip().endswith('"""')):
        return line if names_command(line) else _no_command(line)
    if quoted:
        return _no_command(_read_block(line.lstrip()[3:], read_line).strip("\n"))
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        try:
            parts.append(read_line(True))
        except EOFError:
            break
    return "\n".join(parts)


def _no_command(text: str) -> str:
    return f"/{text}" if text.startswith("/") else text


def _read_block(block: str, read_line: Callable[[bool], str]) -> str:
    while not block.rstrip().endswith('"""'):
        try:
            block += "\n" + read_line(True)
        except EOFError:
            return block
    return block.rstrip()[:-3]
