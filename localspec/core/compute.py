"""The compute thread: the one thread of this process in which llama.cpp computes.

libgomp keeps a team of threads for each thread that ever computed. With two teams on the same cores
it stops spinning at barriers, and decoding takes a third longer.
"""

import atexit
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from typing import Protocol, TypeVar
from weakref import ref

from localspec.core.interrupt import held_interrupt, stopped_when

T = TypeVar("T")
_PATIENCE = 10.0  # seconds that a pass under way may take at exit


class Loop(Protocol):
    """Work that is done in turns on the compute thread; see `Session`."""

    @property
    def is_busy(self) -> bool:
        """Whether a turn has work to do."""

    def turn(self) -> None:
        """Do the next part of the work."""

    def fail(self, error: BaseException) -> None:
        """End all work under way with an error that `turn` raised."""

    def abandon(self) -> None:
        """End all work under way as soon as possible; the process exits."""


class ComputeThread:
    """Runs calls and the turns of loops one after the other.

    This is the thread inside `adopted`, which runs the loops while it waits in `run_until`, or
    else a thread of its own, started at the first call. Methods are thread-safe.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()  # a finalizer may post a call while this thread has it
        self._owner: int | None = None
        self._thread: threading.Thread | None = None
        self._calls = SimpleQueue[Callable[[], None]]()
        self._loops: list[ref[Loop]] = []  # a model that nothing else refers to is freed
        self._stopped = False

    @property
    def is_current(self) -> bool:
        return threading.get_ident() == self._owner

    @contextmanager
    def adopted(self) -> Iterator[None]:
        """Let the calling thread be the compute thread inside the block, unless there is one."""
        with self._lock:
            adopts = self._owner is None
            if adopts:
                self._owner = threading.get_ident()
        try:
            yield
        finally:
            if adopts:
                self.release()

    def release(self) -> None:
        """End an adoption early, so that a separate thread computes: for event loops."""
        if self.is_current and self._thread is None:
            self._owner = None
            if any(loop.is_busy for loop in self._living()):
                self._start()

    def add(self, loop: Loop) -> None:
        """Give this loop turns whenever it is busy, until `remove` or until it is freed."""
        with self._lock:
            self._loops = [ref(each) for each in (*self._living(), loop)]

    def remove(self, loop: Loop) -> None:
        with self._lock:
            self._loops = [ref(each) for each in self._living() if each is not loop]

    def _living(self) -> list[Loop]:
        return [loop for each in self._loops if (loop := each()) is not None]

    def post(self, act: Callable[[], None]) -> None:
        """Call ``act``, which must not raise, in the compute thread, soon."""
        self._calls.put(act)
        self._start()

    def call(self, act: Callable[[], T]) -> T:
        """The result of ``act()`` in the compute thread; raises its exceptions.

        Context variables are the caller's. Ctrl-C in the calling thread ends it as `stopped_when`
        does, and is raised then.
        """
        if self.is_current:
            return act()
        from concurrent.futures import Future  # slow to import

        context, ended, pressed = copy_context(), Future[T](), list[bool]()

        def guarded() -> T:
            with stopped_when(lambda: bool(pressed)):
                return act()

        def run() -> None:
            try:
                ended.set_result(context.run(guarded))
            except BaseException as error:
                ended.set_exception(error)

        posted = False
        try:
            with held_interrupt():
                self.post(run)
                posted = True
            return ended.result()
        except KeyboardInterrupt:
            pressed.append(True)
            if posted:
                ended.exception()
            raise

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run the loops in the compute thread, which calls this, until ``done()``."""
        while not done():
            self._step()

    def _step(self) -> None:
        """One call, or a turn of each busy loop; waits for a call if there is neither."""
        busy = [each for each in self._living() if each.is_busy]
        if not busy or not self._calls.empty():
            self._calls.get()()
            return
        for loop in busy:
            try:
                loop.turn()
            except Exception as error:
                loop.fail(error)

    def _start(self) -> None:
        with self._lock:
            if self._owner is not None or self._stopped:
                return
            self._thread = threading.Thread(target=self._work, name="compute", daemon=True)
            self._thread.start()
            self._owner = self._thread.ident

    def _work(self) -> None:
        self._owner = threading.get_ident()
        self.run_until(lambda: self._stopped)

    def stop(self) -> None:
        """End the thread of its own: a daemon thread must not compute while Python shuts down."""
        thread, self._stopped = self._thread, True
        if thread is not None and not self.is_current:
            for loop in self._living():
                loop.abandon()
            self._calls.put(lambda: None)
            thread.join(_PATIENCE)
            if not thread.is_alive():  # the last calls are those of this thread
                self._owner = threading.get_ident()


COMPUTE = ComputeThread()
atexit.register(COMPUTE.stop)
os.register_at_fork(after_in_child=COMPUTE._reset)
