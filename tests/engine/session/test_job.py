"""Job and Stream: pieces arrive once, in order, whoever reads them and however slowly."""

import asyncio
import gc
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import pytest

from localspec.chat.answer import Piece
from localspec.chat.stats import GenerationStats
from localspec.core.compute import COMPUTE, ComputeThread
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.session import job as job_module
from localspec.engine.session import session as session_module
from localspec.engine.session.batching import Batcher, SequenceHandle
from localspec.engine.session.job import GenerationRequest, Job, Stream
from localspec.engine.session.llama_context import BatchEntry
from localspec.engine.session.session import Session
from localspec.speculative.loop import Logits
from tests.support.toy.engine import ToyEngine
from tests.support.toy.slots import shared

PATIENCE = 60.0


def piece(number: int) -> Piece:
    return Piece((), (number,), GenerationStats(), None, 0)


def request(max_tokens: int = 12, prompt: bytes = b"abc") -> GenerationRequest:
    params = SamplingParams(temperature=0)
    return GenerationRequest(list(prompt), GenerateOptions(params, 0, max_tokens=max_tokens))


@pytest.fixture
def session() -> Iterator[Session]:
    """Two slots that share passes."""
    slots, batcher, *_ = shared(2, n_ctx=100_000)
    session = Session(slots, batcher)
    yield session
    session.close()


def wait_idle(session: Session) -> None:
    """Return when no slot is busy."""
    session.run(0, lambda slot: None).result(PATIENCE)
    session.run(1, lambda slot: None).result(PATIENCE)
    assert (session.waiting, session.running) == (0, 0)


def tokens_of(stream: Iterator[Piece]) -> list[int]:
    return [token for each in stream for token in each.tokens]


# -- jobs ------------------------------------------------------------------------------------


def test_a_reader_is_woken_for_the_first_piece_and_for_the_end() -> None:
    job, woken = Job(request()), list[int]()
    job.put(piece(1))
    job.listen(lambda: woken.append(len(job._arrivals)))
    assert woken == [1]
    job.end()
    assert woken == [1, 2] and [type(each) for each in job.take()] == [Piece, type(None)]


def test_pieces_that_come_fast_wake_the_reader_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush wakes it where some wait."""
    now = [100.0]
    monkeypatch.setattr("localspec.engine.session.job.time.monotonic", lambda: now[0])
    job, woken = Job(request()), list[int]()
    job.listen(lambda: woken.append(len(job.take())))
    for number in range(6):
        job.put(piece(number))
        now[0] += 0.01
    assert woken == [1, 4]
    job.flush()
    job.flush()
    assert woken == [1, 4, 1]
    job.collect()
    for number in range(7):
        now[0] += 0.3
        job.put(piece(number))
    assert woken == [1, 4, 1, 4]


def test_an_answer_ends_once() -> None:
    job = Job(request())
    job.end(ValueError("first"))
    job.end()
    (error,) = job.take()
    assert str(error) == "first"


# -- streams ---------------------------------------------------------------------------------


def test_two_streams_are_read_in_turn_by_one_event_loop(session: Session) -> None:
    async def main() -> list[list[int]]:
        streams = [session.stream(request()) for _ in range(2)]
        found: list[list[int]] = [[], []]
        for _ in range(12):
            for tokens, stream in zip(found, streams, strict=True):
                tokens += (await anext(stream)).tokens
        return found

    first, second = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert first == second == tokens_of(session.stream(request()))


@pytest.mark.parametrize("waits", [True, False])
def test_an_interrupted_reader_ends_the_answer(
    session: Session, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the traceback keeps the stream, which nobody drops."""
    stream = session.stream(request(90_000))
    next(stream)
    where, name = (threading.Event, "wait") if waits else (stream._collector, "add")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(where, name, interrupted)
        for _ in stream:
            pass
    wait_idle(session)
    assert len(tokens_of(stream)) < 90_000


def test_a_cancelled_task_ends_its_answer(session: Session) -> None:
    async def main() -> Stream:
        stream = session.stream(request(90_000))

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return stream

    stream = asyncio.run(main())
    wait_idle(session)
    assert len(tokens_of(stream)) < 90_000


def test_a_stream_is_closed_as_a_generator_is(session: Session) -> None:
    async def main() -> int:
        async with aclosing(session.stream(request(90_000))) as stream:
            async for _ in stream:
                break
        return len([piece async for piece in stream])

    assert asyncio.run(main()) == 0
    wait_idle(session)


def test_a_slow_reader_stalls_nobody(session: Session) -> None:
    slow = session.stream(request(400))
    next(slow)
    assert len(tokens_of(session.stream(request(300)))) == 300
    wait_idle(session)  # the slow one's pieces are there, unread
    assert len(tokens_of(slow)) == 399


def test_closing_returns_while_streams_are_open(session: Session) -> None:
    streams = [session.stream(request(90_000)) for _ in range(5)]
    next(streams[0])
    session.close()
    for stream in streams:
        with pytest.raises(Exception, match="shutting down"):
            list(stream)


def test_an_ended_stream_stays_ended(session: Session) -> None:
    async def main() -> None:
        stream = session.stream(request(3))
        assert len([each async for each in stream]) == 3
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            stream.close()

    asyncio.run(main())


def test_a_closed_stream_gives_nothing_more(session: Session) -> None:
    stream = session.stream(request(90_000))
    next(stream)
    stream.close()
    assert list(stream) == []
    wait_idle(session)


def test_a_stream_may_be_read_in_one_form_after_the_other(session: Session) -> None:
    """Also in a second event loop."""
    stream, found = session.stream(request(2000)), list[int]()

    async def read(count: int) -> None:
        for _ in range(count):
            found.extend((await anext(stream)).tokens)

    for _ in range(3):
        asyncio.run(asyncio.wait_for(read(400), PATIENCE))
        for _ in range(200):
            found.extend(next(stream).tokens)
    found += tokens_of(stream)
    assert found == tokens_of(session.stream(request(2000)))


@pytest.mark.parametrize("waiting", [False, True])
def test_dropping_a_stream_frees_its_slot(session: Session, waiting: bool) -> None:
    others = [session.stream(request(90_000)) for _ in range(2 if waiting else 0)]
    stream = session.stream(request(90_000))
    if not waiting:
        next(stream)
    job = stream._job
    del stream
    gc.collect()
    for other in others:
        other.close()
    wait_idle(session)
    assert job.cancelled and len(job.take()) < 90_000


def test_a_stream_may_be_dropped_where_the_session_is_locked(session: Session) -> None:
    """Garbage is collected anywhere, in a thread that holds the lock, too."""
    stream = session.stream(request(90_000))
    next(stream)
    dropped = threading.Event()

    def drop() -> None:
        nonlocal stream
        with session._lock:
            del stream
            dropped.set()

    threading.Thread(target=drop, daemon=True).start()
    assert dropped.wait(PATIENCE)
    wait_idle(session)


def test_a_stream_that_was_not_made_is_dropped_in_silence() -> None:
    with suppress(TypeError):
        Stream()  # type: ignore[call-arg]
    gc.collect()


# -- passes ----------------------------------------------------------------------------------


def test_ctrl_c_in_a_pass_repeats_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the main thread computes: the toy refuses what it has read already."""
    compute = ComputeThread()
    for module in (session_module, job_module):
        monkeypatch.setattr(module, "COMPUTE", compute)
    slots, batcher, target, _ = shared(2, quirk=None)
    read = target.read

    def pressed(entries: Sequence[BatchEntry]) -> list[Logits]:
        if len(target.passes) == 5:
            signal.raise_signal(signal.SIGINT)
        return read(entries)

    monkeypatch.setattr(target, "read", pressed)
    with compute.adopted():
        session = Session(slots, batcher)
        streams = [session.stream(request()) for _ in range(2)]
        found: list[list[int]] = [[], []]
        with pytest.raises(KeyboardInterrupt):
            for each in streams[0]:
                found[0].extend(each.tokens)
        assert 0 < len(found[0]) < 12
        for tokens, stream in zip(found, streams, strict=True):
            tokens += tokens_of(stream)
        session.close()
    assert len(found[0]) == 12 and found[0] == found[1]


def test_a_reader_in_the_computing_thread_hears_of_a_prompt_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of `chat` and `run`: what is drawn is drawn between the passes."""
    compute = ComputeThread()
    for module in (session_module, job_module):
        monkeypatch.setattr(module, "COMPUTE", compute)
    toy: Any = ToyEngine()
    with compute.adopted():
        session = Session([toy])
        stream = session.stream(replace(request(prompt=b"abc" * 20), reports_progress=True))
        begun = next(stream).progress
        assert begun is not None and (begun.read, begun.total) == (0, 60)
        assert toy.target.calls == []
        assert len(tokens_of(stream)) == 12
        session.close()


def test_pieces_are_not_kept_back_while_a_prompt_is_read(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, kept = list[Job](), list[bool]()
    make_pass = Batcher.make_pass

    def watched(batcher: Batcher, waiting: Sequence[SequenceHandle], busy: int) -> object:
        if any(handle.entry.is_prompt for handle in waiting):
            kept.append(jobs[0].has_arrivals)
        return make_pass(batcher, waiting, busy)

    def begin() -> None:
        jobs.extend(session.submit([request(60), request(1, b"abc" * 400)]))
        jobs[0].collect()
        jobs[0].listen(lambda: taken.extend(jobs[0].take()))

    taken: list[object] = []
    monkeypatch.setattr(Batcher, "make_pass", watched)
    COMPUTE.call(begin)
    wait_idle(session)
    assert len(kept) > 4 and not any(kept) and len(taken) == 61
