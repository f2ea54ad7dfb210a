"""Metrics of a front and its models, as one document."""

from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import Gauge, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from localspec.server.front.models import Model, Models
from localspec.server.metrics import RequestMetrics


class FrontMetrics(RequestMetrics):
    """Requests that the front answered itself, and which models are loaded."""

    def __init__(self, models: Models) -> None:
        super().__init__()
        loaded = Gauge(
            "localspec_model_loaded", "1 while it is.", ["model"], registry=self._registry
        )
        for model in models.all:
            loaded.labels(model.name).set_function(partial(_is_loaded, model))


def _is_loaded(model: Model) -> float:
    return float(model.is_loaded)


class _Document:
    """Metrics of several processes; those of a model get its name as a label."""

    def __init__(self, own: str, texts: Mapping[str, str]) -> None:
        self._families: dict[str, Metric] = {}
        self._add(own, {})
        for name, text in texts.items():
            self._add(text, {"model": name})

    def collect(self) -> Iterable[Metric]:
        """Each metric once, with the samples of all."""
        return self._families.values()

    def _add(self, text: str, labels: Mapping[str, str]) -> None:
        for family in text_string_to_metric_families(text):
            known = Metric(family.name, family.documentation, family.type)
            merged = self._families.setdefault(family.name, known)
            merged.samples += [
                sample._replace(labels={**sample.labels, **labels}) for sample in family.samples
            ]


def merged(own: bytes, texts: Mapping[str, str]) -> bytes:
    """The front's own metrics, and those of its models by name, in Prometheus' text format."""
    return generate_latest(_Document(own.decode(), texts))
