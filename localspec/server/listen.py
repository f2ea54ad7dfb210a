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
from localspec.server.connection import MOST_CONNECTIONS, Connection
from localspec.server.queue.scheduler import Scheduler

GRACE_SECONDS = 10.0  # for answers under way when the server is to end


def bind(host: str, port: int) -> socket.socket:
    """A socket of our own, not yet listening; raises LocalspecError where there is none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise LocalspecError(
            f"{host} is no address to listen on.", "Try --host 127.0.0.1."
        ) from error
    # Of localhost's two the older one, which clients try that know but one.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _cannot_listen(host, port, error) from error
    return made


def listen(bound: socket.socket) -> None:
    """Let clients connect; raises LocalspecError where another took the port meanwhile."""
    try:
        bound.listen()
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> LocalspecError:
    return LocalspecError(
        f"Cannot listen on {host}, port {port}: {error.strerror}.",
        "Choose another with --port, or any free one with --port 0.",
    )


def url(listening: socket.socket) -> str:
    """Where clients find it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn's server in front of a queue, both ended by `end`.

    Then no request is taken any more, those that wait are refused, and answers under way have
    ``grace`` seconds to be complete; ``say`` hears of it.
    """

    def __init__(
        self,
        app: ASGIApp,
        scheduler: Scheduler,
        say: Callable[[str], None] = lambda sentence: None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
                timeout_graceful_shutdown=int(grace) + 5,  # the queue is done before
            )
        )
        self._scheduler = scheduler
        self._say = say
        self._grace = grace

    def end(self) -> None:
        """End the server; may be called from any thread, and from a signal."""
        self.should_exit = True
        threading.Thread(target=self._close, name="ending").start()

    def _close(self) -> None:
        if running := self._scheduler.running:
            within = f"within {self._grace:g} s; Ctrl-C again ends at once"
            self._say(f"Ending, with what is under way ({running}) {within}.")
        self._scheduler.close(self._grace)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the server, a second one the process.

        Uvicorn would raise them again afterwards, past what closes the models.
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
