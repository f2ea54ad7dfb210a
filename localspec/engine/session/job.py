"""One requested answer, and its pieces on their way from the compute thread to a reader."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.answer import Answer, Collector, Piece, Progress
from localspec.core.compute import COMPUTE
from localspec.core.errors import LocalspecError, UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.speculative.loop import Clock

# Seconds between two wake-ups of a reader: each takes a core from llama.cpp for a moment.
_STREAMED, _BUFFERED = 1 / 30, 1.0
_LAST_PASS = 10.0  # seconds: a thread that computes no more must not hold up the end of a program
Arrival = Piece | BaseException | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Arguments of `stream_generate`; only requests of the same ``owner`` share caches.

    ``slot`` is the number of the slot that is to answer; None for any.
    ``on_prompt`` is called in the compute thread. With ``reports_progress``, pieces with a
    `Progress` precede the answer.
    """

    prompt: Sequence[int]
    options: GenerateOptions = GenerateOptions()
    on_prompt: Callable[[], None] | None = None
    clock: Clock = time.perf_counter
    owner: str = ""
    slot: int | None = None
    reports_progress: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """An answer that waits for a slot, is under way in one, or has ended.

    Its pieces are produced whether they are read or not, and read once: by `Stream` or `received`.
    ``made_at`` is a time of the session's clock; ``begun_at`` (`time.monotonic`) is when a slot
    took it; ``progress`` is that of its prompt; ``withdraw`` is called when it is
    cancelled.
    """

    request: GenerationRequest
    withdraw: "Callable[[Job], None]" = lambda job: None
    made_at: float = 0.0
    begun_at: float | None = None
    progress: Progress | None = None
    cancelled: bool = False
    reason: LocalspecError | None = None
    _arrivals: deque[Arrival] = field(default_factory=deque)
    _has_ended: bool = False
    _wake: Callable[[], None] = lambda: None
    _woken_at: float = -math.inf
    _wake_interval: float = _STREAMED

    def cancel(self, reason: LocalspecError | None = None) -> None:
        """The answer is no longer needed: leave the queue now, or the slot within a round.

        The reader gets ``reason``, or just the end. Thread-safe and idempotent.
        """
        if not self.cancelled:
            self.reason = reason
            self.cancelled = True
            self.withdraw(self)

    @property
    def has_arrivals(self) -> bool:
        """Whether `take` returns anything."""
        return bool(self._arrivals)

    def take(self) -> list[Arrival]:
        """The arrivals since the last call: pieces, and at the end an error or None."""
        return [self._arrivals.popleft() for _ in range(len(self._arrivals))]

    def collect(self) -> None:
        """Wake the reader once a second: the reply is not streamed."""
        self._wake_interval = _BUFFERED

    def listen(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in any thread, when something has arrived: up to 30 times a second."""
        self._wake = wake
        if self._arrivals:
            wake()

    def put(self, piece: Piece) -> None:
        """Pass on a piece; the reader may get it only with the next one, or by `flush`."""
        self._arrivals.append(piece)
        woken_at = self._woken_at
        if time.monotonic() - woken_at >= self._wake_interval:
            self.flush()
            if piece.progress is not None:  # the first token does not wait for that
                self._woken_at = woken_at

    def flush(self) -> None:
        if self._arrivals:
            self._woken_at = time.monotonic()
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """The answer is complete, or ended by an error; no effect if it has ended before."""
        if not self._has_ended:
            self._has_ended = True
            self._arrivals.append(error)
            self._wake()


async def received(jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, Piece | None], None]:
    """The pieces of jobs as they come, each with its job; None at the end of a job.

    Iterate once for each job. Raises the error of the first job that fails; ending the iteration
    early cancels all jobs.
    """
    arrived = _listening(jobs)
    left = len(jobs)
    try:
        while left:
            await arrived.wait()
            arrived.clear()
            for job in jobs:
                for item in job.take():
                    if isinstance(item, BaseException):
                        raise item
                    left -= item is None
                    yield job, item
    finally:
        for job in jobs:
            job.cancel()


def _listening(jobs: Sequence[Job]) -> asyncio.Event:
    """An event of the running event loop that is set when something arrives."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the event loop is closed: nothing reads the answer
            loop.call_soon_threadsafe(arrived.set)

    for job in jobs:
        job.listen(wake)
    return arrived


def as_completed(streams: Sequence["Stream"]) -> Iterator["Stream"]:
    """Read streams as their pieces come; yields each when its answer has ended.

    An error of an answer is kept as its stream's ``error``.
    """
    arrived, left = threading.Event(), list(streams)
    for stream in left:
        stream._job.listen(arrived.set)
    while left:
        if COMPUTE.is_current:
            COMPUTE.run_until(lambda: any(stream._job.has_arrivals for stream in left))
        else:
            arrived.wait()
        arrived.clear()
        for stream in [stream for stream in left if stream._read_what_came()]:
            left.remove(stream)
            yield stream


class Stream(Iterator[Piece], AsyncIterator[Piece]):
    """The pieces of a job, for ``for`` or ``async for``; closing or dropping it ends the answer.

    ``answer`` is what the pieces read so far say together; ``await stream`` reads the rest of them
    and returns it. At the end of a ``with`` block the stream is closed. One reader reads it: a
    second one gets UsageError. ``on_error`` is called with an error that ended the answer, before
    it is raised.
    """

    def __init__(self, job: Job) -> None:
        self.on_error: Callable[[LocalspecError], None] = lambda error: None
        self._job = job
        self.error: LocalspecError | None = None  # that ended the answer
        self._taken: deque[Arrival] = deque()
        self._ended = False
        self._collector = Collector()
        self._reading = threading.Lock()

    @property
    def answer(self) -> Answer:
        """The answer so far; complete after the last piece."""
        return self._collector.answer

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._rest().__await__()

    async def _rest(self) -> Answer:
        async for _ in self:
            pass
        return self.answer

    @contextmanager
    def _read_alone(self) -> Iterator[None]:
        """Raise UsageError where another reader waits: it would wait for ever after this one."""
        if not self._reading.acquire(blocking=False):
            raise UsageError(
                "This stream is read by another thread or task.", "Ask again for a second one."
            )
        try:
            yield
        finally:
            self._reading.release()

    def __iter__(self) -> "Stream":
        return self

    def __aiter__(self) -> "Stream":
        return self

    def __next__(self) -> Piece:
        if COMPUTE.is_current:
            COMPUTE.run_until(self._has_next)
            piece = self._next()
        else:
            with self._ended_by_interrupts():
                piece = self._awaited()
        if piece is None:
            raise StopIteration
        return piece

    def _awaited(self) -> Piece | None:
        """`_next`, as soon as it is there, from another thread than that which computes."""
        while not self._has_next():
            arrived = threading.Event()
            with self._read_alone():
                self._job.listen(arrived.set)
                arrived.wait()
        return self._next()

    async def __anext__(self) -> Piece:
        while not self._has_next():
            with self._read_alone(), self._ended_by_interrupts():
                await _listening([self._job]).wait()
        piece = self._next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    @contextmanager
    def _ended_by_interrupts(self) -> Iterator[None]:
        """End the answer at Ctrl-C, and in cancelled tasks: a traceback may keep the stream."""
        try:
            yield
        except LocalspecError:  # also of a second reader, who ends nothing
            raise
        except BaseException:
            self._job.cancel()
            raise

    async def aclose(self) -> None:
        """End the answer, if it has not ended, without waiting for its last pass."""
        self._job.cancel()
        self._ended = True

    def close(self) -> None:
        """End the answer, if it has not ended; its slot is free then for the next question."""
        self._job.cancel()
        if COMPUTE.is_current:
            COMPUTE.run_until(self._drained)
        with suppress(UsageError), self._read_alone():  # another reader waits for the end itself
            while not self._drained():
                ended = threading.Event()
                self._job.listen(ended.set)
                if not ended.wait(_LAST_PASS):
                    break
        self._ended = True

    def __del__(self) -> None:
        with suppress(AttributeError):  # the stream was not completely made
            self._job.cancelled = True  # no `cancel`: a thread may hold its lock meanwhile

    def require_uninterrupted(self) -> None:
        """Raise the Ctrl-C that ended this answer while another was waited for."""
        self._taken.extend(self._job.take())
        if self._taken and isinstance(self._taken[-1], KeyboardInterrupt):
            raise KeyboardInterrupt

    def _has_next(self) -> bool:
        self._taken.extend(self._job.take())
        return self._ended or bool(self._taken)

    def _next(self) -> Piece | None:
        """The next piece; None after the last. Raises the error that ended the answer, once."""
        item = None if self._ended else self._taken.popleft()
        if isinstance(item, Piece):
            self._collector.add(item)
            return item
        self._ended = True
        if isinstance(item, LocalspecError):
            self.error = item
            self.on_error(item)
        if item is not None:
            raise item
        return None

    def _read_what_came(self) -> bool:
        """Read without waiting; whether the answer has ended."""
        with suppress(LocalspecError):
            while self._has_next() and not self._ended:
                self._next()
        return self._ended

    def _drained(self) -> bool:
        """Drop what has arrived; whether the end has."""
        self._ended = self._ended or any(not isinstance(item, Piece) for item in self._job.take())
        return self._ended
