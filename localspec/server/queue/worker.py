"""A thread that gives one answer after the other, on one of the sequences of an engine."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from queue import SimpleQueue

from localspec.chat.answer import Piece
from localspec.core.interrupt import Cancelled, require_wanted, stopped_when
from localspec.engine.generate import TextEngine, stream_generate
from localspec.engine.prefix_cache import PrefixCache
from localspec.server.queue.job import Job
from localspec.server.queue.limits import AnswerTimeout

_KEEP_PROFILE = 60.0  # seconds: what was learnt is written no more often


class Worker:
    """Takes jobs, one at a time; ``free`` is called in its thread at the end of each.

    What goes wrong in an answer is told to its reader, and the next job begins as any other: a
    model recovers by itself from a pass that was cut off.
    """

    def __init__(
        self,
        engine: TextEngine,
        prefixes: PrefixCache,
        answer_seconds: float,
        free: Callable[["Worker", Job], None],
        name: str,
    ) -> None:
        self._engine = engine
        self._prefixes = prefixes
        self._answer_seconds = answer_seconds
        self._free = free
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._kept_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name=name)
        self._thread.start()

    @property
    def tokens(self) -> list[int]:
        """What the target holds; to be looked at while the slot is free."""
        return self._engine.target.tokens

    def take(self, job: Job) -> None:
        """Answer this next."""
        self._jobs.put(job)

    def close(self) -> None:
        """Take no more jobs; the one under way goes on."""
        self._jobs.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the thread, no longer than so many seconds."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: BaseException | None = None
            try:
                self._answer(job)
            except BaseException as raised:
                error = raised
            self._free(self, job)  # first: who is told of the end may ask whether the slot is free
            job.end(error)

    def _answer(self, job: Job) -> None:
        """Put the responses; after the time of an answer what is there is all of it."""
        ends = time.monotonic() + self._answer_seconds

        def unwanted() -> bool:
            return job.cancelled or time.monotonic() > ends

        last: Piece | None = None
        with self._engine.answering():
            try:
                with stopped_when(unwanted), closing(self._responses(job)) as responses:
                    for last in responses:
                        job.put(last)
                        if last.finish_reason is None:
                            require_wanted()
            except Cancelled:
                if job.reason is not None:
                    raise job.reason from None
                if not job.cancelled:
                    job.put(_cut_off(last, self._answer_seconds))
            self._keep_profile()

    def _responses(self, job: Job) -> Generator[Piece, None, None]:
        require_wanted()
        request, engine = job.request, self._engine
        self._prefixes.take_up(engine, request.prompt)
        return stream_generate(engine, request.prompt, request.options)

    def _keep_profile(self) -> None:
        """A server runs for days: what was learnt is not only written at its end."""
        if time.monotonic() - self._kept_at > _KEEP_PROFILE:
            self._engine.profile.save()
            self._kept_at = time.monotonic()


def _cut_off(last: Piece | None, seconds: float) -> Piece:
    """The end of an answer that took too long, with the text that was held back.

    Raises AnswerTimeout where nothing was said yet.
    """
    if last is None:
        raise AnswerTimeout(seconds) from None
    return Piece(last.held, (), last.stats, "length", last.draft_tokens, last.status)
