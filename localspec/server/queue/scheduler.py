"""The queue: first in, first out; each job runs in the slot with the longest cached prefix."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from localspec.core.errors import UsageError
from localspec.engine.caches.prefix_cache import WORTH_KEEPING, PrefixCache
from localspec.engine.generate import TextEngine
from localspec.server.queue.job import GenerationRequest, Job
from localspec.server.queue.limits import (
    Closing,
    Limits,
    QueueFull,
    QueueTimeout,
    Stalled,
)
from localspec.server.queue.worker import T, Worker
from localspec.speculative.history import OwnedHistories
from localspec.speculative.prefix import common_prefix

_LIMITS = Limits()
_RECENT = 16  # answers whose mean duration estimates Retry-After


class SlotState(NamedTuple):
    """A slot, and whether it answers a request now."""

    id: int
    is_processing: bool


class Scheduler:
    """The queue in front of the slots, each of which has a thread.

    Jobs begin in the order in which they were submitted. Of several free slots, the one whose cache
    shares the longest prefix with the prompt takes the job, else the least recently used one, as
    in llama.cpp's server (`get_available_slot`). ``prefixes`` stores caches that slots overwrite.
    Prefixes and earlier answers are those of the job's owner alone.

    Jobs are submitted and iterated in an event loop; all else is thread-safe.
    """

    def __init__(
        self,
        slots: Sequence[TextEngine],
        limits: Limits = _LIMITS,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._closing = False
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        prefixes = PrefixCache(0) if prefixes is None else prefixes
        histories = OwnedHistories(slots[0].history if slots else None)
        self._workers = [
            Worker(engine, prefixes, histories, limits.answer_seconds, self._free, f"slot {i}")
            for i, engine in enumerate(slots)
        ]
        self._idle = list(self._workers)  # least recently used first
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watching slots", daemon=True).start()

    @property
    def waiting(self) -> int:
        """How many jobs wait for a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many jobs are under way."""
        return len(self._running)

    def require_progress(self) -> None:
        """Raise Stalled while a slot makes no progress."""
        if stalled := self._stalled():
            raise Stalled(self._limits.step_seconds, len(stalled))

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Job]:
        """Queue answers in this order, all or none; call in an event loop.

        A job that waits too long ends with QueueTimeout. Raises QueueFull where the queue has no
        room for all now, UsageError where it never has, Closing after `close`, Stalled while no
        slot makes progress.
        """
        jobs = [Job(request, self._withdraw) for request in requests]
        with self._lock:
            self._require_queue_room(len(jobs))
            self._waiting.extend(jobs)
            self._assign()
            for job in jobs:
                if job.begun_at is None:
                    job.wait_at_most(self._limits.queue_seconds, self._give_up)
        return jobs

    def slots(self) -> list[SlotState]:
        """What each slot does now."""
        with self._lock:
            return [SlotState(i, each not in self._idle) for i, each in enumerate(self._workers)]

    def run(self, slot: int, act: Callable[[TextEngine], T], owner: str = "") -> Future[T]:
        """Call ``act`` in the thread of a slot, after its answer under way.

        It finds the slot empty where that held what is another owner's. Raises UsageError where
        there is no such slot, Closing after `close`.
        """
        with self._lock:
            if self._closing:
                raise Closing
            if not 0 <= slot < len(self._workers):
                raise UsageError(
                    f"There is no slot {slot}.", f"The last one is {len(self._workers) - 1}."
                )
            return self._workers[slot].run(act, owner)

    def close(self, seconds: float = 0.0) -> None:
        """Refuse waiting and new jobs, and return when those under way have ended.

        They get Closing after so many seconds. Blocks: call outside of the event loop in which
        they are read. Idempotent.
        """
        ends = time.monotonic() + seconds
        with self._lock:
            self._closing = True
            self._closed.set()
            refused = list(self._waiting)
        for job in refused:
            job.cancel(Closing())
        for worker in self._workers:
            worker.take(None)
        for worker in self._workers:
            worker.join(max(0.0, ends - time.monotonic()))
        with self._lock:
            late = list(self._running)
        for job in late:
            job.cancel(Closing())
        for worker in self._workers:
            worker.join()

    def _stalled(self) -> list[Job]:
        """The jobs of slots that make no progress."""
        found = [worker.stalled_job(self._limits.step_seconds) for worker in self._workers]
        return [job for job in found if job is not None]

    def _watch(self) -> None:
        """End the answers of slots that make no progress: their readers need not wait."""
        while not self._closed.wait(min(1.0, self._limits.step_seconds)):
            for job in self._stalled():
                if not job.cancelled:
                    job.cancel(Stalled(self._limits.step_seconds))
                    job.end(job.reason)

    # -- called by jobs and slots --------------------------------------------------------------

    def _withdraw(self, job: Job) -> None:
        """Remove a cancelled job from the queue; a running one is ended by its slot."""
        if self._remove(job):
            job.end(job.reason)

    def _give_up(self, job: Job) -> None:
        if self._remove(job):
            with self._lock:
                again = self._retry_after()
            job.end(QueueTimeout(self._limits.queue_seconds, again))

    def _remove(self, job: Job) -> bool:
        """Whether the job was waiting."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(job)
            return True
        return False

    def _free(self, worker: Worker, job: Job) -> None:
        with self._lock:
            if job.begun_at is not None:
                self._seconds.append(time.monotonic() - job.begun_at)
            self._running.discard(job)
            self._idle.append(worker)
            self._assign()

    # -- under the lock ------------------------------------------------------------------------

    def _assign(self) -> None:
        """Give waiting jobs to idle slots."""
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            worker = max(self._idle, key=lambda worker: _shared(worker, job.request))
            self._idle.remove(worker)
            self._running.add(job)
            job.begin()
            worker.take(job)

    def _require_queue_room(self, requested: int) -> None:
        most = self._limits.waiting + len(self._workers)
        if self._closing:
            raise Closing
        if len(self._stalled()) == len(self._workers):
            self.require_progress()
        if requested > most:
            raise UsageError(
                f"{requested} answers were requested at once, and {most} is the most.",
                "Ask for fewer.",
            )
        if len(self._waiting) + requested > self._limits.waiting + len(self._idle):
            raise QueueFull(len(self._waiting), self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until all waiting jobs have begun, by the mean duration of recent answers."""
        mean = sum(self._seconds) / max(1, len(self._seconds))
        return max(1, math.ceil(mean * len(self._waiting) / len(self._workers)))


def _shared(worker: Worker, request: GenerationRequest) -> int:
    """Tokens of the prompt in the slot's cache; 0 for a prefix too short to prefer this slot."""
    shared = common_prefix(worker.tokens_of(request.owner), request.prompt)
    return shared if shared >= WORTH_KEEPING else 0
