"""Loss: what llama.cpp says before it aborts becomes a sentence."""

import socket
import struct
import subprocess
import sys

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
