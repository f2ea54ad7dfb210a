"""Loss of an RPC server: one sentence and exit code 1, though llama.cpp would abort."""

import contextlib
import ctypes
import functools
import os
import select
import signal
import socket
import sys
import threading
from typing import Any

from localspec.core.options.load_options import RpcServer
from localspec.llama import llama_library
from localspec.llama.rpc.handshake import reset_at_close

# Seconds without a word until the other machine is asked, then between probes; how many of them.
_IDLE, _INTERVAL, _PROBES = 10, 5, 4
_GRACE = 2.0  # seconds that Ctrl-C waits for llama.cpp to return
_connections: dict[RpcServer, socket.socket] = {}  # llama.cpp's own
_keep_alive: list[Any] = []  # callbacks of llama.cpp and of Python's interpreter


@functools.cache
def expect() -> None:
    """From here on let a lost server end the process with a sentence, and Ctrl-C end a wait."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
    _keep_alive.append(callback)
    llama_library.ggml().ggml_set_abort_callback(callback)
    signals = _signals()
    if signals is not None:
        threading.Thread(target=_watch_ctrl_c, args=(signals,), daemon=True).start()


def _signals() -> int | None:
    """A pipe that gets the numbers of signals; none if an event loop has one already."""
    if threading.current_thread() is not threading.main_thread():
        return None
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    if before == -1:
        return heard
    signal.set_wakeup_fd(before)
    return None


def guard(server: RpcServer, connection: socket.socket) -> None:
    """Let llama.cpp's connection to a server break if the other machine is gone.

    A machine that is gone does not say so: keepalives detect it, while a server that is only slow
    still answers them. Nor does the server die if this process is killed while it computes.
    """
    _connections[server] = connection
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE), ("TCP_KEEPINTVL", _INTERVAL), ("TCP_KEEPCNT", _PROBES)
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
    _leave(
        f"Error: The RPC server {who} was lost; an answer that had begun is not complete.\n"
        "See there why it ended, start it again, and repeat the command.\n",
        1,
    )


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _watch_ctrl_c(signals: int) -> None:
    """End the process at a second Ctrl-C while the main thread waits in llama.cpp.

    Python handles signals between its own instructions, and the thread reaches none there.
    """
    while True:
        if os.read(signals, 1)[0] != signal.SIGINT:
            continue
        returned = _main_thread_runs()
        if not returned.wait(_GRACE):
            os.write(2, b"\nWaiting for an RPC server. Ctrl-C again ends the program at once.\n")
        while not returned.is_set():
            if select.select([signals], [], [], 0.1)[0] and os.read(signals, 1)[0] == signal.SIGINT:
                _leave("", 130)


def _main_thread_runs() -> threading.Event:
    """An event that is set as soon as the main thread executes Python again."""
    event = threading.Event()

    def set_event(_: Any) -> int:
        event.set()
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(set_event)
    _keep_alive[1:] = [callback]
    ctypes.pythonapi.Py_AddPendingCall(callback, None)
    return event


def _leave(last_words: str, code: int) -> None:
    """End the process without waiting for llama.cpp's threads."""
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{show_cursor}\n{last_words}".encode())
    os._exit(code)
