"""A socket to listen on, and the server's life from the first request to the last."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from localspec.core.errors import LocalspecError

GRACE_SECONDS = 10  # for answers under way when the server is to end
_MOST_CONNECTIONS = 1000


def bind(host: str, port: int) -> socket.socket:
    """A socket of our own, not yet listening; raises LocalspecError where there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise LocalspecError(
            f"{host} is no address to listen on: {error.strerror}.", "Try --host 127.0.0.1."
        ) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise LocalspecError(
            f"Cannot listen on {host}, port {port}: {error.strerror}.",
            "Choose another with --port, or any free one with --port 0.",
        ) from error
    return made


def url(listening: socket.socket) -> str:
    """Where clients find it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn's server, which `end` ends: answers under way have `GRACE_SECONDS` to be complete."""

    def __init__(self, app: ASGIApp, on_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._on_end = on_end

    def end(self) -> None:
        """Take no more requests; may be called from any thread, and from a signal."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the server, a second one the process.

        Uvicorn raises them again afterwards, which would skip what closes the models.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._hear) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.end()
        self._on_end()
