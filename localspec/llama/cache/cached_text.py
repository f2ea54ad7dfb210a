"""A text in llama.cpp's cache: its tokens, those that the cache holds, and how they are undone."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import EngineError
from localspec.core.interrupt import held_interrupt
from localspec.llama.cache.copies import (
    LONGEST_REPLAY,
    Copy,
    NativeSequence,
    ReusableLengths,
    places_to_return,
)
from localspec.llama.cache.rollback import Rollback, Trim
from localspec.speculative.loop import Logits, PassListener


class CacheSequence:
    """The tokens that a sequence of a context holds, and how they are undone: by ``end``.

    ``held`` tokens, and after them ``surplus`` ones that padded its last pass: they are undone
    together with those that were rejected, because a snapshot allows one rollback. ``is_torn``
    while a pass is under way, and if a failed one may have changed it.
    """

    def __init__(self, native: NativeSequence, end: Rollback) -> None:
        self._native, self.end = native, end
        self.held = self.surplus = 0
        self.is_torn = False

    @property
    def is_unsettled(self) -> bool:
        """Whether it may hold more than its ``held`` tokens."""
        return self.is_torn or self.surplus > 0

    @property
    def trims(self) -> bool:
        """Whether tokens are forgotten at no cost."""
        return self.end.name == Trim.name

    @property
    def keeps_copies(self) -> bool:
        """Whether it needs copies of its state within prompts, to return to."""
        return self.end.copies.most > 0

    def rewind(self, length: int) -> int:
        """Hold ``length`` tokens, or fewer if necessary; returns how many."""
        length, in_cache = min(length, self.held), self.held + self.surplus
        if self.is_torn or length < in_cache:
            known = None if self.is_torn else in_cache
            self.is_torn = True
            self.held = self.end.rewind(length, known)
            self.surplus, self.is_torn = 0, False
        return self.held

    def settle(self) -> None:
        self.rewind(self.held)

    def read(self, count: int, surplus: int) -> None:
        """Count a pass: ``count`` tokens of its own, then ``surplus`` ones that padded it."""
        self.end.observe(count + surplus)
        self.held, self.surplus, self.is_torn = self.held + count, surplus, False

    def checkpoint(self, most: int) -> None:
        """Prepare for a rollback to the present tokens: up to ``most`` later ones may be undone."""
        self.settle()
        self.end.checkpoint(self.held, most)

    def anchor(self) -> None:
        """It holds the end of a prompt or of an answer, to which a prompt may return."""
        self.settle()
        self.end.anchor(self.held)

    def keep(self, *, shared: bool) -> None:
        """Copy its state, for a later prompt; ``shared`` if an earlier one began as this one."""
        self.settle()
        self.end.copies.add(self.held, shared=shared)

    def returns_to(self, length: int) -> int:
        return self.held if length >= self.held else self.end.returns_to(length, self.held)

    def reusable_lengths(self, held: int) -> ReusableLengths:
        return self.end.reusable_lengths(held)

    def state_bytes(self) -> int:
        return self._native.state_bytes()

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of its tokens, as large as their part of the cache."""
        self.settle()
        return self._native.state()

    def restore(self, length: int, state: NDArray[np.uint8], copies: Sequence[Copy]) -> bool:
        """Load a `state` of ``length`` tokens; False, and no tokens, if it does not fit."""
        self.is_torn = True
        self.rewind(0)
        self.is_torn = True
        taken = self._native.take_state(state) and self._native.end == length
        if taken and self.end.is_whole(length):
            self.held, self.is_torn = length, False
            self.end.copies.restore_copies(copies)
            self.end.anchor(length)
            return True
        self.rewind(0)
        return False


class CachedText(ABC):
    """A TokenModel on a sequence of a context: a model that has it alone, or a slot; no head.

    Between two calls llama.cpp's cache holds the first ``cells.held`` of ``tokens``; the others are
    ``pending``, and the next pass decodes them again. That does not hold while an operation is
    under way or failed: `_recover` restores the cache before anything else is read.
    ``make_room`` is asked for cells if slots share them; see `room_for`.
    ``listener`` is called after each pass with its tokens, the position of the first and how many
    rows of logits it gave, and when all tokens are replaced, with no tokens and how many
    there are now; see `heads`. ``min_width`` is that of a pass.
    """

    block_size: int | None = None  # each token of a proposal costs a step
    confidences = None
    follows_target = False
    min_width = 1
    n_ctx: int
    n_vocab: int
    cells: CacheSequence

    def __init__(self) -> None:
        self.tokens: list[int] = []  # not to be changed by others
        self.listener: PassListener | None = None
        self.make_room: Callable[[int], int] | None = None

    def room_for(self, tokens: int) -> int:
        """How many of ``tokens`` there is room for."""
        return min(tokens, self.n_ctx) if self.make_room is None else self.make_room(tokens)

    @property
    def pending(self) -> int:
        """How many of the tokens the next pass decodes again, because a rollback undid them."""
        return len(self.tokens) - self.cells.held

    @property
    def trims(self) -> bool:
        """Whether tokens are forgotten at no cost."""
        return self.cells.trims

    @abstractmethod
    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call."""

    def truncate(self, length: int) -> None:
        """Forget every token at ``length`` and beyond; those before may have to be read again."""
        if self.cells.is_unsettled or length < len(self.tokens):
            with held_interrupt():
                del self.tokens[length:]  # first: an error leaves a cache that is torn, not short
                self._rewind(len(self.tokens))

    def checkpoint(self) -> None:
        """Prepare for a rollback to here: later tokens may be rejected."""
        if not self.pending:
            self.cells.checkpoint(self.n_ctx)

    def returns_to(self, length: int) -> int:
        """How many tokens need not be read again, at least, after `truncate` to this length."""
        self._recover()
        return self.cells.returns_to(length)

    def reusable_lengths(self) -> ReusableLengths:
        """Lengths to which a copy of its `state` can be truncated."""
        self._recover()
        return self.cells.reusable_lengths(len(self.tokens))

    def state_bytes(self) -> int:
        """Size of `state`, without the tokens that it reads again first."""
        return self.cells.state_bytes()

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of all its tokens."""
        self._read_pending()
        return self.cells.state()

    def restore(
        self, tokens: Sequence[int], state: NDArray[np.uint8], copies: Sequence[Copy] = ()
    ) -> bool:
        """Load a `state` of ``tokens``; False, and no tokens, if it does not fit.

        ``copies`` are those of `reusable_lengths` when the state was taken.
        """
        self.truncate(0)
        self.tokens.extend(tokens)
        if not (taken := self.cells.restore(len(tokens), state, copies)):
            self.tokens.clear()
        if self.listener is not None:
            self.listener((), len(self.tokens), 0)
        return taken

    @property
    @abstractmethod
    def doubted(self) -> Callable[[], None] | None:
        """Callback for a state from a file that turns out to be bad; None without one."""

    @abstractmethod
    def doubt(self, report: Callable[[], None]) -> None:
        """Call ``report`` if later logits are not numbers, after all tokens are read again.

        To be called after `restore`.
        """

    def _decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """`decode` without a check of the logits; after an EngineError the tokens are as before."""
        before = len(self.tokens)
        try:
            if rows > 1 and self.pending > max(LONGEST_REPLAY, self.min_width):
                self._read([], 0)
            if rows == 0:
                self.cells.anchor()
            logits = self._read(tokens, rows)
            if rows == 0 and not self.pending:
                self.cells.anchor()
            return logits
        except EngineError:
            del self.tokens[before:]
            raise

    def _read(self, tokens: Sequence[int], rows: int) -> Logits:
        """Read the pending tokens, then ``tokens``.

        In a prompt there are places to return to, for the next one.
        """
        unread, read = [*self.tokens[self.cells.held :], *tokens], 0
        if self.cells.keeps_copies and rows <= int(self.trims):  # else a step, not a prompt
            for offset, shared in places_to_return(self.pending, len(tokens), self.min_width):
                self._read_passes(unread[read:offset], 0)
                self.cells.keep(shared=shared)
                read = offset
        return self._read_passes(unread[read:], rows)

    @abstractmethod
    def _read_passes(self, tokens: Sequence[int], rows: int) -> Logits:
        """Decode tokens after those in the cache; the logits of the last pass."""

    def _take(self, chunk: Sequence[int], begin: int) -> None:
        """Count a pass from position ``begin`` on: some of its tokens may have been pending."""
        new = begin + len(chunk) - len(self.tokens)
        self.tokens += chunk[len(chunk) - max(0, new) :]

    def _read_pending(self) -> None:
        self._recover()
        if self.pending:
            self._read([], 0)

    def _recover(self) -> None:
        """Agree with llama.cpp's cache again after an interrupted pass."""
        if self.cells.is_unsettled:
            self._rewind(len(self.tokens))

    def _rewind(self, length: int) -> None:
        """Let llama.cpp's cache hold no more than ``length`` tokens."""
        self.cells.rewind(length)
