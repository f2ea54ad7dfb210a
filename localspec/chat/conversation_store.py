"""Conversations in JSON files: those that /save names, and those that a chat saves by itself."""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from localspec.chat.message import Message, parse_message
from localspec.core import paths
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import (
    appearing_when_complete,
    file_problem,
    read_at_most,
    remove_abandoned,
)

MAX_BYTES = 64 * 2**20  # of a file
MAX_UNNAMED = 1000  # conversations without a name of the user's, the newest
_NAME = re.compile(r"\w[\w.-]{0,49}")
_TIME_NAME = re.compile(r"\d{4}-\d\d-\d\d-\d{6}(-\d+)?")
_NO_CONVERSATION = "Give a file that /save wrote, or one that localspec sessions --json names."


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """A conversation in a file, written at ``updated`` (seconds since 1970).

    ``pair`` has the ``model`` and ``draft`` as they were named, the ``settings`` of the chat, and
    the ``files`` with their hashes, that of the target first; it is empty in older files.
    """

    path: Path
    updated: float
    system: str | None
    messages: list[Message]
    pair: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name in the list of conversations."""
        return self.path.stem

    @property
    def models(self) -> str:
        return models_of(self.pair)

    @property
    def first_words(self) -> str:
        """How the first question begins, on one line."""
        asked = (turn["content"] for turn in self.messages if turn["role"] == "user")
        words = " ".join(next(asked, "")[:400].split())
        return words if len(words) <= 60 else f"{words[:59]}…"

    def uses(self, pair: Mapping[str, Any]) -> bool:
        """Whether this target file is that of the conversation, as far as that is known."""
        before, now = (each.get("files") or [{}] for each in (self.pair, pair))
        return before[0].get("fingerprint") in (None, now[0].get("fingerprint"))


def models_of(pair: Mapping[str, Any]) -> str:
    """File names of target and draft, or the name of the pair; empty if that is not known."""
    named = filter(None, (pair.get("model"), pair.get("draft")))
    return " + ".join(text.replace("\\", "/").rpartition("/")[2] for text in named)


def read_conversation(path: Path, hint: str = _NO_CONVERSATION) -> SavedConversation:
    """The conversation in a file; raises FileProblem for another file."""
    with file_problem(f"{path.absolute()} cannot be read", hint, ValueError, RecursionError):
        document = json.loads(read_at_most(path, MAX_BYTES).decode("utf-8"))
        updated = path.stat().st_mtime
    try:
        messages, system = document["messages"], document.get("system")
        if not isinstance(messages, list) or not isinstance(system, str | None):
            raise ValueError("messages must be a list, system a text")
        turns = [parse_message(entry) for entry in messages]
        return SavedConversation(path, updated, system, turns, _pair(document.get("pair", {})))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileProblem(f"{path} holds no saved conversation.", hint) from error


def _pair(pair: Any) -> Mapping[str, Any]:
    texts = [pair.get("model"), pair.get("draft")]
    tables = [pair.get("settings", {}), *pair.get("files", [])]
    if not all(isinstance(text, str | None) for text in texts):
        raise ValueError("model and draft must be texts")
    if not all(isinstance(table, dict) for table in tables):
        raise ValueError("settings and files must be tables")
    return {**pair}


def write_conversation(path: Path, document: Mapping[str, object], *, new: bool = False) -> None:
    """Write `Chat.document` at once and readable by its owner only; raises OSError, ValueError.

    With ``new``, raises FileExistsError if the name is taken.
    """
    text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    with appearing_when_complete(path, new=new, private=True) as partial:
        partial.write_text(text, encoding="utf-8")


# -- the folder of conversations -----------------------------------------------------------


def path_of(name: str) -> Path:
    """The file of a conversation; raises UsageError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"A conversation cannot be named {name[:99]!r}.",
            "A name has up to 50 letters, digits, dots, dashes and underscores.",
        )
    return paths.conversations_folder() / f"{name}.json"


def find(name: str) -> SavedConversation:
    """The conversation of this name; raises FileProblem with near names if there is none."""
    return read_conversation(_existing(name), f"Remove it: localspec sessions rm {name}")


def remove(name: str) -> None:
    """Remove the file of a conversation, also a damaged one; raises FileProblem."""
    path = _existing(name)
    with file_problem(f"{path} cannot be removed", "Remove it by hand."):
        path.unlink()
        remove_abandoned(path)


def stored(skipped: Callable[[FileProblem], None]) -> Iterator[SavedConversation]:
    """All conversations, the newest first, each read when it is asked for."""
    for path in sorted(_files(), key=lambda path: -(_changed(path) or 0)):
        try:
            yield read_conversation(path, f"Remove it: localspec sessions rm {path.stem}")
        except FileProblem as problem:
            skipped(problem)


def _existing(name: str) -> Path:
    path = path_of(name)
    if path.is_file():
        return path
    near = get_close_matches(name, [file.stem for file in _files()], 3)
    hint = f"Did you mean {' or '.join(near)}?" if near else "See them: localspec sessions"
    raise FileProblem(f"There is no conversation named {name}.", hint)


def _files() -> list[Path]:
    folder = paths.conversations_folder()
    with file_problem(f"{folder} cannot be read", "Look at its permissions."):
        try:
            found = [path for path in folder.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
    return [path for path in found if _NAME.fullmatch(path.stem)]


def _changed(path: Path) -> int | None:
    """When a file was changed, None without one."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return None


@dataclass(slots=True)
class Autosave:
    """Saves a chat under ``name`` whenever it has changed; without a name, the time becomes one."""

    name: str | None = None
    _saved: Mapping[str, object] | None = None
    _changed: int | None = None

    @classmethod
    def of(cls, saved: SavedConversation, document: Mapping[str, object]) -> "Autosave":
        """Return one that continues in the file of a saved conversation, this document."""
        return cls(saved.name, document, _changed(saved.path))

    def save(self, document: Mapping[str, object], say: Callable[[str], None]) -> None:
        """Write the changes; raises FileProblem. A file that another chat wrote stays as it is."""
        if document == self._saved:
            return
        if self.name is not None and _changed(path_of(self.name)) not in (None, self._changed):
            taken, self.name = self.name, None
            name = self._write(document)
            say(f"Another chat changed {taken}: this one goes on as {name}.")
        else:
            name = self._write(document)
        if self.name is None:
            _remove_oldest()
        self.name, self._saved, self._changed = name, document, _changed(path_of(name))

    def _write(self, document: Mapping[str, object]) -> str:
        """Write the file and return its name: a free one if it had none."""
        folder = paths.conversations_folder()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.name is not None:
                write_conversation(path_of(self.name), document)
                return self.name
            return _write_new(document)
        except (OSError, ValueError) as error:
            place = folder if self.name is None else path_of(self.name)
            raise FileProblem(
                f"The conversation cannot be saved to {place}: {error}.",
                "It is not saved any more; /save FILE tries another place.",
            ) from error


def _write_new(document: Mapping[str, object]) -> str:
    """Write a conversation under the time, with a number if other chats have that name."""
    now = time.strftime("%Y-%m-%d-%H%M%S")
    numbered = (f"{now}-{number}" for number in itertools.count(2))
    for name in itertools.chain([now], numbered):
        if not path_of(name).exists():
            with suppress(FileExistsError):
                write_conversation(path_of(name), document, new=True)
                return name
    raise AssertionError("there is always another number")


def _remove_oldest() -> None:
    """Remove the oldest unnamed conversations, and partial files of killed chats."""
    remove_abandoned(paths.conversations_folder() / "any", all_names=True)
    unnamed = [path for path in _files() if _TIME_NAME.fullmatch(path.stem)]
    for path in sorted(unnamed, key=lambda path: -(_changed(path) or 0))[MAX_UNNAMED:]:
        with suppress(OSError):
            path.unlink()
