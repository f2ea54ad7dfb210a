"""Many requests at once, some of which their clients give up: none is lost, none is mixed."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from localspec.chat.answer import collect
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.generate import stream_generate
from localspec.engine.session.limits import Limits
from localspec.server.service import Defaults
from tests.support.real_pair import TinyFiles, options
from tests.support.served import CHAT, HELLO, PATIENCE, ServedToy, Site, events_of, serving, text_of

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

AT_ONCE = 16
LENGTH = 24  # tokens of an answer
PARAMS: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95}
TOPICS = ("lists", "files", "threads", "words")  # prompts that begin alike, and share a cache


@dataclass(frozen=True)
class Wish:
    """A request, and when its client gives it up: after so many events, or seconds."""

    topic: str
    number: int
    stream: bool
    n: int
    draft: int | str
    gives_up: int | float | None

    @property
    def messages(self) -> list[dict[str, str]]:
        text = f"Tell me of {self.topic}, and of {self.topic} again, number {self.number}."
        return [{"role": "user", "content": text}]

    @property
    def body(self) -> dict[str, Any]:
        return {
            "messages": self.messages, "stream": self.stream, "n": self.n, "seed": self.number,
            "draft_tokens": self.draft, "max_tokens": LENGTH, **PARAMS,
        }  # fmt: skip


def wishes(count: int, drafts: Sequence[int | str]) -> list[Wish]:
    """The same ones at each call; a third of them are given up."""
    draw = random.Random(1)

    def wish(number: int) -> Wish:
        stream = draw.random() < 0.6
        given_up = draw.randrange(8) if stream else draw.choice([0.0, 0.001, 0.01, 0.05])
        return Wish(
            draw.choice(TOPICS),
            number,
            stream,
            draw.choice([1, 1, 2]),
            draw.choice(drafts),
            given_up if draw.random() < 0.34 else None,
        )

    return [wish(number) for number in range(count)]


def expected(engine: Engine | ServedToy, wish: Wish) -> list[str]:
    """What an engine says by itself, plainly."""
    texts = []
    for seed in range(wish.number, wish.number + wish.n):
        prompt = engine.encode_chat(wish.messages)
        params = SamplingParams(seed=seed, **PARAMS)
        answer = collect(
            stream_generate(engine, prompt, GenerateOptions(params, 0, max_tokens=LENGTH))
        )
        texts.append(answer.text)
    return texts


class Crowd:
    """Clients of a server, some of whom ask for what cannot be."""

    def __init__(self, site: Site) -> None:
        self.outcomes: Counter[str] = Counter()
        self._site = site
        self._places = asyncio.Semaphore(AT_ONCE)
        self._client = httpx2.AsyncClient(
            base_url=site.url,
            timeout=PATIENCE,
            trust_env=False,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4),
        )

    async def ask_all(self, asked: Sequence[Wish], texts: Sequence[list[str]]) -> None:
        async with self._client, asyncio.TaskGroup() as group:
            for wish, known in zip(asked, texts, strict=True):
                group.create_task(self._ask(wish, known))
                if wish.number % 10 == 0:
                    group.create_task(self._ask_badly(wish))

    async def _ask(self, wish: Wish, known: list[str]) -> None:
        """Ask until there is room; what is not given up must be the known texts."""
        async with self._places:
            while True:
                try:
                    texts = await (self._stream if wish.stream else self._whole)(wish)
                except TimeoutError:
                    self.outcomes["given up"] += 1
                    return
                if texts is not None:
                    break
                self.outcomes["full"] += 1
                await asyncio.sleep(0.01)  # sooner than told, for the sake of the test's time
            assert texts == known, wish
            self.outcomes["answered"] += 1

    async def _whole(self, wish: Wish) -> list[str] | None:
        asking = self._client.post(CHAT, json=wish.body)
        reply = await asyncio.wait_for(asking, wish.gives_up)
        if reply.status_code == 429:
            return None
        assert reply.status_code == 200, reply.text
        return [choice["message"]["content"] for choice in reply.json()["choices"]]

    async def _stream(self, wish: Wish) -> list[str] | None:
        seen = ""
        async with self._client.stream("POST", CHAT, json=wish.body) as reply:
            if reply.status_code == 429:
                return None
            assert reply.status_code == 200
            async for text in reply.aiter_text():
                seen += text
                if wish.gives_up is not None and seen.count("\n\n") >= wish.gives_up:
                    raise TimeoutError
        *events, last = events_of(seen)
        assert last == "[DONE]"
        found = [json.loads(event) for event in events]
        return [text_of(found, i) for i in range(wish.n)]

    async def _ask_badly(self, wish: Wish) -> None:
        reply = await self._client.post(CHAT, json=wish.body | {"temperature": -1})
        assert reply.status_code == 400
        self.outcomes["refused"] += 1


def run_through(site: Site, asked: Sequence[Wish], texts: Sequence[list[str]]) -> Counter[str]:
    """What became of the requests; afterwards nothing of them may be left."""
    site.get("/health")  # from then on it accepts
    tasks = running_tasks(site)

    async def run() -> Counter[str]:
        crowd = Crowd(site)
        await crowd.ask_all(asked, texts)
        return crowd.outcomes

    outcomes = asyncio.run(run())
    session = site.service.session
    ends = time.monotonic() + PATIENCE
    while session.waiting or session.running or running_tasks(site) > tasks:
        site.get("/health")  # what was given up last ends within a round
        assert time.monotonic() < ends, f"{session.waiting} wait, {session.running} run"
    assert outcomes["answered"] + outcomes["given up"] == len(asked)
    assert outcomes["answered"] >= sum(wish.gives_up is None for wish in asked)
    return outcomes


def running_tasks(site: Site) -> int:
    """Of the server's event loop."""
    (accepting,) = site.server._accepting
    return len(asyncio.all_tasks(accepting.get_loop()))


@pytest.mark.parametrize("slots", [1, 3])
def test_requests_with_cancellations(slots: int, thorough: bool) -> None:
    before = site_threads()
    asked = wishes(200 if thorough else 80, [0, 1, 4, "auto", "off"])
    alone = ServedToy(quirk=None)
    texts = [expected(alone, wish) for wish in asked]
    toys = [ServedToy() for _ in range(slots)]
    with serving(toys[0], limits=Limits(waiting=12), slots=toys) as site:
        outcomes = run_through(site, asked, texts)
        assert site.ask(messages=HELLO, max_tokens=3)["usage"]["completion_tokens"] == 3
    assert outcomes["given up"] > len(asked) // 10 == outcomes["refused"]
    assert site_threads() == before


@pytest.mark.llama
def test_the_bundled_pair_with_cancellations(demo_files: tuple[Path, Path]) -> None:
    from localspec.engine.engine import Engine

    target, draft = (LoadOptions(path, threads=1, exact=True) for path in demo_files)
    asked = wishes(40, [0, 1, 4, "auto", "off"])
    with Engine.load(target) as alone:
        texts = [expected(alone, wish) for wish in asked]
    with (
        Engine.load(target, draft) as engine,
        serving(engine, defaults=Defaults(), prefixes=PrefixCache(2**24)) as site,
    ):
        outcomes = run_through(site, asked, texts)
        assert site.ask(messages=HELLO, max_tokens=3)["usage"]["completion_tokens"] == 3
    assert outcomes["given up"] > 3 and outcomes["refused"] == 4


@pytest.mark.llama
@pytest.mark.parametrize("slots", [1, 3])
def test_slots_of_a_pair_with_cancellations(slots: int, tiny: TinyFiles) -> None:
    # In F32, what shares a pass rounds too little to change a pick.
    from localspec.engine.engine import Engine

    precise = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
    target, draft = (options(path, **precise) for path in (tiny.floats, tiny.draft))
    asked = wishes(40, [0, 1, 4, "auto", "off"])
    with Engine.load(target) as alone:
        texts = [expected(alone, wish) for wish in asked]
    with (
        Engine.load(replace(target, parallel=slots), draft) as engine,
        serving(
            engine,
            defaults=Defaults(),
            prefixes=PrefixCache(2**24),
        ) as site,
    ):
        assert len(site.service.session.slots()) == slots
        outcomes = run_through(site, asked, texts)
    assert outcomes["given up"] > 3 and outcomes["refused"] == 4


def site_threads() -> int:
    """Threads but those that the process keeps: the compute thread, and readers of requests."""
    kept = ("compute", "reading")
    return sum(not each.name.startswith(kept) for each in threading.enumerate())
