"""Metrics of a front and its models as one document, also of unloaded models."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from localspec.server import BUILD
from localspec.server.front.process import ModelProcess

_SECONDS = 5.0  # for a model's reply
_SUMS = ("counter", "histogram")  # types that add up over processes
_NOW = "requests_"  # in the names of gauges of a process's current work
_THEIRS = ("llamacpp:", "vllm:")  # metrics under the names of other servers


class _Document:
    """Metrics of several processes, each with labels; sums of those with the same labels."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._samples: dict[str, dict[object, Sample]] = {}

    def add(self, text: str, labels: Callable[[str], Mapping[str, str]]) -> None:
        """Add the metrics of a text, with labels by the names of metrics."""
        for family in text_string_to_metric_families(text):
            self._add(family, labels(family.name))

    def _add(self, family: Metric, labels: Mapping[str, str]) -> None:
        known = Metric(family.name, family.documentation, family.type)
        self._families.setdefault(family.name, known)
        samples = self._samples.setdefault(family.name, {})
        for each in family.samples:
            all_labels = {**each.labels, **labels}
            key = each.name, *sorted(all_labels.items())
            before = samples[key].value if key in samples and family.type in _SUMS else 0.0
            samples[key] = each._replace(labels=all_labels, value=before + each.value)

    def end(self) -> None:
        """Set the gauges of current work to 0."""
        for family in self._families.values():
            if family.type == "gauge" and _NOW in family.name:
                samples = self._samples[family.name]
                samples.update({key: each._replace(value=0.0) for key, each in samples.items()})

    def collect(self) -> Iterable[Metric]:
        """Each metric once, with the samples of all."""
        for name, family in self._families.items():
            family.samples = [*self._samples[name].values()]
        return self._families.values()


def merged(
    texts: Mapping[str, str], ended: Mapping[str, str] = {}, *, several: bool = True
) -> bytes:
    """Metrics in Prometheus' text format, each sample with the label of its model.

    Models are keys; "" is the front's own. ``ended`` are the `totals` of processes that ended. Of
    one model, metrics under the names of other servers have no label, as there.
    """
    document = _Document()
    for found in (ended, texts):
        for name, text in found.items():
            document.add(text, partial(_labels, name, several))
    return generate_latest(document)


def _labels(model: str, several: bool, metric: str) -> Mapping[str, str]:
    return {"model": model} if model and (several or not metric.startswith(_THEIRS)) else {}


def totals(texts: Iterable[str]) -> str:
    """Metrics of a model's ended processes: sums, and the last gauges, 0 for requests."""
    document = _Document()
    for text in texts:
        document.add(text, lambda metric: {})
    document.end()
    return generate_latest(document).decode()


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
