"""ComputeThread: calls and turns in one thread, whoever asks, and never lost."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial

import pytest

from localspec.core.compute import COMPUTE, ComputeThread
from localspec.core.interrupt import Cancelled, is_unwanted, require_wanted

PATIENCE = 60.0
_setting: ContextVar[str] = ContextVar("setting", default="none")


@pytest.fixture
def compute() -> Iterator[ComputeThread]:
    thread = ComputeThread()
    yield thread
    thread.stop()


class Counting:
    """A loop with so many turns to do, which records their threads and errors."""

    def __init__(self, turns: int, error: Exception | None = None) -> None:
        self.left = turns
        self.threads = set[int]()
        self.failed = list[BaseException]()
        self.done = threading.Event()
        self._error = error

    @property
    def is_busy(self) -> bool:
        return self.left > 0

    def turn(self) -> None:
        self.left -= 1
        self.threads.add(threading.get_ident())
        if not self.left:
            self.done.set()
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)
        self.left = 0
        self.done.set()

    def abandon(self) -> None:
        self.left = 0


def wake() -> None:
    """Nothing."""


def test_calls_of_all_threads_run_in_one(compute: ComputeThread) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = {*threads.map(lambda number: compute.call(threading.get_ident), range(50))}
    assert len(found) == 1 and threading.get_ident() not in found
    assert compute.call(lambda: compute.is_current) and not compute.is_current
    assert compute.call(lambda: compute.call(threading.get_ident)) in found


def test_a_call_raises_what_it_raised_and_the_next_is_made(compute: ComputeThread) -> None:
    def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("bad"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            compute.call(partial(fail, error))
        assert raised.value is error
    assert compute.call(lambda: 5) == 5


def test_a_call_sees_the_context_of_its_caller(compute: ComputeThread) -> None:
    before = _setting.set("mine")
    try:
        assert compute.call(_setting.get) == "mine"
        compute.call(lambda: _setting.set("changed"))
        assert _setting.get() == "mine"
    finally:
        _setting.reset(before)
    assert compute.call(_setting.get) == "none"


def test_ctrl_c_while_waiting_ends_the_call(compute: ComputeThread) -> None:
    ended = list[BaseException]()

    def long() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            while True:
                require_wanted()
        except Cancelled as error:
            ended.append(error)
            raise

    with pytest.raises(KeyboardInterrupt):
        compute.call(long)
    assert len(ended) == 1  # it has ended before the interrupt is raised
    assert not compute.call(is_unwanted)


def test_loops_take_turns_beside_calls(compute: ComputeThread) -> None:
    loops = [Counting(100), Counting(50)]
    for loop in loops:
        compute.add(loop)
    compute.post(wake)
    assert compute.call(threading.get_ident) == compute.call(threading.get_ident)
    for loop in loops:
        assert loop.done.wait(PATIENCE)
        compute.remove(loop)
    assert loops[0].threads == loops[1].threads == {compute.call(threading.get_ident)}
    later = Counting(1)
    compute.add(later)
    compute.remove(later)
    compute.call(wake)
    assert later.left == 1


def test_an_error_of_a_loop_is_for_that_loop(compute: ComputeThread) -> None:
    bad, good = Counting(5, ValueError("bad")), Counting(5)
    for loop in (bad, good):
        compute.add(loop)
    compute.post(wake)
    assert bad.done.wait(PATIENCE) and good.done.wait(PATIENCE)
    assert [str(error) for error in bad.failed] == ["bad"] and not good.failed


def test_an_adopted_thread_computes(compute: ComputeThread) -> None:
    loop = Counting(3)
    with compute.adopted(), compute.adopted():
        assert compute.is_current and compute.call(threading.get_ident) == threading.get_ident()
        compute.add(loop)
        compute.run_until(loop.done.is_set)
    assert loop.threads == {threading.get_ident()}
    assert compute.call(threading.get_ident) != threading.get_ident()
    with compute.adopted():  # there is a compute thread
        assert not compute.is_current


def test_what_is_left_after_an_adoption_goes_on(compute: ComputeThread) -> None:
    loop = Counting(3)
    with compute.adopted():
        compute.add(loop)
    assert loop.done.wait(PATIENCE) and loop.threads != {threading.get_ident()}


def test_a_released_thread_computes_no_more(compute: ComputeThread) -> None:
    with compute.adopted():
        compute.release()
        assert not compute.is_current
        computing = compute.call(threading.get_ident)
        assert computing != threading.get_ident()
    assert compute.call(threading.get_ident) == computing


def test_the_last_calls_are_made_after_the_end(compute: ComputeThread) -> None:
    """As those of functions that run at the exit of Python."""
    compute.call(wake)
    compute.stop()
    assert compute.call(threading.get_ident) == threading.get_ident()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    COMPUTE.call(wake)
    child = multiprocessing.get_context("fork").Process(target=_ask_in_child)
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == 0


def _ask_in_child() -> None:
    os._exit(0 if COMPUTE.call(os.getpid) == os.getpid() else 1)
