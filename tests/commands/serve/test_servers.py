"""The commands ps and stop, over servers of this process and one of its own."""

import json
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.commands.session import open_engine
from localspec.engine.engine import Engine
from localspec.server import running
from localspec.server.listen import Server
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
    ((read, total, left),) = found["prompts"]
    assert found["loading"] == [] and found["state"] == "ready"
    assert reading == f"ready; reading the prompt: {read} of {total} tokens"


def test_running_servers_are_watched(localspec: Command) -> None:
    with serving(ServedToy()) as site, announced(site.url, ["toy"], 1):
        site.ask(max_tokens=8)
        (server,) = json.loads(localspec("top", "--json").out)["servers"]
        shown = localspec("top", "toy").out.splitlines()
        port = site.url.rpartition(":")[2]
        assert localspec("top", "--port", port).out.startswith("toy: ready")
        refused = localspec("top", "other")
    (model,) = server["models"]
    assert (model["model"], model["state"], model["tokens"]) == ("toy", "ready", 8)
    assert server["url"] == site.url and server["memory"] > 0
    assert shown[:2] == ["toy: ready", f"  address           {site.url}"]
    assert "  slots                  0 of 1 busy" in shown
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
    ((read, total, left),) = server["prompts"]
    assert 0 <= read < total and left is None  # before the first pass


def test_the_rest_of_a_prompt_is_listed_with_its_time(localspec: Command) -> None:
    slot = SLOT.replace("4}", '9, "prompt_seconds_left": 61.5}') % 3
    replies = by_path(slots=slot, metrics=GAUGE + "1\n")
    with odd_server(replies) as url, announced(url, ["toy"], 1):
        line = localspec("ps", "--no-header").out
        (server,) = json.loads(localspec("ps", "--json").out)["servers"]
    assert "\tready; reading the prompt: 3 of 9 tokens, about 1 minute left\t" in line
    assert server["prompts"] == [[3, 9, 61.5]]


@pytest.mark.llama
def test_a_server_is_listed_while_its_model_loads(
    tiny: TinyFiles, localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()

    def listed(*args: Any) -> Engine:
        seen.append(localspec("ps", "--no-header").out)
        seen.append(localspec("top").out.splitlines()[0])
        (server,) = json.loads(localspec("ps", "--json").out)["servers"]
        seen.append(server["state"])
        return open_engine(*args)

    monkeypatch.setattr("localspec.commands.session.open_engine", listed)
    monkeypatch.setattr(Server, "run", lambda server, sockets: seen.append(localspec("ps").out))
    assert localspec("serve", f"mine={tiny.target}", "-t", "1", "--port", "0").code == 0
    url = seen[0].split("\t")[1]
    assert seen[0].startswith(f"mine\t{url}\t\tloading\t") and url.startswith("http://127.0.0.1:")
    assert seen[1:3] == ["mine: loading", "loading"]
    assert f"mine\t{url}\t" in seen[3] and "of 1 busy" in seen[3]
    assert localspec("ps").err.startswith("No server is running.")


def test_a_server_that_does_not_answer_is_listed_as_such(localspec: Command) -> None:
    with announced("http://127.0.0.1:1", ["toy"], 1):
        assert "? of 1 busy\tnot answering" in localspec("ps").out


@contextmanager
def odd_server(reply: Callable[[socketserver.StreamRequestHandler], None]) -> Iterator[str]:
    """The URL of a server that replies like this."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                reply(self)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def by_path(**bodies: str) -> Callable[[socketserver.StreamRequestHandler], None]:
    """Replies with these bodies, and else with what a server without requests says."""
    usual = {"health": '{"status": "ok"}', "metrics": "", "slots": "[]"} | bodies

    def reply(handler: socketserver.StreamRequestHandler) -> None:
        path = handler.rfile.readline().decode().split()[1].lstrip("/").partition("?")[0]
        body = usual[path].encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        handler.wfile.write(head.encode() + body)

    return reply


GAUGE = "# TYPE localspec_requests_processing gauge\nlocalspec_requests_processing "
SLOT = '[{"is_processing": true, "n_prompt_tokens_processed": %s, "n_prompt_tokens": 4}]'
LATE = SLOT.replace("4}", '4, "prompt_seconds_left": %s}') % (2, "%s")


@pytest.mark.parametrize(
    "bodies",
    [
        {"health": "<html>\x1b]0;title\x07</html>"},
        {"health": "[" * 100_000},
        {"health": "[]"},
        {"health": '{"models": ["a"]}'},
        {"health": '{"models": {"a": "loa'},
        {"metrics": GAUGE + "NaN\n"},
        {"metrics": GAUGE + "1e400\n"},
        {"metrics": "\x1b[2J{{{ not metrics\nx{y= 3\n"},
        {"slots": "[{}]"},
        {"slots": "[3]"},
        {"slots": '{"a": 3}'},
        {"slots": SLOT % "NaN", "metrics": GAUGE + "1\n"},
        {"slots": SLOT % '"\x1b[2J"', "metrics": GAUGE + "1\n"},
        {"slots": SLOT % 10**400, "metrics": GAUGE + "1\n"},
        {"slots": LATE % '"\x1b[2J"', "metrics": GAUGE + "1\n"},
        {"slots": LATE % "NaN", "metrics": GAUGE + "1\n"},
        {"slots": LATE % 10**400, "metrics": GAUGE + "1\n"},
    ],
)
def test_a_server_with_odd_replies_is_one_line(localspec: Command, bodies: dict[str, str]) -> None:
    with odd_server(by_path(**bodies)) as url, announced(url, ["toy"], 1):
        ps, top = localspec("ps", "--no-header"), localspec("top")
        listed = [json.loads(localspec(each, "--json").out) for each in ("ps", "top")]
    assert ps.out.startswith(f"toy\t{url}\t? of 1 busy\tnot a reply of localspec\t")
    assert top.out.splitlines()[0] == "toy: not a reply of localspec"
    assert "\x1b" not in ps.out + ps.err + top.out + top.err and len(listed) == 2


def test_a_reply_that_drips_is_not_waited_for(
    localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_SECONDS", 0.3)

    def drip(handler: socketserver.StreamRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:  # until the client is gone
            handler.wfile.write(b"x")
            time.sleep(0.05)

    with odd_server(drip) as url, announced(url, ["toy"], 1):
        assert "? of 1 busy\tnot answering" in localspec("ps").out


def test_the_key_goes_to_no_other_host(localspec: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_API_KEY", "secret")
    seen = list[bytes]()
    with odd_server(lambda handler: seen.append(handler.rfile.readline())) as other:

        def lead_away(handler: socketserver.StreamRequestHandler) -> None:
            head = f"HTTP/1.1 302 Found\r\nLocation: {other}/health\r\nContent-Length: 0\r\n\r\n"
            handler.wfile.write(head.encode())

        with odd_server(lead_away) as url, announced(url, ["toy"], 1):
            assert "? of 1 busy\tnot answering" in localspec("ps").out
    assert seen == []


def test_odd_records_are_left_out(localspec: Command) -> None:
    """Neither shown nor ended: a pid of 0 or -1 stands for many processes."""
    with announced("http://127.0.0.1:1", ["toy"], 1):
        (server,) = running_servers()
        changes: list[dict[str, Any]] = [
            {"pid": 0}, {"pid": -1}, {"pid": "1"}, {"since": float("nan")}, {"since": 1e300},
            {"url": 3}, {"models": []}, {"models": "toy"}, {"models": [3]}, {"slots": None},
        ]  # fmt: skip
        for number, change in enumerate(changes):
            file = running._folder() / f"odd-{number}.json"
            file.write_text(json.dumps(asdict(server) | change))
        (running._folder() / "deep.json").write_text("[" * 60_000)
        assert running_servers() == [server]
        assert localspec("ps").code == 0


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
