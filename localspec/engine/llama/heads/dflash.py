"""DFlash: a head that drafts a whole block of tokens in one pass."""

from collections.abc import Sequence

import numpy as np

from localspec.core.config import MAX_DRAFT_TOKENS
from localspec.engine.llama.heads.context import HeadContext
from localspec.engine.llama.heads.head import Head
from localspec.engine.llama.heads.states import States
from localspec.engine.llama.heads.taps import Tap
from localspec.engine.llama.model import LlamaModel
from localspec.speculative.loop import Logits


class DFlashHead(Head):
    """Its cache holds the target's features; a pass fills in what is masked behind the last token.

    The features at p - 1 are written when token x_p is read, at position p - 1. The pass reads the
    last token and ``block`` masks, and is forgotten (`common_speculative_impl_draft_dflash`).
    ``mask`` is the id of a masked token.
    """

    offset = 1

    def __init__(
        self, target: LlamaModel, context: HeadContext, tap: Tap, block: int, mask: int
    ) -> None:
        super().__init__(target, context, tap)
        self.block = self._masks = min(block - 1, MAX_DRAFT_TOKENS)
        self._mask = mask
        self._said = np.empty((0, self.n_vocab), np.float32)

    def _pass(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        """See `Head._pass`. Of several rows each takes a pass of its own, with a single mask."""
        end, last = begin + len(tokens), begin + len(tokens) - outputs
        self._write(states, begin, begin, last)
        for position in range(last, end):
            self._write(states, begin, position, position + 1)
            block = self._fill(tokens[position - begin], position, outputs)
            self._said = block if position == last else np.concatenate((self._said, block))
        if outputs == 1:
            self._ahead = self._said[1:]

    def _draft(self, tokens: Sequence[int], begin: int, ahead: States) -> None:
        """See `Head._draft`: it was said before. Nothing is known behind the block."""
        self._said = ahead if len(ahead) else np.zeros((1, self.n_vocab), np.float32)
        self._ahead = self._said[1:]

    def _write(self, states: States, first: int, begin: int, end: int) -> None:
        """Write the features before the positions ``begin`` to ``end``, where they are known."""
        begin, end = max(begin, self.offset), min(end, self._states.end + 1)
        if begin < end:
            rows = states[begin - first : end - first]
            self._context.decode(None, range(begin - 1, end - 1), rows, 0)

    def _fill(self, token: int, position: int, outputs: int) -> Logits:
        """What may stand at the masked places behind a token: shape (masks, n_vocab); a copy."""
        if position > self._states.end:  # its features are missing in between
            return np.zeros((1, self.n_vocab), np.float32)
        tokens = [token, *[self._mask] * (self._masks if outputs == 1 else 1)]
        self._context.decode(tokens, range(position, position + len(tokens)), None, len(tokens))
        block = self._context.logits(len(tokens))[1:].copy()
        self._context.forget(position)
        return block

    def _logits(self, rows: int) -> Logits:
        """See `Head._logits`."""
        return self._said[:rows]
