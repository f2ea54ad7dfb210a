"""Child processes for code that may crash; a child ends when its parent does."""

import json
import os
import subprocess
import sys
import threading


def ask(module: str, question: object, patience: float) -> tuple[int, str]:
    """Run a module as a child process with a question as JSON; its exit code and output.

    Raises SubprocessError after ``patience`` seconds, and OSError if it cannot be started.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(module), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(question, default=str) + "\n")
            process.stdin.flush()  # and left open: its end tells the child that we are gone
            return process.wait(patience), process.stdout.read()
        finally:
            process.kill()


def crashed(code: int) -> bool:
    """Whether an exit code is that of a crash (an uncaught Python exception gives 1)."""
    return code not in (0, 1)


def command(module: str) -> list[str]:
    """Command line that runs a module as a child; its stdin must be a pipe that stays open."""
    return [sys.executable, "-P", "-m", module]  # -P: ignore modules in the current folder


def end_with_parent() -> None:
    """In the child, after reading stdin: exit when the parent does."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)
