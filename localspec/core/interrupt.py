"""Ctrl-C held back while it would do harm, and raised afterwards."""

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
