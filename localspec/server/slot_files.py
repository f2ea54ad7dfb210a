"""States of slots in files of one folder (--slot-save-path), as llama-server's /slots has them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from localspec.core.errors import FileProblem
from localspec.engine.generate import TextEngine
from localspec.llama.cache.copies import Restorable
from localspec.llama.cache.state_file import read_state, require_state_file, write_state
from localspec.llama.model import LlamaModel
from localspec.server.errors import BadRequest

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

_NAME = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)


class Stored(NamedTuple):
    """What a file holds, of the target and the draft together."""

    n_tokens: int  # of the target
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SlotFiles:
    """Saves and restores slots of the engine; to be called in the slot's thread."""

    engine: "Engine"
    folder: Path

    def save(self, slot: TextEngine, name: str) -> Stored:
        """Write the slot's state; raises FileProblem, and BadRequest for an empty slot."""
        if not slot.target.tokens:
            raise BadRequest("The slot holds no prompt.", "Ask something first.")
        n_bytes = 0
        for model, sequence, path in self._parts(slot, name):
            require_state_file(path)
            try:
                n_bytes += write_state(path, model, sequence) if sequence.tokens else 0
            except OSError as error:
                raise FileProblem(f"{path.name} cannot be written: {error.strerror}.") from error
        return Stored(len(slot.target.tokens), n_bytes)

    def restore(self, slot: TextEngine, name: str) -> Stored:
        """Load a file of `save`; raises BadRequest where there is none, or of another model."""
        n_bytes = 0
        for model, sequence, path in self._parts(slot, name):
            if model is self.engine.draft and not path.exists():
                continue  # saved without it
            try:
                read_state(path, model, sequence)
                n_bytes += path.stat().st_size
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise BadRequest(
                    f"{path.name} cannot be restored: {reason}.", "Save it with this model first."
                ) from error
        return Stored(len(slot.target.tokens), n_bytes)

    def _parts(self, slot: TextEngine, name: str) -> Iterator[tuple[LlamaModel, Restorable, Path]]:
        """Each model, its sequence in the slot, and the file; prediction heads have no state."""
        if _NAME.fullmatch(name) is None:
            raise BadRequest(
                f"{name!r} cannot name a file.", "Expected letters, digits, dots, - and _."
            )
        engine, path = self.engine, self.folder / name
        parts = (
            (engine.target, slot.target, path),
            (engine.draft, slot.draft, Path(f"{path}.draft")),
        )
        for model, sequence, file in parts:
            if isinstance(model, LlamaModel) and isinstance(sequence, Restorable):
                yield model, sequence, file
