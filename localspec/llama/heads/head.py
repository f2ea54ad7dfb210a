"""Prediction heads as a TokenModel: which tokens were read, and with whose hidden states."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from localspec.core.errors import NotNumbers
from localspec.core.options.load_options import MAX_DRAFT_TOKENS
from localspec.llama.batch import are_numbers, chunks
from localspec.llama.cache.cached_text import CachedText
from localspec.llama.heads.context import HeadContext, HeadRows
from localspec.llama.heads.hidden_states import KEPT, HiddenStates, States, Tap, require_states
from localspec.metadata.draft_kind import draft_kind
from localspec.speculative.loop import BatchShare, Logits
from localspec.speculative.prefix import common_prefix

LOST = 32  # tokens whose states are forgotten that may still count as unread
ROOM = MAX_DRAFT_TOKENS + 2  # tokens more than the target's context, so that no window ever moves
_NARROW = 16  # tokens that cost less in the next pass with logits than in one of their own
_WIDEST_VERIFICATION = MAX_DRAFT_TOKENS + 10  # with tokens that are read again in front of it


HeardTarget = CachedText  # that it reads along with
HeadCache = HeadContext  # or one of its sequences, for a slot
StateSource = Tap  # of the target's states, or of those of one slot


class HeadState(NamedTuple):
    """What a head had read: the tokens, llama.cpp's state of them, and states of the target."""

    tokens: list[int]
    cells: NDArray[np.uint8]
    begin: int  # position of the first of the rows
    rows: list[States]

    @property
    def n_bytes(self) -> int:
        """Bytes in RAM, without the tokens."""
        return self.cells.nbytes + sum(row.nbytes for row in self.rows)


class Head:
    """A TokenModel that reads a token together with the target's state after the one before it.

    The head hears what its target reads (`_listen`) and reads it as well: a prompt chunk by chunk,
    what was verified in the first step of the next proposal. One that was not asked for longer than
    states are kept reads no prompts either, since it may never be asked again. Drafted tokens are
    read with the head's own states, and always forgotten at the next `truncate`: their place is
    taken by what the target makes of them. Tokens whose states are not known, such as those of a
    prompt cache's file, count as read; the head begins after them, unless `restore` follows.

    A subclass defines how tokens are read: `_pass`, `_draft`. ``memory`` is what llama.cpp reserved
    for the head alone, ``header`` that of its file.
    """

    follows_target = True
    gives_prompt_row = False  # it reads no prompts by itself
    tree = None
    overridden = frozenset[str]()  # a head takes its values from the file
    pending = 0  # rows to be read again

    @property
    def reusable(self) -> int:
        return len(self.tokens)

    block_size: int | None = None  # most tokens of a proposal that is paid with its first
    confidences: Sequence[float] | None = None
    offset = 0  # difference between a token's position and that in llama.cpp's cache

    has_cache = True  # of its own

    def __init__(self, target: HeardTarget, context: HeadCache, tap: StateSource) -> None:
        self._target = target
        self.context = context
        self.tap = tap
        self._states = HiddenStates(tap.width)
        self._ahead: States | None = None  # state after the last pass, for a token drafted by it
        self.tokens: list[int] = []  # read, or before the first known state; not to be changed
        self._true = 0  # how many of them were read with the target's own states
        self._torn = False  # true while our list and llama.cpp's cache may differ
        self._heard = False
        self._unasked = 0  # verified tokens since it was last asked for logits
        self._outputs = 0  # rows of logits that the last pass has
        self.n_ctx = target.n_ctx + ROOM
        self.header = context.header
        self.memory = context.memory
        self.n_vocab = context.n_vocab
        tap.switch(True)
        target.listener = self._listen

    def for_text(self, target: HeardTarget, context: HeadCache, tap: StateSource) -> Self:
        return type(self)(target, context, tap)

    @property
    def batch_share(self) -> BatchShare:
        return self.context.batch_share

    def settings(self) -> dict[str, object]:
        """The settings that a result obtained with this head depends on, as plain data."""
        kind = draft_kind(self.header)
        spec_type = "draft-mtp" if kind.is_model else kind.spec_type  # of a whole model: its own
        return self.context.settings() | {"spec_type": spec_type}

    # -- TokenModel ------------------------------------------------------------------------

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        """Append ``tokens``; logits after the last ``rows``, valid until the next call.

        Raises EngineError when llama.cpp refuses. After it, and after Ctrl-C, earlier tokens stay.
        Raises NotNumbers, and leaves no tokens, for logits that are not numbers.
        """
        self._mend()
        if rows:
            self._unasked = 0
        self._states.truncate(len(self._target.tokens))  # later ones belong to rejected tokens
        self._read(tokens, rows)
        self._states.trim()
        found = self._logits(rows)
        if not are_numbers(found):
            self._cut(0)
            if self.has_cache:
                self.context.clear()  # of all slots: a remaining cell may spoil their heads too
            raise NotNumbers("The heads returned logits that are not numbers.", "Use --draft off.")
        return found

    def truncate(self, length: int) -> None:
        """Forget every token at ``length`` and beyond, and all that were drafted."""
        self._mend()
        self._cut(min(length, self._true))

    def checkpoint(self) -> None:
        """Nothing to prepare: tokens can always be rolled back."""

    def state_bytes(self) -> int:
        return self.context.state_bytes() + self._states.n_bytes

    def state(self) -> HeadState:
        """A copy of all that it knows of the target's text."""
        length = len(self._target.tokens)
        self.truncate(length)
        self._states.truncate(length)
        cells, rows = self.context.state(), [*self._states.rows]
        return HeadState([*self.tokens], cells, self._states.begin, rows)

    def restore(self, state: HeadState) -> None:
        """Hold a `state` of the text that the target was restored to, if llama.cpp takes it."""
        self._cut(0)
        self._torn = True
        if self.context.restore(state.cells):
            self._states.replace(state.begin, state.rows)
            self.tokens.extend(state.tokens)
            self._true = len(state.tokens)
            self._torn = False
        else:
            self._mend()
            self._begin_after(self._target.tokens)

    def close(self) -> None:
        """Free the head, before its target is freed; harmless when called twice."""
        if self._target.listener == self._listen:
            self._target.listener = None
            self.tap.switch(False)
        self.context.close()

    # -- the target ------------------------------------------------------------------------

    def _listen(self, tokens: Sequence[int], position: int, rows: int) -> None:
        """Take the target's states of tokens from ``position`` on.

        Without any, all before ``position`` replaced the tokens read, and no state is known.
        """
        self._mend()
        states = self.tap.rows(len(tokens))
        if not self._heard:
            require_states(states)
            self._heard = bool(len(tokens))
        first = min(position, self._true) if tokens else 0
        self._cut(first + common_prefix(self.tokens[first : self._true], [*tokens]))
        if not tokens:
            self._states.truncate(0)
        self._states.add(position, states)
        is_prompt = not rows or len(tokens) > _WIDEST_VERIFICATION
        if not is_prompt:
            self._unasked += len(tokens)
        unread = self._target.tokens[len(self.tokens) : position + len(tokens)]
        follows = is_prompt and self._unasked <= KEPT and len(unread) > _NARROW
        if follows or self._reads_at_once:
            self._read(unread, 0)
        self._states.trim()
        if self._states.begin - len(self.tokens) > LOST:
            self._begin_after(self._target.tokens[: self._states.begin])

    _reads_at_once = False  # whether tokens that may still be rejected are read as well

    def _begin_after(self, tokens: Sequence[int]) -> None:
        """Replace the cache by tokens that count as read although their hidden states are gone."""
        self._cut(0)
        self.tokens.extend(tokens)
        self._true = len(tokens)

    # -- reading ---------------------------------------------------------------------------

    def _read(self, tokens: Sequence[int], rows: int) -> None:
        unknown = min(max(0, self._states.begin - len(self.tokens)), len(tokens) - rows)
        if unknown > 0:
            self._begin_after([*self.tokens, *tokens[:unknown]])
            tokens = tokens[unknown:]
        for chunk, outputs in chunks(tokens, rows, self.context.size):
            begin, ahead = len(self.tokens), self._ahead
            self._torn, self._ahead = True, None
            if begin > self._states.end and ahead is not None and len(chunk) == 1:
                self._draft(chunk, begin, ahead)
            else:
                states = self._states.inputs(begin, begin + len(chunk))
                self._pass(chunk, begin, states, outputs)
            self.tokens.extend(chunk)
            if self._true == begin:
                self._true = max(begin, min(len(self.tokens), self._states.end + 1))
            self._torn = False
        if rows == 0:
            self.context.synchronize()

    def _pass(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        """Read tokens from position ``begin`` on, each with the target's state before it."""
        self._compute(tokens, begin, states, outputs)

    def _draft(self, tokens: Sequence[int], begin: int, ahead: States) -> None:
        """Read the token drafted by the last pass."""
        self._compute(tokens, begin, ahead[None], 1)

    def _compute(self, tokens: Sequence[int], begin: int, states: States, outputs: int) -> None:
        """Read tokens, and compute logits of the last ``outputs``.

        Of a pass all tokens have outputs, or none: with some, llama.cpp hands out the first rows of
        a graph that computes all (EAGLE3's logits, the own states of many MTP graphs).
        """
        quiet = len(tokens) - outputs
        if 0 < quiet < len(tokens) and len(tokens) > _NARROW:
            self._compute(tokens[:quiet], begin, states[:quiet], 0)
            tokens, begin, states = tokens[quiet:], begin + quiet, states[quiet:]
        at, self._outputs = begin - self.offset, len(tokens) if outputs else 0
        positions = range(at, at + len(tokens))
        self.context.decode(HeadRows(tokens, positions, states, self._outputs))
        if outputs:
            self._ahead = self.context.own_states(len(tokens))[-1].copy()

    def _logits(self, rows: int) -> Logits:
        """Logits after the last ``rows`` tokens of those just read."""
        return self.context.logits(self._outputs)[self._outputs - rows :]

    def _cut(self, length: int) -> None:
        if length < len(self.tokens):
            self._torn, self._ahead = True, None
            del self.tokens[length:]
            self._true = min(self._true, length)
            self._forget(length)
            self._torn = False

    def _mend(self) -> None:
        """After Ctrl-C in the middle of a change: let llama.cpp's cache agree with our list."""
        if self._torn:
            self._ahead, self._true = None, min(self._true, len(self.tokens))
            self._forget(len(self.tokens))
            self._torn = False

    def _forget(self, length: int) -> None:
        self.context.forget(max(0, length - self.offset))
