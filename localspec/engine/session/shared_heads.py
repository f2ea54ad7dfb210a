"""Heads of several slots: one context with a sequence for each, whose passes are batched."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from localspec.core.options.load_options import MAX_ROWS
from localspec.engine.session.batching import SequenceHandle
from localspec.engine.session.llama_context import BatchEntry, SharedContext
from localspec.llama.heads.context import HeadContext, HeadRows
from localspec.llama.heads.head import Head, HeardTarget
from localspec.llama.heads.hidden_states import States, Tap
from localspec.speculative.loop import BatchShare, Logits


@dataclass(frozen=True, slots=True)
class HeadEntry(BatchEntry):
    """Rows of one sequence for a head to compute, with logits of all of them or of none.

    ``tokens`` are only counted if the rows have ``states`` alone (``is_bare``); ``layer`` is the
    one of several heads that computes them.
    """

    states: States | None
    is_bare: bool
    layer: int

    @property
    def is_prompt(self) -> bool:
        """Whether it may be read in several passes."""
        return not self.rows

    @property
    def kind(self) -> tuple[bool, int, bool, int]:
        """Properties that all rows of one pass have in common.

        Blocks have one width: llama.cpp cuts a pass of DSpark or DFlash2 into equal parts.
        """
        block = len(self.tokens) if self.states is None else 0
        return self.is_bare, block, not self.rows, self.layer

    @property
    def part(self) -> HeadRows:
        """Its rows for the context."""
        positions = range(self.position, self.position + len(self.tokens))
        tokens = None if self.is_bare else self.tokens
        return HeadRows(tokens, positions, self.states, self.rows, self.sequence)

    def beginning(self, count: int) -> "HeadEntry":
        """Its first ``count`` tokens or fewer."""
        return self._cut(0, min(count, len(self.tokens)))

    def after(self, count: int) -> "HeadEntry":
        """All but its first ``count`` tokens."""
        return self._cut(count, len(self.tokens))

    def _cut(self, begin: int, end: int) -> "HeadEntry":
        states = None if self.states is None else self.states[begin:end]
        return replace(
            self, tokens=self.tokens[begin:end], position=self.position + begin, states=states
        )


class SharedHeads:
    """The sequences of a head's context; the head itself is not used any more.

    ``own_states`` holds the head's own states of the last outputs of each sequence.
    """

    most_rows = MAX_ROWS
    widest_filled = 1

    def __init__(self, head: Head) -> None:
        context, tap = head.context, head.tap
        assert isinstance(context, HeadContext) and isinstance(tap, Tap)
        self._head = head
        self.context = context
        self.tap = tap
        self.most_tokens = self.prompt_step = context.size
        self.own_states: dict[int, States] = {}
        self._layer = 0
        head.truncate(0)
        if head.has_cache:
            context.clear()
        context.use_layer(0)

    def head(
        self, model: HeardTarget, target: SharedContext, sequence: int, handle: SequenceHandle
    ) -> Head:
        """The head of a slot, which reads along with ``model``, a sequence of ``target``."""
        cache = HeadSequence(self, sequence, handle)
        return self._head.for_text(model, cache, _SlotTap(self.tap, target, sequence))

    def read(self, entries: Sequence[HeadEntry]) -> list[Logits]:
        """A pass for each kind of entry; the rows of logits of each are copies.

        Raises EngineError if llama.cpp refuses; the caches are then as before.
        """
        found: dict[int, Logits] = {}
        entries_by_kind = sorted(entries, key=lambda entry: (entry.kind, entry.sequence))
        try:
            for _, each in itertools.groupby(entries_by_kind, key=lambda entry: entry.kind):
                found |= self._compute([*each])
        except BaseException:
            if self._head.has_cache:
                for entry in entries:
                    self.context.forget(entry.position, entry.sequence)
            raise
        return [found[entry.sequence] for entry in entries]

    def _compute(self, entries: Sequence[HeadEntry]) -> dict[int, Logits]:
        """One pass over entries of one kind; the logits of each sequence."""
        if entries[0].layer != self._layer:
            self._layer = entries[0].layer
            self.context.use_layer(self._layer)
        self.context.compute([entry.part for entry in entries])
        rows = [entry.rows for entry in entries]
        count, ends = sum(rows), np.cumsum(rows)[:-1]
        logits = np.split(self.context.logits(count).copy(), ends)
        states = np.split(self.context.own_states(count).copy(), ends)
        sequences = [entry.sequence for entry in entries]
        self.own_states.update(zip(sequences, states, strict=True))
        return dict(zip(sequences, logits, strict=True))

    def filled(self, entries: Sequence[HeadEntry]) -> int:
        """Width to which rounds are padded: 0, they are not."""
        return 0

    def close(self) -> None:
        """Nothing: the context is the head's."""


class HeadSequence:
    """One sequence of `SharedHeads`, for the head of a slot: see `llama.heads.head.HeadCache`."""

    def __init__(self, shared: SharedHeads, sequence: int, handle: SequenceHandle) -> None:
        context = shared.context
        self._shared = shared
        self._sequence = sequence
        self._handle = handle
        self._layer = 0
        self._found = np.empty((0, context.n_vocab), np.float32)
        self.header, self.memory = context.header, context.memory
        self.size, self.n_vocab = context.size, context.n_vocab
        self.settings = context.settings
        self.synchronize = context.synchronize

    @property
    def batch_share(self) -> BatchShare:
        """How the last pass was batched."""
        return self._handle.batch_share

    def decode(self, rows: HeadRows) -> None:
        """See `HeadContext.decode`; rows without logits may take several passes."""
        counted = rows.positions if rows.tokens is None else rows.tokens
        entry = HeadEntry(
            self._shared,
            self._sequence,
            counted,
            rows.positions[0],
            rows.outputs,
            False,
            rows.states,
            rows.tokens is None,
            self._layer,
        )
        while entry.tokens:
            count, self._found = self._handle.read(entry)
            entry = entry.after(count)

    def encode(self, features: States) -> States:
        """See `HeadContext.encode`; it takes a pass of its own."""
        return self._shared.context.encode(features, self._sequence)

    def use_layer(self, layer: int) -> None:
        """See `HeadContext.use_layer`."""
        self._layer = layer

    def logits(self, rows: int) -> Logits:
        """Logits of the first ``rows`` outputs of the last pass."""
        return self._found[:rows]

    def own_states(self, rows: int) -> States:
        """See `HeadContext.own_states`."""
        return self._shared.own_states[self._sequence][:rows]

    def forget(self, position: int) -> None:
        """Forget the tokens at ``position`` and beyond."""
        self._shared.context.forget(position, self._sequence)

    def state_bytes(self) -> int:
        """Size of `state`."""
        return self._shared.context.state_bytes(self._sequence)

    def state(self) -> NDArray[np.uint8]:
        """llama.cpp's state of the sequence."""
        return self._shared.context.state(self._sequence)

    def restore(self, state: NDArray[np.uint8]) -> bool:
        """See `HeadContext.restore`."""
        return self._shared.context.restore(state, self._sequence)

    def clear(self) -> None:
        """Clear the cache of all slots; heads of other slots draft worse until they read again."""
        self._shared.context.clear()

    def close(self) -> None:
        """Nothing: the context is that of all slots."""


class _SlotTap:
    """The target's hidden states of the tokens that one slot read last: see `Tap`."""

    def __init__(self, tap: Tap, target: SharedContext, sequence: int) -> None:
        self._tap = tap
        self._target = target
        self._sequence = sequence
        self.width = tap.width

    def switch(self, on: bool) -> None:
        """Let the target's passes store states; the other slots' heads go on needing them."""
        if on:
            self._tap.switch(True)

    def rows(self, count: int) -> States:
        """States of the first ``count`` tokens of the last pass."""
        if not count:
            return np.empty((0, self.width), np.float32)
        return self._target.states[self._sequence][:count]
