"""Rollback: how a context's memory drops the last tokens, by the kind of memory.

An attention cache drops cells. A recurrent state cannot be rewound, nor can a sliding window
that moved on: they are restored from a copy that was made before, and the tokens after the copy
are read again.
"""

from typing import Any, ClassVar

from localspec.llama.cache.copies import EVERY, NativeSequence, ReusableLengths, StateCheckpoints
from localspec.llama.memory.layer_cache import ANCHORS, SNAPSHOTS


class Rollback:
    """The strategy that works on any memory, and the base of others: everything is read again.

    Lengths are numbers of tokens of its ``sequence`` from the beginning; other sequences of the
    context are left as they are. ``copies`` are the states that it can return to.
    """

    name: ClassVar[str] = "reread"
    per_text: ClassVar[int] = 1  # sequences of a context that a text takes

    def __init__(self, sequence: NativeSequence, copies: StateCheckpoints | None = None) -> None:
        self._sequence = sequence
        self.copies = copies or StateCheckpoints(sequence, 0)
        sequences = sequence.llama.llama_n_seq_max(sequence.context)
        self._is_alone = sequence.number == EVERY or sequences == self.per_text

    def checkpoint(self, length: int, most: int) -> None:
        """The memory holds ``length`` tokens; of those read next, up to ``most`` may be undone."""

    def anchor(self, length: int) -> None:
        """The memory holds ``length`` tokens, the end of a prompt or of an answer."""

    def observe(self, width: int) -> None:
        """A pass of ``width`` tokens was read."""

    @property
    def widest_filled(self) -> int:
        """Width up to which a pass may be padded; the padding is rolled back at no cost."""
        return 1

    def disturb(self) -> None:
        """A pass of several other sequences was read, which may have moved this one's state."""

    def returns_to(self, length: int, held: int) -> int:
        """Length that `rewind` to ``length``, less than ``held``, would leave at least."""
        return self.copies.last(length)

    def reusable_lengths(self, held: int) -> ReusableLengths:
        """Lengths that a copy of the state of the ``held`` tokens can return to."""
        return ReusableLengths(held, self.copies.copies)

    def is_whole(self, length: int) -> bool:
        """Whether the memory, which ends at ``length``, holds all that the next token needs."""
        return True

    def rewind(self, length: int, held: int | None) -> int:
        """Undo everything at ``length`` and beyond; how many tokens the memory now holds.

        These are no more than ``length``; those between must be read again. ``held`` is how many
        it held before, None if an interrupted pass may have changed it.
        """
        if (restored := self.copies.restore(length)) == 0:
            self._clear()
        return restored

    def _clear(self) -> None:
        if self._is_alone:  # also cells that a forged state may have left in other sequences
            self._sequence.llama.llama_memory_clear(self._sequence.memory, True)
        else:
            self._sequence.drop(0)


class Trim(Rollback):
    """Drops the cells of an attention cache; nothing is read again, unless a window moved on.

    ``sliding`` is the window of sliding layers, 0 for none. llama.cpp removes the end of such a
    cache whether or not the cells before it are still there; its server checks as is done here
    (`pos_min_thold`), and of such layers a copied state has only the last window
    (`is_masked_swa`). Cells of other sequences stay, unless ``sequence`` is `EVERY`, which is for
    contexts of one text without sliding layers.
    """

    name = "trim"

    def __init__(
        self, sequence: NativeSequence, sliding: int, copies: StateCheckpoints | None = None
    ) -> None:
        super().__init__(sequence, copies)
        self._sliding = sliding

    def returns_to(self, length: int, held: int) -> int:
        """See `Rollback`: anywhere, except if sliding layers lack the window before it."""
        return length if self.is_whole(length) else super().returns_to(length, held)

    def reusable_lengths(self, held: int) -> ReusableLengths:
        return ReusableLengths(held if 0 < self._sliding < held else 0, self.copies.copies)

    def rewind(self, length: int, held: int | None) -> int:
        """Drop the cells; return to a copy if a sliding window has moved on."""
        dropped = self._sequence.drop(length)
        if length and dropped and self.is_whole(length):
            self.copies.forget(length)
            return length
        return super().rewind(length, held)

    def is_whole(self, length: int) -> bool:
        """Whether sliding layers still hold all that the token at ``length`` attends to."""
        if not self._sliding or length == 0:
            return True
        return 0 <= self._sequence.first <= max(0, length - self._sliding)


class _Anchored(Rollback):
    """Returns to copies of a recurrent state, also at the ends of all texts."""

    def __init__(self, sequence: NativeSequence, anchors: int) -> None:
        super().__init__(sequence, StateCheckpoints(sequence, anchors))
        self._ubatch = int(sequence.llama.llama_n_ubatch(sequence.context))

    def anchor(self, length: int) -> None:
        """Copy the state for later prompts."""
        self.copies.add(length)


class Fork(_Anchored):
    """Shares the recurrent state with a second sequence, which keeps it when the first moves on.

    Copying an empty range of positions copies no cell of an attention cache, while the recurrent
    one lets both sequences own its cell (`llama_memory_recurrent::seq_cp`); the next pass of the
    live sequence then writes into another cell. It costs no copy and a second state.

    ``sliding`` is as for `Trim`: sliding layers reuse cells once a micro-batch was read after the
    window, so that the shared state counts only near its checkpoint. Checkpoints hold such cells
    themselves (`llama_kv_cache_iswa::state_write`).
    """

    name = "fork"
    per_text = 2

    def __init__(self, sequence: NativeSequence, sliding: int) -> None:
        super().__init__(sequence, ANCHORS)
        llama, context = sequence.llama, sequence.context
        second = sequence.number + llama.llama_n_seq_max(context) // self.per_text
        self._copy = NativeSequence(llama, context, second)
        self._sliding = sliding
        self._checkpoint: int | None = None
        self._since = 0  # tokens read after the checkpoint

    def checkpoint(self, length: int, most: int) -> None:
        """Share the present state, unless the copy is that one already."""
        if length == self._checkpoint:
            return
        self._checkpoint = None  # until it is true: Ctrl-C may come in between
        self._sequence.share(self._copy.number, length, length)
        self._checkpoint, self._since = length, 0

    def observe(self, width: int) -> None:
        self._since += width

    def rewind(self, length: int, held: int | None) -> int:
        """Return to the shared state, or to an anchor that is later."""
        if self._sliding and (held is None or self._since > self._ubatch):
            self._checkpoint = None  # sliding layers may have lost the window before it
        shared = self._checkpoint
        if shared and self.copies.last(length) <= shared <= length:
            self._copy.share(self._sequence.number, shared, shared)
            if self._sequence.cut(shared):
                self.copies.forget(length)
                self._since = 0
                return shared
        self._checkpoint = None
        return super().rewind(length, held)

    def _clear(self) -> None:
        super()._clear()
        if not self._is_alone:
            self._copy.drop(0)


class Snapshots(_Anchored):
    """Lets llama.cpp keep the states after each of the last tokens of a pass (`n_rs_seq`).

    Nothing is read again. `llama_memory_recurrent::seq_rm` would also accept lengths without a
    snapshot: a pass of ``n`` tokens writes n of them, older ones are of an earlier pass, and each
    pass allows one rollback. If more is to be undone, a copy is made before. A pass of several
    other sequences may move the state to another cell, but does not move the snapshots
    (`llm_graph_context::build_rs` copies extra states without them).
    """

    name = "snapshots"

    def __init__(self, sequence: NativeSequence) -> None:
        super().__init__(sequence, 1 + ANCHORS)
        self._depth = int(sequence.llama.llama_n_rs_seq(sequence.context))
        self._allowed = 0

    def checkpoint(self, length: int, most: int) -> None:
        """Copy the state if the snapshots will not suffice."""
        if most > min(self._depth, self._ubatch - 1):
            self.copies.add(length, passing=True)

    def observe(self, width: int) -> None:
        """A pass has snapshots of the tokens of its last micro-batch."""
        self._allowed = min(self._depth, (width - 1) % self._ubatch)

    @property
    def widest_filled(self) -> int:
        return 1 + min(self._depth, self._ubatch - 1)

    def disturb(self) -> None:
        self._allowed = 0

    def returns_to(self, length: int, held: int) -> int:
        return length if held - length <= self._allowed else super().returns_to(length, held)

    def rewind(self, length: int, held: int | None) -> int:
        allowed, self._allowed = self._allowed, 0
        if length and held is not None and held - length <= allowed:
            if self._sequence.cut(length):
                self.copies.forget(length)
                return length
        return super().rewind(length, held)


# Of a recurrent state, in the order of preference if it is drafted for: snapshots make each pass
# a little longer, but nothing is read again.
STRATEGIES = (Snapshots.name, Fork.name)


def configure(params: Any, strategy: str) -> None:
    """Set the parameters of a strategy in `llama_context_params`."""
    if strategy == Fork.name:
        params.n_seq_max, params.kv_unified = Fork.per_text * params.n_seq_max, True
    elif strategy == Snapshots.name:
        params.n_rs_seq = SNAPSHOTS
