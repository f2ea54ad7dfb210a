"""Running servers of this user: a state file for each, locked as long as its process lives."""

import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from localspec.core import paths
from localspec.core.files import lock, read_at_most

_MOST_BYTES = 2**16
_SECONDS, _MOST_REPLY = 3, 2**22  # of a reply: more would hold `ps` and `top`
_LATEST = 2**33  # seconds: no calendar shows much more
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # the address of a server that listens everywhere


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server on this machine; ``since`` is in Unix time, ``models`` are the names it answers to.

    ``host`` is the machine: several may share the folder of state files. It has no ``slots`` while
    its model loads.
    """

    pid: int
    url: str
    models: Sequence[str]
    slots: int
    since: float
    host: str

    @property
    def is_loading(self) -> bool:
        """Whether its model loads: nothing listens yet."""
        return not self.slots

    @property
    def name(self) -> str:
        return f"{', '.join(self.models[:1])} at {self.url}"

    def is_called(self, text: str) -> bool:
        """Whether a text is its port, its URL or the name of one of its models."""
        return text in (self.url.rpartition(":")[2], self.url, *self.models)

    @property
    def is_alive(self) -> bool:
        """Whether its process still holds the lock: a recorded pid may be another's by now."""
        with suppress(OSError), _path(self.host, self.pid).open() as file:
            return not lock(file)
        return False

    def ask(self, path: str) -> str | None:
        """Its reply to GET: empty if it refuses the request, None if there is no reply.

        The first key of LOCALSPEC_API_KEY is sent, to this address alone: no redirect is followed.
        """
        key = os.environ.get("LOCALSPEC_API_KEY", "").partition(",")[0].strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            with _connected(self.url) as connection:
                connection.request("GET", path, headers=headers)
                reply = connection.getresponse()
                text = reply.read(_MOST_REPLY).decode()
        except (OSError, ValueError, HTTPException):
            return None
        return text if reply.status == 200 else "" if reply.status >= 400 else None

    def stop(self) -> bool:
        """Tell it to end; False if it has ended already."""
        if not self.is_alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return True


@contextmanager
def announced(url: str, models: Sequence[str], slots: int) -> Iterator[None]:
    """Let `running_servers` find this process while the block runs, if files can be locked."""
    record = RunningServer(os.getpid(), url, models, slots, time.time(), socket.gethostname())
    place = _path(record.host, record.pid)
    new = place.with_name(f"{place.stem}.new")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = new.open("w")
        if not lock(held, sure=True):
            raise OSError("files cannot be locked here")
        held.write(json.dumps(asdict(record)))
        held.flush()
        new.replace(place)  # it is locked before others can see it
    except OSError:
        yield
        return
    with held:
        try:
            yield
        finally:
            place.unlink(missing_ok=True)


def running_servers() -> list[RunningServer]:
    """The servers of this user on this machine, oldest first; files of ended ones are removed."""
    found = []
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError, TypeError, RecursionError):
            server = _checked(RunningServer(**json.loads(read_at_most(path, _MOST_BYTES))))
            if server.host != socket.gethostname():
                continue
            if server.is_alive:
                found.append(server)
            else:
                path.unlink()
    return sorted(found, key=lambda server: server.since)


def _checked(record: RunningServer) -> RunningServer:
    """The record; raises ValueError for values that no server writes. A pid of 0 means many."""
    texts = [record.url, record.host, *record.models]
    numbers = (record.pid, record.slots, record.since)
    right = all(isinstance(text, str) for text in texts) and type(record.models) is list
    right = right and all(type(number) in (int, float) for number in numbers)
    if not right or not record.models or not (record.pid > 0 and 0 <= record.since < _LATEST):
        raise ValueError("no record of a server")
    return record


@contextmanager
def _connected(url: str) -> Iterator[HTTPConnection]:
    """A connection to a server of this machine, which is cut after `_SECONDS`.

    Its certificate names the machine as others know it, and may be self-signed.
    """
    parts = urlsplit(url)
    host = _LOOPBACK.get(parts.hostname or "", parts.hostname or "")
    connection = HTTPConnection(host, parts.port)
    ends = time.monotonic() + _SECONDS
    with ExitStack() as stack:
        line = stack.enter_context(socket.create_connection((host, connection.port), _SECONDS))
        if parts.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            line = stack.enter_context(context.wrap_socket(line, do_handshake_on_connect=False))
        # The socket's own time limit restarts with each byte.
        cut = threading.Timer(_SECONDS, lambda: socket.socket.shutdown(line, socket.SHUT_RDWR))
        stack.callback(cut.cancel)
        cut.start()
        if isinstance(line, ssl.SSLSocket):
            line.do_handshake()
        connection.sock = line
        yield connection
    if time.monotonic() > ends:
        raise TimeoutError


def _folder() -> Path:
    return paths.state_folder() / "servers"


def _path(host: str, pid: int) -> Path:
    """The state file of a process; containers that share the folder have pids of their own."""
    return _folder() / f"{host}-{pid}.json"
