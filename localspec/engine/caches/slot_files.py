"""--slot-save-path: the caches of slots, saved in files of one folder and restored from them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import appearing_when_complete, reason_of, remove_abandoned
from localspec.engine.engine import Engine
from localspec.engine.generate import TextEngine
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.cache.state_file import read_state, require_state_file, write_partial
from localspec.llama.model import LlamaModel

_NAME = re.compile(r"(?!.*\.draft$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


class SlotFiles:
    """Files below ``folder``: the target's state by a client's name, the draft's with `.draft`.

    The methods return the number of tokens and of bytes, and are called on the compute thread.
    They raise UsageError for a name that is no plain file name, for a file that cannot be used, and
    for a slot without tokens. ``say`` gets notes on states that turn out to be bad in an answer.
    """

    def __init__(
        self, folder: Path, engine: Engine, say: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._folder = folder
        self._engine = engine
        self._say = say

    def of(self, owner: str) -> "SlotFiles":
        """The files of an owner, in a folder of their own."""
        if not owner:
            return self
        folder = self._folder / owner
        folder.mkdir(mode=0o700, exist_ok=True)
        return SlotFiles(folder, self._engine, self._say)

    def save(self, slot: TextEngine, name: str) -> tuple[int, int]:
        path = self._path(name)
        if not slot.target.tokens:
            raise UsageError("The slot has read nothing yet.", "Save it after an answer.")
        states = list(self._states(slot, path))
        remove_abandoned(path, all_names=True)  # each as large as a cache
        try:
            written = _write(states)
        except FileProblem as error:
            message = error.message.replace(f"{self._folder}/", "")
            message = message.replace(f" {self._folder}", " for saved slots")
            raise UsageError(message, error.hint) from error
        except OSError as error:
            message = f"{name} cannot be written: {reason_of(error)}."
            raise UsageError(message, "Make room.") from error
        return len(slot.target.tokens), written

    def restore(self, slot: TextEngine, name: str) -> tuple[int, int]:
        """Read the files; a draft without one reads the text again."""
        read = 0
        for file, model, holder in self._states(slot, self._path(name)):
            try:
                read += read_state(file, model, holder, self._report(file))
            except FileNotFoundError as error:
                if model is self._engine.target:
                    message = f"No slot was saved as {name}."
                    raise UsageError(message, "Save one, or name another.") from error
            except (OSError, ValueError) as error:
                message = f"{file.name} cannot be used: {reason_of(error)}."
                raise UsageError(message, "Save a slot of this model.") from error
        return len(slot.target.tokens), read

    def _report(self, file: Path) -> Callable[[], None]:
        sentence = (
            f"The saved slot {file} is damaged: passes after it gave logits that are not numbers, "
            "and the texts were read again. Save it again, or remove it."
        )
        return lambda: self._say(sentence)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name[:80]!r} is no name for a saved slot.",
                "Expected up to 200 letters, digits, and characters of _.- without .draft.",
            )
        return self._folder / name

    def _states(
        self, slot: TextEngine, path: Path
    ) -> Iterator[tuple[Path, LlamaModel, CachedText]]:
        """Each file with its model, and the model's sequence in the slot."""
        engine = self._engine
        if isinstance(slot.target, CachedText):
            yield path, engine.target, slot.target
        if isinstance(engine.draft, LlamaModel) and isinstance(slot.draft, CachedText):
            yield path.with_name(f"{path.name}.draft"), engine.draft, slot.draft


def _write(states: Sequence[tuple[Path, LlamaModel, CachedText]]) -> int:
    """Replace all files, or none; returns the bytes written."""
    for file, _, _ in states:
        require_state_file(file)
    written = 0
    with ExitStack() as replaced:
        for file, model, holder in states:
            if holder.tokens:
                partial = replaced.enter_context(appearing_when_complete(file, private=True))
                written += write_partial(partial, model, holder)
    for file, _, holder in states:
        if not holder.tokens:  # a draft's that belongs to another text
            file.unlink(missing_ok=True)
    return written


def erase(slot: TextEngine) -> int:
    """Forget what the slot has read; returns the number of tokens."""
    tokens = len(slot.target.tokens)
    for model in (slot.target, slot.draft):
        if model is not None:
            model.truncate(0)
    return tokens
