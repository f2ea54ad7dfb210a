"""Handshake: what is no fitting RPC server is told apart before llama.cpp connects."""

import socket
import struct
from pathlib import Path

import pytest

from localspec.core.errors import EngineError
from localspec.core.options.load_options import RpcServer
from localspec.llama.rpc import handshake
from localspec.llama.rpc.handshake import PROTOCOL, device_count
from tests.support.llama.rpc_workers import answering, free_port, rpc_program, workers


def hello(major: int, minor: int) -> bytes:
    return struct.pack("<QBBBB", 28, major, minor, 0, 0) + bytes(24)


def devices(count: int) -> bytes:
    return struct.pack("<QI", 4, count)


HELLO = hello(*PROTOCOL)


def test_a_server_tells_how_many_devices_it_lends() -> None:
    with answering(HELLO, devices(3)) as server:
        assert device_count(server) == 3


def test_nothing_listens() -> None:
    server = RpcServer("127.0.0.1", free_port())
    with pytest.raises(EngineError, match=f"{server} cannot be reached: ") as caught:
        device_count(server)
    assert "ggml-rpc-server" in caught.value.hint


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((hello(PROTOCOL[0] - 1, 0),), "speaks version 6.0 of llama.cpp's RPC protocol"),
        ((hello(PROTOCOL[0] + 1, 0),), "speaks version 8.0 of llama.cpp's RPC protocol"),
        ((hello(PROTOCOL[0], PROTOCOL[1] + 1),), "speaks version 7.1 of llama.cpp's RPC protocol"),
        ((HELLO, devices(0)), "lends no device"),
        ((), "is no RPC server of llama.cpp"),
        ((HELLO,), "is no RPC server of llama.cpp"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "is no RPC server of llama.cpp"),
        ((struct.pack("<Q", 2**63),), "is no RPC server of llama.cpp"),
        ((HELLO[:20],), "is no RPC server of llama.cpp"),
    ],
)
def test_a_server_that_does_not_fit(answers: tuple[bytes, ...], said: str) -> None:
    with answering(*answers) as server, pytest.raises(EngineError, match=said):
        device_count(server)


def test_an_occupied_server_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_PATIENCE", 0.2)
    with answering(hang=True) as server, pytest.raises(EngineError) as caught:
        device_count(server)
    assert "does not answer within 0.2 seconds" in caught.value.message
    assert "one program at a time" in caught.value.hint


@pytest.mark.llama
def test_llama_cpp_s_own_server_speaks_our_version(tmp_path: Path) -> None:
    with workers(rpc_program(), tmp_path, 1) as (worker,):
        assert device_count(worker.server) >= 1


@pytest.mark.llama
def test_an_occupied_server_survives_our_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workers(rpc_program(), tmp_path, 1) as (worker,):
        with socket.create_connection(worker.server):
            monkeypatch.setattr(handshake, "_PATIENCE", 0.2)
            with pytest.raises(EngineError, match="does not answer"):
                device_count(worker.server)
        monkeypatch.undo()
        assert device_count(worker.server) == 1  # what it would have died of came first
