"""Metrics of a front and its models, as one document."""

from collections.abc import Iterable, Mapping

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_SUMS = ("counter", "histogram")  # types that add up over processes


class _Document:
    """Metrics of several processes, each with labels; sums where those are the same."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}
        self._samples: dict[str, dict[object, Sample]] = {}

    def add(self, text: str, labels: Mapping[str, str], types: Iterable[str] | None = None) -> None:
        """Add the metrics of a text, or those of some types."""
        for family in text_string_to_metric_families(text):
            if types is None or family.type in types:
                self._add(family, labels)

    def _add(self, family: Metric, labels: Mapping[str, str]) -> None:
        known = Metric(family.name, family.documentation, family.type)
        self._families.setdefault(family.name, known)
        samples = self._samples.setdefault(family.name, {})
        for each in family.samples:
            all_labels = {**each.labels, **labels}
            key = each.name, *sorted(all_labels.items())
            before = samples[key].value if key in samples and family.type in _SUMS else 0.0
            samples[key] = each._replace(labels=all_labels, value=before + each.value)

    def collect(self) -> Iterable[Metric]:
        """Each metric once, with the samples of all."""
        for name, family in self._families.items():
            family.samples = [*self._samples[name].values()]
        return self._families.values()


def merged(texts: Mapping[str, str], ended: Mapping[str, str] = {}) -> bytes:
    """Metrics in Prometheus' text format, each sample with the label of its model.

    Models are keys; "" is the front's own. ``ended`` are the `counters` of processes that ended.
    """
    document = _Document()
    for found in (ended, texts):
        for name, text in found.items():
            document.add(text, {"model": name} if name else {})
    return generate_latest(document)


def counters(texts: Iterable[str]) -> str:
    """The sums of the counters and histograms of several processes of one model."""
    document = _Document()
    for text in texts:
        document.add(text, {}, _SUMS)
    return generate_latest(document).decode()
