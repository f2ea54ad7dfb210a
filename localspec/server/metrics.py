"""The server's metrics for Prometheus, under names of localspec, llama-server and vLLM."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from localspec.chat.stats import GenerationStats
from localspec.engine.session.session import Session

CONTENT_TYPE = CONTENT_TYPE_LATEST
_DRAFTING = (
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
)  # fmt: skip
_PER_POSITION = "spec_decode_num_accepted_tokens_per_pos"
# Names of our metrics in other servers.
_ELSEWHERE = {
    "llamacpp": {"rounds": "n_decode"} | {
        name: name
        for name in (
            "prompt_tokens", "prompt_tokens_cached", "prompt_seconds", "tokens_predicted",
            "tokens_predicted_seconds", *_DRAFTING, "requests_processing", "requests_deferred",
            "n_tokens_max", "n_busy_slots_per_decode",
        )
    },
    "vllm": {name: name for name in (*_DRAFTING, _PER_POSITION)},
}  # fmt: skip
# Gauges of llama-server: name, help, and the two counters whose quotient it is.
_SPEEDS = (
    ("prompt_tokens_seconds", "Prompt tokens per second.", "prompt_tokens", "prompt_seconds"),
    ("predicted_tokens_seconds", "Tokens generated per second.", "tokens_predicted",
     "tokens_predicted_seconds"),
)  # fmt: skip
# Counters: name, help, and the attributes of `GenerationStats` that each adds up over answers.
_SUMS = (
    ("prompt_tokens", "Prompt tokens read, without those in the cache.", "read_tokens"),
    ("prompt_tokens_cached", "Prompt tokens that the cache held.", "cached_tokens"),
    ("prompt_seconds", "Seconds spent reading prompts.", "prompt_seconds draft_prompt_seconds"),
    (
        "draft_prompt_seconds",
        "Seconds of prompt_seconds in which the draft read.",
        "draft_prompt_seconds",
    ),
    ("tokens_predicted", "Tokens generated.", "tokens"),
    ("tokens_predicted_seconds", "Seconds spent generating.", "seconds"),
    (
        "plain_seconds",
        "Estimated seconds of plain decoding for the same tokens.",
        "plain_or_own_seconds",
    ),
    ("rounds", "Passes of the target that generated tokens.", "rounds"),
    ("spec_decode_num_draft_tokens", "Tokens drafted.", "drafted"),
    ("spec_decode_num_accepted_tokens", "Drafted tokens accepted.", "accepted"),
    ("spec_decode_num_drafts", "Rounds that drafted something.", "drafts"),
)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 600)


class RequestMetrics:
    """Counts of the requests of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "localspec_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self._by_key = Counter(
            "localspec_requests_by_key", "Requests by API key.", ["key"], registry=registry
        )
        self._request_seconds = Histogram(
            "localspec_request_seconds",
            "From a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._request_seconds.labels(path).observe(seconds)

    def count_key(self, key: str) -> None:
        """Add a request with an API key, given by its name."""
        self._by_key.labels(key).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, those of other servers a second time."""
        return generate_latest(self._registry) + generate_latest(_Elsewhere(self._registry))


class _Elsewhere:
    """The metrics that other servers have too, under their names: for tools made for these."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Copies of the metrics, and llama-server's speeds that are computed from them."""
        totals: dict[str, float] = {}
        for family in self._registry.collect():
            ours = family.name.removeprefix("localspec_")
            for server, names in _ELSEWHERE.items():
                if ours not in names:
                    continue
                copy = Metric(f"{server}:{names[ours]}", family.documentation, family.type)
                for each in family.samples:
                    if not each.name.endswith("_created"):
                        name = each.name.replace(family.name, copy.name, 1)
                        copy.samples.append(each._replace(name=name))
                        totals[names[ours]] = each.value
                yield copy
        for name, says, tokens, seconds in _SPEEDS:
            if took := totals.get(seconds):
                yield GaugeMetricFamily(f"llamacpp:{name}", says, totals[tokens] / took)


class Metrics(RequestMetrics):
    """Counters, gauges and histograms of one model's server."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        registry = self._registry

        def gauge(name: str, says: str, value: Callable[[], float]) -> None:
            Gauge(f"localspec_{name}", says, registry=registry).set_function(value)

        self._sums = {
            attributes: Counter(f"localspec_{name}", says, registry=registry)
            for name, says, attributes in _SUMS
        }
        self._by_position = Counter(
            f"localspec_{_PER_POSITION}",
            "Drafted tokens accepted, by their position in the draft.",
            ["position"],
            registry=registry,
        )
        self._by_source = Counter(
            "localspec_accepted_tokens",
            "Drafted tokens accepted, by their origin.",
            ["source"],
            registry=registry,
        )
        gauge("requests_processing", "Answers under way.", lambda: session.running)
        gauge("requests_deferred", "Answers waiting.", lambda: session.waiting)
        self._most_tokens, self._answering, self._passes = 0, 0, 0.0
        gauge("n_tokens_max", "Tokens of the longest prompt and answer.", lambda: self._most_tokens)
        gauge(
            "n_busy_slots_per_decode",
            "Answers that share a pass of the target, on average.",
            lambda: self._answering / self._passes if self._passes else 0.0,
        )
        self.first_token_seconds = Histogram(
            "localspec_time_to_first_token_seconds",
            "From the request to the first text, including the wait in the queue.",
            buckets=_SECONDS,
            registry=registry,
        )

    def count_answer(self, stats: GenerationStats) -> None:
        """Add the figures of one answer, which may be cut off."""
        for attributes, counter in self._sums.items():
            counter.inc(sum(getattr(stats, name) for name in attributes.split()))
        tokens = stats.prompt_tokens + stats.tokens
        self._most_tokens = max(tokens, self._most_tokens)
        self._answering += sum(passes.passes for passes in stats.passes.values())
        self._passes += stats.own_passes
        for position, accepted in enumerate(stats.accepted_by_position):
            self._by_position.labels(str(position)).inc(accepted)
        for source, found in stats.sources.items():
            self._by_source.labels(source).inc(found.accepted)
