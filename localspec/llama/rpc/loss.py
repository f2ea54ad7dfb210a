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
from pathlib import Path
from typing import Any

from localspec.core.config import RpcServer
from localspec.llama import llama_library
from localspec.llama.rpc.handshake import reset_at_close

SILENCE = 180  # seconds that a pass may keep a server busy, before it counts as lost
_ALONE, _PROBES = 10, 4  # seconds without a word until the other machine is asked, how often
NOTICE = 30  # seconds of these, after which a wait is told
_TICK = 2.0  # seconds between two looks
_GRACE = 2.0  # seconds that Ctrl-C waits for llama.cpp to return
_PACKAGE = Path(__file__).parents[2]
_CALLERS = tuple(f"{_PACKAGE / name}{os.sep}" for name in ("llama", "engine/slots"))
_connections: dict[RpcServer, socket.socket] = {}  # llama.cpp's own
_keep_alive: list[Any] = []  # callbacks of llama.cpp and of threads


@functools.cache
def expect() -> None:
    """From here on let a lost server end the process with a sentence, and Ctrl-C end a wait."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
    _keep_alive.append(callback)
    llama_library.ggml().ggml_set_abort_callback(callback)
    threading.Thread(target=_watch, args=(_signals(),), daemon=True).start()


def _signals() -> list[int]:
    """A pipe that gets the numbers of signals; none where an event loop has one already."""
    if threading.current_thread() is not threading.main_thread():
        return []
    heard, signalled = os.pipe()
    os.set_blocking(signalled, False)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    if before == -1:
        return [heard]
    signal.set_wakeup_fd(before)
    return []


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
    what = "was lost" if lost else f"gave no answer for {SILENCE} seconds, or none that fits"
    hint = (
        "See there why it ended, start it again, and repeat the command."
        if lost
        else "See whether it is stopped; if it is only slow, try a smaller --ubatch-size."
    )
    _leave(
        f"Error: The RPC server {who} {what}; an answer that had begun is not complete.\n{hint}\n",
        1,
    )


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _watch(signals: list[int]) -> None:
    """Tell of waits, and end the process at a second Ctrl-C in one.

    Python handles signals between its own instructions, of which the main thread reaches none
    while it waits in llama.cpp.
    """
    told: set[RpcServer] = set()
    while True:
        if _hears_ctrl_c(signals, _TICK):
            returned = _main_thread_runs()
            if not returned.wait(_GRACE):
                os.write(
                    2, b"\nWaiting for an RPC server. Ctrl-C again ends the program at once.\n"
                )
            while not returned.wait(0.1):
                if _hears_ctrl_c(signals, 0):
                    _leave("", 130)
        waiting = {server: _waited(each) for server, each in _connections.copy().items()}
        silent = {server for server in waiting if _in_llama_cpp() and waiting[server] >= NOTICE}
        for server in silent - told:
            sentence = f"No answer from the RPC server {server} for {NOTICE} seconds; after"
            os.write(2, f"\n{sentence} {SILENCE} it counts as lost.\n".encode())
        told = silent


def _hears_ctrl_c(signals: list[int], seconds: float) -> bool:
    ready = select.select(signals, [], [], seconds)[0]
    return any(os.read(each, 1)[0] == signal.SIGINT for each in ready)


def _in_llama_cpp() -> bool:
    """Whether a thread is in a call of llama.cpp: not every request has an answer to wait for."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    return any(frame.f_code.co_filename.startswith(_CALLERS) for frame in frames.values())


def _waited(connection: socket.socket) -> float:
    """Seconds since the last request, 0 where something came after it or Linux is not there."""
    with contextlib.suppress(OSError, AttributeError, struct.error):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        sent, _, received = struct.unpack_from("III", info, 44)  # tcpi_last_data_sent, …_recv
        return sent / 1000 if sent < received else 0.0
    return 0.0


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
