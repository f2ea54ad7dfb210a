"""A slot's thread, which generates one answer after the other."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue
from time import monotonic
from typing import TypeVar

from localspec.chat.answer import Piece
from localspec.core.interrupt import Cancelled, require_wanted, stopped_when
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.generate import TextEngine, stream_generate
from localspec.server.queue.job import GenerationRequest, Job
from localspec.server.queue.limits import AnswerTimeout
from localspec.speculative.history import OwnedHistories

T = TypeVar("T")
_SAVE_PROFILE = 60.0  # seconds at least between two writes of the pair profile


class Worker:
    """Takes jobs, one at a time; ``free`` is called in its thread at the end of each.

    An error goes to the reader of its answer, and the next job begins as usual: a model recovers
    by itself from a pass that was cut off.
    """

    def __init__(
        self,
        engine: TextEngine,
        prefixes: PrefixCache,
        histories: OwnedHistories,
        answer_seconds: float,
        free: Callable[["Worker", Job], None],
        name: str,
    ) -> None:
        self._engine = engine
        self._prefixes = prefixes
        self._histories = histories
        self._owner = ""  # of what the slot holds
        self._answer_seconds = answer_seconds
        self._free = free
        self._jobs: SimpleQueue[Job | Callable[[], None] | None] = SimpleQueue()
        self._saved_at = time.monotonic()
        self._job: Job | None = None  # under way
        self._alive_at = 0.0  # its last sign of progress
        self._thread = threading.Thread(target=self._work, name=name)
        self._thread.start()

    def tokens_of(self, owner: str) -> list[int]:
        """The tokens of an owner in the target's cache; ask only while the slot is free."""
        return self._engine.target.tokens if owner == self._owner else []

    def stalled_job(self, seconds: float) -> Job | None:
        """The job under way, if it has made no progress for so long; thread-safe."""
        job, alive_at = self._job, self._alive_at
        return job if monotonic() - alive_at > seconds else None

    def take(self, job: Job | None) -> None:
        """Answer this job next; None ends the thread after the answer under way."""
        self._jobs.put(job)

    def run(self, act: Callable[[TextEngine], T], owner: str) -> Future[T]:
        """Call ``act`` with the engine in this thread, after the answer under way.

        The slot then holds nothing of other owners.
        """
        future = Future[T]()

        def run() -> None:
            try:
                with self._engine.answering():
                    self._claim(owner)
                    future.set_result(act(self._engine))
            except BaseException as raised:
                future.set_exception(raised)

        self._jobs.put(run)
        return future

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the thread, with a timeout."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not isinstance(job, Job):
                job()
                continue
            error: BaseException | None = None
            self._alive_at, self._job = monotonic(), job
            try:
                with self._engine.answering():
                    self._answer(job)
                    self._save_profile()
            except BaseException as raised:
                error = raised
            self._job = None
            self._free(self, job)  # before the end: its reader may ask whether the slot is free
            job.end(error)

    def _answer(self, job: Job) -> None:
        """Put the pieces; after ``answer_seconds`` the answer ends as it is."""
        ends = time.monotonic() + self._answer_seconds
        request = job.request
        last: Piece | None = None

        def is_over() -> bool:
            self._alive_at = monotonic()
            return job.cancelled or time.monotonic() > ends

        try:
            with stopped_when(is_over):
                require_wanted()
                self._prepare(request)
                pieces = stream_generate(self._engine, request.prompt, request.options)
                with closing(pieces):
                    for last in pieces:
                        job.put(last)
                        if last.finish_reason is None:
                            require_wanted()
        except Cancelled:
            if job.reason is not None:
                raise job.reason from None
            if not job.cancelled:
                job.put(_cut_off(last, self._answer_seconds))

    def _prepare(self, request: GenerationRequest) -> None:
        """Give the slot what its caches hold for a request, of the request's owner alone."""
        self._claim(request.owner)
        self._prefixes.take_up(self._engine, request.prompt, request.owner)
        self._engine.history = self._histories.of(request.owner)

    def _claim(self, owner: str) -> None:
        """Let the slot hold nothing of another owner."""
        if owner != self._owner:
            self._prefixes.vacate(self._engine, self._owner)
            self._owner = owner

    def _save_profile(self) -> None:
        """Save the pair profile now and then: a server may run for days."""
        if time.monotonic() - self._saved_at > _SAVE_PROFILE:
            self._engine.profile.save()
            self._saved_at = time.monotonic()


def _cut_off(last: Piece | None, seconds: float) -> Piece:
    """The last piece of an answer that took too long, with the text that was held back.

    Raises AnswerTimeout where there was no piece yet.
    """
    if last is None:
        raise AnswerTimeout(seconds) from None
    return Piece(last.held, (), last.stats, "length", last.draft_tokens, last.status)
