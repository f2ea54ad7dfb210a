"""Servers: refused in time, devices of the target only, and with real ones the same text."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.core import paths
from localspec.core.errors import EngineError, UsageError
from localspec.core.options.load_options import LoadOptions, RpcServer, RpcServers
from localspec.llama import llama_library
from localspec.llama.llama_library import RPC_SERVER, Device
from localspec.llama.parameters import model_parameters
from localspec.llama.rpc import loss, servers
from tests.support.command import process
from tests.support.llama.heads import PAIRS
from tests.support.llama.rpc_workers import (
    Worker,
    answering,
    free_port,
    named,
    rpc_program,
    workers,
)
from tests.support.real_pair import TinyFiles, random_ids

pytestmark = pytest.mark.llama

TARGET, DRAFT = paths.demo_pair()
PAIR = ["-m", str(TARGET), "-md", str(DRAFT), "-t", "1"]
PROMPT = "How do I read a JSON file?"
FIRST, SECOND = RpcServer("10.0.0.2", 1), RpcServer("10.0.0.3", 1)


def options(*given: RpcServer) -> LoadOptions:
    return LoadOptions(TARGET, rpc=RpcServers(given))


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> list[RpcServer]:
    """A build with RPC, to which no server is added in truth; those that would be."""
    added: list[RpcServer] = []
    monkeypatch.setattr(servers, "is_available", lambda: True)
    monkeypatch.setattr(servers, "device_count", lambda server: 1)
    monkeypatch.setattr(servers, "_add", added.append)
    monkeypatch.setattr(loss, "expect", lambda: None)
    return added


def test_without_servers_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "is_available", lambda: pytest.fail("asked"))
    assert servers.connect(options()) == options()


def test_a_build_without_rpc_is_told_with_what_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "is_available", lambda: False)
    with pytest.raises(EngineError, match="has no RPC backend") as caught:
        servers.connect(options(FIRST))
    assert f"bash scripts/build_rpc.sh --python {sys.executable}" in caught.value.hint


def test_servers_are_added_by_address_and_once(
    build: list[RpcServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "locate", lambda server, trust_network: FIRST)
    connected = servers.connect(options(RpcServer("worker", 1), RpcServer("worker.lan", 1)))
    assert connected.rpc == (FIRST,) and build == [FIRST]
    monkeypatch.setitem(servers._connected, FIRST, [7])
    assert servers.connect(options(FIRST)).rpc == (FIRST,) and build == [FIRST]


def test_an_unreachable_server_leaves_all_alone(
    build: list[RpcServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(servers, "is_available", lambda: True)
    monkeypatch.setattr(servers, "_add", build.append)
    here = "127.0.0.1"
    with pytest.raises(EngineError, match="cannot be reached"):
        servers.connect(options(RpcServer(here, free_port())))
    with answering(b"SSH-2.0-OpenSSH_9.9\r\n") as other:
        with pytest.raises(EngineError, match="no RPC server"):
            servers.connect(options(other))
    assert build == []


def test_a_public_address_is_not_even_looked_at(
    build: list[RpcServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "device_count", lambda server: pytest.fail("looked"))
    with pytest.raises(UsageError, match="outside the private networks"):
        servers.connect(options(RpcServer("8.8.8.8", 1)))
    monkeypatch.setattr(servers, "device_count", lambda server: 1)
    servers.connect(replace(options(RpcServer("8.8.8.8", 1)), trust_rpc_network=True))
    assert build == [RpcServer("8.8.8.8", 1)]


def test_more_devices_than_llama_cpp_takes(
    build: list[RpcServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = llama_library.library().llama_max_devices() - 2
    monkeypatch.setattr(servers, "device_count", lambda server: most)
    servers.connect(options(FIRST))
    with pytest.raises(EngineError, match=f"{2 * most} devices, and llama.cpp takes {most}"):
        servers.connect(options(FIRST, SECOND))
    assert build == [FIRST]


def test_what_is_told_of_them() -> None:
    assert "the RPC server 10.0.0.2:1 without" in servers.warning(RpcServers([FIRST]))
    both = servers.warning(RpcServers([FIRST, SECOND]))
    assert "the RPC servers 10.0.0.2:1, 10.0.0.3:1 without encryption" in both


def test_the_draft_stays_on_devices_here(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"CPU": "CPU", "CUDA0": "GPU", "iGPU": "integrated GPU", "RPC0": RPC_SERVER}
    every = [Device(name, "", kind, 1, 1, i) for i, (name, kind) in enumerate(kinds.items(), 1)]
    monkeypatch.setattr(servers, "_connected", {FIRST: [4]})

    def placed(devices: list[Device], *given: RpcServer) -> list[int | None] | None:
        monkeypatch.setattr(llama_library, "devices", lambda: devices)
        params = model_parameters(options(*given))
        return list(params.device_list) if params.devices else None

    assert placed(every, FIRST) == [4, 2, None]  # first, as in llama.cpp
    assert placed(every) == [2, None]
    assert placed([each for each in every if each.kind != "GPU"]) == [3, None]
    assert placed([every[0], every[3]]) == [None]  # no device, rather than all
    assert placed(every[:3]) is None
    with pytest.raises(UsageError, match="--device CUDA0 names no device of --rpc") as caught:
        monkeypatch.setattr(llama_library, "devices", lambda: every)
        model_parameters(replace(options(FIRST), device="CUDA0"))
    assert "RPC0" in caught.value.hint


# -- with real servers ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    """Two real servers."""
    with workers(rpc_program(), tmp_path_factory.mktemp("workers"), 2) as made:
        yield made


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Worker]:
    """A real server of the test's own."""
    with workers(rpc_program(), tmp_path, 1) as (worker,):
        yield worker


@pytest.mark.parametrize("sampling", [("--temp", "0"), ("--temp", "0.8", "--seed", "7")])
def test_the_text_is_that_of_one_machine(pair: list[Worker], sampling: tuple[str, ...]) -> None:
    def text(*more: str) -> str:
        done = process("run", *PAIR, *sampling, "-n", "24", "--json", *more, PROMPT)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["text"])

    alone = text("--draft", "off")
    for length in "off", "4", "auto":
        assert text("--draft", length, "--rpc", named(pair)) == alone


def test_the_target_goes_to_the_servers_and_the_draft_does_not(pair: list[Worker]) -> None:
    done = process("run", *PAIR, "-n", "4", "-v", "--rpc", named(pair), PROMPT)
    weights = [line for line in done.stderr.splitlines() if "model buffer size" in line]
    remote = [line for line in weights if "RPC0[127.0.0.1:" in line]
    assert len(remote) == 2 and "RPC" not in weights[-1]
    assert done.stderr.count("without encryption") == 1


def test_no_layer_goes_there_where_none_is_asked_for(pair: list[Worker]) -> None:
    done = process("run", *PAIR, "-n", "4", "-v", "-ngl", "0", "--rpc", named(pair), PROMPT)
    assert done.returncode == 0 and "offloaded 0/" in done.stderr
    assert "RPC0[127.0.0.1:" not in "".join(
        line for line in done.stderr.splitlines() if "model buffer size" in line
    )


@pytest.mark.parametrize(("target", "heads"), PAIRS)
def test_heads_are_where_their_target_is(
    pair: list[Worker], architecture: Callable[[str], Path], target: str, heads: str | None
) -> None:
    drafting = ("--draft", "mtp") if heads is None else ("-md", str(architecture(heads)))
    flags = ["-m", str(architecture(target)), "-t", "1", "-n", "12", "--temp", "0", "--json"]

    def said(*more: str) -> dict[str, object]:
        done = process("run", *flags, "--raw", "--ignore-eos", *more, "ab")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    alone, drafted = said("--draft", "off"), said(*drafting, "--draft", "3", "--rpc", named(pair))
    assert drafted["drafted"] and drafted["text"] == alone["text"]


def test_chat_and_bench_take_them_too(pair: list[Worker], tmp_path: Path) -> None:
    rpc = ("--rpc", named(pair), "-n", "8")
    done = process("chat", *PAIR, *rpc, input=f"{PROMPT}\n", stdin=None)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    done = process("bench", *PAIR, *rpc, "-r", "1", "--tasks", "edit", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["complete"] is True


def test_a_profile_belongs_to_its_servers(
    pair: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    for flags in ((), ("--rpc", named(pair)), ("--rpc", named(pair[:1]))):
        done = process("run", *PAIR, "-n", "4", *flags, PROMPT, env=os.environ)
        assert "New on this machine" in done.stderr, done.stderr
    assert len(list((tmp_path / "pairs").glob("*.json"))) == 3


def answering_long(worker: Worker) -> subprocess.Popen[bytes]:
    """A run on a server that has begun to answer, and would for a long time."""
    more = ["--rpc", str(worker.server), "--ignore-eos", "-c", "60000", "--draft", "4", PROMPT]
    run = subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", *PAIR, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert run.stdout is not None and run.stdout.read(20)
    return run


def fall_silent(run: subprocess.Popen[bytes]) -> None:
    """Return when it says nothing any more."""
    assert run.stdout is not None
    while select.select([run.stdout], [], [], 0.5)[0]:
        assert run.stdout.read(4096), "it ended"


def test_a_server_that_ends_gives_a_sentence_and_no_figures(one: Worker) -> None:
    with answering_long(one) as run:
        one.end()
        _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    said = err.decode()
    assert f"The RPC server {one.server} was lost; an answer that had begun is not comp" in said
    assert "tok/s" not in said and "Traceback" not in said and "GGML" not in said


def test_a_server_that_is_slow_is_waited_for(one: Worker) -> None:
    with answering_long(one) as run:
        one.process.send_signal(signal.SIGSTOP)
        fall_silent(run)
        one.process.send_signal(signal.SIGCONT)
        assert run.stdout is not None and run.stdout.read(20)
        run.kill()


@contextmanager
def serving(*flags: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`localspec serve` with two slots as a process of its own, and where it continues texts."""
    command = [sys.executable, "-m", "localspec", "serve", "-t", "1", "-np", "2", "--port", "0"]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                if line.startswith("Listening on "):
                    yield server, f"{line.split()[2]}/v1/completions"
                    break
            else:
                raise AssertionError(f"ended with {server.wait()}")
        finally:
            server.kill()


def test_answers_at_the_same_time_are_those_of_one_machine(
    pair: list[Worker], tiny: TinyFiles
) -> None:
    """In F32, and of prompts whose states were kept, for others, on the way."""
    f32 = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")
    models = ("-m", tiny.floats, "-md", tiny.draft, "-c", "512", *f32)

    def ask(url: str, topic: int) -> Any:
        body = {"prompt": random_ids(300, topic), "max_tokens": 16, "temperature": 0}
        reply = httpx2.post(url, json={**body, "draft_tokens": 4}, timeout=60).json()
        return [choice["text"] for choice in reply["choices"]], reply["usage"]

    def answers(*flags: str) -> list[Any]:
        with serving(*models, *flags) as (_, url), ThreadPoolExecutor(3) as clients:
            return [*clients.map(partial(ask, url), [*range(5)] * 2)]

    remote = answers("--rpc", named(pair))
    assert [text for text, _ in remote] == [text for text, _ in answers()]
    assert all(usage["prompt_tokens_details"]["cached_tokens"] > 200 for _, usage in remote[5:])


def test_a_lost_server_ends_what_serves_others(one: Worker) -> None:
    flags = ("--rpc", str(one.server), "--ignore-eos", "-c", "60000")
    with serving(*PAIR, *flags) as (server, url):
        body = {"prompt": PROMPT, "stream": True}
        with pytest.raises(httpx2.RemoteProtocolError):
            with httpx2.stream("POST", url, json=body, timeout=60) as reply:
                for line in reply.iter_lines():
                    one.end()
                    assert "[DONE]" not in line
        assert server.wait(60) == 1
        assert server.stderr is not None
        said = server.stderr.read()
    assert f"The RPC server {one.server} was lost; an answer that had begun is not comp" in said
    assert "Traceback" not in said
