"""Figures of running servers, by model: the state of their slots, and their counts."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import Field, TypeAdapter

from localspec.core import machine
from localspec.server.running import RunningServer

Counts = Mapping[str, float]
Reading = tuple[int, int, float | None]

LOADING = "loading"
UNANSWERED = ("stuck", "not answering", "not a reply of localspec")  # states without figures
_LARGEST = 2**53  # a count beyond it is none
_Count = Annotated[int, Field(ge=0, lt=_LARGEST)]


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The current state of a model, and sums over its answers since the server began.

    ``tokens`` include those of answers under way, ``generation_tps`` and all that follows do not.
    ``times_plain`` is the estimated speed over plain decoding.
    ``by_source`` holds accepted tokens by their origin, ``by_position`` by their place in the
    draft, in ``drafts`` rounds. ``prompts`` are being read: tokens read, all of them, and the
    seconds left, None if unknown.
    ``known`` is False if the server does not show its metrics.
    """

    model: str
    state: str
    known: bool = False
    running: int = 0
    waiting: int = 0
    slots: int = 0
    busy: int = 0
    tokens: int = 0
    generation_tps: float | None = None
    times_plain: float | None = None
    answered: int = 0
    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    by_source: Mapping[str, int] = field(default_factory=dict)
    by_position: tuple[int, ...] = ()
    prompts: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The models of one server; ``memory`` is in bytes, 0 if unknown, ``at`` in Unix time."""

    url: str
    pid: int
    at: float
    memory: int
    models: tuple[ModelFigures, ...]


@dataclass(frozen=True, slots=True)
class _Slot:
    """The facts of a slot that are shown, as a server reports them."""

    is_processing: bool
    n_prompt_tokens_processed: _Count = 0
    n_prompt_tokens: _Count = 0
    prompt_seconds_left: Annotated[float, Field(ge=0, lt=_LARGEST)] | None = None
    n_decoded: _Count = 0


def look(server: RunningServer) -> ServerFigures:
    models = tuple(figures(server))
    memory = machine.family_bytes(server.pid)
    return ServerFigures(server.url, server.pid, time.time(), memory, models)


def figures(server: RunningServer) -> list[ModelFigures]:
    """The figures of each model of a server; its state says if it does not answer."""
    if server.is_loading:
        return [ModelFigures(server.models[0], LOADING)]
    health = server.ask("/health")
    if not health:
        state = "not answering" if health is None else "stuck"
        return [ModelFigures(server.models[0], state)]
    try:
        return _read(server, health)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return [ModelFigures(server.models[0], UNANSWERED[-1])]


def _read(server: RunningServer, health: str) -> list[ModelFigures]:
    """The figures in a server's replies; raises one of many errors for a malformed reply."""
    several: Mapping[str, Any] = json.loads(health).get("models") or {}
    text = server.ask("/metrics")
    counts = _counts(text or "")
    found = []
    for name, state in (several or {server.models[0]: "ready"}).items():
        named = f"?model={quote(name, safe='')}" if several else ""
        answers = state in ("ready", "loaded")
        listed = (server.ask(f"/slots{named}") or "[]") if answers else "[]"
        slots = TypeAdapter(list[_Slot]).validate_json(listed, strict=True)
        known = counts.get(name if several else "", {}) if text else None
        found.append(_figures(name, str(state), known, slots))
    return found


def _counts(text: str) -> dict[str, dict[str, float]]:
    """Values by model, and by the metric's name, followed by a slash and the other label."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        if family.name.startswith("localspec_"):
            for each in family.samples:
                if not abs(each.value) < _LARGEST:  # nor NaN
                    raise ValueError(f"{each.name} is {each.value}")
                labels = {**each.labels}
                model = labels.pop("model", "")
                name = "/".join([each.name.removeprefix("localspec_"), *labels.values()])
                found[model][name] = each.value
    return found


def _figures(name: str, state: str, counts: Counts | None, slots: list[_Slot]) -> ModelFigures:
    busy = [slot for slot in slots if slot.is_processing]
    reading = [
        (each.n_prompt_tokens_processed, each.n_prompt_tokens, each.prompt_seconds_left)
        for each in busy
    ]
    now = ModelFigures(name, state, slots=len(slots), busy=len(busy))
    if counts is None:
        return now

    def total(metric: str) -> int:
        return int(counts.get(f"{metric}_total", 0))

    positions = dict(_labelled(counts, "spec_decode_num_accepted_tokens_per_pos_total"))
    answered, seconds = total("tokens_predicted"), counts.get("tokens_predicted_seconds_total", 0)
    spent = seconds + counts.get("draft_prompt_seconds_total", 0)
    return ModelFigures(
        name,
        state,
        known=True,
        running=int(counts.get("requests_processing", 0)),
        waiting=int(counts.get("requests_deferred", 0)),
        slots=len(slots),
        busy=len(busy),
        tokens=answered + sum(slot.n_decoded for slot in slots),
        generation_tps=answered / seconds if seconds else None,
        times_plain=counts.get("plain_seconds_total", 0) / spent if spent else None,
        answered=answered,
        rounds=total("rounds"),
        drafts=total("spec_decode_num_drafts"),
        drafted=total("spec_decode_num_draft_tokens"),
        accepted=total("spec_decode_num_accepted_tokens"),
        by_source=dict(_labelled(counts, "accepted_tokens_total")),
        by_position=tuple(positions[key] for key in sorted(positions, key=int)),
        prompts=tuple(each for each in reading if each[0] < each[1]),
    )


def _labelled(counts: Counts, metric: str) -> Iterator[tuple[str, int]]:
    for name, value in counts.items():
        if name.startswith(f"{metric}/"):
            yield name.removeprefix(f"{metric}/"), int(value)
