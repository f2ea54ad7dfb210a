"""Metrics of a front and its models, as one document."""

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class _Document:
    """Metrics of several processes by the names of their models; "" is the front's own."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._families: dict[str, Metric] = {}
        for name, text in texts.items():
            for family in text_string_to_metric_families(text):
                self._add(family, {"model": name} if name else {})

    def collect(self) -> Iterable[Metric]:
        """Each metric once, with the samples of all."""
        return self._families.values()

    def _add(self, family: Metric, labels: Mapping[str, str]) -> None:
        known = Metric(family.name, family.documentation, family.type)
        merged = self._families.setdefault(family.name, known)
        merged.samples += [
            each._replace(labels={**each.labels, **labels}) for each in family.samples
        ]


def merged(texts: Mapping[str, str]) -> bytes:
    """Metrics in Prometheus' text format, each sample with the label of its model."""
    return generate_latest(_Document(texts))
