"""The command serve with several models: real processes behind one front."""

import asyncio
import itertools
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
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
import pytest

from localspec.server import BUILD
from localspec.server.front.metrics import merged, totals
from tests.support.alike import alike
from tests.support.command import Command
from tests.support.files.tiny_models import write_tiny_model
from tests.support.fronted import FORMS, LENGTH, Form, children, fronted, is_gone, until, user
from tests.support.real_pair import TinyFiles
from tests.support.served import CHAT, COMPLETIONS, PATIENCE

pytestmark = pytest.mark.usefixtures("shared_cache")

FIM = ("pre", "suf", "mid")
AT_ONCE = 16


def body(model: str, number: int, **more: object) -> dict[str, Any]:
    prompt = f"Tell me of number {number}."
    return {"model": model, "prompt": prompt, "seed": number, "max_tokens": LENGTH, **more}


def text_of(reply: httpx2.Response) -> str:
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


Wish: TypeAlias = tuple[Form, str, int]  # with model and number


class Crowd:
    """Clients of whom a third disconnect before their answer is complete."""

    def __init__(self, url: httpx2.URL, known: dict[Wish, Any]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._known = known
        self._places = asyncio.Semaphore(AT_ONCE)
        self._client = httpx2.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False)

    async def ask_all(self, count: int) -> None:
        draw = random.Random(1)
        wishes = list(self._known)
        async with self._client, asyncio.TaskGroup() as group:
            for _ in range(count):
                events = draw.choice([None, None, 0, 1, 5, 12])
                group.create_task(self._ask(draw.choice(wishes), draw.random() < 0.5, events))

    async def _ask(self, wish: Wish, whole: bool, events: int | None) -> None:
        form, name, number = wish
        asked = form.body(name, number)
        async with self._places:
            try:
                if whole or form.part is None:
                    patience = None if events is None else events / 100
                    asking = self._client.post(form.path, json=asked)
                    reply = await asyncio.wait_for(asking, patience)
                    assert reply.status_code == 200, reply.text
                    found = form.whole(reply.json())
                else:
                    found = await self._stream(form, asked, events)
            except TimeoutError:
                self.outcomes["given up"] += 1
                return
            assert found == self._known[wish], wish
            self.outcomes["answered"] += 1
            self.outcomes[form.path] += 1

    async def _stream(self, form: Form, asked: dict[str, Any], events: int | None) -> str:
        seen = ""
        async with self._client.stream("POST", form.path, json=asked | {"stream": True}) as reply:
            assert reply.status_code == 200
            async for text in reply.aiter_text():
                seen += text
                if events is not None and seen.count("\n\n") >= events:
                    raise TimeoutError
        data = re.findall("^data: (.*)$", seen, re.MULTILINE)
        assert (data[-1] == "[DONE]") == (form.path in (CHAT, COMPLETIONS))
        assert form.part is not None
        return "".join(form.part(json.loads(each)) for each in data if each != "[DONE]")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    return [
        write_tiny_model(folder / f"{name}.gguf", seed=seed, context_length=1024)
        for seed, name in enumerate(("red", "green", "blue"))
    ]


@pytest.mark.llama
@pytest.mark.parametrize("most", [0, 2])
def test_no_request_is_lost_or_mixed(files: list[Path], most: int, thorough: bool) -> None:
    """With two at a time models come and go meanwhile."""
    marks = [f"tokenizer.ggml.fim_{name}_token_id=int:{i}" for i, name in enumerate(FIM, 5)]
    flags = ["--draft", "off", "--models-max", str(most), "--max-queue", "500"]
    flags += [each for mark in marks for each in ("--override-kv", mark)]
    with fronted(*files, *flags) as (process, client, _):
        known: dict[Wish, Any] = {}
        for file in files:
            for form, number in itertools.product(FORMS, range(2)):
                reply = client.post(form.path, json=form.body(file.stem, number))
                known[form, file.stem, number] = form.whole(reply.json())
        for form in FORMS:
            assert form.part is None or len({known[form, file.stem, 0] for file in files}) == 3
        crowd = Crowd(client.base_url, known)
        count = (36 if most else 120) if thorough else (24 if most else 80)
        asyncio.run(crowd.ask_all(count))
        assert crowd.outcomes["answered"] > count // 4 and crowd.outcomes["given up"] > 5
        assert crowd.outcomes["answered"] + crowd.outcomes["given up"] == count
        assert most or {form.path for form in FORMS} <= crowd.outcomes.keys()
        states = client.get("/health").json()["models"]
        # Who gave up last may have left a model that is being loaded.
        assert sum(state != "unloaded" for state in states.values()) == (most or 3)
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
        stored = client.post("/v1/responses", json={"model": "red", "input": "x"}).json()["id"]
        assert client.get(f"/v1/responses/{stored}").json()["id"] == stored
        other = {"authorization": "Bearer other", "x-localspec-owner": "alice"}
        assert client.delete(f"/v1/responses/{stored}", headers=other).status_code == 404
        long = body("red", 1, stream=True) | {"max_tokens": 1000}
        with client.stream("POST", COMPLETIONS, json=long) as reply:
            lines = reply.iter_lines()
            next(lines)
            os.kill(children(process.pid)["red"], signal.SIGKILL)
            *_, last = filter(None, lines)
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "model_failed" and "red ended (SIGKILL)" in error["message"]
        until(log.read_text, "The next request for it starts it again.", process)
        (red,) = [each for each in client.get("/models").json()["data"] if each["id"] == "red"]
        assert red["status"]["failed"] and red["status"]["exit_code"] == -9
        assert text_of(client.post(COMPLETIONS, json=body("red", 1)))
        metrics = client.get("/metrics", headers={"authorization": "Bearer other"}).text
        assert 'localspec_requests_by_key_total{key="alice"} 7.0' in metrics
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
    with fronted(tiny.target, "--models-dir", tmp_path, "--draft", "off") as (
        process,
        client,
        log,
    ):
        assert client.post("/v1/nothing", json={"model": "target"}).status_code == 404
        assert client.post("/v1/embeddings", json={"model": "target"}).status_code == 404
        health = client.get("/health").json()["models"]
        assert health == {"target": "unloaded", "bad": "unloaded"}
        reply = client.post(CHAT, json={"model": "bad", "messages": []})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (503, "model_failed")
        assert "bad.gguf" in error["message"]
        assert str(tmp_path) not in reply.text + client.get("/v1/models").text
        for line in ("bad: Error: ", f"POST {CHAT} 503"):
            until(log.read_text, line, process)
        assert client.post(CHAT, json={"model": "no"}).status_code == 404
        assert client.post(CHAT, json=[]).status_code == 400
        anthropic = client.post("/v1/messages", json={"model": "no"}).json()
        assert anthropic["type"] == "error" and anthropic["error"]["type"] == "not_found_error"
        assert client.get("/favicon.ico").status_code == 404
        assert client.post("/tokenize", json={"model": "target", "content": "a"}).json()["tokens"]
        assert client.get("/props?model=target").json()["model"] == "target.gguf"
        health = client.get("/health").json()["models"]
        assert health == {"target": "loaded", "bad": "unloaded"}


@pytest.mark.llama
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_process_that_hangs_while_it_loads_is_ended(files: list[Path]) -> None:
    with fronted(*files, "--draft", "off", "--load-timeout", "3") as (process, client, _):
        client.post("/models/load", json={"model": "red"}).raise_for_status()
        while "red" not in (started := children(process.pid)):
            time.sleep(0.001)
        os.kill(started["red"], signal.SIGSTOP)
        reply = client.post(COMPLETIONS, json=body("red", 1))
        assert reply.status_code == 503 and "red did not load within 3 s" in reply.text
        while not is_gone(started["red"]):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_one_model_has_names_of_its_own_and_answers_to_any(tiny: TinyFiles) -> None:
    flags = ("--alias", "mine,fim", "--idle-timeout", "600")
    with fronted(tiny.target, *flags) as (_, client, _):
        assert [each["id"] for each in client.get("/models").json()["data"]] == ["mine"]
        reply = client.post(CHAT, json={**user("hello"), "model": "gpt-9", "max_tokens": 1})
        assert reply.json()["model"] == "mine"
        assert "There is no model 'gpt-9' here" in reply.json()["warnings"][0]


@pytest.mark.parametrize(
    "flags", [(), ("-c", "2048", "-np", "2", "-kvu"), alike(("-c", "512")), alike(("-c", "0"))]
)
def test_sizes_are_known_before_a_model_is_loaded(
    tiny: TinyFiles, localspec: Command, flags: tuple[str, ...]
) -> None:
    localspec("pair", "add", "mine", "-m", str(tiny.target), "-md", str(tiny.draft), "-c", "384")
    with fronted("mine", tiny.target, "-n", "1", *flags) as (_, client, _):
        sizes = [model["meta"] for model in client.get("/v1/models").json()["data"]]
        for name in ("mine", tiny.target.stem):
            text_of(client.post(COMPLETIONS, json=body(name, 1)))
        assert sizes == [model["meta"] for model in client.get("/v1/models").json()["data"]]
        assert flags or sizes[0]["n_ctx"] == 384 != sizes[1]["n_ctx"]


def test_an_unloaded_model_keeps_its_metrics_and_properties(tiny: TinyFiles) -> None:
    def theirs() -> list[str]:
        lines = client.get("/metrics").text.splitlines()
        return [line for line in lines if line.startswith("llamacpp:")]

    with fronted(tiny.target, "--idle-timeout", "600") as (_, client, _):
        assert client.get("/props").json() == {
            "model_alias": "target", "build_info": BUILD, "is_sleeping": True,
        }  # fmt: skip
        for total in (3, 6):
            client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 3, "ignore_eos": True})
            awake, counted = client.get("/props").json(), theirs()
            assert not awake["is_sleeping"] and client.get("/slots").json()
            client.post("/models/unload", json={"model": "target"}).raise_for_status()
            assert theirs() == counted and f"llamacpp:tokens_predicted_total {total}.0" in counted
            assert client.get("/props").json() == awake | {"is_sleeping": True}
            assert client.get("/slots").json() == []
            assert client.get("/health").json()["models"] == {"target": "unloaded"}


def test_a_model_of_the_hub_has_the_name_of_its_reference(
    tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Path(os.environ["HOME"]) / "hub"
    snapshot = hub / "models--org--tiny-GGUF" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    shutil.copy(tiny.target, snapshot / "tiny-Q8_0.gguf")
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    with fronted("org/tiny-GGUF:Q8_0", "demo") as (_, client, _):
        listed = client.get("/models").json()["data"]
        names = ["org/tiny-GGUF:Q8_0", "tiny-Q8_0", "tiny-Q8_0.gguf"]
        assert [listed[0]["id"], *listed[0]["aliases"]] == names
        for name in names:
            assert client.post("/tokenize", json={"model": name, "content": "a"}).json()["tokens"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("demo", "no-such.gguf"), "no-such"),
        (("demo", "{tiny}", "--alias", "x"), "--alias names one model."),
        (("demo", "--api-key", "k", "--lookup-cache", "x"), "--lookup-cache would share"),
        (
            ("demo", "--idle-timeout", "9", "--api-key", "k", "--lookup-cache", "x"),
            "--lookup-cache would share",
        ),
        (("demo", "-m", "x.gguf"), "Two targets were given: demo and x.gguf."),
        (("--models-dir", "."), "There is no GGUF model"),
        (("demo", "--ssl-key-file", "x"), "HTTPS needs a certificate"),
        (("demo", "--ssl-key-file", "x", "--ssl-cert-file", "y"), "TLS cannot use y with x"),
    ],
)
def test_what_cannot_be_served_is_said_at_the_start(
    localspec: Command,
    tiny: TinyFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [each.format(tiny=tiny.target) for each in arguments]
    done = localspec("serve", "--port", "0", *given)
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


def test_counters_of_ended_processes_are_added_and_gauges_are_not() -> None:
    text = "# TYPE c_total counter\nc_total 2.0\n# TYPE g gauge\ng 5.0\n"
    now = "# TYPE requests_processing gauge\nrequests_processing 1.0\n"
    ended = totals([totals([text, text]), text + now])
    lines = merged({"a": text}, {"a": ended, "b": ended}).decode().splitlines()
    assert [line for line in lines if line[0] != "#"] == [
        'c_total{model="a"} 8.0', 'c_total{model="b"} 6.0',
        'g{model="a"} 5.0', 'g{model="b"} 5.0',
        'requests_processing{model="a"} 0.0', 'requests_processing{model="b"} 0.0',
    ]  # fmt: skip


def test_metrics_of_one_model_have_llama_servers_names_without_a_label() -> None:
    text = "# TYPE llamacpp:g gauge\nllamacpp:g 5.0\n# TYPE localspec_g gauge\nlocalspec_g 5.0\n"
    lines = merged({"a": text}, several=False).decode().splitlines()
    assert [line for line in lines if line[0] != "#"] == [
        "llamacpp:g 5.0", 'localspec_g{model="a"} 5.0',
    ]  # fmt: skip
