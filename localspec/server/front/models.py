"""The models that a front serves: loaded when asked for, and unloaded to make room."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from localspec.core import machine
from localspec.engine.session.limits import Closing, QueueTimeout
from localspec.server import BUILD
from localspec.server.errors import BadRequest
from localspec.server.front.process import ModelFailed, ModelProcess

_RETRY_AFTER = 5  # seconds
_ABANDONED_SECONDS = 60.0  # a load without waiting clients goes on so long: they may ask again
_TURN_SECONDS = 30.0  # after which others load too: a disk that does not answer would stop them
_DRAIN_SECONDS = 60.0  # for which a model that answers takes no new requests, to make room


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(eq=False, slots=True)
class Loaded:
    """A model's process, from the first request that needs it; ``users`` are its requests.

    ``open`` is cleared while new requests wait, because another model needs its place.
    """

    model: "FrontModel"
    process: ModelProcess
    ready: "asyncio.Task[None] | None" = None
    starting: bool = False  # its process runs, or answers
    users: int = 0
    used_at: float = 0.0
    open: asyncio.Event = field(default_factory=_set)

    @property
    def is_ready(self) -> bool:
        return self.ready is not None and self.ready.done()


@dataclass(eq=False, slots=True)
class FrontModel:
    """A model by its names; ``source`` is its name on the command line, ``n_bytes`` its size.

    ``expected`` reads its sizes, such as ``n_ctx``, before it is loaded.
    """

    names: tuple[str, ...]
    source: str
    n_bytes: int = 0
    expected: Callable[[], Mapping[str, Any]] = dict
    loaded: Loaded | None = None
    failure: ModelFailed | None = None

    @property
    def name(self) -> str:
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


@dataclass(eq=False)
class Models:
    """Loads the models that requests need, at most ``most`` at a time (0: any number).

    One is loaded after the other; after 30 s the next one is loaded too. A load is given up after
    ``load_seconds``, and when no request has waited for it for a minute. To make room, a model
    without requests is unloaded, of several the one used longest ago. If all answer, the one used
    longest ago takes no new requests for up to a minute, and other models go on. One without
    requests for ``idle_seconds`` is unloaded too. Requests wait for their model for ``patience``
    seconds. Without ``autoload``, only `load` loads a model. ``on_unload`` is called with a process
    before it ends. Use it in one event loop.
    """

    all: Sequence[FrontModel]
    launch: Callable[[FrontModel], ModelProcess]
    say: Callable[[str], None]
    most: int = 0
    autoload: bool = True
    idle_seconds: float | None = None
    patience: float = 600.0
    load_seconds: float = 1800.0
    created: int = field(default_factory=lambda: int(time.time()))
    on_unload: Callable[[ModelProcess], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._turn = asyncio.Lock()  # of loading; never held while answers are waited for
        self._freed = asyncio.Event()  # set, and replaced, when a model may have become idle
        self._processes: set[Loaded] = set()  # those that run, or are started
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False

    @property
    def running(self) -> int:
        return sum(each.users for each in self._processes)

    def find(self, name: object) -> FrontModel:
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

    def props(self) -> dict[str, Any]:
        return {
            "role": "router",
            "max_instances": self.most,
            "models_autoload": self.autoload,
            "build_info": BUILD,
        }

    @asynccontextmanager
    async def lease(self, model: FrontModel) -> AsyncIterator[ModelProcess]:
        """The model's process, loaded if it must be; raises ModelFailed, QueueTimeout, Closing."""
        if model.loaded is None and not self.autoload:
            raise BadRequest(
                f"{model.name} is not loaded, and requests load no model here.",
                "Load it: POST /models/load",
                param="model",
            )
        async with self._leased(model) as process:
            yield process

    @asynccontextmanager
    async def _leased(self, model: FrontModel) -> AsyncIterator[ModelProcess]:
        loaded: Loaded | None = None
        try:
            try:
                async with asyncio.timeout(self.patience):
                    loaded = await self._join(model)
                    assert loaded.ready is not None
                    await asyncio.shield(loaded.ready)
            except TimeoutError:
                raise QueueTimeout(self.patience, _RETRY_AFTER) from None
            yield loaded.process
        finally:
            if loaded is not None:
                self._leave(loaded)

    def load(self, model: FrontModel) -> None:
        """Load the model, in the background; raises BadRequest if it is already loaded."""
        if model.process is not None:
            raise BadRequest(f"{model.name} is already loaded.", param="model")
        self._spawn(self._use(model))

    async def unload(self, model: FrontModel) -> int:
        """Unload the model; its requests, whose number is returned, have three seconds to end."""
        loaded = model.loaded
        if loaded is None:
            raise BadRequest(f"{model.name} is not loaded.", param="model")
        users = loaded.users
        await self._stop(loaded)
        return users

    def close(self, seconds: float = 0.0) -> None:
        """Refuse new requests."""
        self._closing = True

    async def end(self) -> None:
        """End all processes, gracefully; answers under way have the time of a shutdown."""
        self._closing = True
        await asyncio.gather(*map(self._stop, tuple(self._processes)))

    async def _use(self, model: FrontModel) -> None:
        async with self._leased(model):
            pass

    async def _join(self, model: FrontModel) -> Loaded:
        """Count a request in, once its model takes new ones."""
        while True:
            if self._closing:
                raise Closing
            loaded = model.loaded or self._begin(model)
            if loaded.open.is_set():
                loaded.users += 1
                return loaded
            await loaded.open.wait()

    def _leave(self, loaded: Loaded) -> None:
        loaded.users -= 1
        loaded.used_at = time.monotonic()
        if not loaded.users:
            self._wake()
            self._unload_later(loaded)

    def _begin(self, model: FrontModel) -> Loaded:
        loaded = model.loaded = Loaded(model, self.launch(model))
        self._processes.add(loaded)
        loaded.ready = self._spawn(self._bring(loaded))
        return loaded

    async def _bring(self, loaded: Loaded) -> None:
        """Load a model in its turn and once there is room, if there still is a request for it."""
        began, displaced = time.monotonic(), None
        try:
            while loaded.users:
                if await self._load(loaded):
                    break
                if displaced is None or displaced not in self._processes:  # another took its place
                    displaced = min(self._ready(), key=_last_use, default=None)
                await self._wait_for_room(displaced, time.monotonic() - began)
            else:
                self._forget(loaded)
                return
        except ModelFailed as failure:
            if loaded in self._processes:  # else it was unloaded meanwhile
                self._fail(loaded, failure)
            raise Closing if self._closing else failure from None
        except QueueTimeout:
            self._forget(loaded)
            raise
        finally:
            if displaced is not None:
                displaced.open.set()
        self._spawn(self._watch(loaded))

    async def _load(self, loaded: Loaded) -> bool:
        """Load a model now; False if it needs the place of another one."""
        model = loaded.model
        while True:
            async with self._turn:
                if not await self._make_room(model.n_bytes):
                    return False
                began, loaded.starting = time.monotonic(), True
                starting = self._spawn(loaded.process.start())
                await asyncio.wait([starting], timeout=min(_TURN_SECONDS, self.load_seconds))
            left = self.load_seconds - (time.monotonic() - began)
            try:
                await asyncio.wait_for(starting, max(0.0, left))
                break
            except TimeoutError:
                loaded.process.kill()
                raise ModelFailed(
                    f"{model.name} did not load within {self.load_seconds:g} s.",
                    "Ask again: it is started again. Allow more time with --load-timeout.",
                ) from None
            except ModelFailed as failure:
                loaded.starting = False
                if not (failure.memory and self._ready()):
                    raise
                if not await self._evict():
                    return False
        model.failure = None
        loaded.used_at = time.monotonic()
        self.say(f"{model.name} is loaded ({loaded.used_at - began:.1f} s).")
        return True

    async def _watch(self, loaded: Loaded) -> None:
        """Handle an unexpected exit of a model's process."""
        if not loaded.users:
            self._unload_later(loaded)
        failure = await loaded.process.ended()
        if loaded in self._processes:
            self._fail(loaded, failure)
            self.say(f"{failure.message} The next request for it starts it again.")

    def _fail(self, loaded: Loaded, failure: ModelFailed) -> None:
        loaded.model.failure = failure
        self._forget(loaded)

    async def _make_room(self, n_bytes: int) -> bool:
        """Unload idle models until another fits, loads under way counted; False if none is idle."""
        while self.most and len(self._starting()) >= self.most:
            if not await self._evict():
                return False
        while (memory := machine.memory()) is not None:
            # The system counts pages of mapped weights as available.
            mapped = sum(
                each.process.mapped if each.is_ready else each.model.n_bytes
                for each in self._starting()
            )
            if not mapped or n_bytes + mapped <= memory[0]:
                break
            if not await self._evict():
                return False
        return True

    async def _evict(self) -> bool:
        """Unload the idle model that was used longest ago; False if there is none."""
        idle = [each for each in self._starting() if not each.users]
        if idle:
            await self._stop(min(idle, key=_last_use))
        return bool(idle)

    async def _wait_for_room(self, displaced: Loaded | None, waited: float) -> None:
        """Wait until a model may be idle; raises QueueTimeout after ``patience`` seconds.

        At first ``displaced`` takes no new requests: it might never be idle otherwise.
        """
        if waited >= self.patience:
            raise QueueTimeout(self.patience, _RETRY_AFTER)
        drain = min(_DRAIN_SECONDS, self.patience / 2)
        if displaced is not None:
            (displaced.open.clear if waited < drain else displaced.open.set)()
        with suppress(TimeoutError):
            async with asyncio.timeout((drain if waited < drain else self.patience) - waited):
                await self._freed.wait()

    def _wake(self) -> None:
        """Let those who wait for room look again."""
        self._freed.set()
        self._freed = asyncio.Event()

    def _ready(self) -> list[Loaded]:
        return [each for each in self._processes if each.is_ready]

    def _starting(self) -> list[Loaded]:
        """Those that take a place: ready, or on their way."""
        return [each for each in self._processes if each.starting]

    def _unload_later(self, loaded: Loaded) -> None:
        """Unload a model that stays without requests, or give up its load."""
        used_at, seconds = loaded.used_at, self.idle_seconds
        if not loaded.is_ready:
            seconds = _ABANDONED_SECONDS

        def unload() -> None:
            if loaded.model.loaded is loaded and not loaded.users and loaded.used_at == used_at:
                self._spawn(self._stop(loaded))

        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, unload)

    async def _stop(self, loaded: Loaded) -> None:
        was_ready = loaded.is_ready and loaded in self._processes
        self._forget(loaded)
        if was_ready and self.on_unload is not None and not self._closing:
            await self.on_unload(loaded.process)
        await loaded.process.stop()
        if was_ready:
            self.say(f"{loaded.process.name} is unloaded.")

    def _forget(self, loaded: Loaded) -> None:
        """Let further requests load the model again."""
        self._processes.discard(loaded)
        if loaded.model.loaded is loaded:
            loaded.model.loaded = None
        loaded.open.set()
        self._wake()

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # requests get it: no other reader


_last_use = attrgetter("used_at")
