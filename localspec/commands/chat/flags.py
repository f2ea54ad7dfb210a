"""Flags of conversations that are saved and go on later."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from localspec.chat.conversation_store import Autosave, SavedConversation, find, path_of, stored
from localspec.commands.flags.answer import PANEL
from localspec.core.errors import FileProblem, UsageError
from localspec.core.options.option import option
from localspec.display.terminal import console

if TYPE_CHECKING:
    from localspec.chat.conversation import Chat

_conversation = partial(option, panel=PANEL, everyday=True, llama_cpp=False)


@dataclass(frozen=True, slots=True)
class ConversationFlags:
    """Which conversation goes on, and whether it is saved."""

    resume: bool = _conversation(False, "--continue", "Continue the last chat.")
    session: str | None = _conversation(
        None, "--session", "Continue or begin this chat.", metavar="NAME"
    )
    save: bool | None = _conversation(
        None,
        "--save/--no-save",
        "Save the chat as it grows. Default: in a terminal, with --continue and --session.",
    )

    def read(self) -> SavedConversation | None:
        """The conversation that goes on, None for a new one."""
        if self.resume and self.session is not None:
            raise UsageError(
                "--continue continues the last conversation, --session a named one.",
                "Leave one of them out.",
            )
        if self.session is not None:
            return find(self.session) if path_of(self.session).exists() else None
        if not self.resume:
            return None
        for saved in stored(console.error):
            return saved
        raise FileProblem("There is no saved conversation.", "Begin one: localspec chat MODEL")

    def autosave(self, saved: SavedConversation | None, chat: "Chat") -> Autosave | None:
        """How the chat is saved, None if it is not: a script leaves no traces unasked."""
        wanted = console.is_typed() or self.resume or self.session is not None
        wanted = wanted if self.save is None else self.save
        if saved is not None and wanted:
            return Autosave.of(saved, chat.document())
        return Autosave(self.session) if wanted else None
