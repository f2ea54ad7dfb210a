"""Child processes: modules of this program for what may crash, ended with whoever started them."""

import os
import sys
import threading


def command(module: str) -> list[str]:
    """How to run a module as a child; its stdin must be a pipe that stays open."""
    return [sys.executable, "-P", "-m", module]  # -P: no module of this folder


def end_with_parent() -> None:
    """In the child, once stdin was read: end when the parent is gone, for nobody would know."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
