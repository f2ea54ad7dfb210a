"""Ends to what is under way: Ctrl-C, held back where it would do harm, or another thread's wish."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Cancelled(Exception):
    """Nobody wants any more what this thread computes; see `stopped_when`."""


_wish = threading.local()  # `unwanted`: of the innermost `stopped_when` of each thread


@contextmanager
def stopped_when(unwanted: Callable[[], bool]) -> Iterator[None]:
    """Let what takes long in this thread end with Cancelled once ``unwanted()`` is true.

    Ctrl-C only reaches the main thread; this ends a pass in any. ``unwanted`` is called up to some
    hundred times in a pass of a model, and must not raise.
    """
    before = getattr(_wish, "unwanted", None)
    _wish.unwanted = unwanted
    try:
        yield
    finally:
        _wish.unwanted = before


def is_unwanted() -> bool:
    """Whether this thread should end what it is at."""
    unwanted = getattr(_wish, "unwanted", None)
    return unwanted is not None and bool(unwanted())


def require_wanted() -> None:
    """Raise Cancelled where this thread should end what it is at."""
    if is_unwanted():
        raise Cancelled


@contextmanager
def held_interrupt() -> Iterator[list[bool]]:
    """Hold Ctrl-C back inside the block and raise it at its end.

    In a ctypes callback a KeyboardInterrupt is printed and lost; in the middle of a drawing it
    leaves half of it behind. The yielded list is no longer empty once Ctrl-C was pressed.
    """
    pressed: list[bool] = []
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not hears or threading.current_thread() is not threading.main_thread():
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
    """End the process with exit code 130 at Ctrl-C inside the block, without a traceback.

    For imports: a KeyboardInterrupt in the middle of one is reported with dozens of lines, or is
    caught by the module and lost.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
