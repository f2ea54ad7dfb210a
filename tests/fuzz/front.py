"""Chaos behind a front: clients that do not read or leave, and models that are killed or unloaded.

`python -m tests.fuzz.front --seed 1 --count 300`, on Linux. At the end each model answers as at the
start, no process is left, and the log holds no traceback.
"""

import argparse
import json
import os
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from tests.fuzz.requests import _memory as memory_of
from tests.support.files.tiny_models import write_tiny_model
from tests.support.fronted import FORMS, Form, Process, children, fronted, is_gone
from tests.support.served import CHAT, COMPLETIONS

NAMES = ("red", "green", "blue")
KEYS = ("one", "two")
AT_ONCE = 6  # actions
PATIENCE = 120.0  # seconds for a reply, of which a request waits for its model at most 60
MEMORY = 150.0  # MiB by which the front may grow
FAILED = (502, 503)  # of a model that was killed or unloaded, or has no place
FACTS = ("/health", "/metrics", "/v1/models", "/models", "/props", "/slots", "/props?model=red")
TARGETS = (
    "%2Fslots%2F@127.0.0.1:{port}/latest?model=red", "http://127.0.0.1:{port}/v1/completions",
    "//127.0.0.1:{port}/slots/0", "\\\\127.0.0.1:{port}\\slots\\0", "/slots/0#@127.0.0.1:{port}/",
    "/v1/responses/..%2F..%2Fslots?model=red", "/slots/0?model=red&action=save%00",
    "/v1/responses/resp_%0d%0aHost:%20a?model=red", "?model=red", "", "127.0.0.1:{port}",
    "/slots/../../props", "/" + "x" * 70_000,
)  # fmt: skip
HEADS = (
    "Content-Length: 2\r\nContent-Length: 3", "Transfer-Encoding: chunked\r\nContent-Length: 2",
    "Content-Length: 2\r\nTransfer-Encoding: identity", "Content-Length: 2\r\nX: caf\xe9",
    "Content-Length: 2\r\n X: folded", "Content-Length: 0x2",
    "Content-Length: 2\r\nX-Localspec-Owner: one\r\nCookie: a=b",
    "Content-Length: 2\r\nConnection: content-type, authorization",
    "Content-Length: 2\r\nExpect: 100-continue",
)  # fmt: skip


@dataclass(slots=True)
class Front:
    """A running front, what its models answer undisturbed, and connections that are not read."""

    process: Process
    client: httpx2.Client
    expected: dict[tuple[Form, str], Any] = field(default_factory=dict)
    unread: list[socket.socket] = field(default_factory=list)

    def headers(self, rng: Random) -> dict[str, str]:
        return {"authorization": f"Bearer {rng.choice(KEYS)}"}

    def connect(self) -> socket.socket:
        address = (self.client.base_url.host, self.client.base_url.port)
        return socket.create_connection(address, PATIENCE)

    def stream(self, rng: Random, **fields: object) -> socket.socket:
        """A connection on which a long stream was asked for, or a part of the request was sent."""
        body = {"model": rng.choice(NAMES), "prompt": "a" * rng.choice((1, 400)), "stream": True}
        data = json.dumps(body | {"max_tokens": 500, "ignore_eos": True} | fields).encode()
        made = self.connect()
        made.sendall(head_of(COMPLETIONS, f"Content-Length: {len(data)}", rng.choice(KEYS)))
        made.sendall(data[: rng.choice((len(data), len(data), rng.randrange(len(data))))])
        return made


def head_of(target: str, more: str, key: str, method: str = "POST") -> bytes:
    lines = (f"{method} {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}")
    return "\r\n".join((*lines, "Content-Type: application/json", more, "", "")).encode("latin-1")


Action = Callable[[Front, Random], str]


def _whole(front: Front, rng: Random) -> str:
    """A whole answer, which is that of the start or an error."""
    form, name = rng.choice(list(front.expected))
    reply = front.client.post(form.path, json=_body(form, name), headers=front.headers(rng))
    if reply.status_code in FAILED:
        assert reply.json()["error"]["message"]
        return "failed"
    assert reply.status_code == 200, reply.text
    assert form.whole(reply.json()) == front.expected[form, name], (form.path, name)
    return "answered"


def _streamed(front: Front, rng: Random) -> str:
    """A stream, which is that of the start or ends with an error."""
    form, name = rng.choice([each for each in front.expected if each[0].part is not None])
    body, events = _body(form, name) | {"stream": True}, list[Any]()
    with front.client.stream("POST", form.path, json=body, headers=front.headers(rng)) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                events.append(json.loads(line.removeprefix("data: ")))
            elif line.startswith("{"):
                events.append(json.loads(line))
    assert events, reply.status_code
    if "error" in events[-1]:
        return "failed"
    assert reply.status_code == 200 and form.part is not None
    text = "".join(map(form.part, events))
    assert text == front.expected[form, name], (form.path, name)
    return "answered"


def _slow(front: Front, rng: Random) -> str:
    """A client that reads a few bytes at a time, and leaves."""
    with front.stream(rng) as connection:
        connection.settimeout(rng.choice((0.05, 0.5)))
        for _ in range(20):
            with suppress(TimeoutError):
                if not connection.recv(rng.choice((1, 50))):
                    break
    return "left"


def _unread(front: Front, rng: Random) -> str:
    """A client that never reads, and stays until the end or for a while."""
    front.unread.append(front.stream(rng, n_probs=rng.choice((0, 10))))
    if len(front.unread) > 20:
        front.unread.pop(rng.randrange(20)).close()
    return "stays"


def _left(front: Front, rng: Random) -> str:
    """A client that vanishes before, while or after its request is read."""
    with front.stream(rng, stream=rng.random() < 0.5) as connection:
        if rng.random() < 0.5:  # a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        time.sleep(rng.choice((0, 0, 0.01, 0.2)))
    return "left"


def _struck(front: Front, rng: Random) -> str:
    """A model's process is killed, or stopped for a while."""
    found = [*children(front.process.pid).values()]
    if not found:
        return "none there"
    pid, kills = rng.choice(found), rng.random() < 0.6
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if kills else signal.SIGSTOP)
        if not kills:
            time.sleep(rng.choice((0.05, 0.5, 2)))
            os.kill(pid, signal.SIGCONT)
    return "killed" if kills else "stopped"


def _moved(front: Front, rng: Random) -> str:
    """A model is loaded or unloaded by hand."""
    path, name = rng.choice(("/models/load", "/models/unload")), rng.choice(NAMES)
    reply = front.client.post(path, json={"model": name}, headers=front.headers(rng))
    assert reply.status_code in (200, 400), reply.text
    return f"{path} {reply.status_code}"


def _polled(front: Front, rng: Random) -> str:
    reply = front.client.get(rng.choice(FACTS), headers=front.headers(rng))
    assert reply.status_code == 200, reply.text
    return "200"


def _refused(front: Front, rng: Random) -> str:
    """Unknown models, wrong keys, and bodies that are none."""
    path = rng.choice((CHAT, COMPLETIONS, "/v1/messages", "/v1/responses", "/tokenize"))
    content = rng.choice(('{"model": "grey"}', '{"model": ["red"]}', "[]", "{", "\ud800\0"))
    head = {"content-type": "application/json"} | front.headers(rng)
    if rng.random() < 0.3:
        head |= {"authorization": rng.choice(("Bearer three", "Basic one", "one", "Bearer"))}
    data = content.encode("utf-8", "replace")
    status = front.client.post(path, content=data, headers=head).status_code
    assert status in (400, 401, 404), status
    return str(status)


def _raw(front: Front, rng: Random) -> str:
    """Targets and heads that two readers might read in two ways."""
    port, method = front.client.base_url.port, rng.choice(("GET", "POST", "CONNECT", "DELETE"))
    if rng.random() < 0.6:
        target, more = rng.choice(TARGETS).format(port=port), "Content-Length: 2"
    else:
        target, more, method = "/v1/nothing", rng.choice(HEADS), "POST"
    with front.connect() as connection, suppress(ConnectionError):
        connection.sendall(head_of(target, f"{more}\r\nConnection: close", "one", method) + b"{}")
        data = b""
        while part := connection.recv(2**16):
            data += part
        status = int(data.split(b" ")[1])
        assert status in (400, 404, 405, 431, *FAILED), data
        return str(status)
    return "closed"


ACTIONS: dict[str, tuple[int, Action]] = {
    "whole": (5, _whole),
    "streamed": (5, _streamed),
    "slow": (2, _slow),
    "unread": (2, _unread),
    "left": (3, _left),
    "struck": (2, _struck),
    "moved": (3, _moved),
    "polled": (2, _polled),
    "refused": (2, _refused),
    "raw": (2, _raw),
}


@dataclass(slots=True)
class Figures:
    """What became of the actions, the front's memory in MiB, and seconds of the end."""

    outcomes: Counter[str]
    memory: list[float]
    recovery: float = 0.0
    ending: float = 0.0


def _body(form: Form, name: str) -> dict[str, Any]:
    return form.body(name, 1) | {"temperature": 0}


def _answers(front: Front) -> dict[tuple[Form, str], Any]:
    """What each model answers by each API, asked again while it fails."""
    return {(form, name): _answer(front, form, name) for name in NAMES for form in FORMS}


def _answer(front: Front, form: Form, name: str) -> Any:
    end, key = time.monotonic() + PATIENCE, {"x-api-key": KEYS[0]}
    while True:
        reply = front.client.post(form.path, json=_body(form, name), headers=key)
        if reply.status_code == 200:
            return form.whole(reply.json())
        assert reply.status_code in FAILED and time.monotonic() < end, (form, name, reply.text)


def fuzz(folder: Path, seed: int, count: int) -> Figures:
    """Let so many actions happen; raises AssertionError for what must not."""
    models, rng = folder / "models", Random(seed)
    models.mkdir()
    for number, name in enumerate(NAMES):
        write_tiny_model(models / f"{name}.gguf", seed=number, context_length=1024)
    (folder / "keys").write_text("\n".join(KEYS))
    marks = (
        f"tokenizer.ggml.fim_{n}_token_id=int:{i}" for i, n in enumerate(("pre", "suf", "mid"), 5)
    )
    flags: list[str | Path] = [
        "--models-dir",
        models,
        "--models-max",
        str(rng.choice((1, 2))),
        "--draft",
        "off",
    ]
    flags += ["--queue-timeout", "60", "--parallel", str(rng.choice((1, 2)))]
    flags += [each for mark in marks for each in ("--override-kv", mark)]
    with fronted(*flags, "--api-key-file", folder / "keys") as (process, client, log):
        client.timeout = PATIENCE
        front = Front(process, client)
        front.expected = _answers(front)
        figures = Figures(Counter(), [memory_of(process.pid)])
        with ThreadPoolExecutor(AT_ONCE) as pool:
            acts = [pool.submit(_act, front, Random(f"{seed}/{i}")) for i in range(count)]
            for number, act in enumerate(acts, 1):
                figures.outcomes[act.result()] += 1
                if number % 50 == 0:
                    figures.memory.append(memory_of(process.pid))
        _recover(front, figures)
        _end(front, figures)
        text = log.read_text()
        assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:5000]
    return figures


def _act(front: Front, rng: Random) -> str:
    name = rng.choices(list(ACTIONS), [weight for weight, _ in ACTIONS.values()])[0]
    try:
        return f"{name}: {ACTIONS[name][1](front, rng)}"
    except httpx2.RemoteProtocolError:  # a reply that was cut off, as its model was killed
        return f"{name}: cut off"


def _recover(front: Front, figures: Figures) -> None:
    """Each model answers as at the start, though some clients still do not read."""
    began = time.monotonic()
    assert front.process.poll() is None
    assert _answers(front) == front.expected
    figures.recovery = time.monotonic() - began
    figures.memory.append(memory_of(front.process.pid))
    assert figures.memory[-1] <= figures.memory[0] + MEMORY, figures.memory


def _end(front: Front, figures: Figures) -> None:
    """SIGTERM ends the front and all that it started, also with an answer under way."""
    front.unread.append(front.stream(Random(0)))
    began, started = time.monotonic(), [*children(front.process.pid).values()]
    front.process.send_signal(signal.SIGTERM)
    assert front.process.wait(PATIENCE) == 0
    figures.ending = time.monotonic() - began
    while not all(map(is_gone, started)):
        assert time.monotonic() < began + PATIENCE, started
        time.sleep(0.02)
    for connection in front.unread:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HOME": folder, "LOCALSPEC_CACHE": f"{folder}/cache"}
        figures = fuzz(Path(folder), given.seed, given.count)
    for outcome, times in sorted(figures.outcomes.items()):
        print(f"{outcome:32} {times:6}")
    print("memory in MiB:", *[f"{each:.0f}" for each in figures.memory])
    print(f"all models again after {figures.recovery:.1f} s, SIGTERM took {figures.ending:.1f} s")
    print(f"{given.count} actions in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
