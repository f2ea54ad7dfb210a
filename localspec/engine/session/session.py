"""Session: the slots of a loaded pair, and the queue of answers in front of them."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import TypeVar

from greenlet import GreenletExit

from localspec.chat.answer import Piece, Progress
from localspec.chat.stats import GenerationStats
from localspec.core.compute import COMPUTE
from localspec.core.errors import LocalspecError, UsageError
from localspec.core.interrupt import Cancelled, held_interrupt, require_wanted, stopped_when
from localspec.core.machine import AwakeClock
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.generate import TextEngine, stream_generate
from localspec.engine.session.batching import Batcher, SlotTask, pause
from localspec.engine.session.cell_budget import CellBudget
from localspec.engine.session.job import GenerationRequest, Job, Stream
from localspec.engine.session.limits import (
    NO_LIMITS,
    AnswerTimeout,
    Closing,
    Limits,
    QueueFull,
    QueueTimeout,
    Stalled,
)
from localspec.engine.session.llama_context import CacheEmptied, SharedContext
from localspec.engine.session.seat import Seat, SlotState
from localspec.speculative.history import OwnedHistories

T = TypeVar("T")
_RECENT = 16  # answers whose mean duration estimates Retry-After
_SAVE_PROFILE = 60.0  # seconds at least between two writes of the pair profile


class Session:
    """Answers jobs in the slots of a pair, on the compute thread.

    Jobs begin in the order in which they were submitted; one that wants a certain slot waits for it
    and lets others pass. Of several free slots, the one whose cache
    shares the longest prefix with the prompt takes the job, else the least recently used one, as
    in llama.cpp's server (`get_available_slot`). A slot whose answer was cancelled, and which is
    free after its pass under way, is waited for if it shares a longer one: a client that connects
    again would else have its prompt read twice. ``prefixes`` stores caches that slots overwrite.
    An answer runs until it needs a pass that ``batcher`` makes for all slots that wait for one;
    a slot without a batcher makes its own. Prefixes and earlier answers are those of the job's
    owner alone.

    Slots with a ``budget`` share their cells. A job then waits also until there are cells for its
    prompt, and those after it wait with it. Caches of idle slots go first, those used longest ago
    before others; if an answer needs more, the one that began last is paused.

    An error goes to the reader of its answer, and the next job begins as usual: a model recovers
    by itself from a pass that was cut off. Methods are thread-safe.
    """

    def __init__(
        self,
        slots: Sequence[TextEngine],
        batcher: Batcher | None = None,
        limits: Limits = NO_LIMITS,
        prefixes: PrefixCache | None = None,
        budget: CellBudget | None = None,
    ) -> None:
        self._limits = limits
        self._batcher = batcher
        self._prefixes = PrefixCache(0) if prefixes is None else prefixes
        self._histories = OwnedHistories(slots[0].history if slots else None)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)  # an answer
        self._waiting: deque[Job] = deque()
        self._seats = [Seat(slot) for slot in slots]  # least recently used first
        self._by_id = list(self._seats)
        self._budget = budget
        for seat in self._seats if budget is not None else ():
            seat.share(self._make_room)
        self._unread: list[Seat] = []  # that wait for a pass, oldest first
        self._read: list[Seat] = []  # of the last pass
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._refusal: LocalspecError | None = None  # of all jobs, once it closes
        self._saved_at = time.monotonic()
        least = min(limits.queue_seconds, limits.step_seconds)
        period = math.inf if least == math.inf else min(1.0, least / 4)
        self._clock = AwakeClock(period)  # no limit counts a pause of the machine
        self._alive_at = self._clock.now()
        self._closed = threading.Event()
        COMPUTE.add(self)
        if period < math.inf:
            name, given = "watching slots", (period,)
            threading.Thread(target=self._watch, name=name, args=given, daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running())

    @property
    def is_closed(self) -> bool:
        return self._refusal is not None

    def require_progress(self) -> None:
        """Raise Stalled while the compute thread makes no progress."""
        if self._is_stalled():
            raise Stalled(self._limits.step_seconds, self.running)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Job]:
        """Queue answers in this order, all or none.

        A job that waits too long ends with QueueTimeout. Raises QueueFull if the queue has no
        room for all now, UsageError if it never has and for a slot that does not exist, Stalled
        while no slot makes progress, and after `close` its reason.
        """
        for request in requests:
            if request.slot is not None:
                self._seat(request.slot)
        now = self._clock.now()
        jobs = [Job(request, self._withdraw, made_at=now) for request in requests]
        with self._lock:
            self._require_queue_room(len(jobs))
            if not self._running():
                self._alive_at = now
            self._waiting.extend(jobs)
            self._assign()
        COMPUTE.post(_nothing)
        return jobs

    def stream(self, request: GenerationRequest) -> Stream:
        """The pieces of one answer; raises the errors of `submit`."""
        return Stream(self.submit([request])[0])

    def slots(self) -> list[SlotState]:
        return [seat.state(i) for i, seat in enumerate(self._by_id)]

    def state_of(self, job: Job) -> SlotState | None:
        """The present state of the slot that answers a job; None while it waits, and at its end."""
        busy = (i for i, seat in enumerate(self._by_id) if seat.job is job)
        return next((self._by_id[i].state(i) for i in busy), None)

    def run(
        self, slot: int, act: Callable[[TextEngine], T], owner: str = "", *, replaces: bool = False
    ) -> Future[T]:
        """Call ``act`` with a slot, after its answer under way.

        The slot is cleared first if it belongs to another owner or if ``replaces`` is set: its
        tokens go to the prefix cache.
        Raises UsageError if there is no such slot, and after `close` its reason.
        """
        seat, future = self._seat(slot), Future[T]()

        def call() -> None:
            try:
                seat.claim(owner, self._prefixes)
                if replaces:
                    self._prefixes.vacate(seat.engine, owner)
                future.set_result(act(seat.engine))
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            seat.calls.append(call)
        COMPUTE.post(_nothing)
        return future

    def _seat(self, slot: int) -> Seat:
        if not 0 <= slot < len(self._by_id):
            raise UsageError(
                f"There is no slot {slot}.", f"The last one is {len(self._by_id) - 1}."
            )
        return self._by_id[slot]

    def close(self, seconds: float = 0.0, reason: LocalspecError | None = None) -> None:
        """Refuse waiting and new jobs, and return when those under way have ended.

        They are ended after ``seconds``. Readers get ``reason``, Closing by default. Blocks: call
        outside of an event loop in which answers are read. Idempotent.
        """
        with self._lock:
            self._refusal = reason = self._refusal or reason or Closing()
            refused = list(self._waiting)
        for job in refused:
            job.cancel(reason)
        self._wait_idle(seconds)
        self._cancel_running(reason)
        self._wait_idle(math.inf)
        self._closed.set()
        COMPUTE.remove(self)

    def _wait_idle(self, seconds: float) -> None:
        """Wait until no slot is busy, at most for this many seconds."""
        ends = time.monotonic() + seconds
        if COMPUTE.is_current:
            COMPUTE.run_until(lambda: not self.is_busy or time.monotonic() > ends)
            return
        with self._ended:
            self._ended.wait_for(
                lambda: not self.is_busy, None if seconds == math.inf else max(0.0, seconds)
            )

    def _cancel_running(self, reason: LocalspecError) -> None:
        for job in self._running():
            job.cancel(reason)

    def _running(self) -> list[Job]:
        return [job for seat in self._by_id if (job := seat.job) is not None]

    # -- in a thread of its own ----------------------------------------------------------------

    def _watch(self, period: float) -> None:
        """End the answers of a compute thread that makes no progress, and jobs that wait long."""
        while not self._closed.wait(period):
            latest = self._clock.tick() - self._limits.queue_seconds
            if self._is_stalled():
                with self._lock:  # an answer needs the lock to end
                    for job in self._running():
                        job.reason = job.reason or Stalled(self._limits.step_seconds)
                        job.cancelled = True
                        job.end(job.reason)
            for job in [job for job in list(self._waiting) if job.made_at < latest]:
                self._give_up(job)

    def _is_stalled(self) -> bool:
        late = self._clock.now() - self._alive_at > self._limits.step_seconds
        return late and bool(self._running())

    def _give_up(self, job: Job) -> None:
        if self._remove(job):
            with self._lock:
                again = self._retry_after()
            room, budget = "", self._budget
            if budget is not None:
                room = f" with room for {len(job.request.prompt):,} of {budget.cells:,} tokens"
            job.end(QueueTimeout(self._limits.queue_seconds, again, room))

    def _withdraw(self, job: Job) -> None:
        """Remove a cancelled job from the queue; a running one is ended by its slot."""
        if self._remove(job):
            job.end(job.reason)

    def _remove(self, job: Job) -> bool:
        """Whether the job was waiting."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(job)
            return True
        return False

    # -- under the lock ------------------------------------------------------------------------

    def _require_queue_room(self, requested: int) -> None:
        slots = len(self._by_id)
        if self._refusal is not None:
            raise self._refusal
        self.require_progress()
        if requested > self._limits.waiting + slots:
            raise UsageError(
                f"{requested} answers were requested at once; the limit is "
                f"{self._limits.waiting + slots}.",
                "Ask for fewer.",
            )
        idle = slots - len(self._running())
        if len(self._waiting) + requested > self._limits.waiting + idle:
            raise QueueFull(len(self._waiting), self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until all waiting jobs have begun, by the mean duration of recent answers."""
        mean = sum(self._seconds) / max(1, len(self._seconds))
        return max(1, math.ceil(mean * len(self._waiting) / len(self._by_id)))

    def _assign(self) -> None:
        idle = [seat for seat in self._seats if seat.job is None and not seat.calls]
        ending = [seat for seat in self._seats if seat.job is not None and seat.job.cancelled]
        for job in list(self._waiting):
            request = job.request
            asked = None if request.slot is None else self._seat(request.slot)
            fitting = [seat for seat in idle if asked in (None, seat)]
            if fitting:
                seat = max(fitting, key=lambda seat: seat.shared(request))
                held = seat.shared(request)
                if asked is None and any(each.shared(request) > held for each in ending):
                    continue
                if not self._has_cells(seat, request):
                    break
                job.begun_at, seat.job = time.monotonic(), job
                idle.remove(seat)
                self._waiting.remove(job)
            elif not idle:
                break

    def _has_cells(self, seat: Seat, request: GenerationRequest) -> bool:
        """Whether there are cells for a request in an idle slot, which are then its own."""
        if (budget := self._budget) is None:
            return True
        wanted = budget.wanted(len(request.prompt), request.options.max_tokens)
        wanted = max(wanted, seat.held)
        fits = all(budget.served([*(each.cells for each in self._busy()), wanted]))
        seat.cells = wanted if fits else 0
        return fits

    def _busy(self) -> list[Seat]:
        """The busy slots, those that began earlier first."""
        busy = [seat for seat in self._by_id if seat.is_busy]
        return sorted(busy, key=lambda seat: seat.begun_at)

    # -- on the compute thread -----------------------------------------------------------------

    def _share(self, budget: CellBudget) -> None:
        """Let the texts under way have cells: empty idle slots, and pause answers, as needed."""
        busy = self._busy()
        for seat in busy:
            seat.cells = min(budget.n_ctx, max(seat.cells, seat.needed))
        served = [*budget.served([seat.cells for seat in busy])]
        for seat, has_cells in zip(busy, served, strict=True):
            if not has_cells and not seat.is_paused and seat.job is not None:
                most = seat.job.request.options.max_tokens
                seat.pause(budget.wanted(seat.needed, most))
            elif has_cells and seat.is_paused:
                seat.is_paused = False
                if seat.waits is not None and isinstance(seat.waits.entry.context, SharedContext):
                    self._wake(seat, CacheEmptied("The text must be read again."))
        left = budget.cells - sum(seat.cells for seat in busy if not seat.is_paused)
        idle = [seat for seat in self._seats if seat not in busy and seat.held]
        while idle and sum(seat.held for seat in idle) > left:  # drafts may hold some more
            idle.pop(0).empty(self._prefixes)
        if self._waiting:
            with self._lock:
                self._assign()

    def _make_room(self, seat: Seat, tokens: int) -> int:
        """How many of ``tokens`` a slot may hold, with the room that is made for all of them."""
        assert self._budget is not None
        others = sum(each.cells for each in self._busy() if each is not seat)
        room = min(self._budget.n_ctx, self._budget.cells - others)
        if tokens > room:
            return max(0, room)
        seat.cells = max(seat.cells, tokens)
        self._share(self._budget)
        return tokens

    @property
    def is_busy(self) -> bool:
        return any(seat.job is not None or seat.calls for seat in self._by_id)

    def turn(self) -> None:
        """Let all slots continue until each waits for a pass, then make one."""
        self._alive_at = self._clock.now()
        others = [seat for seat in self._by_id if seat not in self._read]
        for seat in (*self._read, *others):
            if seat.task is None:
                self._begin(seat)
            if seat.task is not None and seat.waits is None:
                self._resume(seat)
        if self._unread and self._batcher is not None:
            with held_interrupt():  # a pass is made once
                self._make_pass(self._batcher)

    def fail(self, error: BaseException) -> None:
        """End all answers under way with an error of the loop itself."""
        for seat in self._by_id:
            if seat.task is not None:
                self._free(seat, error)

    def abandon(self) -> None:
        self._refusal = self._refusal or Closing()
        self._cancel_running(self._refusal)

    def _make_pass(self, batcher: Batcher) -> None:
        """Make the next pass, and let the slots continue that waited for it."""
        if self._budget is not None:
            self._share(self._budget)
        for seat in [*self._unread]:
            if seat.is_paused and seat.job is not None and seat.job.cancelled:
                self._wake(seat, Cancelled())
        going = [seat for seat in self._by_id if seat.task is not None and not seat.is_paused]
        waiting = [each.waits for each in self._unread if each.waits is not None and each in going]
        if not waiting:  # those that were paused continue first
            return
        if any(handle.entry.is_prompt for handle in waiting):  # reading one takes long
            for job in self._running():
                job.flush()
        chosen = batcher.make_pass(waiting, len(going))
        self._read = [seat for seat in self._unread if seat.waits in chosen]
        for seat in self._read:
            self._unread.remove(seat)
            seat.waits = None

    def _wake(self, seat: Seat, error: Exception) -> None:
        """Let a slot continue with an error in place of the pass that it waits for."""
        assert seat.waits is not None
        seat.waits.found, seat.waits = error, None
        self._unread.remove(seat)

    def _begin(self, seat: Seat) -> None:
        if (job := seat.job) is not None:
            seat.task = SlotTask(lambda: self._answer(seat, job))
        elif seat.calls:
            seat.task = SlotTask(seat.calls[0])

    def _resume(self, seat: Seat) -> None:
        assert seat.task is not None
        error: BaseException | None = None
        try:
            if not seat.task.dead:
                seat.waits = seat.task.switch()
            if not seat.task.dead:
                if seat.waits is not None:
                    self._unread.append(seat)
                return
        except BaseException as raised:
            error = raised
        self._free(seat, error)

    def _free(self, seat: Seat, error: BaseException | None) -> None:
        if seat.task is not None and not seat.task.dead:
            with suppress(BaseException):
                seat.task.throw(error or GreenletExit())
        with held_interrupt(), self._lock:
            job, seat.job, seat.task, seat.waits = seat.job, None, None, None
            seat.cells, seat.is_paused = 0, False
            self._unread = [each for each in self._unread if each is not seat]
            if job is None:
                seat.calls.popleft()
            else:
                assert job.begun_at is not None
                self._seconds.append(time.monotonic() - job.begun_at)
                self._seats.remove(seat)
                self._seats.append(seat)
            self._assign()
            self._ended.notify_all()
        if job is not None:  # its reader may ask whether the slot is free
            job.end(error)

    def _answer(self, seat: Seat, job: Job) -> None:
        """Put the pieces; after `Limits.answer_seconds` the answer ends as it is."""
        ends = self._clock.now() + self._limits.answer_seconds
        engine, request = seat.engine, job.request
        last: Piece | None = None

        def is_over() -> bool:
            self._alive_at = self._clock.now()
            return job.cancelled or self._alive_at > ends

        def report(progress: Progress) -> None:
            job.progress = progress
            if not request.reports_progress:
                return
            job.put(_so_far(progress))
            if self._batcher is None:  # else a pass of the prompt lets the loop go on
                pause()

        try:
            with stopped_when(is_over):
                require_wanted()
                seat.claim(request.owner, self._prefixes)
                self._prefixes.restore_best(engine, list(request.prompt), request.owner)
                if self._budget is not None:  # tokens of earlier texts give their cells to others
                    most = request.options.max_tokens
                    seat.shorten(self._budget.wanted(len(request.prompt), most))
                if request.owner:
                    engine.history = self._histories.of(request.owner)
                pieces = stream_generate(
                    engine,
                    request.prompt,
                    request.options,
                    on_prompt=request.on_prompt,
                    on_progress=report,
                    clock=request.clock,
                )
                with closing(pieces):
                    for last in pieces:
                        job.put(last)
                        if last.finish_reason is None:
                            if self._batcher is None:
                                pause()
                            require_wanted()
        except Cancelled:
            if job.reason is not None:
                raise job.reason from None
            if not job.cancelled:
                job.put(_cut_off(last, self._limits.answer_seconds))
        self._save_profile(engine)

    def _save_profile(self, engine: TextEngine) -> None:
        """Save the pair profile now and then: a server may run for days."""
        if time.monotonic() - self._saved_at > _SAVE_PROFILE:
            engine.profile.save()
            self._saved_at = time.monotonic()


def _nothing() -> None:
    """Wake the compute thread, which then looks for work."""


def _so_far(progress: Progress) -> Piece:
    """A piece without an answer, with the figures of the prompt."""
    new = progress.read - progress.cached
    stats = GenerationStats(
        read_tokens=new, cached_tokens=progress.cached, prompt_seconds=progress.seconds
    )
    return Piece((), (), stats, None, 0, progress=progress)


def _cut_off(last: Piece | None, seconds: float) -> Piece:
    """The last piece of an answer that took too long, with the text that was held back.

    Raises AnswerTimeout if there was no piece yet.
    """
    if last is None:
        raise AnswerTimeout(seconds) from None
    return Piece(last.held, (), last.stats, "length", last.draft_tokens, last.status)
