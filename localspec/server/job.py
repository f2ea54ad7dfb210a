"""One answer that is wanted, and its responses on their way from a slot's thread to asyncio."""

import asyncio
import time
from collections.abc import AsyncIterator
from copy import deepcopy
from dataclasses import dataclass, field, replace

from localspec.core.config import DraftTokens
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


@dataclass(slots=True)
class Job:
    """An answer that waits for a slot, or is under way in one.

    To be iterated once, in the event loop in which it was made: the responses as they come, or the
    error that ended them. ``cancel`` may be called from any thread, more than once.
    """

    ask: Ask
    asked_at: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _responses: asyncio.Queue[GenerationResponse | BaseException | None] = field(
        default_factory=asyncio.Queue
    )

    def cancel(self) -> None:
        """Want no more of it: the slot is free within a round."""
        self.cancelled = True

    async def __aiter__(self) -> AsyncIterator[GenerationResponse]:
        while (item := await self._responses.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    # -- for the slot's thread ---------------------------------------------------------------

    def put(self, response: GenerationResponse) -> None:
        """Pass a response on; its figures are those of now, for the stream's are live."""
        self._put(replace(response, stats=deepcopy(response.stats)))

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes, as the answer is complete, or because of an error."""
        self._put(error)

    def _put(self, item: GenerationResponse | BaseException | None) -> None:
        self._loop.call_soon_threadsafe(self._responses.put_nowait, item)
