"""Cancellation: Ctrl-C, delayed if it would do harm, or a request from another thread."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Cancelled(Exception):
    """The result is no longer needed; see `stopped_when`."""


_unwanted: ContextVar[Callable[[], bool]] = ContextVar("unwanted", default=lambda: False)


@contextmanager
def stopped_when(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Raise Cancelled in long computations inside the block once ``unwanted()`` is true.

    Works in any thread, unlike Ctrl-C; blocks around this one count too. ``unwanted`` is called up
    to a few hundred times in each pass of a model, and must not raise.
    """
    outer = _unwanted.get()
    before = _unwanted.set(lambda: unwanted() or outer())
    try:
        yield
    finally:
        _unwanted.reset(before)


def is_unwanted() -> bool:
    """Whether the result of this computation is no longer needed."""
    return bool(_unwanted.get()())


def require_wanted() -> None:
    """Raise Cancelled if the result of this computation is no longer needed."""
    if is_unwanted():
        raise Cancelled


@contextmanager
def held_interrupt() -> Iterator[list[bool]]:
    """Delay Ctrl-C to the end of the block; the yielded list is not empty once it was pressed.

    Ctrl-Z is delayed too if `on_suspension` handles it. In a ctypes callback a KeyboardInterrupt
    is printed and lost; while drawing it leaves half of the drawing on the screen.
    """
    pressed: list[bool] = []
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    suspend, suspended = _suspension(), list[bool]()

    def delay(number: int, frame: object) -> None:
        suspended.append(True)

    if suspend is not None:
        signal.signal(signal.SIGTSTP, delay)
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(True))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if suspend is not None and _suspension() is delay:
            signal.signal(signal.SIGTSTP, suspend)
    if suspended:
        signal.raise_signal(signal.SIGTSTP)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM act like Ctrl-C in the block; only in the main thread.

    A shell's script starts background commands with SIGINT ignored: here it is handled again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def on_suspension(before: Callable[[], object], after: Callable[[], object]) -> None:
    """Call ``before`` when Ctrl-Z is to suspend this process, and ``after`` when it continues.

    Until `end_suspension`; only the first call in the main thread counts.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or _suspension() is not None:
        return

    def suspend(number: int, frame: object) -> None:
        before()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)
        after()

    signal.signal(signal.SIGTSTP, suspend)


def end_suspension() -> None:
    """Let Ctrl-Z suspend this process without a call."""
    if _suspension() is not None:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _suspension() -> Callable[[int, FrameType | None], object] | None:
    """The handler of Ctrl-Z, None without one."""
    handler = signal.getsignal(signal.SIGTSTP)
    return handler if callable(handler) else None


@contextmanager
def leaving_at_interrupt(end: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Exit with code 130, without a traceback, at Ctrl-C inside the block, after ``end()``.

    For imports: a module may catch KeyboardInterrupt, or it is printed with dozens of lines.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def leave(number: int, frame: object) -> None:
        end()
        os._exit(128 + number)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
