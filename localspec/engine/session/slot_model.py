"""One sequence of a shared context, as a TokenModel of the loop."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.interrupt import require_wanted
from localspec.engine.session.batching import SequenceHandle
from localspec.engine.session.llama_context import BatchEntry, CacheEmptied, SharedContext
from localspec.llama.cache.copies import Copy, ReusableLengths, places_to_return
from localspec.speculative.loop import BatchShare, Logits


class SlotModel:
    """A TokenModel on one sequence of a shared context; passes are batched with other slots'."""

    block_size: int | None = None
    follows_target = False
    gives_prompt_row = True

    def __init__(self, context: SharedContext, sequence: int, handle: SequenceHandle) -> None:
        self._context = context
        self._sequence = sequence
        self._handle = handle
        self._tokens: list[int] = []
        self._in_cache = (0, 0)  # an epoch of the context, and how many tokens it held then
        self.n_ctx = context.n_ctx
        self.n_vocab = context.n_vocab

    @property
    def tokens(self) -> list[int]:
        """The tokens of the sequence; not to be changed."""
        return self._tokens

    @property
    def reusable(self) -> int:
        """All its tokens: `--exact` has no slots."""
        return len(self._tokens)

    @property
    def pending(self) -> int:
        """How many of the tokens the next pass reads again, after a sliding window moved on."""
        return len(self._tokens) - self._held

    @property
    def _held(self) -> int:
        """How many of the tokens are in the cache."""
        epoch, held = self._in_cache
        return held if epoch == self._context.epoch else 0

    @_held.setter
    def _held(self, count: int) -> None:
        self._in_cache = self._context.epoch, count

    tree = None  # the sequences that branches need are those of other slots

    @property
    def batch_share(self) -> BatchShare:
        """How the last pass was batched."""
        return self._handle.batch_share

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        Prompts are read in chunks, batched with others' rounds. Raises EngineError when llama.cpp
        refuses; the cache then holds what it held before. Raises Cancelled, between chunks only,
        where `stopped_when` ends it.
        """
        try:
            return self._decode(tokens, rows)
        except CacheEmptied:
            return self.decode(tokens, rows)

    def _decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """`decode` within one epoch of the context; raises CacheEmptied where that ends."""
        before = len(self._tokens)
        unread, read = [*self._tokens[self._held :], *tokens], 0
        try:
            if self._context.keeps_copies and rows <= 1:
                for offset, shared in places_to_return(self.pending, len(tokens)):
                    self._read(unread[read:offset], 0)
                    self._context.keep(self._sequence, self._held, shared=shared)
                    read = offset
            return self._read(unread[read:], rows)
        except BaseException as error:
            if isinstance(error, EngineError):
                del self._tokens[before:]
            # A pass that this slot did not learn of may have been made; this may leave less.
            self._rewind(min(len(self._tokens), self._held))
            raise

    def _read(self, unread: Sequence[int], rows: int) -> Logits:
        """Decode tokens after those in the cache; return the logits of the last pass."""
        logits: Logits = np.empty((0, self.n_vocab), np.float32)
        while unread:
            require_wanted()
            epoch = self._context.epoch
            entry = BatchEntry(self._context, self._sequence, unread, self._held, rows, epoch)
            count, logits = self._handle.read(entry)
            if epoch != self._context.epoch:  # a later pass of the batch ended it
                raise CacheEmptied("The text must be read again.")
            self._held += count
            self._tokens += unread[count - max(0, self._held - len(self._tokens)) : count]
            unread = unread[count:]
        return logits

    def truncate(self, length: int) -> None:
        """Forget every token at ``length`` and beyond; those before may have to be read again."""
        del self._tokens[length:]
        if length < self._held:
            self._rewind(length)

    def checkpoint(self) -> None:
        """Nothing: attention is truncated without preparation."""

    def returns_to(self, length: int) -> int:
        """How many tokens need not be read again, at least, after `truncate` to this length."""
        if length >= self._held:
            return self._held
        return self._context.returns_to(self._sequence, length)

    def reusable_lengths(self) -> ReusableLengths:
        """Lengths to which a copy of its `state` can be truncated."""
        return self._context.reusable_lengths(self._sequence, len(self._tokens))

    def state_bytes(self) -> int:
        """Size of `state`, without tokens that it reads again first."""
        return self._context.state_bytes(self._sequence)

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of all tokens of the sequence."""
        if self.pending:
            self.decode([], 0)
        return self._context.state(self._sequence)

    def restore(
        self, tokens: Sequence[int], state: NDArray[np.uint8], copies: Sequence[Copy] = ()
    ) -> bool:
        """Load a `state` of ``tokens``; False, and empty, if it does not fit.

        ``copies`` are those of `reusable_lengths` when the state was taken.
        """
        taken = self._context.restore(self._sequence, len(tokens), state, copies)
        self._tokens[:] = tokens if taken else []
        self._held = len(self._tokens)
        return taken

    @property
    def doubted(self) -> Callable[[], None] | None:
        """See `state_file.StateHolder`."""
        return self._context.doubted(self._sequence)

    def doubt(self, report: Callable[[], None]) -> None:
        """See `state_file.StateHolder`."""
        self._context.doubt(self._sequence, report)

    def _rewind(self, length: int) -> None:
        self._held = self._context.rewind(self._sequence, length)
