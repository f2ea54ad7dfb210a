"""One answer that is wanted, and its responses on their way from a slot's thread to asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace

from localspec.core.config import DraftTokens
from localspec.core.errors import LocalspecError
from localspec.core.sampling_params import SamplingParams
from localspec.engine.answer import GenerationResponse
from localspec.engine.text_stream import Prompt


@dataclass(frozen=True, slots=True)
class Ask:
    """What `stream_generate` is to be called with."""

    prompt: Prompt
    params: SamplingParams
    draft_tokens: DraftTokens
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    suffix: bool = True
    logprobs: int | None = None


@dataclass(slots=True, eq=False)
class Job:
    """An answer that waits for a slot, or is under way in one.

    To be iterated once, in the event loop in which it was made: the responses as they come, or the
    error that ended them. Whoever leaves the iteration early cancels it. ``asked_at`` and
    ``begun_at``, when a slot took it, are of `time.monotonic`.
    """

    ask: Ask
    withdraw: "Callable[[Job], None]" = lambda job: None  # told of a cancellation
    asked_at: float = field(default_factory=time.monotonic)
    begun_at: float | None = None
    cancelled: bool = False
    reason: LocalspecError | None = None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _responses: asyncio.Queue[GenerationResponse | BaseException | None] = field(
        default_factory=asyncio.Queue
    )
    _patience: asyncio.TimerHandle | None = None

    def cancel(self, reason: LocalspecError | None = None) -> None:
        """Want no more of it: it leaves the queue at once, or its slot within a round.

        The iteration ends, with ``reason`` where there is one. From any thread, more than once.
        """
        if not self.cancelled:
            self.reason = reason
            self.cancelled = True
            self.withdraw(self)

    async def __aiter__(self) -> AsyncIterator[GenerationResponse]:
        try:
            while (item := await self._responses.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.cancel()

    # -- for the scheduler and the slot's thread ---------------------------------------------

    def wait_at_most(self, seconds: float, otherwise: "Callable[[Job], None]") -> None:
        """Call ``otherwise`` in the event loop unless a slot begins before; to be called there."""
        self._patience = self._loop.call_later(seconds, otherwise, self)

    def begin(self) -> None:
        """A slot takes it."""
        self.begun_at = time.monotonic()
        self._wait_no_more()

    def put(self, response: GenerationResponse) -> None:
        """Pass a response on; its figures are those of now, for the stream's are live."""
        self._put(replace(response, stats=deepcopy(response.stats)))

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes, as the answer is complete, or because of an error."""
        self._wait_no_more()
        self._put(error)

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._in_loop(self._patience.cancel)

    def _put(self, item: GenerationResponse | BaseException | None) -> None:
        self._in_loop(lambda: self._responses.put_nowait(item))

    def _in_loop(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody there to be told
            self._loop.call_soon_threadsafe(act)
