"""Where the server listens, its connections, signals and shutdown."""

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.core import limits
from localspec.core.errors import FileProblem, LocalspecError
from localspec.server.body import MOST_REQUESTS
from localspec.server.errors import error_body

GRACE_SECONDS = 3.0  # for answers under way at shutdown
MOST_CONNECTIONS = MOST_REQUESTS + 32  # the rest is for requests that are answered at once: /health
_FILES = 4096  # open files that a server asks of the system,
_OTHER_FILES = 128  # and those among them for models, their processes and grammars
_FEWEST = 8  # connections, however few files there may be
_BACKLOG = 2048  # connections that wait to be accepted: more would be delayed by a second
_TLS_SECONDS = 10.0  # for a handshake, and for its end
_RETRY_SECONDS = 1.0  # after an error of `accept`, which would only come again at once
_REPORT_SECONDS = 60.0  # between two lines on such errors: they would fill the disk
_RECEIVE_SECONDS = 60.0  # for a request, from its first byte to its last
_IDLE_SECONDS = 180  # after a reply; a client whose tool takes a minute would find it closed
_TAKE_SECONDS = 30.0  # in which a client takes some of the data that waits for it,
_LEAST_TAKEN = 2**14  # at least so many bytes


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening; raises LocalspecError if it cannot be bound."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise LocalspecError(
            f"{host} is not an address to listen on.", "Try --host 127.0.0.1."
        ) from error
    # IPv4 first: clients that try one address of localhost try that one.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise _cannot_listen(host, port, error) from error
    return made


@contextlib.contextmanager
def bound(hosts: Sequence[str], port: int) -> Iterator[list[socket.socket]]:
    """Sockets of all hosts with one port, closed at the end; see `bind`."""
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for host in hosts:
            made = bind(host, sockets[0].getsockname()[1] if sockets else port)
            sockets.append(stack.enter_context(contextlib.closing(made)))
        yield sockets


def listen(bound: socket.socket) -> None:
    """Let clients connect; raises LocalspecError if another process took the port meanwhile."""
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error


def _cannot_listen(host: str, port: int, error: OSError) -> LocalspecError:
    return LocalspecError(
        f"Cannot listen on {host}, port {port}: {error.strerror}.",
        "Choose another with --port, or any free one with --port 0.",
    )


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a certificate and of its private key, in PEM format."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise FileProblem for files that TLS cannot use."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except ssl.SSLError:
            self._refuse("they are no certificate and its unencrypted key")
        except OSError as error:
            self._refuse(f"{error.strerror}")

    def _refuse(self, reason: str) -> NoReturn:
        raise FileProblem(
            f"TLS cannot use {self.certificate} with {self.key}: {reason}.",
            "Expected two files in PEM format: --ssl-cert-file and --ssl-key-file.",
        )


def url(listening: socket.socket, tls: Tls | None = None) -> str:
    host, port = listening.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Answering(Protocol):
    """The queue that answers a server's requests, and ends with it."""

    @property
    def running(self) -> int:
        """How many answers are under way."""

    def close(self, seconds: float = 0.0) -> None:
        """Refuse new requests; answers under way have so many seconds."""


class Connection(H11Protocol):
    """Uvicorn's connection, which waits for its client only so long, and while there is room.

    Silent or slow connections could otherwise hold all that the server has. Answers have no limit
    here: the queue bounds them.
    """

    most = MOST_CONNECTIONS
    _accepted: socket.socket | None = None  # or it is given up
    _making: asyncio.Task[Any] | None = None  # referenced: a loop alone does not keep its tasks
    _timeout: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None  # while the client has to take something

    def begin(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        """Count an accepted connection, then make it: its handshake of TLS may take long."""
        self._accepted, self.client = accepted, address[:2]
        self.connections.add(self)
        self._watch()
        self._make_room()
        self._making = self.loop.create_task(self._make(accepted))

    async def _make(self, accepted: socket.socket) -> None:
        limited: dict[str, Any] = {}
        if self.config.ssl is not None:
            limited = dict.fromkeys(("ssl_handshake_timeout", "ssl_shutdown_timeout"), _TLS_SECONDS)
        try:
            await self.loop.connect_accepted_socket(
                lambda: self, accepted, ssl=self.config.ssl, **limited
            )
        except OSError:  # among them those of TLS: the client left, or has no TLS
            pass
        finally:
            if self.transport is None:
                self.connections.discard(self)
                self._cancel_timeout()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        self._cancel_taking()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        self._cancel_taking()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Wait for an answer under way, and for nothing else."""
        if self._is_incomplete:
            self._refuse(503, "The server is shutting down.")
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: Java's clients offer HTTP/2 with each request, and are answered in HTTP/1.1."""

    @property
    def _is_incomplete(self) -> bool:
        """Whether a request is still to come, whole or in part."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def _make_room(self) -> None:
        """With too many connections, close one that waits for its client, else this one.

        It is the one that has waited longest, of the address with the most connections. One that is
        closing may wait for its client too: then it is ended at once.
        """
        connections = [each for each in self.connections if isinstance(each, Connection)]
        opened = [each for each in connections if not each._is_closing]
        if len(connections) > self.most:
            for each in set(connections).difference(opened):
                each.abort()
        if len(opened) <= self.most:
            return
        held = Counter(each._address for each in opened)
        waiting = [
            (-held[each._address], each._deadline, id(each), each)
            for each in opened
            if each is not self and (each._is_incomplete or each.flow.write_paused)
        ]
        chosen = min(waiting)[-1] if waiting else self
        if chosen is self and self.transport is None:
            return  # it is refused once there is a transport for the reason
        sentence = "There are too many connections. Ask again in a few seconds."
        chosen._refuse(503, sentence, explain=chosen is self)

    def abort(self) -> None:
        """End the connection at once, also within its handshake."""
        if self.transport is not None:
            self.transport.abort()
        elif self._accepted is not None:
            with contextlib.suppress(OSError):  # it has ended already
                self._accepted.shutdown(socket.SHUT_RDWR)  # its reader closes it then
            self._accepted = None

    @property
    def _is_closing(self) -> bool:
        if self.transport is None:
            return self._accepted is None
        return self.transport.is_closing()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _deadline(self) -> float:
        """When the client's time to send its request ends; for an idle one, when it became so."""
        if self._timeout is None and (idle := self.timeout_keep_alive_task) is not None:
            return idle.when() - self.timeout_keep_alive
        return self._timeout.when() if self._timeout is not None else math.inf

    def _watch(self) -> None:
        """Start the timeout while a request is incomplete; cancel it when it is complete."""
        if not self._is_incomplete:
            self._cancel_timeout()
        elif self._timeout is None:
            late = f"The request did not arrive within {_RECEIVE_SECONDS:g} s."
            self._timeout = self.loop.call_later(_RECEIVE_SECONDS, self._refuse, 408, late)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _await_taking(self) -> None:
        """Close the connection of a client that reads hardly any of the data sent to it."""
        waits = self.transport.get_write_buffer_size()

        def check() -> None:
            if waits - self.transport.get_write_buffer_size() < _LEAST_TAKEN:
                self.transport.abort()
            else:
                self._await_taking()

        self._taking = self.loop.call_later(_TAKE_SECONDS, check)

    def _cancel_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _refuse(self, status: int, message: str, explain: bool = False) -> None:
        """Close the connection; with the reason if ``explain`` is set or a request has begun."""
        if self.transport is None:
            self.abort()
            return
        begun = explain or self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error_body(status, message)).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            head = h11.Response(
                status_code=status,
                reason=HTTPStatus(status).phrase,
                headers=[*headers.items(), ("Connection", "close")],
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True  # the application's reply is not sent
        self.transport.close()
        if self.flow.write_paused:
            self.transport.abort()  # the rest would be waited for


class Server(uvicorn.Server):
    """Uvicorn's server in front of a queue, both ended by `end`.

    At the end new and waiting requests are refused, and answers under way get ``grace`` seconds;
    ``say`` gets a message about it.
    """

    files_by_connection = 1
    ending_seconds = 1.5  # beyond the grace, until the process ends whatever still runs

    def __init__(
        self,
        app: ASGIApp,
        session: Answering,
        say: Callable[[str], None] = lambda sentence: None,
        grace: float = GRACE_SECONDS,
        *,
        tls: Tls | None = None,
    ) -> None:
        class Limited(Connection):
            pass

        limits.raise_open_files(_FILES)
        free = limits.allowed("RLIMIT_NOFILE", _FILES) - _OTHER_FILES
        Limited.most = min(MOST_CONNECTIONS, max(_FEWEST, free // self.files_by_connection))
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=Limited,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None else tls.key,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=math.ceil(grace) + 1,  # the queue ends before
            )
        )
        self._connection = Limited
        self._accepting: list[asyncio.Task[None]] = []
        self._reported_at = -math.inf
        self._session = session
        self._say = say
        self._grace = grace

    def end(self) -> None:
        """End the server; may be called from any thread, and from a signal."""
        self.should_exit = True
        threading.Thread(target=self._close, name="ending").start()

    def _close(self) -> None:
        if running := self._session.running:
            grace = f"answers under way ({running}) have {self._grace:g} s to complete"
            self._say(f"Shutting down; {grace}. Ctrl-C again ends at once.")
        self._session.close(self._grace)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections one by one; asyncio's servers accept all that come, uncounted."""
        self.servers = []
        for each in sockets or ():
            each.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(each)))
        self.started = True

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if loop.time() >= self._reported_at + _REPORT_SECONDS:
                    self._reported_at = loop.time()
                    self._say(f"A connection cannot be accepted: {error.strerror}.")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._connection(self.config, self.server_state, {}).begin(accepted, address)
            await asyncio.sleep(0)  # in which those that gave way are closed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End as Uvicorn does, and drop clients that have not read their answers until then."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)
        for connection in tuple(self.server_state.connections):
            assert isinstance(connection, Connection)
            connection.abort()
        await asyncio.sleep(0)  # in which they are closed

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the server, a second one the process at once.

        `run` does this too; before it, a signal makes `run` return at once.

        If native code does not return, the process still ends, `ending_seconds` after
        the grace of answers.

        Uvicorn would raise them again afterwards, before the models are closed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + number)
        self.end()
        ending = threading.Timer(self._grace + self.ending_seconds, self._abandon)
        ending.daemon = True
        ending.start()

    def _abandon(self) -> None:
        """End the process; its children end with it."""
        self._say("A slot did not end in time: the process ends without it.")
        time.sleep(0.2)  # in which the log's thread writes it, if anybody reads it
        os._exit(1)
