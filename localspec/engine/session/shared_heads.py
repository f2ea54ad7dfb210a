"""Heads of several slots: one context with a sequence for each, whose passes are batched."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from localspec.engine.session.batching import SequenceHandle
from localspec.engine.session.llama_context import BatchEntry, PassContext, SharedContext
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.heads.context import HeadContext, HeadRows
from localspec.llama.heads.head import Head
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
        positions = range(self.position, self.position + len(self.tokens))
        tokens = None if self.is_bare else self.tokens
        return HeadRows(tokens, positions, self.states, self.rows, self.sequence)

    def beginning(self, count: int) -> "HeadEntry":
        return self._cut(0, min(count, len(self.tokens)))

    def after(self, count: int) -> "HeadEntry":
        return self._cut(count, len(self.tokens))

    def _cut(self, begin: int, end: int) -> "HeadEntry":
        states = None if self.states is None else self.states[begin:end]
        return replace(
            self, tokens=self.tokens[begin:end], position=self.position + begin, states=states
        )


class SharedHeads(PassContext):
    """The sequences of a head's context; the head itself is not used any more.

    ``own_states`` holds the head's own states of the last outputs of each sequence.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self.context = context = head.context
        self.tap = head.tap
        self.most_tokens = self.prompt_step = context.size
        self._sequences: dict[int, HeadSequence] = {}
        self.own_states: dict[int, States] = {}
        self._layer = 0
        head.truncate(0)
        if head.has_cache:
            context.clear()
        context.use_layer(0)

    def head(
        self, model: CachedText, target: SharedContext, sequence: int, handle: SequenceHandle
    ) -> Head:
        """The head of a slot, which reads along with ``model``, a sequence of ``target``."""
        cache = self._sequences[sequence] = HeadSequence(self, sequence, handle)
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
                    self._sequences[entry.sequence].forget(entry.position)
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


class HeadSequence(HeadContext):
    """The context of `SharedHeads` on another sequence, for the head of a slot."""

    def __init__(self, shared: SharedHeads, sequence: int, handle: SequenceHandle) -> None:
        vars(self).update(vars(shared.context))
        self._shared = shared
        self.sequence = sequence
        self._handle = handle
        self._layer = 0
        self._found = np.empty((0, self.n_vocab), np.float32)

    @property
    def batch_share(self) -> BatchShare:
        return self._handle.batch_share

    def decode(self, rows: HeadRows) -> None:
        """See `HeadContext`; rows without logits may take several passes."""
        counted = rows.positions if rows.tokens is None else rows.tokens
        entry = HeadEntry(
            self._shared,
            self.sequence,
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

    def use_layer(self, layer: int) -> None:
        self._layer = layer

    def logits(self, rows: int) -> Logits:
        return self._found[:rows]

    def own_states(self, rows: int) -> States:
        return self._shared.own_states[self.sequence][:rows]

    def close(self) -> None:
        """Nothing: the context is that of all slots."""


class _SlotTap(Tap):
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
