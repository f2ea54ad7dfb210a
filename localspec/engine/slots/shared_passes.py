"""Passes shared by the threads that answer at once, of which one runs at a time."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from localspec.core.interrupt import held_interrupt
from localspec.speculative.control.probing import FAR_BEHIND
from localspec.speculative.loop import ALONE, Clock, Company, Logits

CHUNK = 128  # tokens: the most of a prompt that is read between two rounds of others


class Context(Protocol):
    """A model's context that holds several sequences; see `llama_context.SharedContext`."""

    @property
    def most_tokens(self) -> int:
        """Tokens of the widest pass."""
        ...

    @property
    def most_rows(self) -> int:
        """Rows of logits that one pass may give."""
        ...

    def read(self, parts: "Sequence[Part]") -> list[Logits]:
        """One pass; for each part its rows of logits, valid until the next pass.

        Raises EngineError where it cannot be made; the sequences then hold what they held before.
        """
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """What one slot wants of a pass: tokens from ``position`` on, logits of the last ``rows``."""

    context: Context
    sequence: int
    tokens: Sequence[int]
    position: int
    rows: int

    @property
    def is_round(self) -> bool:
        """Whether it is a verification or a draft step; else it reads a prompt, perhaps to its end.

        A draft reads no more within a step than the tokens that it fell behind by.
        """
        return self.rows > 0 and len(self.tokens) - self.rows < FAR_BEHIND


class Seat:
    """A slot's place among those that share passes; used by one thread at a time.

    ``company`` is with whom its last pass was shared.
    """

    def __init__(self, passes: "SharedPasses") -> None:
        self._passes = passes
        self.company = ALONE
        self.turn = threading.Lock()  # released by whoever passes the turn on
        self.turn.acquire()
        self.wanted: Part | None = None
        self.found: Logits | Exception | None = None
        self.spent = 0.0  # seconds of the pass that are this slot's own
        self._answering = False

    @property
    def in_company(self) -> bool:
        """Whether others answer too."""
        return self._passes.answering > 1

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

    def read(self, part: Part) -> Logits:
        """The logits of a part, from a pass that others may share; raises what the pass raised."""
        with self.at_turn(), held_interrupt():
            found = self._passes.wait_for(self, part)
        if isinstance(found, Exception):
            raise found
        return found


class SharedPasses:
    """Makes one pass of what all wait for, once all that answer wait.

    One thread at a time has the turn: it alone runs Python, so what slots share needs no locks. Who
    has to wait for a pass passes the turn on to one that can go on; the last one makes the pass.
    Passes for rounds come first on ``contexts[0]``, the draft's if there is one, so that all draft
    in step, then on the target's; what is only read, as prompts are, takes turns with rounds.
    """

    def __init__(self, contexts: Sequence[Context], clock: Clock = time.perf_counter) -> None:
        self._contexts = contexts
        self._clock = clock
        self._lock = threading.Lock()  # for those that come from outside
        self._running: Seat | None = None  # who has the turn
        self._ready: deque[Seat] = deque()  # can go on, but have not the turn
        self._waiting: list[Seat] = []  # for a pass, in the order in which they came
        self._reads_next = False
        self.answering = 0

    def join(self, seat: Seat) -> None:
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

    def leave(self, seat: Seat) -> None:
        """Pass the turn on, and let nobody wait for this one."""
        with self._lock:
            self.answering -= 1
            following = self._ready.popleft() if self._ready else next(iter(self._waiting), None)
            self._running = following
        if following is not None:
            following.turn.release()

    def wait_for(self, seat: Seat, part: Part) -> "Logits | Exception":
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
        waited = seat.company.waited + self._clock() - began - seat.spent
        seat.company = seat.company._replace(waited=waited)
        return seat.found

    def _next(self) -> Seat | None:
        """One that can go on, which has the turn from here on."""
        with self._lock:
            if not self._ready:
                return None
            self._running = self._ready.popleft()
            return self._running

    def _make_pass(self, own: Seat) -> None:
        """One pass for as many as fit; those that it gave what they wait for can go on."""
        chosen = self._choose()
        began = self._clock()
        self._read(chosen)
        seconds = self._clock() - began
        _account(chosen, seconds)
        self._waiting = [seat for seat in self._waiting if seat not in chosen]
        with self._lock:
            self._ready.extendleft(seat for seat in reversed(chosen) if seat is not own)

    def _choose(self) -> list[Seat]:
        """Those whose turn it is: all that take a round on one context, or some that read."""
        rounds = [seat for seat in self._waiting if seat.wanted and seat.wanted.is_round]
        reads = [seat for seat in self._waiting if seat not in rounds]
        for context in self._contexts:
            of_context = [seat for seat in rounds if _context(seat) is context]
            is_last = context is self._contexts[-1]
            if of_context and not (is_last and reads and self._reads_next):
                self._reads_next = self._reads_next or is_last
                return _fitting(of_context, context.most_tokens, context.most_rows)
        self._reads_next = False
        context = _context(reads[0])
        of_context = [seat for seat in reads if _context(seat) is context]
        return _fitting(of_context, min(CHUNK, context.most_tokens), context.most_rows)

    def _read(self, chosen: Sequence[Seat]) -> None:
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


def _context(seat: Seat) -> Context:
    assert seat.wanted is not None
    return seat.wanted.context


def _fitting(seats: Sequence[Seat], tokens: int, rows: int) -> list[Seat]:
    """As many as fit into a pass, at least the first."""
    chosen: list[Seat] = []
    for seat in seats:
        assert seat.wanted is not None
        tokens -= len(seat.wanted.tokens)
        rows -= seat.wanted.rows
        if chosen and (tokens < 0 or rows < 0):
            break
        chosen.append(seat)
    return chosen


def _account(chosen: Sequence[Seat], seconds: float) -> None:
    """Tell each with whom it shared the pass; of what was only read, a share by tokens is its own.

    A round's seconds are those of the whole pass: what is learnt of passes is by their width.
    """
    width = sum(len(seat.wanted.tokens) for seat in chosen if seat.wanted)
    for seat in chosen:
        assert seat.wanted is not None
        own, waited = len(seat.wanted.tokens), seat.company.waited
        if seat.wanted.is_round:
            seat.company, seat.spent = Company(len(chosen), width - own, waited), seconds
        else:
            seat.company, seat.spent = Company(1, 0, waited), seconds * own / width
