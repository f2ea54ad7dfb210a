"""Metrics and properties of unloaded models, kept from their processes."""

from contextlib import suppress
from typing import Any

import httpx2

from localspec.server import BUILD
from localspec.server.front.metrics import totals
from localspec.server.front.process import ModelProcess

_SECONDS = 5.0  # for a model's reply


class Kept:
    """Metrics and properties by the names of models."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.totals: dict[str, str] = {}
        self._props: dict[str, dict[str, Any]] = {}

    def props(self, name: str) -> dict[str, Any]:
        """The last properties of a model that is not loaded; its name alone before it first is."""
        props = self._props.get(name, {"model_alias": name, "build_info": BUILD})
        return props | {"is_sleeping": True}  # llama-server's mark

    async def metrics(self, process: ModelProcess) -> str:
        """The metrics of a model; none from one that does not answer."""
        reply = await self.ask(process, "/metrics")
        return "" if reply is None else reply.text

    async def keep(self, process: ModelProcess) -> None:
        """Keep the counts of a process that ends now."""
        name = process.name
        earlier = self.totals.get(name, "")
        with suppress(ValueError):  # a process that fails may send anything
            self.totals[name] = totals([earlier, await self.metrics(process)])
        reply = await self.ask(process, "/props")
        if reply is not None and reply.status_code == 200:
            with suppress(ValueError):
                self._props[name] = reply.json()

    async def ask(self, process: ModelProcess, path: str) -> httpx2.Response | None:
        """The reply of a process to GET; None without one."""
        try:
            return await self._client.get(
                process.url(path), headers=process.headers, timeout=_SECONDS
            )
        except httpx2.HTTPError:
            return None
