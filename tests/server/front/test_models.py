"""Which models are loaded, by processes that do nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from localspec.core import machine
from localspec.engine.session.limits import Closing, QueueTimeout
from localspec.server.errors import BadRequest
from localspec.server.front import models as models_module
from localspec.server.front.models import FrontModel, Models
from localspec.server.front.process import ModelFailed, ModelProcess

NAMES = ("a", "b", "c", "d")
Step = Callable[["Site"], Coroutine[Any, Any, None]]


class Idle:
    """A process that loads at once, unless ``refuses`` or ``hangs``, and ends when told to."""

    def __init__(self, name: str, site: "Site") -> None:
        self.name, self.mapped, self._site = name, 100, site
        self._over = asyncio.Event()
        self._crashed = False

    async def start(self) -> None:
        self._site.events.append(f"+{self.name}")
        await asyncio.sleep(0)
        if self.name in self._site.hangs:
            await self._over.wait()
            raise ModelFailed("It was unloaded.")
        if self._site.refuses and self._site.refuses.pop(0):
            raise ModelFailed("It does not fit.", memory=True)

    async def ended(self) -> ModelFailed:
        await self._over.wait()
        return ModelFailed(f"The process of {self.name} ended.", process_code=-9)

    async def stop(self) -> None:
        self._site.events.append(f"-{self.name}")
        self._over.set()

    def kill(self) -> None:
        self._site.events.append(f"!{self.name}")
        self._over.set()

    def crash(self) -> None:
        self._over.set()


class Site:
    """Models over idle processes; ``events`` are what was started and stopped."""

    def __init__(self, **options: Any) -> None:
        self.events: list[str] = []
        self.refuses: list[bool] = []
        self.hangs: set[str] = set()

        def launch(model: FrontModel) -> ModelProcess:
            return cast(ModelProcess, Idle(model.name, self))

        models = [FrontModel((name,), name, n_bytes=100) for name in NAMES]
        self.models = Models(models, launch, lambda line: None, **options)

    async def use(self, name: str, until: asyncio.Event | None = None) -> None:
        async with self.models.lease(self.models.find(name)) as process:
            assert process.name == name
            if until is not None:
                await until.wait()

    def begin(self, name: str) -> tuple["asyncio.Task[None]", asyncio.Event]:
        end = asyncio.Event()
        return asyncio.create_task(self.use(name, end)), end

    def process(self, name: str) -> Idle:
        return cast(Idle, self.models.find(name).process)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def longest_unused_goes_first(site: Site) -> None:
    for name in "abac":
        await site.use(name)
    assert site.events == ["+a", "+b", "-b", "+c"]


async def what_answers_stays(site: Site) -> None:
    first, end = site.begin("a")
    await settle()
    await site.use("b")
    await site.use("c")
    assert site.events == ["+a", "+b", "-b", "+c"]
    end.set()
    await first


async def where_all_answer_the_first_to_end_gives_way(site: Site) -> None:
    tasks, ends = zip(*[site.begin(name) for name in "abc"], strict=True)
    await settle()
    again, _ = site.begin("a")  # waits behind c
    await settle()
    assert site.events == ["+a", "+b"]
    ends[2].set()
    ends[0].set()
    await tasks[2]
    assert site.events[:4] == ["+a", "+b", "-a", "+c"]
    ends[1].set()
    await asyncio.wait([again], timeout=0)
    await settle()
    assert site.events[4:] in (["-b", "+a"], ["-c", "+a"])
    again.cancel()


async def who_leaves_while_it_waits_loads_nothing(site: Site) -> None:
    tasks, ends = zip(*[site.begin(name) for name in "ab"], strict=True)
    await settle()
    waiting, _ = site.begin("c")
    late, _ = site.begin("a")
    await settle()
    for task in (waiting, late):
        task.cancel()
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    await settle()
    assert site.events == ["+a", "+b"]
    await site.use("b")  # nothing is stuck
    assert site.events == ["+a", "+b"]


async def a_refusal_for_memory_makes_room(site: Site) -> None:
    await site.use("a")
    site.refuses = [True, False]
    await site.use("b")
    assert site.events == ["+a", "+b", "-a", "+b"]
    await site.models.unload(site.models.find("b"))
    site.refuses = [True]
    with pytest.raises(ModelFailed, match="does not fit"):
        await site.use("a")
    assert site.models.find("a").status()["error"] == "It does not fit."
    await site.use("a")  # asked again
    assert site.models.find("a").status() == {"value": "loaded"}


async def a_crash_is_followed_by_a_restart(site: Site) -> None:
    await site.use("a")
    site.process("a").crash()
    await settle()
    assert site.models.find("a").status()["exit_code"] == -9
    await site.use("a")
    assert site.events == ["+a", "+a"]


async def load_and_unload(site: Site) -> None:
    model = site.models.find(None)
    with pytest.raises(BadRequest, match="not loaded"):
        await site.models.unload(model)
    site.models.load(model)
    assert model.state == "unloaded"
    await settle()
    assert model.state == "loaded"
    with pytest.raises(BadRequest, match="already loaded"):
        site.models.load(model)
    await site.models.unload(model)
    assert model.status() == {"value": "unloaded"}
    with pytest.raises(BadRequest, match="has a, b, c, d"):
        site.models.find("e")


async def what_is_unloaded_by_hand_makes_room(site: Site) -> None:
    tasks, _ = zip(*[site.begin(name) for name in "ab"], strict=True)
    await settle()
    waiting, end = site.begin("c")
    await settle()
    assert site.models.find("a").state == "loaded"  # also while its place is waited for
    assert await site.models.unload(site.models.find("a")) == 1
    await settle()
    assert site.events == ["+a", "+b", "-a", "+c"]
    end.set()
    await waiting
    for task in tasks:
        task.cancel()


async def what_took_the_place_gives_way_too(site: Site) -> None:
    """Of two that wait for one place, the first gets it, and takes requests without end."""
    tasks, ends = zip(*[site.begin(name) for name in "ab"], strict=True)
    await settle()
    other, over = site.begin("c")
    await settle()
    last = asyncio.create_task(site.use("d"))
    await settle()
    ends[0].set()  # of a, whose place c gets; d waits for that of b
    await settle()
    assert site.events == ["+a", "+b", "-a", "+c"]
    again, _ = site.begin("b")  # without which d would wait for as long as b is asked
    await settle()
    ends[1].set()
    await settle()
    assert site.events[4:6] == ["-b", "+d"]
    over.set()
    await asyncio.gather(*tasks, other, last)
    again.cancel()


async def at_the_end_nobody_is_let_in(site: Site) -> None:
    await site.use("a")
    await site.models.end()
    assert site.events == ["+a", "-a"]
    with pytest.raises(Closing):
        await site.use("b")


@pytest.mark.parametrize(
    "step",
    [
        longest_unused_goes_first,
        what_answers_stays,
        where_all_answer_the_first_to_end_gives_way,
        who_leaves_while_it_waits_loads_nothing,
        a_refusal_for_memory_makes_room,
        a_crash_is_followed_by_a_restart,
        load_and_unload,
        what_is_unloaded_by_hand_makes_room,
        what_took_the_place_gives_way_too,
        at_the_end_nobody_is_let_in,
    ],
)
def test_two_models_of_three(step: Step) -> None:
    async def run() -> None:
        await step(Site(most=2))

    asyncio.run(run())


def test_weights_that_do_not_fit_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda: (250, 1000))

    async def run() -> None:
        site = Site()
        for name in "abc":
            await site.use(name)
        assert site.events == ["+a", "+b", "-a", "+c"]

    asyncio.run(run())


def test_idle_models_are_unloaded_and_waiting_has_a_limit() -> None:
    async def run() -> None:
        site = Site(most=1, idle_seconds=0.01, patience=0.05)
        first, end = site.begin("a")
        await asyncio.sleep(0.03)
        assert site.events == ["+a"]  # while it answers
        with pytest.raises(QueueTimeout):
            await site.use("b")
        end.set()
        await first
        while "-a" not in site.events:
            await asyncio.sleep(0.01)

    asyncio.run(run())


def test_an_answer_without_end_stops_only_the_model_that_needs_its_place() -> None:
    async def run() -> None:
        site = Site(most=1, patience=0.2)
        first, end = site.begin("a")
        await settle()
        other, _ = site.begin("b")
        await settle()
        await site.use("a")  # it waits, and is answered before b is given up
        assert not other.done()
        with pytest.raises(QueueTimeout):
            await other
        await site.use("a")
        assert site.events == ["+a"]
        end.set()
        await first
        await site.use("b")
        assert site.events == ["+a", "-a", "+b"]

    asyncio.run(run())


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TURN_SECONDS", "_ABANDONED_SECONDS"):
        monkeypatch.setattr(models_module, name, 0.01)


def test_a_load_that_hangs_keeps_no_other_from_loading(hasty: None) -> None:
    async def run() -> None:
        site = Site()
        site.hangs = {"a", "b"}
        waiting = [site.begin(name)[0] for name in "ab"]
        await settle()
        await site.use("c")
        assert site.events == ["+a", "+b", "+c"]
        assert [each.state for each in site.models.all[:3]] == ["loading", "loading", "loaded"]
        for task in waiting:
            task.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0.001, 0.05])  # within its turn, and after it
def test_a_load_has_a_time_limit(hasty: None, seconds: float) -> None:
    async def run() -> None:
        site = Site(load_seconds=seconds)
        site.hangs = {"a"}
        with pytest.raises(ModelFailed, match=f"a did not load within {seconds} s"):
            await site.use("a")
        assert site.events == ["+a", "!a"]
        assert "did not load" in site.models.find("a").status()["error"]
        site.hangs.clear()
        await site.use("a")

    asyncio.run(run())


def test_a_load_that_nobody_waits_for_is_given_up(hasty: None) -> None:
    async def run() -> None:
        site = Site()
        site.hangs = {"a"}
        waiting, _ = site.begin("a")
        await settle()
        waiting.cancel()
        while "-a" not in site.events:
            await asyncio.sleep(0.01)
        assert site.models.find("a").state == "unloaded"

    asyncio.run(run())


def test_a_load_that_nobody_waits_for_gives_its_place_up(
    hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_module, "_ABANDONED_SECONDS", 600)

    async def run() -> None:
        site = Site(most=1)
        site.hangs = {"a"}
        waiting, _ = site.begin("a")
        await settle()
        other, end = site.begin("b")
        await asyncio.sleep(0.05)
        assert site.events == ["+a"]  # it is waited for
        waiting.cancel()
        end.set()
        await other
        assert site.events == ["+a", "-a", "+b"]

    asyncio.run(run())
