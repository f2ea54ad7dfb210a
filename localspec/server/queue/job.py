"""One answer that is wanted, and its responses on their way from a slot's thread to asyncio."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from localspec.chat.answer import Piece
from localspec.core.errors import LocalspecError
from localspec.core.generate_options import GenerateOptions
from localspec.engine.text_stream import Prompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What `stream_generate` is to be called with."""

    prompt: Prompt
    options: GenerateOptions


@dataclass(slots=True, eq=False)
class Job:
    """An answer that waits for a slot, or is under way in one.

    Its responses come from `received`, in the event loop in which it was made. ``asked_at`` and
    ``begun_at``, when a slot took it, are of `time.monotonic`.
    """

    request: GenerationRequest
    withdraw: "Callable[[Job], None]" = lambda job: None  # told of a cancellation
    asked_at: float = field(default_factory=time.monotonic)
    begun_at: float | None = None
    cancelled: bool = False
    reason: LocalspecError | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _arrivals: "asyncio.Queue[Arrival]" = field(default_factory=asyncio.Queue)
    _patience: asyncio.TimerHandle | None = None

    def cancel(self, reason: LocalspecError | None = None) -> None:
        """Want no more of it: it leaves the queue at once, or its slot within a round.

        The iteration ends, with ``reason`` where there is one. From any thread, more than once.
        """
        if not self.cancelled:
            self.reason = reason
            self.cancelled = True
            self.withdraw(self)

    def deliver(self, arrivals: "asyncio.Queue[Arrival]") -> None:
        """Put all that has come, and all that comes, into this queue."""
        while not self._arrivals.empty():
            arrivals.put_nowait(self._arrivals.get_nowait())
        self._arrivals = arrivals

    # -- for the scheduler and the slot's thread ---------------------------------------------

    def wait_at_most(self, seconds: float, otherwise: "Callable[[Job], None]") -> None:
        """Call ``otherwise`` in the event loop unless a slot begins before; to be called there."""
        self._patience = self._loop.call_later(seconds, otherwise, self)

    def begin(self) -> None:
        """A slot takes it."""
        self.begun_at = time.monotonic()
        self._wait_no_more()

    def put(self, piece: Piece) -> None:
        """Pass a piece on."""
        self._put(piece)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes, as the answer is complete, or because of an error."""
        self._wait_no_more()
        self._put(error)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._in_loop(self._patience.cancel)

    def _put(self, item: Piece | BaseException | None) -> None:
        self._in_loop(lambda: self._arrivals.put_nowait((self, item)))

    def _in_loop(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody there to be told
            self._loop.call_soon_threadsafe(act)


Arrival = tuple[Job, Piece | BaseException | None]


async def received(
    jobs: Sequence[Job],
) -> AsyncGenerator[tuple[Job, Piece | None], None]:
    """The responses of jobs as they come, each with its job; None at the end of a job.

    To be iterated once for each job. Raises the error of the first job that fails; who leaves the
    iteration early cancels all.
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
