"""What a lost RPC server gives: one sentence and exit code 1, though llama.cpp would abort."""

import contextlib
import ctypes
import functools
import os
import select
import signal
import socket
import struct
import sys
import threading
from typing import Any

from localspec.core.config import RpcServer
from localspec.engine.llama import llama_library
from localspec.engine.llama.rpc.handshake import reset_at_close

SILENCE = 180  # seconds that a pass may keep a server busy, before it counts as lost
_ALONE, _PROBES = 10, 4  # seconds without a word until the other machine is asked, how often
_GRACE = 2.0  # seconds that Ctrl-C waits for llama.cpp to return
_connections: dict[RpcServer, socket.socket] = {}  # llama.cpp's own
_keep_alive: list[Any] = []  # callbacks of llama.cpp and of threads


@functools.cache
def expect() -> None:
    """From here on let a lost server end the process with a sentence, and Ctrl-C end a wait."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
    _keep_alive.append(callback)
    llama_library.ggml().ggml_set_abort_callback(callback)
    if threading.current_thread() is not threading.main_thread():
        return
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    if before != -1:  # an event loop listens already, and ends its threads itself
        signal.set_wakeup_fd(before)
        return
    threading.Thread(target=_hear_ctrl_c, args=(heard,), daemon=True).start()


def guard(server: RpcServer, connection: socket.socket) -> None:
    """Bound how long llama.cpp waits on its connection to a server.

    A machine that is gone does not say so, and a process that was stopped keeps its connection. Nor
    does the server die where this process is killed while it computes.
    """
    _connections[server] = connection
    limit = struct.pack("ll", SILENCE, 0)  # struct timeval
    options: list[tuple[int, int, int | bytes]] = [
        (socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit),
        (socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in (
        ("TCP_KEEPIDLE", _ALONE), ("TCP_KEEPINTVL", _ALONE // 2), ("TCP_KEEPCNT", _PROBES)
    ):  # fmt: skip
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    for level, option, setting in options:
        with contextlib.suppress(OSError):
            connection.setsockopt(level, option, setting)
    reset_at_close(connection)


def _on_abort(reason: bytes) -> None:
    """Called by llama.cpp, in any of its threads, just before it ends the process."""
    if b"ggml-rpc" not in reason:
        os.write(2, reason + b"\n")
        return
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    lost = [str(server) for server, each in _connections.items() if _is_closed(each)]
    who = " and ".join(lost) or " or ".join(map(str, _connections))
    what = "was lost" if lost else f"gave no answer for {SILENCE} seconds"
    _leave(
        f"Error: The RPC server {who} {what}; an answer that had begun is not complete.\n"
        + (
            "See there why it ended, start it again, and repeat the command."
            if lost
            else "See whether it is stopped; if it is only slow, try a smaller --ubatch-size."
        )
        + "\n",
        1,
    )


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _hear_ctrl_c(heard: int) -> None:
    """End the process at a second Ctrl-C while the main thread waits in llama.cpp.

    Python handles signals between its own instructions, of which it reaches none meanwhile.
    """
    while number := os.read(heard, 1):
        if number[0] != signal.SIGINT:
            continue
        returned = threading.Event()
        _when_main_runs(returned)
        if returned.wait(_GRACE):
            continue
        os.write(2, b"\nWaiting for an RPC server. Ctrl-C again ends the program at once.\n")
        while not returned.wait(0.1):
            if select.select([heard], [], [], 0)[0] and os.read(heard, 1)[0] == signal.SIGINT:
                _leave("", 130)


def _when_main_runs(event: threading.Event) -> None:
    """Set ``event`` as soon as the main thread executes Python again."""

    def set_event(_: Any) -> int:
        event.set()
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(set_event)
    _keep_alive[1:] = [callback]
    ctypes.pythonapi.Py_AddPendingCall(callback, None)


def _leave(last_words: str, code: int) -> None:
    """End the process without waiting for llama.cpp's threads."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{show_cursor}\n{last_words}".encode())
    os._exit(code)
