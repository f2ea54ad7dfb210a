"""RPC servers on loopback: llama.cpp's own as processes, and one that says what it is told."""

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.core.errors import EngineError
from localspec.core.options.load_options import RpcServer
from localspec.llama.rpc.handshake import device_count

_ATTEMPTS = 600
_PAUSE = 0.05  # seconds


def rpc_program() -> str:
    """llama.cpp's server; skips the test where it, or the RPC backend, was not built."""
    from localspec.llama.rpc.servers import is_available

    program = shutil.which("ggml-rpc-server")
    if program is None or not is_available():
        pytest.skip("needs scripts/build_rpc.sh, and ggml-rpc-server on the path")
    return program


class Worker:
    """One ggml-rpc-server with one thread; ``log`` is what it says."""

    def __init__(self, program: str, log: Path) -> None:
        self.server = RpcServer("127.0.0.1", free_port())
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [program, "-H", self.server.host, "-p", str(self.server.port), "-t", "1"],
                stdout=file,
                stderr=file,
            )
        self._await()

    def _await(self) -> None:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(EngineError):
                device_count(self.server)
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_PAUSE)
                raise RuntimeError(self.log.read_text())
        raise RuntimeError("the server does not listen")

    def end(self) -> None:
        """Kill it, also where it was stopped."""
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def workers(program: str, folder: Path, count: int) -> Iterator[list[Worker]]:
    """So many servers while the block runs."""
    with contextlib.ExitStack() as stack:
        made = []
        for i in range(count):
            made.append(Worker(program, folder / f"worker {i}.log"))
            stack.callback(made[-1].end)
        yield made


def named(servers: list[Worker]) -> str:
    """The value of ``--rpc``."""
    return ",".join(str(worker.server) for worker in servers)


def free_port() -> int:
    """A port of loopback where nothing listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def answering(*answers: bytes, hang: bool = False) -> Iterator[RpcServer]:
    """A server that sends these bytes to who connects, and hangs up unless it is to ``hang``."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    for answer in answers:
                        connection.recv(64)
                        connection.sendall(answer)
                    if hang:
                        ended.wait(60)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield RpcServer("127.0.0.1", listening.getsockname()[1])
        finally:
            ended.set()
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join()
