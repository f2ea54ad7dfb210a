"""One requested answer, and its pieces on their way from a slot's thread to asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from localspec.chat.answer import Piece
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.engine.text_stream import Prompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Arguments of `stream_generate`; only requests of the same ``owner`` share caches."""

    prompt: Prompt
    options: GenerateOptions
    owner: str = ""


@dataclass(slots=True, eq=False)
class Job:
    """An answer that waits for a slot, or is under way in one.

    `received` gives its pieces in the event loop in which the job was made. ``begun_at``
    (`time.monotonic`) is when a slot took it; ``withdraw`` is called when it is cancelled.
    """

    request: GenerationRequest
    withdraw: "Callable[[Job], None]" = lambda job: None
    begun_at: float | None = None
    cancelled: bool = False
    reason: LocalspecError | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _arrivals: "asyncio.Queue[Arrival]" = field(default_factory=asyncio.Queue)
    _timeout: asyncio.TimerHandle | None = None

    def cancel(self, reason: LocalspecError | None = None) -> None:
        """The answer is no longer needed: leave the queue now, or the slot within a round.

        The iteration ends, with ``reason`` where there is one. Thread-safe and idempotent.
        """
        if not self.cancelled:
            self.reason = reason
            self.cancelled = True
            self.withdraw(self)

    def deliver(self, arrivals: "asyncio.Queue[Arrival]") -> None:
        """Put all past and future arrivals into this queue."""
        while not self._arrivals.empty():
            arrivals.put_nowait(self._arrivals.get_nowait())
        self._arrivals = arrivals

    # -- for the scheduler and the slot's thread ---------------------------------------------

    def wait_at_most(self, seconds: float, otherwise: "Callable[[Job], None]") -> None:
        """Call ``otherwise`` in the event loop unless a slot begins before; call in that loop."""
        self._timeout = self._loop.call_later(seconds, otherwise, self)

    def begin(self) -> None:
        """A slot takes the job."""
        self.begun_at = time.monotonic()
        self._cancel_timeout()

    def put(self, item: Piece | BaseException | None) -> None:
        """Pass on a piece, or the end: an error, or None."""
        self._in_loop(lambda: self._arrivals.put_nowait((self, item)))

    def end(self, error: BaseException | None = None) -> None:
        """The answer is complete, or ended by an error."""
        self._cancel_timeout()
        self.put(error)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._in_loop(self._timeout.cancel)

    def _in_loop(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads the answer
            self._loop.call_soon_threadsafe(act)


Arrival = tuple[Job, Piece | BaseException | None]


async def received(jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, Piece | None], None]:
    """The pieces of jobs as they come, each with its job; None at the end of a job.

    Iterate once for each job. Raises the error of the first job that fails; ending the iteration
    early cancels all jobs.
    """
    arrivals = asyncio.Queue[Arrival]()
    for job in jobs:
        job.deliver(arrivals)
    left = len(jobs)
    try:
        while left:
            job, item = await arrivals.get()
            if isinstance(item, BaseException):
                raise item
            left -= item is None
            yield job, item
    finally:
        for job in jobs:
            job.cancel()
