"""One sequence of a shared context, as a TokenModel of the loop."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import NotNumbers
from localspec.core.interrupt import require_wanted
from localspec.engine.session.batching import SequenceHandle
from localspec.engine.session.llama_context import BatchEntry, CacheEmptied, SharedContext
from localspec.llama.batch import with_unknown_rows
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.cache.copies import Copy
from localspec.speculative.loop import BatchShare, Logits, PassListener


class SlotModel(CachedText):
    """A text on one sequence of a shared context; passes are batched with other slots'."""

    def __init__(self, context: SharedContext, sequence: int, handle: SequenceHandle) -> None:
        super().__init__()
        self._context = context
        self._sequence = sequence
        self._handle = handle
        self.cells = context.sequences[sequence]
        self.n_ctx = context.n_ctx
        self.n_vocab = context.n_vocab

    @property
    def reusable(self) -> int:
        """All its tokens: `--exact` has slots only if passes of all widths round alike."""
        return len(self.tokens)

    @property
    def gives_prompt_row(self) -> bool:
        """Whether the prompt's last token may be undone without reading others again."""
        return self.trims

    tree = None  # the sequences that branches need are those of other slots

    @property
    def batch_share(self) -> BatchShare:
        return self._handle.batch_share

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        Prompts are read in chunks, batched with others' rounds. Raises EngineError when llama.cpp
        refuses; the cache is then as before. Raises Cancelled, between chunks only, if
        `stopped_when` ends it. Raises NotNumbers as `LlamaModel.decode` does.
        """
        try:
            return self._decode(tokens, rows)
        except CacheEmptied:
            return self.decode(tokens, rows)
        except NotNumbers:
            if rows > 1:  # perhaps of a wrong candidate
                return with_unknown_rows(self.decode(tokens[: len(tokens) - rows + 1], 1), rows)
            self.truncate(0)
            raise

    def _decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """See `CachedText._decode`; raises CacheEmptied if the text is lost."""
        try:
            return super()._decode(tokens, rows)
        except BaseException:
            self._rewind(len(self.tokens))  # a pass that was not reported may have been made
            raise

    def _read_passes(self, tokens: Sequence[int], rows: int) -> Logits:
        logits: Logits = np.empty((0, self.n_vocab), np.float32)
        unread, every = tokens, len(tokens)
        while unread:
            require_wanted()
            position, is_rest = self.cells.held, len(unread) < every
            entry = BatchEntry(self._context, self._sequence, unread, position, rows, is_rest)
            count, logits = self._handle.read(entry)
            if self.cells.held != position + count:  # a later pass of the batch emptied the cache
                raise CacheEmptied("The text must be read again.")
            self._take(unread[:count], position)
            if self.listener is not None:
                logits = logits.copy()  # a head may wait for a pass of its own meanwhile
                self._tell(self.listener, unread[:count], position, len(logits))
            unread = unread[count:]
        return logits

    def _read_pending(self) -> None:
        if self.pending:
            self.decode([], 0)

    def _rewind(self, length: int) -> None:
        self._context.rewind(self._sequence, length)

    def vacate(self) -> None:
        """Free all cells for other slots; the next pass decodes the text again."""
        self._rewind(0)

    def _tell(
        self, listener: PassListener, tokens: Sequence[int], position: int, rows: int
    ) -> None:
        """Report a pass to a head; `batch_share` stays that of the target's pass."""
        share = self._handle.batch_share
        listener(tokens, position, rows)
        after = self._handle.batch_share
        self._handle.batch_share = share._replace(waited=after.waited, prompts=after.prompts)

    def restore(
        self, tokens: Sequence[int], state: NDArray[np.uint8], copies: Sequence[Copy] = ()
    ) -> bool:
        taken = super().restore(tokens, state, copies)
        if not taken:
            self._context.sweep(self._sequence)
        return taken

    @property
    def doubted(self) -> Callable[[], None] | None:
        return self._context.doubted(self._sequence)

    def doubt(self, report: Callable[[], None]) -> None:
        self._context.doubt(self._sequence, report)
