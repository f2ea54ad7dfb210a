"""Figures of running servers: of one model, of several behind a front, and without metrics."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec.chat.stats import GenerationStats
from localspec.core import machine
from localspec.server.front.metrics import merged
from localspec.server.guard import Access
from localspec.server.running import RunningServer
from localspec.server.watch import ModelFigures, figures, look
from tests.support.served import PATIENCE, ServedToy, Site, gated_toy, serving


def running(site: Site) -> RunningServer:
    return RunningServer(os.getpid(), site.url, ["toy"], 1, time.time(), "here")


def test_figures_are_those_of_the_answers() -> None:
    with serving(ServedToy()) as site:
        told = [site.ask(max_tokens=20, draft_tokens=3, temperature=0) for _ in range(2)]
        (found,) = figures(running(site))
    drafts = [each["metrics"]["speculative_decoding"] for each in told]
    assert (found.model, found.state, found.known) == ("toy", "ready", True)
    assert (found.running, found.waiting, found.slots, found.busy) == (0, 0, 1, 0)
    assert found.tokens == found.answered == sum(each["timings"]["predicted_n"] for each in told)
    assert found.rounds == sum(each["timings"]["rounds"] for each in told)
    assert found.drafts == sum(each["num_spec_steps"] for each in drafts)
    assert found.drafted == sum(each["num_draft_tokens"] for each in drafts)
    assert sum(found.by_position) == sum(found.by_source.values()) == found.accepted > 0
    assert found.by_position == tuple(sorted(found.by_position, reverse=True))
    assert found.generation_tps is not None and found.generation_tps > 0


def test_the_gain_is_that_of_the_log() -> None:
    stats = GenerationStats(answers=1, tokens=64, drafted=40, seconds=2.0, plain_seconds=3.0)
    stats.draft_prompt_seconds = 0.5
    with serving(ServedToy()) as site:
        site.service.metrics.count_answer(stats)
        (found,) = figures(running(site))
        assert found.times_plain == stats.estimated_speedup == 1.2
        short = GenerationStats(answers=1, tokens=4, seconds=2.0, draft_prompt_seconds=0.5)
        site.service.metrics.count_answer(short)  # too short for an estimate: as fast as plain
        (found,) = figures(running(site))
        assert found.times_plain == 1.1


def test_an_answer_under_way_counts() -> None:
    engine, gate = gated_toy()
    with serving(engine) as site, ThreadPoolExecutor() as client:
        asked = client.submit(site.ask)
        assert gate.began.acquire(timeout=PATIENCE)
        (found,) = figures(running(site))
        gate.let(10_000)
        assert asked.result()
        (after,) = figures(running(site))
    assert (found.running, found.busy, found.answered) == (1, 1, 0)
    assert len(found.prompts) == 1 or found.tokens > 0
    assert (after.busy, after.prompts) == (0, ()) and after.tokens == after.answered > 0


def test_a_server_that_hides_its_metrics() -> None:
    with serving(ServedToy(), access=Access(off=("metrics", "slots"))) as site:
        assert figures(running(site)) == [ModelFigures("toy", "ready")]


def test_models_behind_a_front(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        name: f"# TYPE localspec_tokens_predicted counter\nlocalspec_tokens_predicted_total {n}\n"
        f"# TYPE localspec_accepted_tokens counter\n"
        f'localspec_accepted_tokens_total{{source="lookup"}} {n - 1}\n'
        for name, n in (("a b", 7), ("c", 9))
    }
    replies = {
        "/health": '{"status": "ok", "models": {"a b": "loaded", "c": "unloaded"}}',
        "/metrics": merged(texts).decode(),
        "/slots?model=a%20b": '[{"id": 0, "is_processing": true, "n_prompt_tokens": 9, '
        '"n_prompt_tokens_processed": 4, "n_decoded": 2, "prompt_seconds_left": 12.5}]',
        "/slots?model=c": "[]",
    }
    monkeypatch.setattr(RunningServer, "ask", lambda self, path: replies[path])
    server = RunningServer(1, "http://x", ["a b", "c"], 1, 0, "here")
    first, second = figures(server)
    assert (first.model, first.state, first.tokens, first.busy) == ("a b", "loaded", 9, 1)
    assert first.prompts == ((4, 9, 12.5),) and first.by_source == {"lookup": 6}
    assert (second.model, second.state, second.tokens) == ("c", "unloaded", 9)


@pytest.mark.parametrize(("reply", "state"), [(None, "not answering"), ("", "stuck")])
def test_a_server_without_answer(
    monkeypatch: pytest.MonkeyPatch, reply: str | None, state: str
) -> None:
    monkeypatch.setattr(RunningServer, "ask", lambda self, path: reply)
    server = RunningServer(os.getpid(), "http://x", ["a"], 1, 0, "here")
    found = look(server)
    assert found.models == (ModelFigures("a", state),) and found.url == "http://x"


def test_memory_is_that_of_a_process_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.family_bytes(os.getpid()) > 2**20
    rows = "  1 0 100\n 7 1 20\n 8 7 3\n 9 1 1\n"
    monkeypatch.setattr(machine, "_output", lambda *command: rows)
    assert machine.family_bytes(7) == 23 * 1024 and machine.family_bytes(5) == 0
