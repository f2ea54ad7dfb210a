"""Cancellation: Ctrl-C, delayed where it would do harm, or a request from another thread."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


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

    In a ctypes callback a KeyboardInterrupt is printed and lost; while drawing it leaves half of
    the drawing on the screen.
    """
    pressed: list[bool] = []
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(True))
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def leaving_at_interrupt() -> Iterator[None]:
    """Exit with code 130, without a traceback, at Ctrl-C inside the block.

    For imports: a module may catch KeyboardInterrupt, or it is printed with dozens of lines.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
