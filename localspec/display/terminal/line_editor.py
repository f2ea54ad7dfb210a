"""The prompt line of a terminal, with history, completion and pastes."""

import re
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, get_app_session
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal

from localspec.chat.input_loop import is_unfinished
from localspec.chat.slash_commands import Command
from localspec.display.terminal import console
from localspec.display.terminal.keys import require_whole

_MOST_HISTORY = 2**20  # bytes: a file that has grown larger loses the older half


class LineEditor:
    """Reads messages at a prompt; ``commands`` are completed, ``history`` is the file of past ones.

    Without ``keep`` nothing typed is written to the disk, so that no other editor can be used.
    With ``redraws`` off, and in a terminal that cannot move its cursor, it reads ``lines``: the
    terminal itself edits them, without history and completion.
    A paste is one message, line ends included, also one that ends in Enter. The terminal marks
    where it begins and ends (bracketed paste), also while an answer is drawn; in a terminal that
    does not, Enter belongs to a paste if more text is there already.
    """

    def __init__(
        self,
        commands: Mapping[str, Command],
        history: Path,
        keep: bool = True,
        redraws: bool = True,
    ) -> None:
        self.lines = not redraws or is_dumb_terminal()
        self._commands = commands
        self._interrupted, self._is_first = False, True
        self._at_prompt = False  # else keys are processed that were typed before the prompt
        # A terminal that does not report its cursor would only cause a warning.
        vars(get_app_session().output)["enable_cpr"] = False
        self._session = PromptSession[str](
            completer=_CommandCompleter(commands),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            enable_open_in_editor=keep,
            enable_suspend=True,
            history=_history(history) if keep else InMemoryHistory(),
            key_bindings=self._keys(),
            multiline=True,
            prompt_continuation="... ",
        )

    def read(self, prompt: str) -> str:
        """A message; EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C."""
        text = _typed(prompt) if self.lines else self._edited(prompt)
        if self._is_first:  # it may have been typed before the program could take keys
            self._is_first = False
            require_whole(text)
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)
        if "\ufffd" in text:
            console.note(f"Bytes that are not {sys.stdin.encoding} text were read as \ufffd.")
        return text

    def close(self) -> None:
        """Leave the terminal as it was."""
        if not self.lines:
            self._session.output.disable_bracketed_paste()
            self._session.output.flush()

    def _edited(self, prompt: str) -> str:
        while keys := self._session.input.read_keys():
            store_typeahead(self._session.input, keys)
        self._at_prompt = self._interrupted = False
        # prompt_toolkit's own handler loses signals at the end of its prompt, or fails there.
        former = signal.signal(signal.SIGINT, self._interrupt)
        try:
            text = self._session.prompt(prompt, pre_run=self._begin, handle_sigint=False)
            if self._interrupted:
                raise KeyboardInterrupt
            return text
        finally:
            signal.signal(signal.SIGINT, former)
            self._session.output.enable_bracketed_paste()
            self._session.output.flush()

    def _begin(self) -> None:
        """Called just before keys that were typed ahead are processed."""
        loop = get_app().loop
        if loop is not None:
            loop.call_soon(lambda: setattr(self, "_at_prompt", True))
        if self._interrupted:
            self._leave()

    def _interrupt(self, number: int, frame: object) -> None:
        self._interrupted = True
        if (loop := self._session.app.loop) is not None:
            loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        """End the prompt as Ctrl-C does, unless it has ended already."""
        future = self._session.app.future
        if future is not None and not future.done():
            self._session.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter")(self._enter)
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        """Send the message, or begin its next line."""
        buffer = event.current_buffer
        if self._in_paste(event) or is_unfinished(buffer.text):
            buffer.insert_text("\n")
        elif (
            buffer.document.current_line_before_cursor.endswith("\\")
            and not buffer.text[buffer.cursor_position :]
        ):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    def _in_paste(self, event: KeyPressEvent) -> bool:
        """Whether more text came with this Enter; a command in the first line ends there."""
        first = event.current_buffer.text.split(maxsplit=1)[:1]
        if not self._at_prompt or (first and first[0] in self._commands):
            return False
        event.key_processor.feed_multiple(event.app.input.read_keys())
        return bool(event.key_processor.input_queue)


class _Entries(FileHistory):
    """A history that loses a message if the disk is full."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def _history(file: Path) -> History:
    """Messages of earlier chats and of this one, in a file for the user alone; else in memory."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(0o600)
        if not file.is_file():
            raise OSError("it is a folder, pipe or device")
        file.open("r+b").close()
        if file.stat().st_size > _MOST_HISTORY:
            file.write_bytes(file.read_bytes()[-_MOST_HISTORY // 2 :])
    except OSError:
        console.note(f"The input history could not be saved to {file}.")
        return InMemoryHistory()
    return _Entries(file)


class _CommandCompleter(Completer):
    """Completes slash commands, and the files or words that may follow them."""

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        name, blank, rest = document.text_before_cursor.partition(" ")
        if not name.startswith("/") or "\n" in name:
            return
        if not blank:
            for each in self._commands:
                if each.startswith(name):
                    yield Completion(f"{each} ", -len(name))
        elif (known := self._commands.get(name)) is not None:
            if known.usage.startswith("FILE"):
                files = PathCompleter(expanduser=True)
                yield from files.get_completions(Document(rest), event)
            for word in known.words():
                if word.startswith(rest):
                    yield Completion(word, -len(rest))


def _typed(prompt: str) -> str:
    """A line as the terminal itself edits it; raises UsageError for one that it has cut."""
    try:
        return require_whole(input(prompt))
    except (EOFError, KeyboardInterrupt):
        sys.stdout.write("\n")  # Return was not pressed
        sys.stdout.flush()
        raise
