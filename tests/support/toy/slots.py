"""A context of several sequences made of toys, and slots on it."""

import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.compute import COMPUTE
from localspec.core.errors import EngineError
from localspec.engine.generate import TextEngine
from localspec.engine.session.batching import Batcher
from localspec.engine.session.llama_context import BatchEntry, SharedContext
from localspec.engine.session.session import Session
from localspec.engine.session.slot import Slot, make_slots
from localspec.llama.cache.cached_text import CacheSequence
from localspec.llama.cache.copies import Copy, ReusableLengths
from localspec.speculative.loop import Logits
from tests.support.toy.engine import ToyEngine
from tests.support.toy.models import ContractBroken, FakeClock, ToyModel

N_VOCAB = 257


class ToySequence(CacheSequence):
    """A sequence that a `ToyModel` holds; of a cache with a window it goes back to nothing."""

    keeps_copies = False
    trims = True
    is_unsettled = False

    def __init__(self, model: ToyModel, window: int | None) -> None:
        self._model, self._window = model, window

    @property
    def held(self) -> int:  # type: ignore[override]
        return len(self._model.tokens)

    def anchor(self) -> None:
        """Nothing: it is truncated at no cost."""

    def checkpoint(self, most: int) -> None:
        """Nothing either."""

    def rewind(self, length: int) -> int:
        if length < self.held:
            moved = self._window is not None and self.held - length > self._window
            self._model.truncate(0 if moved else length)
        return self.held

    def state(self) -> NDArray[np.uint8]:
        return np.array(self._model.tokens, np.int32).view(np.uint8)

    def returns_to(self, length: int) -> int:
        return length

    def reusable_lengths(self, held: int) -> ReusableLengths:
        return ReusableLengths()

    def state_bytes(self) -> int:
        return self.state().nbytes

    def restore(self, length: int, state: NDArray[np.uint8], copies: Sequence[Copy]) -> bool:
        tokens = state.view(np.int32).tolist()
        self._model.truncate(0)
        if len(tokens) != length:
            return False
        if tokens:
            self._model.decode(tokens, 0)
        return True


class ToyContext(SharedContext):
    """A `ToyModel` for each sequence; what a pass gave is spoilt by the next, as in llama.cpp.

    ``passes`` holds the sequences, tokens and rows of each pass. Passes that read a token of
    ``refused`` fail, after a entry of them was read. Meanwhile no other pass may be made. Each
    takes ``seconds``, and ``token_seconds`` for each token.
    """

    n_vocab = N_VOCAB
    widest_filled = 1

    def __init__(
        self,
        make: Callable[[], ToyModel],
        count: int,
        *,
        most_tokens: int = 512,
        most_rows: int = 64,
        refused: Sequence[int] = (),
        window: int | None = None,
        clock: FakeClock | None = None,
        seconds: float = 0.0,
        token_seconds: float = 0.0,
    ) -> None:
        self.models = [make() for _ in range(count)]
        self.sequences = [ToySequence(model, window) for model in self.models]
        self.n_ctx = self.models[0].n_ctx
        self.most_tokens, self.most_rows = most_tokens, most_rows
        self.prompt_step = 64
        self.passes: list[list[tuple[int, int, int]]] = []
        self._refused = set(refused)
        self._clock, self._seconds, self._token_seconds = clock, seconds, token_seconds
        self._doubted = {}
        self._reading = threading.Lock()
        self._lent: list[NDArray[np.float32]] = []

    def read(self, entries: Sequence[BatchEntry]) -> list[Logits]:
        if not self._reading.acquire(blocking=False):
            raise ContractBroken("two passes at the same time")
        try:
            return self._read(entries)
        finally:
            self._reading.release()

    def _read(self, entries: Sequence[BatchEntry]) -> list[Logits]:
        self._check(entries)
        self.passes.append([(entry.sequence, len(entry.tokens), entry.rows) for entry in entries])
        if self._clock is not None:
            width = sum(len(entry.tokens) for entry in entries)
            self._clock.advance(self._seconds + width * self._token_seconds)
        if any(token in self._refused for entry in entries for token in entry.tokens):
            raise EngineError("This toy does not read that.", "Say something else.")
        for rows in self._lent:
            rows.fill(np.nan)
        self._lent = [
            self.models[entry.sequence].decode(entry.tokens, entry.rows).copy() for entry in entries
        ]
        return list(self._lent)

    def _check(self, entries: Sequence[BatchEntry]) -> None:
        sequences = [entry.sequence for entry in entries]
        width, rows = (
            sum(len(entry.tokens) for entry in entries),
            sum(entry.rows for entry in entries),
        )
        if len(set(sequences)) < len(sequences):
            raise ContractBroken("a sequence twice in a pass")
        if width > self.most_tokens or rows > self.most_rows:
            raise ContractBroken(f"{width} tokens with {rows} rows in a pass")
        for entry in entries:
            if entry.context is not self or entry.position != len(
                self.models[entry.sequence].tokens
            ):
                raise ContractBroken("an entry that does not follow what its sequence holds")

    def filled(self, entries: Sequence[BatchEntry]) -> int:
        return 0

    def sweep(self, sequence: int) -> None:
        """Nothing is left."""


def shared(
    count: int,
    *,
    quirk: float | None = 0.3,
    n_ctx: int = 128,
    clock: FakeClock | None = None,
    seconds: tuple[float, float] = (1.0, 1.0),
    token_seconds: tuple[float, float] = (0.0, 0.0),
    prompt_share: float | None = None,
    **options: Any,
) -> tuple[list[Slot], Batcher, ToyContext, ToyContext | None]:
    """Slots that say what a `ToyEngine` says, what they share, the target's and draft's context.

    ``seconds`` are those of a pass of the target, and of the draft; ``token_seconds`` come on top
    for each token of a pass.
    """

    def context(quirk: float | None, role: int) -> ToyContext:
        def model() -> ToyModel:
            engine = ToyEngine(quirk=quirk, n_ctx=n_ctx)
            return engine.draft or engine.target

        options.update(seconds=seconds[role], token_seconds=token_seconds[role])
        return ToyContext(model, count, clock=clock, **options)

    target = context(None, 0)
    draft = None if quirk is None else context(quirk, 1)
    contexts = [target] if draft is None else [draft, target]
    batcher = Batcher(contexts, clock or perf_counter, prompt_share)
    engine = ToyEngine(quirk=quirk, n_ctx=n_ctx)
    return make_slots(engine, count, batcher, target, draft), batcher, target, draft


def together(
    slots: Sequence[TextEngine], batcher: Batcher, work: Callable[[Any, int], object]
) -> None:
    """Run ``work(slot, number)`` in all slots, begun in the same turn; raises the first error."""
    session = Session(slots, batcher)
    try:
        futures = COMPUTE.call(
            lambda: [session.run(i, _numbered(work, i)) for i in range(len(slots))]
        )
        errors = [future.exception(60) for future in futures]
    finally:
        session.close()
    for error in errors:
        if error is not None:
            raise error


def _numbered(work: Callable[[Any, int], object], number: int) -> Callable[[Any], object]:
    return lambda slot: work(slot, number)
