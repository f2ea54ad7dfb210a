"""One sequence of a shared context, as a TokenModel of the loop."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.interrupt import require_wanted
from localspec.engine.slots.batch_scheduler import Context, Part, SequenceHandle
from localspec.llama.cache.copies import Copy, ReusableLengths
from localspec.speculative.loop import BatchShare, Logits


class SequenceContext(Context, Protocol):
    """A context of which each sequence can be taken back, copied out and in by itself."""

    @property
    def n_ctx(self) -> int:
        """Most tokens of one sequence."""

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""

    def rewind(self, sequence: int, length: int) -> int:
        """Undo all of a sequence from ``length`` on; how many tokens it holds then, or fewer."""

    def returns_to(self, sequence: int, length: int) -> int:
        """What `rewind` would leave at least."""

    def reusable_lengths(self, sequence: int, held: int) -> ReusableLengths:
        """Where a state of ``held`` tokens can return to."""

    def state_bytes(self, sequence: int) -> int:
        """How large `state` is."""

    def state(self, sequence: int) -> NDArray[np.uint8]:
        """What the sequence holds, for `restore`."""

    def restore(self, sequence: int, length: int, state: NDArray[np.uint8]) -> bool:
        """Hold ``length`` tokens as a state says; False, and nothing, where it does not fit."""


class SlotModel:
    """A TokenModel on one sequence of a context; its passes are shared with other slots'."""

    block_size: int | None = None
    reads_along = False
    gives_prompt_row = True

    def __init__(self, context: SequenceContext, sequence: int, seat: SequenceHandle) -> None:
        self._context = context
        self._sequence = sequence
        self._seat = seat
        self._tokens: list[int] = []
        self._held = 0  # so many of the tokens are in the cache
        self.n_ctx = context.n_ctx
        self.n_vocab = context.n_vocab

    @property
    def tokens(self) -> list[int]:
        """The tokens in the cache; not to be changed."""
        return self._tokens

    @property
    def pending(self) -> int:
        """How many of the tokens the next pass reads again, because a window had moved on."""
        return len(self._tokens) - self._held

    tree = None  # one text of several, whose sequences are taken

    @property
    def batch_share(self) -> BatchShare:
        """With whom the slot's last pass was shared."""
        return self._seat.batch_share

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        What is long is read in chunks, in passes of others' rounds. Raises EngineError when
        llama.cpp refuses; the cache then holds what it held before. Raises Cancelled between two
        chunks where `stopped_when` ends it: a pass is of others too.
        """
        before = len(self._tokens)
        unread = [*self._tokens[self._held :], *tokens]
        logits: Logits = np.empty((0, self.n_vocab), np.float32)
        try:
            while unread:
                require_wanted()
                part = Part(self._context, self._sequence, unread, self._held, rows)
                count, logits = self._seat.read(part)
                self._held += count
                self._tokens += unread[count - max(0, self._held - len(self._tokens)) : count]
                unread = unread[count:]
        except EngineError:
            del self._tokens[before:]
            self._rewind(min(before, self._held))  # which may leave less
            raise
        return logits

    def truncate(self, length: int) -> None:
        """Forget every token at ``length`` and beyond; those before may have to be read again."""
        del self._tokens[length:]
        if length < self._held:
            self._rewind(length)

    def checkpoint(self) -> None:
        """Attention forgets without preparation."""

    def returns_to(self, length: int) -> int:
        """How many tokens need not be read again, at least, after `keep` with this length."""
        if length >= self._held:
            return self._held
        return self._context.returns_to(self._sequence, length)

    def reusable_lengths(self) -> ReusableLengths:
        """To which lengths a copy of its `state` can return."""
        return self._context.reusable_lengths(self._sequence, len(self._tokens))

    def state_bytes(self) -> int:
        """How large `state` is, but for tokens that it reads again first."""
        return self._context.state_bytes(self._sequence)

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of all tokens in the cache, as large as their part of the cache."""
        if self.pending:
            self.decode([], 0)
        with self._seat.at_turn():
            return self._context.state(self._sequence)

    def restore(
        self, tokens: Sequence[int], state: NDArray[np.uint8], copies: Sequence[Copy] = ()
    ) -> bool:
        """Hold ``tokens`` with what `state` said of them; False, and empty, if it does not fit.

        There are no ``copies``: attention needs none.
        """
        with self._seat.at_turn():
            taken = self._context.restore(self._sequence, len(tokens), state)
        self._tokens[:] = tokens if taken else []
        self._held = len(self._tokens)
        return taken

    def _rewind(self, length: int) -> None:
        with self._seat.at_turn():
            self._held = self._context.rewind(self._sequence, length)
