"""Running servers of this user: a state file for each, locked as long as its process lives."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter

from localspec.core import paths
from localspec.core.files import lock, read_at_most

if TYPE_CHECKING:
    import httpx2

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

    pid: Annotated[int, Field(gt=0)]  # 0 would mean many processes
    url: str
    models: Annotated[Sequence[str], Field(min_length=1)]
    slots: int
    since: Annotated[float, Field(ge=0, lt=_LATEST)]
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
        import httpx2

        try:
            url = httpx2.URL(f"{self.url}{path}")
            status, data = asyncio.run(_get(url, {"Authorization": f"Bearer {key}"} if key else {}))
            return data.decode() if status == 200 else "" if status >= 400 else None
        except (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL):
            return None

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
    found, records = [], TypeAdapter(RunningServer)
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError):
            server = records.validate_json(read_at_most(path, _MOST_BYTES), strict=True)
            if server.host != socket.gethostname():
                continue
            if server.is_alive:
                found.append(server)
            else:
                path.unlink()
    return sorted(found, key=lambda server: server.since)


async def _get(url: "httpx2.URL", headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Status and body of a reply that takes at most `_SECONDS` in all.

    The server's certificate names the machine as others know it, and may be self-signed.
    """
    from httpx2 import AsyncClient

    here, data = url.copy_with(host=_LOOPBACK.get(url.host, url.host)), bytearray()
    client = AsyncClient(verify=False, trust_env=False, timeout=None)
    async with asyncio.timeout(_SECONDS), client:
        async with client.stream("GET", here, headers=headers) as reply:
            async for piece in reply.aiter_raw():
                if len(data := data + piece) > _MOST_REPLY:
                    raise ValueError("the reply is too long")
            return reply.status_code, bytes(data)


def _folder() -> Path:
    return paths.state_folder() / "servers"


def _path(host: str, pid: int) -> Path:
    """The state file of a process; containers that share the folder have pids of their own."""
    return _folder() / f"{host}-{pid}.json"
