"""One sequence of a shared context, as a TokenModel of the loop."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError, NotNumbers
from localspec.core.interrupt import require_wanted
from localspec.engine.session.batching import SequenceHandle
from localspec.engine.session.llama_context import BatchEntry, CacheEmptied, SharedContext
from localspec.llama.batch import with_unknown_rows
from localspec.llama.cache.copies import LONGEST_REPLAY, Copy, ReusableLengths, places_to_return
from localspec.speculative.loop import BatchShare, Logits, PassListener


class SlotModel:
    """A TokenModel on one sequence of a shared context; passes are batched with other slots'."""

    block_size: int | None = None
    confidences = None
    follows_target = False

    def __init__(self, context: SharedContext, sequence: int, handle: SequenceHandle) -> None:
        self._context = context
        self._sequence = sequence
        self._handle = handle
        self._tokens: list[int] = []
        self.listener: PassListener | None = None  # see `LlamaModel`
        self.n_ctx = context.n_ctx
        self.n_vocab = context.n_vocab

    @property
    def tokens(self) -> list[int]:
        """The tokens of the sequence; not to be changed."""
        return self._tokens

    @property
    def reusable(self) -> int:
        """All its tokens: `--exact` has slots only if passes of all widths round alike."""
        return len(self._tokens)

    @property
    def pending(self) -> int:
        """How many of the tokens the next pass decodes again, because a rollback undid them."""
        return len(self._tokens) - self._held

    @property
    def gives_prompt_row(self) -> bool:
        """Whether the prompt's last token may be undone without reading others again."""
        return self._context.trims

    @property
    def _held(self) -> int:
        """How many of the tokens are in the cache."""
        return self._context.held(self._sequence)

    tree = None  # the sequences that branches need are those of other slots

    @property
    def batch_share(self) -> BatchShare:
        """How the last pass was batched."""
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
        """`decode`, as `LlamaModel` does it; raises CacheEmptied if the text is lost."""
        before = len(self._tokens)
        try:
            if rows > 1 and self.pending > LONGEST_REPLAY:
                self._read(self._tokens[self._held :], 0)
            if rows == 0:
                self._context.anchor(self._sequence)
            logits = self._read_all(tokens, rows)
            if rows == 0 and not self.pending:
                self._context.anchor(self._sequence)
            return logits
        except BaseException as error:
            if isinstance(error, EngineError):
                del self._tokens[before:]
            # A pass that was not reported to this slot may have been made.
            self._context.rewind(self._sequence, len(self._tokens))
            raise

    def _read_all(self, tokens: Sequence[int], rows: int) -> Logits:
        """Read pending tokens, then ``tokens``; keep copies of the state within a prompt."""
        unread, read = [*self._tokens[self._held :], *tokens], 0
        if self._context.keeps_copies and rows <= int(self._context.trims):
            for offset, shared in places_to_return(self.pending, len(tokens)):
                self._read(unread[read:offset], 0)
                self._context.keep(self._sequence, self._held, shared=shared)
                read = offset
        return self._read(unread[read:], rows)

    def _read(self, unread: Sequence[int], rows: int) -> Logits:
        """Decode tokens after those in the cache; return the logits of the last pass."""
        logits: Logits = np.empty((0, self.n_vocab), np.float32)
        every = len(unread)
        while unread:
            require_wanted()
            position, is_rest = self._held, len(unread) < every
            entry = BatchEntry(self._context, self._sequence, unread, position, rows, is_rest)
            count, logits = self._handle.read(entry)
            if self._held != position + count:  # a later pass of the batch emptied the cache
                raise CacheEmptied("The text must be read again.")
            self._tokens += unread[count - max(0, self._held - len(self._tokens)) : count]
            if self.listener is not None:
                logits = logits.copy()  # a head may wait for a pass of its own meanwhile
                self._tell(self.listener, unread[:count], position, len(logits))
            unread = unread[count:]
        return logits

    def _tell(
        self, listener: PassListener, tokens: Sequence[int], position: int, rows: int
    ) -> None:
        """Report a pass to a head; `batch_share` stays that of the target's pass."""
        share = self._handle.batch_share
        listener(tokens, position, rows)
        after = self._handle.batch_share
        self._handle.batch_share = share._replace(waited=after.waited, prompts=after.prompts)

    def truncate(self, length: int) -> None:
        """Forget every token at ``length`` and beyond; those before may have to be read again."""
        del self._tokens[length:]
        self._context.rewind(self._sequence, length)

    def checkpoint(self) -> None:
        """Prepare for a rollback to here: later tokens may be rejected."""
        if not self.pending:
            self._context.checkpoint(self._sequence)

    def returns_to(self, length: int) -> int:
        """How many tokens need not be read again, at least, after `truncate` to this length."""
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
        if self.listener is not None:
            self.listener((), len(self._tokens), 0)
        return taken

    @property
    def doubted(self) -> Callable[[], None] | None:
        """See `state_file.StateHolder`."""
        return self._context.doubted(self._sequence)

    def doubt(self, report: Callable[[], None]) -> None:
        """See `state_file.StateHolder`."""
        self._context.doubt(self._sequence, report)
