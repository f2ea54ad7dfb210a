"""Running servers of this user: a state file for each, locked as long as its process lives."""

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from localspec.core import paths
from localspec.core.files import read_at_most

_MOST_BYTES = 2**16
_SECONDS, _MOST_REPLY = 3, 2**22  # of a reply


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server on this machine; ``since`` is in Unix time, ``models`` are the names it answers to.

    ``host`` is the machine: several may share the folder of state files.
    """

    pid: int
    url: str
    models: Sequence[str]
    slots: int
    since: float
    host: str

    @property
    def name(self) -> str:
        """Its first model, and its address."""
        return f"{', '.join(self.models[:1])} at {self.url}"

    def is_called(self, text: str) -> bool:
        """Whether a text is its port, its URL or the name of one of its models."""
        return text in (self.url.rpartition(":")[2], self.url, *self.models)

    @property
    def is_alive(self) -> bool:
        """Whether its process still holds the lock: a recorded pid may be another's by now."""
        return _is_locked(_path(self.pid))

    def ask(self, path: str) -> str | None:
        """What it replies to GET: nothing to a request that it refuses, None where none comes.

        The first key of LOCALSPEC_API_KEY is sent.
        """
        local = self.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        key = os.environ.get("LOCALSPEC_API_KEY", "").partition(",")[0].strip()
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # Its certificate names the machine as others know it, and perhaps nobody signed it.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        try:
            with opener.open(Request(local + path, headers=headers), timeout=_SECONDS) as reply:
                return str(reply.read(_MOST_REPLY).decode())
        except HTTPError:
            return ""
        except (OSError, ValueError):
            return None

    def stop(self) -> bool:
        """Tell it to end; False where it has ended already."""
        if not self.is_alive:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return True


@contextmanager
def announced(url: str, models: Sequence[str], slots: int) -> Iterator[None]:
    """Let `running_servers` find this process while the block runs, where files can be locked."""
    place = _path(os.getpid())
    new = place.with_suffix(".new")
    record = RunningServer(os.getpid(), url, models, slots, time.time(), socket.gethostname())
    try:
        from fcntl import LOCK_EX, flock

        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = new.open("w")
        flock(held, LOCK_EX)
        held.write(json.dumps(asdict(record)))
        held.flush()
        new.replace(place)  # nobody sees it before it is locked
    except (ImportError, OSError):
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
        with suppress(OSError, ValueError, TypeError):
            server = RunningServer(**json.loads(read_at_most(path, _MOST_BYTES)))
            if server.host != socket.gethostname():
                continue
            if server.is_alive:
                found.append(server)
            else:
                path.unlink()
    return sorted(found, key=lambda server: server.since)


def _is_locked(path: Path) -> bool:
    from fcntl import LOCK_NB, LOCK_SH, flock

    try:
        with path.open() as file:
            flock(file, LOCK_SH | LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _folder() -> Path:
    return paths.state_folder() / "servers"


def _path(pid: int) -> Path:
    return _folder() / f"{pid}.json"
