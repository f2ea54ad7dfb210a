"""EAGLE3: a head of one layer, which reads the inputs of three layers of the target."""

from collections.abc import Sequence

import numpy as np

from localspec.llama.heads.head import Head
from localspec.llama.heads.hidden_states import States
from localspec.speculative.loop import Logits


class Eagle3Head(Head):
    """Reads token x_p with its encoder's output for the target's features at p - 1.

    The pair stands at position p - 1 of its cache, and the first token has none (arXiv 2503.01840,
    `common_speculative_impl_draft_eagle3`). A head with a reduced vocabulary gives minus infinity
    for the target's other tokens: llama.cpp spreads its logits by ``d2t``.
    """

    offset = 1

    def _pass(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        first = 1 if begin == 0 else 0
        tokens, begin = tokens[first:], begin + first
        self._outputs = 0
        if tokens:
            self._compute(tokens, begin, self.context.encode(states[first:]).copy(), outputs)

    def _logits(self, rows: int) -> Logits:
        """See `Head._logits`; zeros after the first token of all."""
        known = super()._logits(min(rows, self._outputs))
        unknown = np.zeros((rows - len(known), self.n_vocab), np.float32)
        return np.concatenate((unknown, known)) if len(unknown) else known
