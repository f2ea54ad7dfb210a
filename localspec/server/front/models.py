"""The models that a front serves: loaded when asked for, and unloaded to make room."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from localspec.core import machine
from localspec.engine.session.limits import Closing, QueueTimeout
from localspec.server.errors import BadRequest
from localspec.server.front.process import ModelFailed, ModelProcess

_RETRY_AFTER = 5  # seconds


@dataclass(eq=False, slots=True)
class Loaded:
    """A model's process, from the first request that needs it; ``users`` are its requests."""

    model: "Model"
    process: ModelProcess
    ready: "asyncio.Task[None] | None" = None
    users: int = 0
    used_at: float = 0.0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        return self.ready is not None and self.ready.done()


@dataclass(eq=False, slots=True)
class Model:
    """A model by its names; ``source`` is what the command line calls it, ``n_bytes`` its size."""

    names: tuple[str, ...]
    source: str
    n_bytes: int = 0
    loaded: Loaded | None = None
    failure: ModelFailed | None = None

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]

    @property
    def process(self) -> ModelProcess | None:
        """Its process, once it answers."""
        return self.loaded.process if self.loaded and self.loaded.is_ready else None

    @property
    def state(self) -> str:
        """As llama-server calls it."""
        return "unloaded" if self.loaded is None else "loaded" if self.process else "loading"

    def status(self) -> dict[str, Any]:
        """The state in llama-server's form, with the reason of a failure."""
        if self.failure is None or self.loaded is not None:
            return {"value": self.state}
        reason = f"{self.failure.message} {self.failure.hint}".strip()
        failed = {"failed": True, "exit_code": self.failure.process_code, "error": reason}
        return {"value": self.state} | failed


class Models:
    """Loads the models that requests need, at most ``most`` at a time (0: any number).

    One is loaded after the other. To make room, the model that was used longest ago is unloaded as
    soon as it answers nobody; so is one without requests for ``idle_seconds``. Requests wait for
    their model for ``patience`` seconds. Use it in one event loop.
    """

    def __init__(
        self,
        models: Sequence[Model],
        launch: Callable[[Model], ModelProcess],
        say: Callable[[str], None],
        *,
        most: int = 0,
        idle_seconds: float | None = None,
        patience: float = 600.0,
    ) -> None:
        self.all = tuple(models)
        self.created = int(time.time())
        self._launch = launch
        self._say = say
        self._most = most
        self._idle_seconds = idle_seconds
        self._patience = patience
        self._turn = asyncio.Lock()  # of loading: first in, first out
        self._processes: set[Loaded] = set()  # those that run, or are started
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def running(self) -> int:
        """How many requests are answered, or wait for their model."""
        return sum(each.users for each in self._processes)

    def find(self, name: object) -> Model:
        """The model of this name, the first one for None; raises BadRequest."""
        if name is None:
            return self.all[0]
        for model in self.all:
            if name in model.names:
                return model
        shown = ", ".join([model.name for model in self.all][:20])
        message = f"There is no model {str(name)!r} here: this server has {shown}."
        raise BadRequest(
            message, "GET /v1/models lists them.", status=404, param="model", code="model_not_found"
        )

    @asynccontextmanager
    async def lease(self, model: Model) -> AsyncIterator[ModelProcess]:
        """The model's process, loaded first where needed, and not unloaded meanwhile.

        Raises ModelFailed with the reason where it cannot be loaded, QueueTimeout, Closing.
        """
        if self._closing:
            raise Closing
        loaded = model.loaded or self._begin(model)
        loaded.users += 1
        loaded.idle.clear()
        assert loaded.ready is not None
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await asyncio.shield(loaded.ready)
            except TimeoutError:
                raise QueueTimeout(self._patience, _RETRY_AFTER) from None
            yield loaded.process
        finally:
            loaded.users -= 1
            loaded.used_at = time.monotonic()
            if not loaded.users:
                loaded.idle.set()
                self._unload_later(loaded)

    def load(self, model: Model) -> None:
        """Load the model, in the background; raises BadRequest where it is already."""
        if model.process is not None:
            raise BadRequest(f"{model.name} is already loaded.", param="model")
        self._spawn(self._use(model))

    async def unload(self, model: Model) -> None:
        """Unload the model: its requests have the time of a shutdown; raises BadRequest."""
        loaded = model.loaded
        if loaded is None:
            raise BadRequest(f"{model.name} is not loaded.", param="model")
        await self._stop(loaded)

    def close(self, seconds: float = 0.0) -> None:
        """Refuse new requests."""
        self._closing = True

    async def end(self) -> None:
        """End all processes, gracefully; answers under way have the time of a shutdown."""
        self._closing = True
        await asyncio.gather(*map(self._stop, tuple(self._processes)))

    # -- loading -------------------------------------------------------------------------------

    async def _use(self, model: Model) -> None:
        async with self.lease(model):
            pass

    def _begin(self, model: Model) -> Loaded:
        loaded = model.loaded = Loaded(model, self._launch(model))
        self._processes.add(loaded)
        loaded.ready = self._spawn(self._bring(loaded))
        return loaded

    async def _bring(self, loaded: Loaded) -> None:
        """Load a model when it is its turn, if there still is a request for it."""
        try:
            async with self._turn:
                if not loaded.users:
                    self._forget(loaded)
                    return
                await self._load(loaded)
        except ModelFailed as failure:
            if loaded in self._processes:  # else it was unloaded meanwhile
                self._fail(loaded, failure)
            raise Closing if self._closing else failure from None
        self._spawn(self._watch(loaded))

    async def _load(self, loaded: Loaded) -> None:
        began, model = time.monotonic(), loaded.model
        while True:
            await self._make_room(model.n_bytes)
            try:
                await loaded.process.start()
                break
            except ModelFailed as failure:
                if not (failure.memory and await self._evict()):
                    raise
        model.failure = None
        loaded.used_at = time.monotonic()
        self._say(f"{model.name} is loaded ({loaded.used_at - began:.1f} s).")

    async def _watch(self, loaded: Loaded) -> None:
        """Note the end of a process that nobody wanted."""
        failure = await loaded.process.ended()
        if loaded in self._processes:
            self._fail(loaded, failure)
            self._say(f"{failure.message} The next request for it starts it anew.")

    def _fail(self, loaded: Loaded, failure: ModelFailed) -> None:
        loaded.model.failure = failure
        self._forget(loaded)

    # -- making room ---------------------------------------------------------------------------

    async def _make_room(self, n_bytes: int) -> None:
        """Unload models until another may be loaded, and its weights fit beside the others'."""
        while self._most and len(self._ready()) >= self._most:
            await self._evict()
        while (memory := machine.memory()) is not None:
            # The system counts pages of mapped weights as available.
            mapped = sum(each.process.mapped for each in self._ready())
            if not mapped or n_bytes + mapped <= memory[0]:
                return
            await self._evict()

    async def _evict(self) -> bool:
        """Unload the model that was used longest ago, once it answers nobody; False without any."""
        chosen = min(self._ready(), key=lambda each: (each.users > 0, each.used_at), default=None)
        if chosen is None:
            return False
        self._detach(chosen)
        await chosen.idle.wait()
        await self._stop(chosen)
        return True

    def _ready(self) -> list[Loaded]:
        return [each for each in self._processes if each.is_ready]

    def _unload_later(self, loaded: Loaded) -> None:
        used_at = loaded.used_at

        def unload() -> None:
            if loaded.model.loaded is loaded and not loaded.users and loaded.used_at == used_at:
                self._spawn(self._stop(loaded))

        if self._idle_seconds is not None:
            asyncio.get_running_loop().call_later(self._idle_seconds, unload)

    async def _stop(self, loaded: Loaded) -> None:
        told = loaded.is_ready and loaded in self._processes
        self._forget(loaded)
        await loaded.process.stop()
        if told:
            self._say(f"{loaded.process.name} is unloaded.")

    def _forget(self, loaded: Loaded) -> None:
        self._processes.discard(loaded)
        self._detach(loaded)

    def _detach(self, loaded: Loaded) -> None:
        """Let further requests wait until the model is loaded anew."""
        if loaded.model.loaded is loaded:
            loaded.model.loaded = None

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # requests get it; nobody else asks
