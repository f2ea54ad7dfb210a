"""The command serve with several models: real processes behind one front."""

import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest

from localspec.server.front.metrics import merged
from tests.support.command import Command
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles
from tests.support.served import CHAT, COMPLETIONS, PATIENCE, events_of

LENGTH = 24  # tokens of an answer
AT_ONCE = 16
Process: TypeAlias = "subprocess.Popen[bytes]"


@contextmanager
def fronted(*arguments: str | Path) -> Iterator[tuple[Process, httpx2.Client, Path]]:
    """`localspec serve` as a process of its own, a client of it, and the file of its log."""
    log = Path(os.environ["HOME"]) / "log"
    command = [sys.executable, "-m", "localspec", "serve", "-t", "1", "--port", "0", *arguments]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file, stdin=subprocess.DEVNULL)
    try:
        url = re.search(r"https?://\S+", until(log.read_text, "Listening on", process))
        assert url is not None
        with httpx2.Client(base_url=url[0], timeout=PATIENCE, trust_env=False) as client:
            yield process, client, log
    finally:
        process.kill()
        process.wait()


def until(read: Callable[[], str], wanted: str, process: Process) -> str:
    """What is read, once it holds a text."""
    while wanted not in (text := read()):
        assert process.poll() is None, text
        time.sleep(0.02)
    return text


def children(parent: int) -> dict[str, int]:
    """Processes of models by what they were started with; Linux only."""
    found = {}
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for pid in map(int, listed):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        found[Path(line[line.index(b"serve") + 1].decode()).stem] = pid
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def body(model: str, number: int, **more: object) -> dict[str, Any]:
    prompt = f"Tell me of number {number}."
    return {"model": model, "prompt": prompt, "seed": number, "max_tokens": LENGTH, **more}


def text_of(reply: httpx2.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


class Crowd:
    """Clients of whom a third disconnect before their answer is complete."""

    def __init__(self, url: httpx2.URL, known: dict[tuple[str, int], str]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._known = known
        self._places = asyncio.Semaphore(AT_ONCE)
        self._client = httpx2.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False)

    async def ask_all(self, count: int) -> None:
        draw = random.Random(1)
        names = sorted({name for name, _ in self._known})
        async with self._client, asyncio.TaskGroup() as group:
            for _ in range(count):
                events = draw.choice([None, None, 0, 1, 5, 12])
                wish = draw.choice(names), draw.randrange(4), draw.random() < 0.5, events
                group.create_task(self._ask(*wish))

    async def _ask(self, name: str, number: int, whole: bool, events: int | None) -> None:
        async with self._places:
            try:
                if whole:
                    patience = None if events is None else events / 100
                    asking = self._client.post(COMPLETIONS, json=body(name, number))
                    found = text_of(await asyncio.wait_for(asking, patience))
                else:
                    found = await self._stream(name, number, events)
            except TimeoutError:
                self.outcomes["given up"] += 1
                return
            assert found == self._known[name, number]
            self.outcomes["answered"] += 1

    async def _stream(self, name: str, number: int, events: int | None) -> str:
        seen, asked = "", body(name, number, stream=True)
        async with self._client.stream("POST", COMPLETIONS, json=asked) as reply:
            assert reply.status_code == 200
            async for text in reply.aiter_text():
                seen += text
                if events is not None and seen.count("\n\n") >= events:
                    raise TimeoutError
        *found, last = events_of(seen)
        assert last == "[DONE]"
        return "".join(json.loads(event)["choices"][0]["text"] for event in found)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [
        write_tiny_model(tmp_path / f"{name}.gguf", seed=seed, context_length=1024)
        for seed, name in enumerate(("red", "green", "blue"))
    ]


@pytest.mark.llama
@pytest.mark.parametrize("most", [0, 2])
def test_no_request_is_lost_or_mixed(files: list[Path], most: int) -> None:
    """With two at a time models come and go meanwhile."""
    flags = ("--draft", "off", "--models-max", str(most), "--max-queue", "500")
    names = [file.stem for file in files]
    with fronted(*files, *flags) as (process, client, _):
        asked = [(name, number) for name in names for number in range(4)]
        known = {each: text_of(client.post(COMPLETIONS, json=body(*each))) for each in asked}
        assert len({known[name, 0] for name in names}) == 3
        crowd = Crowd(client.base_url, known)
        asyncio.run(crowd.ask_all(60 if most else 200))
        assert crowd.outcomes["answered"] > 10 and crowd.outcomes["given up"] > 5
        assert sum(crowd.outcomes.values()) == (60 if most else 200)
        states = client.get("/health").json()["models"]
        assert list(states.values()).count("loaded") == (most or 3)
        left = 1.0
        while left:
            metrics = client.get("/metrics").text
            left = sum(map(float, re.findall(r"_processing\{model=\S+ (\S+)", metrics)))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


@pytest.mark.llama
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_crash_is_an_error_and_a_restart_and_no_orphan_is_left(
    files: list[Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret alice\nother\n")
    flags = ("--draft", "off", "--api-key-file", keys)
    with fronted("demo", files[0], *flags) as (process, client, log):
        assert client.get("/v1/models").status_code == 401
        client.headers["authorization"] = "Bearer secret"
        assert text_of(client.post(COMPLETIONS, json=body("demo", 1)))
        assert text_of(client.post(COMPLETIONS, json=body("red.gguf", 1)))
        long = body("red", 1, stream=True) | {"max_tokens": 1000}
        with client.stream("POST", COMPLETIONS, json=long) as reply:
            lines = reply.iter_lines()
            next(lines)
            os.kill(children(process.pid)["red"], signal.SIGKILL)
            *_, last = filter(None, lines)
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "model_failed" and "red ended (SIGKILL)" in error["message"]
        until(log.read_text, "The next request for it starts it anew.", process)
        (red,) = [each for each in client.get("/models").json()["data"] if each["id"] == "red"]
        assert red["status"]["failed"] and red["status"]["exit_code"] == -9
        assert text_of(client.post(COMPLETIONS, json=body("red", 1)))
        metrics = client.get("/metrics", headers={"authorization": "Bearer other"}).text
        assert 'localspec_requests_by_key_total{key="alice"} 5.0' in metrics
        assert 'localspec_tokens_predicted_total{model="red"}' in metrics
        started = children(process.pid).values()
        address = f"http://127.0.0.1:{_port(next(iter(started)))}/v1/models"
        assert httpx2.get(address, headers=client.headers, trust_env=False).status_code == 401
        process.kill()
        ends = time.monotonic() + PATIENCE
        while not all(map(is_gone, started)) and time.monotonic() < ends:
            time.sleep(0.05)
        assert all(map(is_gone, started))


def _port(pid: int) -> int:
    """The port that a process listens on."""
    inodes = {
        os.readlink(entry.path)[8:-1]
        for entry in os.scandir(f"/proc/{pid}/fd")
        if os.readlink(entry.path).startswith("socket:")
    }
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(int(r[1].rpartition(":")[2], 16) for r in rows if r[3] == "0A" and r[9] in inodes)


@pytest.mark.llama
def test_a_model_that_cannot_be_loaded_says_why(tiny: TinyFiles, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(40))
    with fronted(tiny.target, "--models-dir", tmp_path, "--draft", "off") as (_, client, log):
        reply = client.post(CHAT, json={"model": "bad", "messages": []})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (503, "model_failed")
        assert "bad.gguf" in error["message"]
        assert "bad: Error: " in log.read_text() and f"POST {CHAT} 503" in log.read_text()
        assert client.post(CHAT, json={"model": "no"}).status_code == 404
        assert client.post(CHAT, json=[]).status_code == 400
        assert client.get("/favicon.ico").status_code == 404
        assert client.get("/props?model=target").json()["model"] == "target.gguf"
        health = client.get("/health").json()["models"]
        assert health == {"target": "loaded", "bad": "unloaded"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("demo", "no-such.gguf"), "no-such"),
        (("demo", "demo", "--alias", "x"), "--alias names one model."),
        (("demo", "-m", "x.gguf"), "Two targets were given: demo and x.gguf."),
        (("--models-dir", "."), "There is no GGUF model"),
        (("demo", "--ssl-key-file", "x"), "HTTPS needs a certificate"),
        (("demo", "--ssl-key-file", "x", "--ssl-cert-file", "y"), "TLS cannot use y with x"),
    ],
)
def test_what_cannot_be_served_is_said_at_the_start(
    localspec: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = localspec("serve", "--port", "0", *arguments)
    assert done.code in (1, 2) and sentence in done.sentences


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_https(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=x"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    flags = ("--ssl-cert-file", tmp_path / "cert", "--ssl-key-file", tmp_path / "key")
    with fronted("demo", "--idle-timeout", "60", *flags) as (_, client, _):
        assert client.base_url.scheme == "https"
        with httpx2.Client(base_url=client.base_url, verify=False, trust_env=False) as trusting:
            assert trusting.get("/health").json()["models"] == {"demo": "unloaded"}
        with closing(client), pytest.raises(httpx2.ConnectError, match="certificate"):
            client.get("/health")


def test_metrics_of_models_are_one_document() -> None:
    one = "# HELP x Some.\n# TYPE x gauge\nx 1.0\n"
    document = merged({"": one, "a": one, "b": '# TYPE x gauge\nx{k="v"} 2.0\n'}).decode()
    assert document.splitlines()[1:] == [
        "# TYPE x gauge", "x 1.0", 'x{model="a"} 1.0', 'x{k="v",model="b"} 2.0',
    ]  # fmt: skip
