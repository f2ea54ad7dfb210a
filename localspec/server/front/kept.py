"""What the processes of unloaded models leave behind: their counters and properties."""

from contextlib import suppress
from typing import Any

import httpx2

from localspec.server.front.metrics import counters
from localspec.server.front.process import ModelProcess

_SECONDS = 5.0  # for a model's reply


class Kept:
    """Counters and properties by the names of models."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.counters: dict[str, str] = {}
        self._props: dict[str, dict[str, Any]] = {}

    def props(self, name: str) -> dict[str, Any] | None:
        """The last properties of a model, with llama-server's mark of one that is not loaded."""
        props = self._props.get(name)
        return None if props is None else props | {"is_sleeping": True}

    async def metrics(self, process: ModelProcess) -> str:
        """The metrics of a model; none from one that does not answer."""
        reply = await self._ask(process, "/metrics")
        return "" if reply is None else reply.text

    async def keep(self, process: ModelProcess) -> None:
        """Note what a process counted, which ends now."""
        name = process.name
        earlier = self.counters.get(name, "")
        with suppress(ValueError):  # a process that fails may send anything
            self.counters[name] = counters([earlier, await self.metrics(process)])
        reply = await self._ask(process, "/props")
        if reply is not None and reply.status_code == 200:
            with suppress(ValueError):
                self._props[name] = reply.json()

    async def _ask(self, process: ModelProcess, path: str) -> httpx2.Response | None:
        try:
            return await self._client.get(
                process.url(path), headers=process.headers, timeout=_SECONDS
            )
        except httpx2.HTTPError:
            return None
