"""Requests answered in the order in which they came, each by the first slot that is free."""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from localspec.core.errors import LocalspecError
from localspec.engine.generate import TextEngine, stream_generate
from localspec.server.job import Ask, Job


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is asked for at the same time: jobs that may wait, and seconds."""

    waiting: int = 64
    queue_seconds: float = 600.0
    answer_seconds: float = 3600.0


class QueueFull(LocalspecError):
    """As many requests wait as may; ``retry_after`` is in seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(
            f"{waiting} requests are waiting already.", f"Ask again in {retry_after} s."
        )
        self.retry_after = retry_after


class Scheduler:
    """A thread for each slot, and the queue in front of them."""

    def __init__(self, slots: Sequence[TextEngine], limits: Limits = Limits()) -> None:
        self._limits = limits
        self._waiting: deque[Job] = deque()
        self._running: set[int] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"slot {i}")
            for i, slot in enumerate(slots)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that no slot has begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs under way."""
        return len(self._running)

    def submit(self, ask: Ask) -> Job:
        """Queue an answer; to be called in an event loop. Raises QueueFull."""
        job = Job(ask)
        with self._changed:
            if len(self._waiting) >= self._limits.waiting:
                raise QueueFull(len(self._waiting), 1)
            self._waiting.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Take no more, and wait for the answers under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _serve(self, slot: TextEngine) -> None:
        while (job := self._next()) is not None:
            try:
                self._answer(slot, job)
            except BaseException as error:
                job.end(error)
            else:
                job.end()
            finally:
                with self._changed:
                    self._running.discard(id(job))

    def _next(self) -> Job | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            job = self._waiting.popleft()
            self._running.add(id(job))
            return job

    @staticmethod
    def _answer(slot: TextEngine, job: Job) -> None:
        ask = job.ask
        responses = stream_generate(
            slot,
            ask.prompt,
            ask.params,
            ask.draft_tokens,
            suffix=ask.suffix,
            max_tokens=ask.max_tokens,
            stop=ask.stop,
            grammar=ask.grammar,
        )
        with closing(responses):
            for response in responses:
                if job.cancelled:
                    return
                job.put(response)
