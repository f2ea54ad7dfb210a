"""Loss: what llama.cpp says before it aborts becomes a sentence, and Ctrl-C ends a wait."""

import contextlib
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.core.options.load_options import RpcServer
from localspec.llama.rpc import loss

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(sys.platform != "linux", reason="of a mutex that Linux lays out"),
]

_LOST = b"ggml/src/ggml-rpc/ggml-rpc.cpp:519: Remote RPC server crashed"
_ABORT = """
import ctypes, socket, sys
from localspec.core.options.load_options import RpcServer
from localspec.llama import llama_library
from localspec.llama.rpc import loss
loss.expect()
ours, theirs = socket.socketpair()
loss.guard(RpcServer("10.0.0.2", 7), ours)
others, kept = socket.socketpair()
loss.guard(RpcServer("10.0.0.3", 7), others)
{before}
print("half an", end="")
callback = llama_library.ggml().ggml_set_abort_callback(None)
ctypes.CFUNCTYPE(None, ctypes.c_char_p)(callback)({reason!r})
print(" unharmed", end="")
"""
_WAIT = """
import ctypes, sys
from localspec.llama.rpc import loss
loss._GRACE = 0.1
loss.expect()
mutex = ctypes.create_string_buffer(64)
lock = ctypes.CDLL(None).pthread_mutex_lock
lock(mutex)
print("waiting", flush=True)
lock(mutex)
"""
_READ = """
import sys
from localspec.llama.rpc import loss
loss.expect()
try:
    print("waiting", flush=True)
    input()
except KeyboardInterrupt:
    print("usual", flush=True)
input()
"""


def aborting(reason: bytes, before: str = "") -> subprocess.CompletedProcess[str]:
    code = _ABORT.format(reason=reason, before=before)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_a_closed_connection_is_named() -> None:
    done = aborting(_LOST, "theirs.close()")
    assert (done.returncode, done.stdout) == (1, "half an")
    assert done.stderr == (
        "\nError: The RPC server 10.0.0.2:7 was lost; an answer that had begun is not complete.\n"
        "See there why it ended, start it again, and repeat the command.\n"
    )


def test_where_no_connection_is_closed_all_servers_are_named() -> None:
    done = aborting(_LOST)
    assert (done.returncode, done.stdout) == (1, "half an")
    assert "The RPC server 10.0.0.2:7 or 10.0.0.3:7 was lost" in done.stderr


def test_another_abort_keeps_its_reason() -> None:
    done = aborting(b"ggml.c:1: GGML_ASSERT(a) failed")
    assert (done.returncode, done.stdout) == (0, "half an unharmed")
    assert done.stderr == "ggml.c:1: GGML_ASSERT(a) failed\n"


def test_a_connection_is_probed_and_ends_with_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "_connections", {})
    with socket.socket() as ours:
        loss.guard(RpcServer("10.0.0.2", 7), ours)
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == struct.pack("ii", 1, 0)
        limit = ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
        assert not any(limit)  # one that is slow is waited for


def _await_sleep(child: subprocess.Popen[str]) -> None:
    """Return when the child's main thread waits for something."""
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(") ")[2][0] != "S":
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the child ended with {child.wait(0.05)}")


def test_ctrl_c_ends_a_wait_that_python_cannot() -> None:
    command = [sys.executable, "-c", _WAIT]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert child.stdout is not None and child.stderr is not None
            assert child.stdout.readline() == "waiting\n"
            _await_sleep(child)
            child.send_signal(signal.SIGINT)
            assert child.stderr.readline() == "\n"
            assert child.stderr.readline().startswith("Waiting for an RPC server. Ctrl-C again")
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 130
        finally:
            child.kill()


def test_ctrl_c_goes_its_usual_way_elsewhere() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _READ], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "usual\n"
            out, err = child.communicate("\n", timeout=60)
            assert (child.returncode, out, err) == (0, "", "")
        finally:
            child.kill()
