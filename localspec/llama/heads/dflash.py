"""DFlash: a head that drafts a whole block of tokens in one pass."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.head import Head, HeadCache, HeadState, HeardTarget, StateSource
from localspec.llama.heads.hidden_states import States
from localspec.speculative.loop import Logits


class DFlashHead(Head):
    """Its cache holds the target's features; a pass fills the masked places after the last token.

    The features at p - 1 are written when token x_p is read, at position p - 1. The pass reads the
    last token and ``block`` masks, and is forgotten (`common_speculative_impl_draft_dflash`).
    ``mask`` is the id of a masked token.
    """

    offset = 1

    def __init__(
        self, target: HeardTarget, context: HeadCache, tap: StateSource, block: int, mask: int
    ) -> None:
        super().__init__(target, context, tap)
        self.block_size = self._masks = min(block - 1, MAX_DRAFT_TOKENS)
        self._block, self._mask = block, mask
        self._written = 0  # the end of the features in the cache
        self._found = np.empty((0, self.n_vocab), np.float32)

    def for_text(self, target: HeardTarget, context: HeadCache, tap: StateSource) -> Self:
        return type(self)(target, context, tap, self._block, self._mask)

    def _pass(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        """See `Head._pass`. Of several rows each takes a pass of its own, with a single mask."""
        if 0 < self._written < begin - 1:  # after drafted tokens, which have no features
            self._found = np.zeros((outputs, self.n_vocab), np.float32)
            return
        quiet = len(tokens) - outputs
        self._write(begin, states[:quiet])
        blocks = []
        for i in range(quiet, len(tokens)):
            self._write(begin + i, states[i : i + 1])
            masks = self._masks if outputs == 1 else 1
            block = self._fill([tokens[i], *[self._mask] * masks], begin + i)
            blocks.append(block if outputs == 1 else block.copy())  # the next pass overwrites it
        self._found = blocks[0] if outputs == 1 else np.concatenate((self._found[:0], *blocks))
        self._ahead = self._found[1:] if outputs == 1 else None

    def _draft(self, tokens: Sequence[int], begin: int, ahead: States) -> None:
        """See `Head._draft`: the logits of the block are known already; zeros after the block."""
        self._found = ahead if len(ahead) else np.zeros((1, self.n_vocab), np.float32)
        self._ahead = self._found[1:]

    def _write(self, begin: int, states: States) -> None:
        """Write the features before each position from ``begin`` on; the first token has none."""
        if begin == 0:
            begin, states = 1, states[1:]
        if len(states):
            self._written = begin - 1 + len(states)
            self.context.decode(HeadRows(None, range(begin - 1, self._written), states, 0))

    def _fill(self, tokens: Sequence[int], position: int) -> Logits:
        """Logits of the masked places after the first token, valid until the next pass.

        Shape (masks, n_vocab).
        """
        positions = range(position, position + len(tokens))
        self.context.decode(HeadRows(tokens, positions, None, len(tokens)))
        self.context.forget(position)
        return self.context.logits(len(tokens))[1:]

    def restore(self, state: HeadState) -> None:
        """See `Head.restore`."""
        super().restore(state)
        self._written = max(0, len(self.tokens) - self.offset)

    def _forget(self, length: int) -> None:
        super()._forget(length)
        self._written = min(self._written, max(0, length - self.offset))

    def _logits(self, rows: int) -> Logits:
        return self._found[:rows]
