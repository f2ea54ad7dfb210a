"""Ctrl-C held back while it would do harm and raised afterwards, or ending the process at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
