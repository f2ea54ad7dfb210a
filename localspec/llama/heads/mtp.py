"""MTP (NextN) heads: trained layers after a target's last one, in its file or in a sidecar."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.head import Head, HeadCache, HeardTarget, StateSource
from localspec.llama.heads.hidden_states import States


class MtpHead(Head):
    """One trained layer, used again for each drafted token.

    At position p it reads token x_p with the target's state after p - 1, and predicts x_(p+1);
    zeros stand before the first token, as in `common_speculative_impl_draft_mtp`.
    """


class ChainedHead(Head):
    """Several trained layers: the first drafts the first token, the second the next, and so on.

    All layers read the target's tokens. Each also consumes the tokens drafted by the previous
    layers, which it has to read: keys and values of all layers share the cells of a position. After
    as many tokens as layers, the last one continues (`common_speculative_impl_draft_mtp` ends).
    """

    def __init__(
        self, target: HeardTarget, context: HeadCache, tap: StateSource, layers: int
    ) -> None:
        super().__init__(target, context, tap)
        self._layers = layers
        self._drafted: list[int] = []
        self._own_states: list[States] = []  # own states, one before each drafted token
        self._first = 0  # position of the first drafted token

    def for_text(self, target: HeardTarget, context: HeadCache, tap: StateSource) -> Self:
        return type(self)(target, context, tap, self._layers)

    def _pass(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        self._drafted, self._own_states, self._first = [], [], begin + len(tokens)
        for layer in reversed(range(self._layers)):  # the first one last: its logits count
            self._choose(layer, begin)
            self._compute(tokens, begin, states, outputs if layer == 0 else 0)

    def _draft(self, tokens: Sequence[int], begin: int, ahead: States) -> None:
        self._drafted.extend(tokens)
        self._own_states.append(ahead)
        self._choose(min(len(self._drafted), self._layers - 1), self._first)
        self._compute(self._drafted, self._first, np.stack(self._own_states), 1)

    def _choose(self, layer: int, begin: int) -> None:
        """Let a layer compute from position ``begin`` on, in the cells that others used."""
        self._forget(begin)
        self.context.use_layer(layer)


class SharedHead(Head):
    """A head that attends to its target's own cache, and has none: Gemma 4's assistant.

    It has no tokens to catch up with, and stays at one position while it drafts.
    """

    has_cache = False
    _reads_at_once = True

    def truncate(self, length: int) -> None:
        """See `Head.truncate`; tokens that the target rolled back need not be read again either."""
        super().truncate(min(length, len(self._target.tokens)))

    def _compute(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        """See `Head._compute`; only the last token has outputs."""
        if outputs:
            at = max(1, len(self._target.tokens))  # at 0 there is no token to attend to
            self.context.decode(HeadRows(tokens[-1:], [at], states[-1:], 1))
            self._outputs = 1
            self._ahead = self.context.own_states(1)[0].copy()

    def _forget(self, length: int) -> None:
        """Nothing: it has no cache of its own."""
