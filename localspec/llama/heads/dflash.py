"""DFlash, DSpark and DFlash2: heads that draft a whole block of tokens in one pass."""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.llama.heads.context import HeadRows
from localspec.llama.heads.head import Head, HeadCache, HeadState, HeardTarget, StateSource
from localspec.llama.heads.hidden_states import States
from localspec.metadata.draft_kind import DraftKind
from localspec.speculative.loop import Logits

_NEAREST = 1e-6  # of a confidence to 0 and 1: its log-odds would be infinite there


class DFlashHead(Head):
    """Its cache holds the target's features; a pass fills the masked places after the last token.

    The features at p - 1 are written when token x_p is read, at position p - 1. The pass reads the
    last token and masks, and is forgotten (`common_speculative_impl_draft_dflash`).

    DSpark adds to the logits of a place by the likeliest token of the place before it, in
    llama.cpp's graph; if it is ``anchored``, the last token's row drafts the first token. A
    confidence head gives each place's probability of acceptance, in all columns of the own states.

    DFlash2 gives there the ids of ``selected`` candidates for each place, then their scores after
    each candidate of the place before it. The token drafted there decides which scores are the
    logits of the place; all other tokens have none.
    """

    offset = 1

    def __init__(
        self, target: HeardTarget, context: HeadCache, tap: StateSource, kind: DraftKind
    ) -> None:
        super().__init__(target, context, tap)
        self.block_size: int = min(kind.most_drafted, MAX_DRAFT_TOKENS)
        self._kind = kind
        self._written = 0  # the end of the features in the cache
        self._found = np.empty((0, self.n_vocab), np.float32)  # logits of the places of the pass
        self._own: list[States] = []  # its own states there
        self._place = 0  # of the next token
        self._before = 0  # the candidate of the place before it that was taken

    def for_text(self, target: HeardTarget, context: HeadCache, tap: StateSource) -> Self:
        return type(self)(target, context, tap, self._kind)

    def _pass(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        """See `Head._pass`. Of several rows each takes a pass of its own, for one place."""
        self._found, self.confidences = self._found[:0], None
        self._own, self._place, self._before = [], 0, 0
        if 0 < self._written < begin - 1:  # after drafted tokens, which have no features
            return
        quiet = len(tokens) - outputs
        self._write(begin, states[:quiet])
        blocks = []
        for i in range(quiet, len(tokens)):
            self._write(begin + i, states[i : i + 1])
            block = self._fill(tokens[i], begin + i, self.block_size if outputs == 1 else 1)
            blocks.append(block if outputs == 1 else block.copy())  # the next pass overwrites it
        if outputs:
            self._found = blocks[0] if outputs == 1 else np.concatenate(blocks)
        self._ahead = self._found if outputs == 1 else None
        if self._kind.has_confidence:
            self.confidences = [_log_odds(float(own[0])) for own in self._own]

    def _draft(self, tokens: Sequence[int], begin: int, ahead: States) -> None:
        """See `Head._draft`: the logits of the block are known already."""
        self._before = self._taken(tokens[0])
        self._place += 1
        self._ahead = ahead
        if self.confidences:
            self.confidences = self.confidences[1:] or None

    def _write(self, begin: int, states: States) -> None:
        """Write the features before each position from ``begin`` on; the first token has none."""
        if begin == 0:
            begin, states = 1, states[1:]
        if len(states):
            self._written = begin - 1 + len(states)
            self.context.decode(HeadRows(None, range(begin - 1, self._written), states, 0))

    def _fill(self, token: int, position: int, places: int) -> Logits:
        """Logits of the places after a token, until the next pass: shape (places, n_vocab)."""
        first = 0 if self._kind.anchored else 1
        assert self._kind.mask_token is not None  # else it was refused
        tokens = [token, *[self._kind.mask_token] * (places + first - 1)]
        positions = range(position, position + len(tokens))
        self.context.decode(HeadRows(tokens, positions, None, len(tokens)))
        self.context.forget(position)
        if self._kind.has_confidence or self._kind.selected:
            self._own.extend(self.context.own_states(len(tokens))[first:].copy())
        return self.context.logits(len(tokens))[first:]

    def restore(self, state: HeadState) -> None:
        """See `Head.restore`."""
        super().restore(state)
        self._written = max(0, len(self.tokens) - self.offset)

    def _forget(self, length: int) -> None:
        super()._forget(length)
        self._written = min(self._written, max(0, length - self.offset))

    def _logits(self, rows: int) -> Logits:
        """See `Head._logits`; zeros after the block, and without features."""
        known = self._found[self._place : self._place + rows]
        if len(known) < rows:
            return np.zeros((rows, self.n_vocab), np.float32)
        if not self._kind.selected:
            return known
        found = np.full((rows, self.n_vocab), -np.inf, np.float32)
        for row, place in zip(found, self._own[self._place :], strict=False):
            ids, scores = self._candidates(place)
            row[ids] = scores
        return found

    def _candidates(self, place: States) -> tuple[States, States]:
        """Ids of a place's candidates in DFlash2, and their scores after the token before it."""
        count = self._kind.selected
        scores = place[count * (1 + self._before) :][:count]
        return place[:count].astype(np.intp), scores

    def _taken(self, token: int) -> int:
        """Which candidate of the place in DFlash2 a token is; the best one if it is none."""
        if not self._kind.selected or self._place >= len(self._own):
            return 0
        ids, scores = self._candidates(self._own[self._place])
        same = np.flatnonzero(ids == token)
        return int(same[0] if len(same) else scores.argmax())


def _log_odds(probability: float) -> float:
    probability = min(max(probability, _NEAREST), 1 - _NEAREST)
    return math.log(probability / (1 - probability))
