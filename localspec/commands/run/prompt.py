"""The prompt of ``run``: from arguments, a pipe or a file, in a chat template or raw."""

import errno
import select
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat.message import Message
from localspec.commands import session
from localspec.commands.flags.answer import PANEL, AnswerFlags
from localspec.commands.flags.rows import given_flags
from localspec.commands.flags.template import TemplateFlags
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import read_stream, read_text
from localspec.core.options.option import option
from localspec.display.terminal import console

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

# Bytes or characters: more than contexts hold; a model given by mistake is far larger.
_MOST = 2**26

_STDIN = "-"  # as a prompt or as the name of its file: read standard input

_prompt = partial(option, panel=PANEL)


@dataclass(frozen=True, slots=True)
class PromptFlags:
    """The prompt of one answer, in a chat template or as it is."""

    prompt: tuple[str, ...] = option(
        (), text="Piped text is added below it; -: that alone.", metavar="PROMPT", everyday=True
    )
    prompt_option: str | None = _prompt(
        None, "--prompt -p", "The prompt, as the argument.", metavar="PROMPT"
    )
    file: Path | None = _prompt(
        None, "--file -f", "Read the prompt from a file, or -.", everyday=True
    )
    raw: bool = _prompt(False, "--raw", "Use no chat template.", everyday=True)
    special: bool = _prompt(
        False, "--special -sp", "With --raw: show control tokens in the answer."
    )

    def check(self, answering: AnswerFlags, templating: TemplateFlags) -> None:
        """Refuse two prompts, flags of the chat template if none is used, and a bad template."""
        if self.prompt and self.prompt_option is not None:
            raise UsageError(
                "Two prompts were given.", "Give one, as the argument or with --prompt."
            )
        system = ["--system"] if answering.system is not None else []
        if self.raw and (flags := [*system, *given_flags(templating)]):
            raise UsageError(
                f"--raw uses no template, so {flags[0]} has no place.", "Leave one out."
            )
        if self.special and not self.raw:
            raise UsageError(
                "--special belongs to --raw: a chat shows no control tokens.",
                "Add --raw, or leave --special out.",
            )
        templating.check()

    def read(self) -> str:
        """The prompt from argument, file and stdin, joined by blank lines; raises FileProblem."""
        typed = " ".join(self.prompt) or self.prompt_option or ""
        parts = ["" if typed == _STDIN else typed]
        piped = self.file is None and sys.stdin is not None and not sys.stdin.isatty()
        if self.file is not None and str(self.file) != _STDIN:
            text = read_text(self.file, _MOST, what="The prompt file ")
            parts.append(text.replace("\r\n", "\n").removesuffix("\n"))  # as in llama.cpp
        if piped or _STDIN in (typed, str(self.file)):
            parts.append(_read_stdin())
        text = "\n\n".join(part for part in parts if part.strip())
        if not text:
            raise UsageError(
                "There is no prompt.",
                'Type: localspec run MODEL "your question", or pipe text in. '
                "To talk with it: localspec chat MODEL.",
            )
        return text

    def encode(
        self, engine: "Engine", text: str, templating: TemplateFlags, system: str | None
    ) -> list[int]:
        """The token ids of a text that `read` returned."""
        if self.raw:
            return engine.encode_text(text, special=self.special)
        session.use_template(engine, templating, system)
        messages: list[Message] = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return engine.encode_chat(messages)


def _read_stdin() -> str:
    """Standard input without its last newline; a note if a pipe stays silent for long."""
    try:
        silent = not select.select([sys.stdin], [], [], 1)[0]
    except (OSError, ValueError):
        silent = False  # nothing that can be waited for
    if silent:
        console.note("Waiting for the end of standard input (none wanted: add </dev/null).")
    try:
        return read_stream(sys.stdin, _MOST).removesuffix("\n")
    except ValueError as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeError) else "is not a prompt"
        raise FileProblem(f"The piped input {reason}: {error}.", "Pipe UTF-8 text in.") from error
    except OSError as error:
        if error.errno == errno.EBADF:
            return ""  # write-only, as nohup makes it in a terminal: nothing was piped in
        raise FileProblem(
            f"Standard input cannot be read: {error.strerror}.", "Pipe text in, or add </dev/null."
        ) from error
