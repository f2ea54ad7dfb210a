"""The commands ps and stop, over servers of this process and one of its own."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.server import running
from localspec.server.running import announced, running_servers
from tests.commands.serve.test_serve import running as served
from tests.server.front.test_app import Slow, fronting
from tests.support.command import Command
from tests.support.real_pair import TinyFiles
from tests.support.served import COMPLETIONS, PATIENCE, ServedToy, gated_toy, serving


def test_a_running_server_is_listed_until_it_ends(
    localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_API_KEY", "first,second")
    with serving(ServedToy()) as site, announced(site.url, ["toy"], 2):
        (server,) = json.loads(localspec("ps", "--json").out)["servers"]
        shown = localspec("ps", "--no-header").out.split("\t")
    assert server["models"] == ["toy"] and server["url"] == site.url and server["slots"] == 2
    assert server["state"] == "ready" and server["busy"] == 0
    assert shown[:4] == ["toy", site.url, "0 of 2 busy", "ready"]
    assert localspec("ps").err.startswith("No server is running.")
    assert json.loads(localspec("ps", "--json").out) == {"servers": []}


def test_the_models_of_a_front_are_listed_while_they_load_and_read(localspec: Command) -> None:
    engine, gate = gated_toy()
    may_load = threading.Event()

    def listed() -> tuple[str, dict[str, Any]]:
        (server,) = json.loads(localspec("ps", "--json").out)["servers"]
        return localspec("ps", "--no-header").out.split("\t")[3], server

    with serving(engine) as toy, ThreadPoolExecutor() as client:

        class Loading(Slow):
            def __init__(self, names: tuple[str, ...], port: int) -> None:
                super().__init__(names, toy.port)

        Loading.may_load = may_load
        with fronting(stand=Loading) as site:
            with announced(str(site.client.base_url).rstrip("/"), ["a", "b"], 1):
                assert site.client.post("/models/load", json={"model": "a"}).is_success
                loading, found = listed()
                assert loading == "ready; loading a" and found["loading"] == ["a"]
                may_load.set()
                body = {"model": "a", "prompt": "the words of a prompt", "max_tokens": 4}
                asked = client.submit(site.client.post, COMPLETIONS, json=body)
                assert gate.began.acquire(timeout=PATIENCE)
                reading, found = listed()
                gate.let(10_000)
                assert asked.result().is_success
    ((read, total),) = found["prompts"]
    assert found["loading"] == [] and found["state"] == "ready"
    assert reading == f"ready; reading the prompt: {read} of {total} tokens"


def test_running_servers_are_watched(localspec: Command) -> None:
    with serving(ServedToy()) as site, announced(site.url, ["toy"], 1):
        site.ask(max_tokens=8)
        (server,) = json.loads(localspec("top", "--json").out)["servers"]
        shown = localspec("top", "toy").out.splitlines()
        refused = localspec("top", "other")
    (model,) = server["models"]
    assert (model["model"], model["state"], model["tokens"]) == ("toy", "ready", 8)
    assert server["url"] == site.url and server["memory"] > 0
    assert shown[0] == f"toy at {site.url}: ready" and "  slots     0 of 1 busy" in shown
    assert refused.code == 2 and "No server is called 'other'" in refused.sentences
    assert localspec("top").err.startswith("No server is running.")
    assert json.loads(localspec("top", "--json").out) == {"servers": []}


def test_a_prompt_that_is_read_is_listed(localspec: Command) -> None:
    engine, gate = gated_toy()
    with serving(engine) as site, announced(site.url, ["toy"], 1), ThreadPoolExecutor() as client:
        asked = client.submit(site.ask)
        assert gate.began.acquire(timeout=PATIENCE)
        shown = localspec("ps", "--no-header").out
        (server,) = json.loads(localspec("ps", "--json").out)["servers"]
        gate.let(10_000)
        assert asked.result()
    assert re.search(r"\t1 of 1 busy\tready; reading the prompt: \d+ of \d+ tokens\t", shown)
    ((read, total),) = server["prompts"]
    assert 0 <= read < total


def test_a_server_that_does_not_answer_is_listed_as_such(localspec: Command) -> None:
    with announced("http://127.0.0.1:1", ["toy"], 1):
        assert "? of 1 busy\tnot answering" in localspec("ps").out


def test_files_of_ended_servers_are_removed_and_those_of_other_machines_left() -> None:
    with announced("http://127.0.0.1:1", ["toy"], 1):
        (server,) = running_servers()
        folder = running._folder()
        ended, elsewhere = folder / "77.json", folder / "78.json"
        ended.write_text(json.dumps(asdict(replace(server, pid=77))))
        elsewhere.write_text(json.dumps(asdict(replace(server, pid=78, host="another"))))
        (folder / "79.json").write_text("no record")
        assert running_servers() == [server]
        assert not ended.exists() and elsewhere.exists()
    assert not server.stop()


def test_a_folder_that_cannot_be_written_is_no_error(home: Path) -> None:
    (home / ".local").write_text("")
    with announced("http://127.0.0.1:1", ["toy"], 1):
        assert running_servers() == []


@pytest.mark.parametrize(
    ("names", "arguments", "sentence"),
    [
        ([], [], "No server is running. Start one: localspec serve NAME"),
        (["a"], ["b"], "No server is called 'b'. There are: a at http://x:0."),
        (["a", "b"], [], "2 servers run here: a at http://x:0; b at http://x:1. Give the port"),
    ],
)
def test_stop_needs_one_server(
    localspec: Command,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    arguments: list[str],
    sentence: str,
) -> None:
    with ExitStack() as stack:
        for i, name in enumerate(names):
            monkeypatch.setattr("os.getpid", lambda i=i: 10_000_000 + i)
            stack.enter_context(announced(f"http://x:{i}", [name], 1))
        done = localspec("stop", *arguments)
    assert done.code == 2 and sentence in done.sentences


@pytest.mark.llama
def test_stop_ends_a_server_and_waits_for_it(tiny: TinyFiles, localspec: Command) -> None:
    with served(tiny, "--alias", "mine") as (process, url):
        httpx2.get(f"{url}/health", timeout=PATIENCE)  # it hears signals by now
        done = localspec("stop", "mine")
        assert done.err == f"Stopped: mine at {url}.\n"
        assert process.wait(PATIENCE) == 0
    assert localspec("stop").code == 2
