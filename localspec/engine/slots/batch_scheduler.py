"""Passes shared by the threads that answer at once, of which one runs at a time."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from localspec.core.interrupt import held_interrupt
from localspec.speculative.loop import ALONE, BatchShare, Clock, Logits

WIDE = 128  # tokens of a pass that reads a prompt while others wait for it
_SLOW = 0.25  # seconds: a pass that takes longer is made half as wide, for twice as many rounds
_LEAST = 32  # prompt tokens beside rounds, however wide these are
_STEP = 8  # tokens that a round reads at most besides those whose logits it wants


class Context(Protocol):
    """A model's context that holds several sequences; see `llama_context.SharedContext`."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the widest pass."""

    @property
    def most_rows(self) -> int:
        """Rows of logits that one pass may give."""

    def read(self, parts: "Sequence[Part]") -> list[Logits]:
        """One pass; for each part its rows of logits, valid until the next pass.

        Raises EngineError where it cannot be made; the sequences then hold what they held before.
        """


@dataclass(frozen=True, slots=True)
class Part:
    """What a slot wants to read: tokens from ``position`` on, with logits of the last ``rows``."""

    context: Context
    sequence: int
    tokens: Sequence[int]
    position: int
    rows: int

    @property
    def is_prompt(self) -> bool:
        """Whether it may be read in several passes, beside the rounds of others."""
        return not self.rows or len(self.tokens) - self.rows > _STEP

    def beginning(self, count: int) -> "Part":
        """Its first ``count`` tokens or fewer, without logits where that is not all of it."""
        if count >= len(self.tokens):
            return self
        return replace(self, tokens=self.tokens[: min(count, len(self.tokens) - self.rows)], rows=0)


class SequenceHandle:
    """A slot's place among those that share passes; used by one thread at a time.

    ``company`` is with whom its last pass was shared.
    """

    def __init__(self, passes: "BatchScheduler") -> None:
        self._passes = passes
        self.batch_share = ALONE
        self.turn = threading.Lock()  # released by whoever passes the turn on
        self.turn.acquire()
        self.wanted: Part | None = None
        self.found: Logits | Exception | None = None
        self.spent = 0.0  # seconds of the pass that are this slot's own
        self._answering = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Have the turn inside the block, but while a pass is waited for; others wait for ours."""
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
        """Have the turn inside the block, also outside an answer: contexts bear one at a time."""
        with nullcontext() if self._answering else self.answering():
            yield

    def read(self, part: Part) -> tuple[int, Logits]:
        """How many tokens of a part one pass has read, and their logits; others may share it.

        A prompt may be read in part, without logits then. Raises what the pass raised.
        """
        with self.at_turn(), held_interrupt():
            found = self._passes.wait_for(self, part)
        if isinstance(found, Exception):
            raise found
        assert self.wanted is not None
        return len(self.wanted.tokens), found


class BatchScheduler:
    """Makes one pass of what all wait for, once all that answer wait.

    One thread at a time has the turn: it alone runs Python, so what slots share needs no locks. Who
    has to wait for a pass passes the turn on to one that can go on; the last one makes the pass.
    Passes for rounds come first on ``contexts[0]``, the draft's if there is one, so that all draft
    in step, then on the target's. Prompts are read in the same passes, a chunk in each; where they
    cannot be, as on the draft's context while nobody drafts, they take turns with rounds.
    """

    def __init__(self, contexts: Sequence[Context], clock: Clock = time.perf_counter) -> None:
        self._contexts = contexts
        self._clock = clock
        self._lock = threading.Lock()  # for those that come from outside
        self._running: SequenceHandle | None = None  # who has the turn
        self._ready: deque[SequenceHandle] = deque()  # can go on, but have not the turn
        self._waiting: list[SequenceHandle] = []  # for a pass, in the order in which they came
        self._prompt_next = False
        self._token_seconds = dict.fromkeys(map(id, contexts), 0.0)  # of a pass with a prompt
        self.answering = 0

    def join(self, seat: SequenceHandle) -> None:
        """Let passes wait for this one too; returns when it has the turn."""
        with self._lock:
            self.answering += 1
            free = self._running is None
            if free:
                self._running = seat
            else:
                self._ready.append(seat)
        if not free:
            seat.turn.acquire()

    def leave(self, seat: SequenceHandle) -> None:
        """Pass the turn on, and let nobody wait for this one."""
        with self._lock:
            self.answering -= 1
            following = self._ready.popleft() if self._ready else next(iter(self._waiting), None)
            self._running = following
        if following is not None:
            following.turn.release()

    def wait_for(self, seat: SequenceHandle, part: Part) -> "Logits | Exception":
        """What a pass gives; meanwhile others have their turns, or this one makes the pass."""
        began = self._clock()
        seat.wanted, seat.found = part, None
        self._waiting.append(seat)
        while seat.found is None:
            following = self._next()
            if following is None:
                self._make_pass(seat)
            else:
                following.turn.release()
                seat.turn.acquire()
        waited = seat.batch_share.waited + self._clock() - began - seat.spent
        seat.batch_share = seat.batch_share._replace(waited=waited)
        return seat.found

    def _next(self) -> SequenceHandle | None:
        """One that can go on, which has the turn from here on."""
        with self._lock:
            if not self._ready:
                return None
            self._running = self._ready.popleft()
            return self._running

    def _make_pass(self, own: SequenceHandle) -> None:
        """One pass for as many as fit; those that it gave what they wait for can go on."""
        chosen = self._choose()
        began = self._clock()
        self._read(chosen)
        seconds = self._clock() - began
        _account(chosen, seconds)
        if chosen[0].batch_share.mixed:
            context = _part(chosen[0]).context
            self._token_seconds[id(context)] = seconds / _width(chosen)
        self._waiting = [seat for seat in self._waiting if seat not in chosen]
        with self._lock:
            self._ready.extendleft(seat for seat in reversed(chosen) if seat is not own)

    def _choose(self) -> list[SequenceHandle]:
        """Those whose turn it is: the rounds of one context and prompts, or prompts alone.

        All rounds of the target carry prompts, but only the first draft step before each does.
        """
        prompts = [seat for seat in self._waiting if _part(seat).is_prompt]
        rounds = [seat for seat in self._waiting if not _part(seat).is_prompt]
        for context in self._contexts:
            of_context = [seat for seat in rounds if _part(seat).context is context]
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
        return self._fitting(_part(prompts[0]).context, [], prompts)

    def _fitting(
        self, context: Context, rounds: Sequence[SequenceHandle], prompts: Sequence[SequenceHandle]
    ) -> list[SequenceHandle]:
        """As many as fit into a pass, at least the first; prompts are cut to what fits."""
        tokens, rows = context.most_tokens, context.most_rows
        chosen: list[SequenceHandle] = []
        for seat in rounds:
            part = _part(seat)
            tokens, rows = tokens - len(part.tokens), rows - part.rows
            if chosen and min(tokens, rows) < 0:
                return chosen
            chosen.append(seat)
        tokens = min(tokens, self._chunk(context, _width(chosen)))
        for seat in prompts:
            part = _part(seat)
            if part.context is not context:
                continue
            part = part.beginning(tokens)
            if not part.tokens or part.rows > rows:
                break
            seat.wanted = part
            tokens, rows = tokens - len(part.tokens), rows - part.rows
            chosen.append(seat)
        return chosen

    def _chunk(self, context: Context, width: int) -> int:
        """Most prompt tokens in a pass with rounds of this width.

        Half of `WIDE` is as narrow as costs little more for each token: llama.cpp's attention on
        processors computes 64 tokens at once, and fewer one by one.
        """
        if self.answering == 1:
            return context.most_tokens
        is_slow = width and self._token_seconds[id(context)] * WIDE > _SLOW
        return max(_LEAST, (WIDE // 2 if is_slow else WIDE) - width)

    def _read(self, chosen: Sequence[SequenceHandle]) -> None:
        """Give each what it wants; where the pass fails, each in one of its own."""
        parts = [seat.wanted for seat in chosen if seat.wanted]
        try:
            for seat, found in zip(chosen, parts[0].context.read(parts), strict=True):
                seat.found = found
        except Exception as error:
            if len(chosen) == 1:
                chosen[0].found = error
                return
            for seat in chosen:
                self._read([seat])
                if not isinstance(seat.found, Exception) and seat.found is not None:
                    seat.found = seat.found.copy()  # before the next one's pass


def _part(seat: SequenceHandle) -> Part:
    assert seat.wanted is not None
    return seat.wanted


def _width(seats: Sequence[SequenceHandle]) -> int:
    return sum(len(_part(seat).tokens) for seat in seats)


def _account(chosen: Sequence[SequenceHandle], seconds: float) -> None:
    """Tell each seat how its pass was batched, and which of its seconds are its own.

    A round's seconds are those of all rounds of the pass: costs are learnt by their width. Prompts
    and rounds share a pass by their tokens; such a pass says nothing of what rounds cost.
    """
    rounds = [seat for seat in chosen if not _part(seat).is_prompt]
    width, every = _width(rounds), _width(chosen)
    mixed = 0 < len(rounds) < len(chosen)
    for seat in chosen:
        own, waited = len(_part(seat).tokens), seat.batch_share.waited
        if _part(seat).is_prompt:
            seat.batch_share, seat.spent = BatchShare(1, 0, waited, mixed), seconds * own / every
        else:
            seat.batch_share = BatchShare(len(rounds), width - own, waited, mixed)
            seat.spent = seconds * width / every
