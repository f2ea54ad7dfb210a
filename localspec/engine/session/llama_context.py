"""SharedContext: one llama.cpp context with several sequences, and the entries of its batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.options.load_options import MAX_ROWS
from localspec.llama import llama_library
from localspec.llama.batch import are_numbers, decode, longest, read_logits
from localspec.llama.cache.copies import Copy, ReusableLengths, copy_state, restore_state
from localspec.llama.cache.rollback import Trim
from localspec.llama.model import LlamaModel
from localspec.speculative.loop import Logits

_STEP = 8  # tokens that a round reads at most besides those whose logits it needs


class CacheEmptied(EngineError):
    """All sequences of a context must be read again: a bad state may have spoilt any of them."""


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """Tokens of one sequence to read, from ``position`` on, with logits of the last ``rows``.

    They follow what the sequence held when the context was in this ``epoch``.
    """

    context: "SharedContext"
    sequence: int
    tokens: Sequence[int]
    position: int
    rows: int
    epoch: int = 0

    @property
    def is_prompt(self) -> bool:
        """Whether it may be read in several passes, beside the rounds of others."""
        count = len(self.tokens)
        return not self.rows or count - self.rows > _STEP or count > self.context.most_tokens

    @property
    def step(self) -> int:
        """How many of its tokens a pass reads that it shares with no other entry."""
        step, count = self.context.prompt_step, len(self.tokens)
        return step if count > longest(step) else count

    def beginning(self, count: int) -> "BatchEntry":
        """Its first ``count`` tokens or fewer, without logits where that is not all of it."""
        if count >= len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[: min(count, len(self.tokens) - self.rows)], rows=0)


class SharedContext:
    """The sequences of a model's context; the model itself is not used any more.

    All share their cells (`kv_unified`), so that a pass with different numbers of tokens is a
    single one, where `llama_kv_cache::init_batch` would else make one for each length. A value that
    is no number in one sequence's cells, even in those that it left, spoils the others' passes
    (0 * NaN is NaN): where a state came from a file, all cells are then emptied, and a new
    ``epoch`` begins.
    """

    most_rows = MAX_ROWS
    epoch = 0

    def __init__(self, model: LlamaModel) -> None:
        self._llama = llama_library.library()
        self._model = model
        self._context = model.context
        self.n_ctx = model.n_ctx
        self.n_vocab = model.n_vocab
        self.most_tokens = model.most_tokens
        self.prompt_step = model.prompt_step
        self._doubted: dict[int, Callable[[], None]] = {}  # by the sequence that was restored
        self._batch = model.make_batch()
        model.truncate(0)
        self._ends = [
            model.make_rollback(Trim.name, sequence) for sequence in range(model.options.parallel)
        ]

    def read(self, entries: Sequence[BatchEntry]) -> list[Logits]:
        """One llama_decode; for each entry its rows of logits, valid until the next pass.

        Raises EngineError where llama.cpp refuses; the caches then hold what they held before.
        Raises CacheEmptied for an entry of an earlier epoch, and where a new one begins.
        """
        if any(entry.epoch != self.epoch for entry in entries):
            raise CacheEmptied("The text must be read again.")
        self._batch.clear()
        for entry in entries:
            self._batch.add(entry.tokens, entry.position, entry.rows, entry.sequence)
        code = decode(self._llama, self._context, self._batch.native)
        if code != 0:
            for entry in entries:
                self.rewind(entry.sequence, entry.position)
            raise EngineError(
                f"llama.cpp could not decode {sum(len(entry.tokens) for entry in entries)} tokens "
                f"of {len(entries)} sequences with {self._model.header.path.name} (code {code}).",
                "Try a smaller --ctx-size, or see the log with --verbose.",
            )
        found = self._logits([entry.rows for entry in entries])
        if self._doubted and not all(map(are_numbers, found)):
            self._empty()
            raise CacheEmptied("A state from a file gave logits that are not numbers.")
        return found

    def doubted(self, sequence: int) -> Callable[[], None] | None:
        """The report for a sequence's state, or for another one that may have spoilt it."""
        return self._doubted.get(sequence) or next(iter(self._doubted.values()), None)

    def doubt(self, sequence: int, report: Callable[[], None]) -> None:
        """Call ``report`` when a pass gives no numbers: the sequence has a state from a file."""
        self._doubted[sequence] = report

    def _empty(self) -> None:
        """Clear the cache of all sequences, and report the states that files gave."""
        reports, self._doubted = self._doubted, {}
        for end in self._ends:
            end.rewind(0, None)
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), True)
        self.epoch += 1
        for report in dict.fromkeys(reports.values()):  # of two slots it may be one file
            report()

    @property
    def keeps_copies(self) -> bool:
        """Whether a sequence needs copies to return to: see `Rollback.keep`."""
        return self._ends[0].keeps_copies

    def keep(self, sequence: int, length: int, *, shared: bool) -> None:
        """Copy the state of a sequence that holds ``length`` tokens, for later prompts."""
        self._ends[sequence].keep(length, shared=shared)

    def rewind(self, sequence: int, length: int) -> int:
        """Truncate a sequence to ``length`` tokens, or fewer; returns how many it holds then."""
        return self._ends[sequence].rewind(length, None)

    def returns_to(self, sequence: int, length: int) -> int:
        """How many tokens `rewind` would leave at least."""
        return self._ends[sequence].returns_to(length, length)

    def reusable_lengths(self, sequence: int, held: int) -> ReusableLengths:
        """Lengths to which a state of ``held`` tokens can be truncated."""
        return self._ends[sequence].reusable_lengths(held)

    def state_bytes(self, sequence: int) -> int:
        """Size of `state`."""
        return int(self._llama.llama_state_seq_get_size(self._context, sequence))

    def state(self, sequence: int) -> NDArray[np.uint8]:
        """llama.cpp's state of a sequence."""
        return copy_state(self._llama, self._context, sequence)

    def restore(
        self, sequence: int, length: int, state: NDArray[np.uint8], copies: Sequence[Copy]
    ) -> bool:
        """Load a `state` of ``length`` tokens; False, and no tokens, where it does not fit."""
        end = self._ends[sequence]
        end.rewind(0, None)
        if restore_state(self._llama, self._context, sequence, state, length):
            if end.is_whole(length):
                end.restore_copies(copies)
                return True
        end.rewind(0, None)
        return False

    def close(self) -> None:
        """Free the batch; the context is the model's."""
        self._batch.free()

    def _logits(self, rows: Sequence[int]) -> list[Logits]:
        """Views of the last pass's logits, split into so many rows each."""
        every = sum(rows)
        if not every:
            self._llama.llama_synchronize(self._context)  # a GPU may be at work; logits wait for it
            return [np.empty((0, self.n_vocab), np.float32) for _ in rows]
        found = read_logits(self._llama, self._context, every, self._model.weights.n_vocab)
        return np.split(self._model.by_id(found), np.cumsum(rows)[:-1])
