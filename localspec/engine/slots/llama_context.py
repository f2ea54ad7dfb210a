"""llama.cpp's context of a model that was loaded for several sequences."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.config import MAX_ROWS
from localspec.core.errors import EngineError
from localspec.engine.slots.batch_scheduler import Part
from localspec.llama import llama_library
from localspec.llama.batch import read_logits
from localspec.llama.cache.copies import ReusableLengths, copy_state, restore_state
from localspec.llama.cache.rollback import Trim
from localspec.llama.model import LlamaModel
from localspec.speculative.loop import Logits


class SharedContext:
    """The sequences of a model's context, from which on the model itself reads nothing.

    All share their cells (`kv_unified`): a pass with more tokens of one than of another is a single
    one then, where `llama_kv_cache::init_batch` would else make one for each length.
    """

    most_rows = MAX_ROWS

    def __init__(self, model: LlamaModel) -> None:
        self._llama = llama_library.library()
        self._model = model
        self._context = model.context
        self.n_ctx = model.n_ctx
        self.n_vocab = model.n_vocab
        self.most_tokens = model.options.batch_size
        self._batch = model.make_batch()
        model.truncate(0)
        window = int(self._llama.llama_model_n_swa(model.weights.handle))
        self._ends = [
            Trim(self._llama, self._context, window, sequence)
            for sequence in range(model.options.parallel)
        ]

    def read(self, parts: Sequence[Part]) -> list[Logits]:
        """One llama_decode of all parts; raises EngineError where llama.cpp refuses."""
        self._batch.clear()
        for part in parts:
            self._batch.add(part.tokens, part.position, part.rows, part.sequence)
        code = self._llama.llama_decode(self._context, self._batch.native)
        if code != 0:
            for part in parts:
                self.rewind(part.sequence, part.position)
            raise EngineError(
                f"llama.cpp could not decode {sum(len(part.tokens) for part in parts)} tokens of "
                f"{len(parts)} texts with {self._model.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )
        return self._logits([part.rows for part in parts])

    def rewind(self, sequence: int, length: int) -> int:
        """Undo all of a sequence from ``length`` on; how many tokens it holds then, or fewer."""
        return self._ends[sequence].rewind(length, None)

    def returns_to(self, sequence: int, length: int) -> int:
        """What `rewind` would leave at least."""
        return self._ends[sequence].returns_to(length, length)

    def reusable_lengths(self, sequence: int, held: int) -> ReusableLengths:
        """Where a state of ``held`` tokens can return to."""
        return self._ends[sequence].reusable_lengths(held)

    def state_bytes(self, sequence: int) -> int:
        """How large `state` is."""
        return int(self._llama.llama_state_seq_get_size(self._context, sequence))

    def state(self, sequence: int) -> NDArray[np.uint8]:
        """llama.cpp's state of a sequence."""
        return copy_state(self._llama, self._context, sequence)

    def restore(self, sequence: int, length: int, state: NDArray[np.uint8]) -> bool:
        """Hold ``length`` tokens as a state says; False, and nothing, where it does not fit."""
        end = self._ends[sequence]
        end.rewind(0, None)
        if restore_state(self._llama, self._context, sequence, state, length):
            if end.is_whole(length):
                return True
        end.rewind(0, None)
        return False

    def close(self) -> None:
        """Free what a pass is written into; the context is the model's."""
        self._batch.free()

    def _logits(self, rows: Sequence[int]) -> list[Logits]:
        """Views of the last pass's logits, as many rows for each as are named."""
        every = sum(rows)
        if not every:
            self._llama.llama_synchronize(self._context)  # a GPU may be at work; logits wait for it
            return [np.empty((0, self.n_vocab), np.float32) for _ in rows]
        found = read_logits(self._llama, self._context, every, self._model.weights.n_vocab)
        return np.split(self._model.by_id(found), np.cumsum(rows)[:-1])
