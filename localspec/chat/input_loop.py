"""The loop of a chat: read a message, answer it or run a slash command."""

from collections.abc import Callable

from localspec.chat.conversation import Chat
from localspec.chat.slash_commands import names_command, obey
from localspec.chat.templates.sandbox import MAX_CHARACTERS
from localspec.core.errors import FileProblem, LocalspecError, UsageError


def run(chat: Chat) -> int:
    """Read and handle messages until the end of input or /exit; returns how many failed."""
    hinted, failed = False, 0
    while True:
        try:
            chat.save()
            text = chat.ui.read()
        except EOFError:
            return failed
        except KeyboardInterrupt:
            if hinted:
                return failed
            hinted = True
            chat.ui.say("Ctrl-C stops an answer. To leave: /exit, Ctrl-D, or Ctrl-C again.")
            continue
        except UsageError as problem:  # a line that the terminal has cut
            failed += 1
            chat.ui.complain(problem)
            continue
        hinted = False
        try:
            if not handle(chat, text):
                return failed
        except LocalspecError as problem:
            failed += 1
            chat.ui.complain(problem)
        except KeyboardInterrupt:  # just before or after an answer
            chat.ui.say("Stopped.")


def handle(chat: Chat, text: str) -> bool:
    """Run a command or answer a message; False when the conversation ends."""
    if text.startswith("/") and not text.startswith("//"):
        return obey(chat, text)
    if text.strip():
        text = text.removeprefix("/")  # a doubled slash stands for one
        chat.ask(text)
    return True


def read_message(read_line: Callable[[bool], str]) -> str:
    """One message: a line, a block between triple quotes, or lines that end in a backslash.

    A block is never a command, nor are several lines pasted at once, unless the first word is one:
    a slash at the beginning is doubled. ``read_line`` gets whether the line continues a message;
    its EOFError then ends the message. Raises FileProblem for more than MAX_CHARACTERS.
    """
    read_line = _bounded(read_line)
    line = read_line(False).strip("\n").removeprefix("\ufeff")  # of a file that is piped in
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


def is_unfinished(text: str) -> bool:
    """Whether a block between triple quotes has begun and not ended."""
    return text.lstrip().startswith('"""') and text.count('"""') % 2 == 1


def _no_command(text: str) -> str:
    return f"/{text}" if text.startswith("/") else text


def _read_block(first: str, read_line: Callable[[bool], str]) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith('"""'):
        try:
            lines.append(read_line(True))
        except EOFError:
            return "\n".join(lines)
    return "\n".join(lines).rstrip()[:-3]


def _bounded(read_line: Callable[[bool], str]) -> Callable[[bool], str]:
    """``read_line`` for one message, whose lines may have no end."""
    room = MAX_CHARACTERS

    def read(continued: bool) -> str:
        nonlocal room
        line = read_line(continued)
        room -= len(line) + continued
        if room < 0:
            raise FileProblem(
                f"The message has more than {MAX_CHARACTERS:,} characters.",
                "Pipe in text, one message a line.",
            )
        return line

    return read
