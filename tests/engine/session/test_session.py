"""Session: each job gets its own answer or its own error, in order; nothing is left behind."""

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.answer import Piece, collect
from localspec.chat.stats import GenerationStats
from localspec.core import machine
from localspec.core.errors import LocalspecError, PromptTooLong, UsageError
from localspec.core.interrupt import is_unwanted, require_wanted
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.engine import Engine
from localspec.engine.generate import TextEngine, stream_generate
from localspec.engine.session import session as session_module
from localspec.engine.session.job import GenerationRequest, Job, received
from localspec.engine.session.limits import (
    AnswerTimeout,
    Closing,
    Limits,
    QueueFull,
    QueueTimeout,
    Stalled,
)
from localspec.engine.session.session import Session
from localspec.engine.text_stream import OutputFormat, Prompt
from tests.support.real_pair import TinyFiles, fresh, options, random_ids
from tests.support.toy.engine import ToyEngine

pytestmark = pytest.mark.anyio
PATIENCE = 60.0  # seconds until a test that hangs is given up
GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Gated:
    """A toy engine whose target waits, in each pass, until the test lets it go on."""

    def __init__(self, **options: Any) -> None:
        self.engine = ToyEngine(**options)
        self.asked = threading.Semaphore(0)  # a pass begins
        self._allowed = threading.Semaphore(0)
        self._open = False
        self.failure: BaseException | None = None
        decode = self.engine.target.decode

        def gated(tokens: Sequence[int], rows: int) -> Any:
            self.asked.release()
            if not self._open and not self._allowed.acquire(timeout=PATIENCE):
                raise AssertionError("nobody let the pass go on")
            require_wanted()
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure
            return decode(tokens, rows)

        self.engine.target.decode = gated  # type: ignore[method-assign]

    def begun(self) -> None:
        """Wait until a pass begins."""
        assert self.asked.acquire(timeout=PATIENCE)

    def allow(self, passes: int = 1) -> None:
        self._allowed.release(passes)

    def open(self) -> None:
        self._open = True
        self._allowed.release(1000)


class FakeTime:
    """`time.monotonic` of the session and of its clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (session_module, machine):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


def prompt_of(text: str) -> Prompt:
    engine = ToyEngine()
    return Prompt(engine.encode(text), OutputFormat(engine.piece))


def ask(
    text: str = "abc", max_tokens: int = 12, seed: int = 1, length: int = 0
) -> GenerationRequest:
    params = SamplingParams(temperature=0.8, seed=seed)
    return GenerationRequest(
        prompt_of(text), GenerateOptions(params, length, max_tokens=max_tokens)
    )


def alone(wanted: GenerationRequest, **options: Any) -> list[int]:
    """The tokens of an answer without any server."""
    pieces = stream_generate(
        ToyEngine(**options),
        wanted.prompt,
        replace(wanted.options, draft_tokens=0),
    )
    return collect(pieces).tokens


async def pieces_of(job: Job) -> AsyncGenerator[Piece]:
    async with aclosing(received([job])) as arrivals:
        async for _, piece in arrivals:
            if piece is not None:
                yield piece


def one(queue: Session, wanted: GenerationRequest) -> Job:
    (job,) = queue.submit([wanted])
    return job


async def tokens_of(job: Job) -> list[int]:
    return [token async for piece in pieces_of(job) for token in piece.tokens]


@contextmanager
def session_of(*engines: TextEngine, **options: Any) -> Iterator[Session]:
    """Closed at the end, with nothing that counts as waiting or running."""
    queue = Session(engines, **options)
    try:
        yield queue
    finally:
        queue.close()
    assert (queue.waiting, queue.running) == (0, 0)


# -- one after the other ---------------------------------------------------------------------


def test_the_answers_are_those_of_run_and_come_in_order() -> None:
    wanted = [ask("abc" * i, seed=i, length=i % 3) for i in range(1, 9)]
    ended = list[int]()

    async def read(i: int, job: Job) -> list[int]:
        tokens = await tokens_of(job)
        ended.append(i)
        return tokens

    async def main() -> list[list[int]]:
        with session_of(ToyEngine()) as queue:
            jobs = [one(queue, each) for each in wanted]
            return await asyncio.gather(*[read(i, job) for i, job in enumerate(jobs)])

    assert asyncio.run(main()) == [alone(each) for each in wanted]
    assert ended == sorted(ended)


async def test_who_connects_again_waits_for_the_slot_that_read_the_prompt() -> None:
    first, second = Gated(), Gated()
    second.open()
    with session_of(first.engine, second.engine) as queue:
        broken = one(queue, ask("a long prompt " * 8))
        first.begun()
        first.allow()
        first.begun()  # the prompt is read, and the first round under way
        broken.cancel()
        again, other = one(queue, ask("a long prompt " * 8)), one(queue, ask("another"))
        assert again.begun_at is None and other.begun_at is not None
        first.open()
        *_, last = [piece async for piece in pieces_of(again)]
        assert last.stats.cached_tokens > 100


def test_the_figures_of_a_piece_are_those_of_its_time() -> None:
    async def main() -> list[Piece]:
        with session_of(ToyEngine()) as queue:
            return [piece async for piece in pieces_of(one(queue, ask()))]

    pieces = asyncio.run(main())
    assert [piece.stats.rounds for piece in pieces] == list(range(1, len(pieces) + 1))


def test_the_jobs_of_a_request_arrive_in_one_queue_without_a_task_for_each_piece() -> None:
    found: dict[Job, list[int]] = {}
    ended = list[Job]()

    async def main() -> list[Job]:
        with session_of(ToyEngine(), ToyEngine()) as queue:
            jobs = queue.submit([ask(seed=1), ask(seed=2), ask(seed=3)])
            async for job, piece in received(jobs):
                assert len(asyncio.all_tasks()) == 1
                if piece is None:
                    ended.append(job)
                else:
                    found.setdefault(job, []).extend(piece.tokens)
            return jobs

    jobs = asyncio.run(main())
    assert [found[job] for job in jobs] == [alone(job.request) for job in jobs]
    assert sorted(ended, key=jobs.index) == jobs


async def test_an_error_reaches_its_own_asker_and_the_slot_goes_on() -> None:
    gated = Gated()
    gated.open()

    with session_of(gated.engine) as queue:
        gated.failure = MemoryError("torn")
        bad, long, good = queue.submit([ask("ab"), ask("ab" * 99), ask("abcab")])
        with pytest.raises(MemoryError, match="torn"):
            await tokens_of(bad)
        with pytest.raises(PromptTooLong):
            await tokens_of(long)
        assert await tokens_of(good) == alone(good.request)


# -- bounds ----------------------------------------------------------------------------------


async def test_the_queue_has_a_limit_and_says_when_to_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, gated = FakeTime(monkeypatch), Gated()

    with session_of(gated.engine, limits=Limits(waiting=2)) as queue:
        running = one(queue, ask(max_tokens=1))
        waiting = queue.submit([ask(max_tokens=1), ask(max_tokens=1)])
        assert (queue.running, queue.waiting) == (1, 2)
        with pytest.raises(QueueFull) as full:
            one(queue, ask())
        assert full.value.retry_after == 1  # nothing is known yet
        gated.begun()
        clock.now += 30
        gated.allow(2)
        await tokens_of(running)
        assert (queue.running, queue.waiting) == (1, 1)
        for _ in range(2):
            gated.begun()
        clock.now += 11
        late = one(queue, ask(max_tokens=1))
        with pytest.raises(QueueFull) as full:
            one(queue, ask())
        assert full.value.retry_after == 60 and "60 s" in full.value.hint
        gated.open()
        for job in (*waiting, late):
            await tokens_of(job)


async def test_several_choices_are_queued_all_or_none() -> None:
    gated = Gated()

    with session_of(gated.engine, limits=Limits(waiting=2)) as queue:
        first = one(queue, ask())
        with pytest.raises(QueueFull):
            queue.submit([ask()] * 3)
        assert queue.waiting == 0
        with pytest.raises(UsageError, match="4 answers were .* limit is 3"):
            queue.submit([ask()] * 4)
        others = queue.submit([ask(seed=2), ask(seed=3)])
        gated.open()
        for job in (first, *others):
            assert await tokens_of(job) == alone(job.request)


def test_no_place_to_wait_still_lets_a_free_slot_answer() -> None:
    async def main() -> list[int]:
        with session_of(ToyEngine(), limits=Limits(waiting=0)) as queue:
            return await tokens_of(one(queue, ask()))

    assert asyncio.run(main()) == alone(ask())


async def test_who_waits_too_long_is_told() -> None:
    gated = Gated()

    with session_of(gated.engine, limits=Limits(queue_seconds=0.01)) as queue:
        running, waiting = queue.submit([ask(), ask()])
        gated.begun()
        with pytest.raises(QueueTimeout, match="No slot was free for 0.01 s") as late:
            await tokens_of(waiting)
        assert late.value.retry_after == 1 and queue.waiting == 0
        gated.open()
        assert await tokens_of(running) == alone(running.request)  # the limit is not for it


def test_an_answer_that_takes_too_long_ends_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, gated = FakeTime(monkeypatch), Gated()
    wanted = GenerationRequest(
        prompt_of("abc"), GenerateOptions(GREEDY, 0, max_tokens=50, stop=("\x00",))
    )

    async def main() -> list[Piece]:
        with session_of(gated.engine, limits=Limits(answer_seconds=10.0)) as queue:
            job = one(queue, wanted)
            gated.allow(3)  # the prompt, and two rounds
            pieces = []
            async for piece in pieces_of(job):
                pieces.append(piece)
                if len(pieces) == 1:  # the reader need not hear of the second one yet
                    for _ in range(4):
                        gated.begun()
                    clock.now += 11
                    gated.allow()
            return pieces

    pieces = asyncio.run(main())
    assert [piece.finish_reason for piece in pieces] == [None, None, "length"]
    tokens = [token for piece in pieces for token in piece.tokens]
    assert tokens == alone(wanted)[:2] and pieces[-1].tokens == ()


async def test_the_time_of_an_answer_may_be_over_before_its_first_token() -> None:
    gated = Gated()
    gated.open()

    with session_of(gated.engine, limits=Limits(answer_seconds=-1.0)) as queue:
        with pytest.raises(AnswerTimeout):
            await tokens_of(one(queue, ask()))


# -- cancelled -------------------------------------------------------------------------------


async def test_a_cancelled_job_leaves_the_queue_at_once() -> None:
    gated = Gated()

    with session_of(gated.engine) as queue:
        first, second, third = queue.submit([ask(), ask(), ask(seed=3)])
        second.cancel()
        second.cancel()
        assert queue.waiting == 1
        assert await tokens_of(second) == []
        gated.open()
        assert await tokens_of(first) == alone(first.request)
        assert await tokens_of(third) == alone(third.request)


async def test_a_cancelled_answer_frees_its_slot_within_a_round() -> None:
    gated = Gated()

    with session_of(gated.engine) as queue:
        job, other = queue.submit([ask("abc", 50), ask("abcd", 5)])
        gated.begun()
        gated.allow(2)
        rounds = 0
        async for piece in pieces_of(job):
            rounds = piece.stats.rounds
            job.cancel()
            gated.allow()  # the round that is under way
        assert rounds == 1
        assert queue.waiting == 0  # the other one was begun before this one's end was told
        gated.open()
        assert await tokens_of(other) == alone(other.request)


async def test_who_leaves_early_has_cancelled() -> None:
    gated = Gated()

    with session_of(gated.engine) as queue:
        job = one(queue, ask("abc", 50))
        reader = asyncio.create_task(tokens_of(job))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert job.cancelled
        gated.open()


async def test_a_pass_that_nobody_wants_ends_before_the_prompt_is_read() -> None:
    gated = Gated()

    with session_of(gated.engine) as queue:
        job = one(queue, ask("abcde"))
        gated.begun()
        job.cancel()
        gated.open()
        assert await tokens_of(job) == []
    assert gated.engine.target.tokens == []
    assert not is_unwanted()


def test_an_event_loop_that_is_gone_takes_nothing_with_it() -> None:
    gated = Gated()

    async def leave() -> Job:
        return one(queue, ask("abc", 5))

    async def stay() -> list[int]:
        return await tokens_of(one(queue, ask("abcd")))

    with session_of(gated.engine) as queue:
        asyncio.run(leave())
        gated.open()
        assert asyncio.run(stay()) == alone(ask("abcd"))


# -- closed ----------------------------------------------------------------------------------


async def test_closing_refuses_what_waits_and_lets_what_runs_end() -> None:
    gated = Gated()

    with session_of(gated.engine) as queue:
        running, waiting = queue.submit([ask(), ask()])
        gated.begun()
        closing = asyncio.create_task(asyncio.to_thread(queue.close, PATIENCE))
        with pytest.raises(Closing, match="shutting down"):
            await tokens_of(waiting)
        with pytest.raises(Closing):
            one(queue, ask())
        gated.open()
        assert await tokens_of(running) == alone(running.request)
        await closing


async def test_closing_ends_what_would_not_end() -> None:
    gated = Gated()

    with session_of(gated.engine) as queue:
        running = one(queue, ask("abc", 50))
        gated.allow(2)
        answer = pieces_of(running)
        assert (await anext(answer)).finish_reason is None
        closing = asyncio.create_task(asyncio.to_thread(queue.close, 0.0))
        while not running.cancelled:
            await asyncio.sleep(0)
        gated.open()
        with pytest.raises(Closing):
            while True:
                await anext(answer)
        await closing


async def test_a_slot_that_makes_no_progress_is_told_and_goes_on_when_it_can() -> None:
    gated = Gated()

    with session_of(gated.engine, limits=Limits(step_seconds=0.2)) as queue:
        stuck = one(queue, ask("abc"))
        with pytest.raises(Stalled, match="1 of the server's slots made no progress"):
            await tokens_of(stuck)
        with pytest.raises(Stalled):
            queue.require_progress()
        with pytest.raises(Stalled):
            one(queue, ask("abc"))
        queue._limits = Limits()
        gated.open()
        following = one(queue, ask("ab"))
        assert await tokens_of(following) == alone(following.request)
        queue.require_progress()


# -- which slot ------------------------------------------------------------------------------


async def test_the_slot_that_knows_most_of_a_prompt_takes_it() -> None:
    engines = [ToyEngine(n_ctx=512) for _ in range(3)]
    texts = {name: name * 100 for name in "ab"}

    with session_of(*engines) as queue:
        for text in (texts["a"], texts["b"], texts["a"] + "c", texts["b"] + "c"):
            await tokens_of(one(queue, ask(text, 4)))
        held = [bytes(engine.target.tokens[:101]) for engine in engines]
        assert held == [texts["a"].encode() + b"c", texts["b"].encode() + b"c", b""]
        # A few tokens that prompts share are no reason: the one used longest ago takes it.
        await tokens_of(one(queue, ask("abcd", 4)))
        await tokens_of(one(queue, ask("abba", 4)))
        assert bytes(engines[2].target.tokens[:4]) == b"abcd"
        assert bytes(engines[0].target.tokens[:4]) == b"abba"
        # The same prompt again, or one that goes on, is a reason, though the second is older.
        whole = bytes(engines[0].target.tokens)
        await tokens_of(one(queue, ask("abcd", 4, seed=2)))
        await tokens_of(one(queue, ask(whole.decode() + "d", 4)))
        assert bytes(engines[0].target.tokens).startswith(whole + b"d")
        assert [bytes(engine.target.tokens[:4]) for engine in engines[1:]] == [b"bbbb", b"abcd"]


async def test_a_job_waits_for_its_slot_and_lets_others_pass() -> None:
    engines = [ToyEngine(), ToyEngine()]
    with session_of(*engines) as queue:
        asked = [replace(ask("ab"), slot=0), replace(ask("ba"), slot=0), ask("aba")]
        jobs = queue.submit(asked)
        for job in jobs:
            assert await tokens_of(job) == alone(job.request)
        first, waiting, passing = [job.begun_at or 0.0 for job in jobs]
        assert max(first, passing) < waiting
        assert [bytes(each.target.tokens[:3]) for each in engines][1] == b"aba"
        with pytest.raises(UsageError, match="There is no slot 2"):
            queue.submit([replace(ask("ab"), slot=2)])


async def test_what_was_learnt_is_kept_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, engine = FakeTime(monkeypatch), ToyEngine()

    with session_of(engine) as queue:
        for seconds, kept in ((0, 0), (61, 1), (59, 1), (2, 2)):
            clock.now += seconds
            await tokens_of(one(queue, ask()))
            assert engine.profile.kept == kept


async def test_a_pause_of_the_machine_ends_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gated = FakeTime(monkeypatch), Gated()
    limits = Limits(step_seconds=300.0, queue_seconds=0.04, answer_seconds=200.0)

    with session_of(gated.engine, limits=limits) as queue:
        jobs = queue.submit([ask(seed=1), ask(seed=2)])  # one runs, one waits
        gated.begun()
        clock.now += 310
        queue.require_progress()  # also before the thread that watches runs again
        await asyncio.sleep(0.1)  # in which it does
        gated.open()
        for job in jobs:
            assert await tokens_of(job) == alone(job.request)


# It computes for 0.1 s in each pass: a busy machine may take twenty times as long.
STOPPED = """
import time
from localspec.core.compute import COMPUTE
from localspec.engine.session.limits import Limits
from localspec.engine.session.session import Session
from tests.engine.session.test_session import ToyEngine, ask
engine = ToyEngine()
decode = engine.target.decode
def slow(tokens, rows):
    print("pass", flush=True)
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    return decode(tokens, rows)
engine.target.decode = slow
queue = Session([engine], limits=Limits(step_seconds=2.0))
for piece in queue.stream(ask(max_tokens=4)):
    print("piece", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_process_that_was_stopped_goes_on() -> None:
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and out.count(b"piece") == 4, err.decode()


# -- anything at any time --------------------------------------------------------------------

MOVES = st.lists(
    st.tuples(st.sampled_from(["submit", "several", "cancel", "leave", "read", "fail", "yield"]),
              st.integers(0, 9)), max_size=25,
)  # fmt: skip


class Visit:
    """Some clients of one scheduler, who check what each of them gets."""

    def __init__(self, queue: Session, engines: Sequence[Gated]) -> None:
        self._queue = queue
        self._engines = engines
        self._jobs = list[Job]()
        self._readers = list[asyncio.Task[None]]()
        self._left = set[int]()
        self._failures = 0

    async def move(self, name: str, which: int) -> None:
        if name in ("submit", "several"):
            self._submit([ask("abcde" * which or "x", which, which + i)
                          for i in range(1 if name == "submit" else 3)])  # fmt: skip
        elif name == "fail":
            self._engines[which % len(self._engines)].failure = MemoryError()
            self._failures += 1
        elif name in ("read", "yield"):
            await asyncio.sleep(0.001 if name == "read" else 0)
        elif self._jobs:
            index = which % len(self._jobs)
            self._left.add(index)
            if name == "cancel":
                self._jobs[index].cancel()
            else:
                self._readers[index].cancel()

    def _submit(self, asks: list[GenerationRequest]) -> None:
        try:
            jobs = self._queue.submit(asks)
        except QueueFull as full:
            assert (full.retry_after or 0) >= 1 and self._queue.waiting + len(asks) > 4
            return
        for job in jobs:
            self._readers.append(asyncio.create_task(self._read(len(self._jobs), job)))
            self._jobs.append(job)

    async def _read(self, index: int, job: Job) -> None:
        tokens, last = list[int](), None
        try:
            async for piece in pieces_of(job):
                tokens += piece.tokens
                last = piece.finish_reason
        except MemoryError:
            self._failures -= 1
        except LocalspecError as error:
            assert isinstance(error, Closing)
        else:
            assert last is not None or index in self._left
        expected = alone(job.request)
        assert tokens == (expected if last is not None else expected[: len(tokens)])

    async def end(self) -> None:
        found = await asyncio.gather(*self._readers, return_exceptions=True)
        for error in found:
            assert error is None or isinstance(error, asyncio.CancelledError), error
        assert self._failures >= 0


@given(st.integers(1, 3), MOVES, st.booleans())
async def test_nothing_is_lost_mixed_or_left(
    slots: int, moves: list[tuple[str, int]], soon: bool
) -> None:
    engines = [Gated() for _ in range(slots)]
    for each in engines:
        each.open()
    with session_of(*(each.engine for each in engines), limits=Limits(waiting=4)) as queue:
        visit = Visit(queue, engines)
        for name, which in moves:
            await visit.move(name, which)
        if soon:
            await asyncio.to_thread(queue.close, 0.0)
        async with asyncio.timeout(PATIENCE):
            await visit.end()
            while queue.waiting or queue.running:  # the last round of those who left
                await asyncio.sleep(0.001)


# -- llama.cpp -------------------------------------------------------------------------------


@pytest.mark.llama
@pytest.mark.parametrize("length", [4, "auto"])
def test_a_real_pair_whose_clients_come_and_go(engine: Engine, length: DraftTokens) -> None:
    """Several talks, each with its prefix; some leave while their prompt is read, or later."""
    engine.profile.introduce(lambda sentence: None)
    dice, begins = random.Random(1), [random_ids(600, seed=seed) for seed in range(3)]
    wanted = [
        GenerationRequest(
            Prompt([*begins[i % 3], *random_ids(1 + i % 7, seed=i)], OutputFormat(engine.piece)),
            GenerateOptions(SamplingParams(temperature=0.8, seed=i % 5), length, max_tokens=12),
        )
        for i in range(30)
    ]
    cached = list[int]()

    async def client(job: Job) -> list[int] | None:
        leaves, tokens = dice.choice([None, None, None, 0, 1, 3]), list[int]()
        if leaves == 0:
            for _ in range(dice.randrange(50)):
                await asyncio.sleep(0)
            job.cancel()
        async for piece in pieces_of(job):
            tokens += piece.tokens
            if len(tokens) >= (leaves or 99):
                return None
        if leaves is None:
            cached.append(piece.stats.cached_tokens)
        return None if leaves == 0 else tokens

    async def main() -> list[list[int] | None]:
        with session_of(engine, prefixes=PrefixCache(2**30)) as queue:
            return await asyncio.gather(*[client(one(queue, each)) for each in wanted])

    found = asyncio.run(main())
    whole = [(each, tokens) for each, tokens in zip(wanted, found, strict=True) if tokens]
    assert 10 < len(whole) < 30 and sum(tokens >= 600 for tokens in cached) > len(cached) - 6
    for each, tokens in whole:
        assert fresh(engine, each.prompt, each.options.sampling, length, 12).tokens == tokens


@pytest.mark.llama
@pytest.mark.parametrize("length", [0, 4])
def test_slots_that_share_passes_share_the_prefixes_too(
    tiny: TinyFiles, length: DraftTokens
) -> None:
    """Five talks on two slots; some clients leave, and the passes of others go on."""
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attention": "off"}
    begins, cached = [random_ids(300, seed=seed) for seed in range(5)], list[int]()

    async def client(queue: Session, number: int) -> list[tuple[list[int], list[int]]]:
        prompt, said = list(begins[number]), list[tuple[list[int], list[int]]]()
        for turn in range(4):
            asked = GenerationRequest(
                Prompt(prompt, OutputFormat(engine.piece)),
                GenerateOptions(GREEDY, length, max_tokens=9),
            )
            if number == 4 and turn % 2:
                leaving = one(queue, asked)
                asyncio.get_running_loop().call_later(0.002 * turn, leaving.cancel)
                await tokens_of(leaving)
            tokens, stats = list[int](), GenerationStats()
            async for piece in pieces_of(one(queue, asked)):
                tokens += piece.tokens
                stats = piece.stats
            said.append((prompt, tokens))
            cached.append(stats.cached_tokens if turn else 300)
            prompt = [*prompt, *tokens, *random_ids(5, seed=turn)]
        return said

    async def main() -> list[list[tuple[list[int], list[int]]]]:
        queue = engine.open_session(prefixes=PrefixCache(2**30))
        return await asyncio.gather(*[client(queue, i) for i in range(5)])

    target, draft = (options(path, ctx_size=512, **exact) for path in (tiny.floats, tiny.draft))
    with Engine.load(replace(target, parallel=2), draft) as engine:
        found = asyncio.run(main())
    assert min(cached) >= 300
    with Engine.load(target) as engine:
        for prompt, tokens in (each for said in found for each in said):
            assert fresh(engine, prompt, GREEDY, 0, 9).tokens == tokens
