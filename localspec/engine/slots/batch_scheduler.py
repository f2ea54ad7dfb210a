"""Continuous batching of the passes of threads that answer at once, one of which runs at a time."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from localspec.core.interrupt import held_interrupt
from localspec.engine.slots.llama_context import BatchEntry, SharedContext
from localspec.speculative.loop import ALONE, BatchShare, Clock, Logits

WIDE = 128  # tokens of a pass that reads a prompt while others wait for it
_SLOW = 0.25  # seconds: a pass that takes longer is made half as wide, for twice as many rounds
_LEAST = 32  # prompt tokens beside rounds, however wide these are


class SequenceHandle:
    """A slot's place in the batch scheduler; used by one thread at a time."""

    def __init__(self, passes: "BatchScheduler") -> None:
        self._passes = passes
        self.batch_share = ALONE
        self.turn = threading.Lock()  # released by the thread that passes the turn on
        self.turn.acquire()
        self.entry: BatchEntry  # to be read; while it waits for a pass
        self.found: Logits | Exception | None = None
        self.spent = 0.0  # seconds of the pass that are this slot's own
        self._answering = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Have the turn inside the block, except while waiting for a pass."""
        with held_interrupt():
            self._passes.join(self)
        self._answering = True
        try:
            yield
        finally:
            self._answering = False
            self._passes.leave(self)

    @contextmanager
    def at_turn(self) -> Iterator[None]:
        """Have the turn inside the block, also outside an answer: contexts are not thread-safe."""
        with nullcontext() if self._answering else self.answering():
            yield

    def read(self, entry: BatchEntry) -> tuple[int, Logits]:
        """How many tokens of an entry one pass has read, and their logits.

        A prompt may be read in parts, without logits then. Raises what the pass raised.
        """
        with self.at_turn(), held_interrupt():
            found = self._passes.wait_for(self, entry)
        if isinstance(found, Exception):
            raise found
        return len(self.entry.tokens), found


class BatchScheduler:
    """Makes one pass of all entries, once every slot that answers waits for one.

    One thread at a time has the turn and runs Python, so what slots share needs no locks. A thread
    that waits for a pass hands the turn to one that can go on; the last one makes the pass. Rounds
    come first on ``contexts[0]``, the draft's if there is one, so that all draft in step, then on
    the target's. Prompts are read in the same passes, a chunk in each; where they cannot be, as on
    the draft's context while nobody drafts, they take turns with rounds.
    """

    def __init__(self, contexts: Sequence[SharedContext], clock: Clock = time.perf_counter) -> None:
        self._contexts = contexts
        self._clock = clock
        self._lock = threading.Lock()  # for threads without the turn
        self._running: SequenceHandle | None = None  # it has the turn
        self._ready: deque[SequenceHandle] = deque()  # they can go on, without the turn
        self._waiting: list[SequenceHandle] = []  # for a pass, oldest first
        self._prompt_next = False
        self._token_seconds = dict.fromkeys(map(id, contexts), 0.0)  # of a pass with a prompt
        self.answering = 0

    def join(self, handle: SequenceHandle) -> None:
        """Let passes wait for this handle too; returns when it has the turn."""
        with self._lock:
            self.answering += 1
            free = self._running is None
            if free:
                self._running = handle
            else:
                self._ready.append(handle)
        if not free:
            handle.turn.acquire()

    def leave(self, handle: SequenceHandle) -> None:
        """Pass the turn on; passes no longer wait for this handle."""
        with self._lock:
            self.answering -= 1
            following = self._ready.popleft() if self._ready else next(iter(self._waiting), None)
            self._running = following
        if following is not None:
            following.turn.release()

    def wait_for(self, handle: SequenceHandle, entry: BatchEntry) -> "Logits | Exception":
        """The result of a pass; meanwhile others have the turn, or this thread makes the pass."""
        began = self._clock()
        handle.entry, handle.found = entry, None
        self._waiting.append(handle)
        while handle.found is None:
            following = self._next()
            if following is None:
                self._make_pass(handle)
            else:
                following.turn.release()
                handle.turn.acquire()
        waited = handle.batch_share.waited + self._clock() - began - handle.spent
        handle.batch_share = handle.batch_share._replace(waited=waited)
        return handle.found

    def _next(self) -> SequenceHandle | None:
        """A handle that can go on; it has the turn from here on."""
        with self._lock:
            if not self._ready:
                return None
            self._running = self._ready.popleft()
            return self._running

    def _make_pass(self, own: SequenceHandle) -> None:
        """One pass for as many entries as fit; their handles can go on."""
        chosen = self._choose()
        began = self._clock()
        self._read(chosen)
        seconds = self._clock() - began
        _account(chosen, seconds)
        if chosen[0].batch_share.mixed:
            context = chosen[0].entry.context
            self._token_seconds[id(context)] = seconds / _width(chosen)
        self._waiting = [handle for handle in self._waiting if handle not in chosen]
        with self._lock:
            self._ready.extendleft(handle for handle in reversed(chosen) if handle is not own)

    def _choose(self) -> list[SequenceHandle]:
        """The next batch: the rounds of one context with prompts, or prompts alone.

        All rounds of the target carry prompts, but only the first draft step before each does.
        """
        prompts = [handle for handle in self._waiting if handle.entry.is_prompt]
        rounds = [handle for handle in self._waiting if not handle.entry.is_prompt]
        for context in self._contexts:
            of_context = [handle for handle in rounds if handle.entry.context is context]
            if not of_context:
                continue
            is_target = context is self._contexts[-1]
            reads = prompts if is_target or self._prompt_next else []
            chosen = self._fitting(context, of_context, reads)
            if is_target and self._prompt_next and prompts and prompts[0] not in chosen:
                break
            self._prompt_next = is_target or (self._prompt_next and len(chosen) <= len(of_context))
            return chosen
        self._prompt_next = False
        return self._fitting(prompts[0].entry.context, [], prompts)

    def _fitting(
        self,
        context: SharedContext,
        rounds: Sequence[SequenceHandle],
        prompts: Sequence[SequenceHandle],
    ) -> list[SequenceHandle]:
        """As many as fit into a pass, at least one; prompts are cut to what fits."""
        tokens, rows = context.most_tokens, context.most_rows
        chosen: list[SequenceHandle] = []
        for handle in rounds:
            entry = handle.entry
            tokens, rows = tokens - len(entry.tokens), rows - entry.rows
            if chosen and min(tokens, rows) < 0:
                return chosen
            chosen.append(handle)
        tokens = min(tokens, self._chunk(context, _width(chosen)))
        for handle in prompts:
            entry = handle.entry
            if entry.context is not context:
                continue
            entry = entry.beginning(tokens)
            if not entry.tokens or entry.rows > rows:
                break
            handle.entry = entry
            tokens, rows = tokens - len(entry.tokens), rows - entry.rows
            chosen.append(handle)
        return chosen

    def _chunk(self, context: SharedContext, width: int) -> int:
        """Most prompt tokens in a pass with rounds of this width.

        Half of `WIDE` is as narrow as costs little more for each token: llama.cpp's attention on
        processors computes 64 tokens at once, and fewer one by one.
        """
        if self.answering == 1:
            return context.most_tokens
        is_slow = width and self._token_seconds[id(context)] * WIDE > _SLOW
        return max(_LEAST, (WIDE // 2 if is_slow else WIDE) - width)

    def _read(self, chosen: Sequence[SequenceHandle]) -> None:
        """Make the pass; where it fails, one for each entry."""
        entries = [handle.entry for handle in chosen]
        try:
            for handle, found in zip(chosen, entries[0].context.read(entries), strict=True):
                handle.found = found
        except Exception as error:
            if len(chosen) == 1:
                chosen[0].found = error
                return
            for handle in chosen:
                self._read([handle])
                if not isinstance(handle.found, Exception) and handle.found is not None:
                    handle.found = handle.found.copy()  # before the next one's pass


def _width(handles: Sequence[SequenceHandle]) -> int:
    return sum(len(handle.entry.tokens) for handle in handles)


def _account(chosen: Sequence[SequenceHandle], seconds: float) -> None:
    """Record how the pass was batched, and each handle's own share of its seconds.

    A round is charged for all rounds of the pass, as costs are learnt by their width. Prompts and
    rounds share a mixed pass by their tokens.
    """
    rounds = [handle for handle in chosen if not handle.entry.is_prompt]
    width, every = _width(rounds), _width(chosen)
    mixed = 0 < len(rounds) < len(chosen)
    for handle in chosen:
        own, waited = len(handle.entry.tokens), handle.batch_share.waited
        if handle.entry.is_prompt:
            handle.batch_share, handle.spent = (
                BatchShare(1, 0, waited, mixed),
                seconds * own / every,
            )
        else:
            handle.batch_share = BatchShare(len(rounds), width - own, waited, mixed)
            handle.spent = seconds * width / every
