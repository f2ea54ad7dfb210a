"""Loss of an RPC server: one sentence and exit code 1, though llama.cpp would abort."""

import contextlib
import ctypes
import functools
import os
import socket
import sys
from typing import Any

from localspec.core.options.load_options import RpcServer
from localspec.llama import llama_library
from localspec.llama.rpc.handshake import reset_at_close

# Seconds without a word until the other machine is asked, then between probes; how many of them.
_IDLE, _INTERVAL, _PROBES = 10, 5, 4
_connections: dict[RpcServer, socket.socket] = {}  # llama.cpp's own
_keep_alive: list[Any] = []  # callbacks of llama.cpp


@functools.cache
def expect() -> None:
    """From here on let a lost server end the process with a sentence."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
    _keep_alive.append(callback)
    llama_library.ggml().ggml_set_abort_callback(callback)


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
    last_words = (
        f"Error: The RPC server {who} was lost; an answer that had begun is not complete.\n"
        "See there why it ended, start it again, and repeat the command.\n"
    )
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{show_cursor}\n{last_words}".encode())
    os._exit(1)  # without waiting for llama.cpp's threads


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
