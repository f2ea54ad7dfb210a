"""Fuzz requests to a running server: the text of a fixed request stays, and memory stays flat.

python -m tests.fuzz.requests --seed 1 --count 2000
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from tests.fuzz.grammars import chain, lark, nested, optional, regex, rules, schema

DEMO = Path(__file__).parents[2] / "models" / "demo"
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
HELLO = [{"role": "user", "content": "What is a lock?"}]
FIXED = {"messages": HELLO, "seed": 1, "temperature": 0.8, "max_tokens": 24}
EVERY = 50  # requests between two checks of the fixed one
PATIENCE = 120.0  # seconds, more than any request may take
ODD: list[object] = [
    None,
    True,
    -1,
    0,
    1e308,
    2**64,
    "",
    "\ud800",
    "\0",
    "a" * 10_000,
    [],
    {},
    [[]],
]


@dataclass(slots=True)
class Figures:
    """Statuses, the server's memory in MiB at each check, and the seconds that its end took."""

    statuses: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    ending: float = 0.0
    code: int = 0


@contextmanager
def served(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of the demo pair, and its URL."""
    models = ["-m", str(DEMO / "target.gguf"), "-md", str(DEMO / "draft.gguf")]
    command = [sys.executable, "-m", "localspec", "serve", *models, "--port", "0", *flags]
    log = subprocess.PIPE
    with subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.match(r"Listening on (http://\S+) ", line):
                    break
            else:
                raise AssertionError("the server did not begin")
            with subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL):
                yield process, found[1]
                process.kill()
        finally:
            process.kill()


def _grammar(rng: Random) -> dict[str, object]:
    kind = rng.choice([rules, chain, nested, lark])
    return rng.choice(
        [
            {"grammar": kind(rng)},
            {"regex": rng.choice([regex, optional])(rng)},
            {"json_schema": json.loads(schema(rng))},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": json.loads(schema(rng))},
                }
            },
        ]
    )


def _odd_fields(rng: Random) -> dict[str, object]:
    names = ["messages", "max_tokens", "temperature", "stop", "n", "seed", "tools", "logit_bias"]
    names += ["top_logprobs", "stream_options", "grammar", "response_format", "draft_tokens", "x"]
    names += ["system", "thinking", "tool_choice", "output_config"]
    return {name: rng.choice(ODD) for name in rng.sample(names, rng.randint(1, 3))}


def _body(rng: Random) -> bytes:
    """Bytes that may be no JSON at all."""
    return rng.choice(
        [
            b"[" * rng.choice([10, 1000, 100_000]),
            b'{"messages":' * 1000,
            rng.randbytes(rng.choice([0, 1, 1000])),
            json.dumps({"messages": [{"role": "user", "content": "a" * 200_000}]}).encode(),
            json.dumps({f"x{i}": i for i in range(5000)}).encode(),
            json.dumps({"messages": [HELLO[0]] * 3000, "max_tokens": 1}).encode(),
        ]
    )


Sent = Callable[[httpx2.Client, Random], str]


def _constrained(client: httpx2.Client, rng: Random) -> str:
    body = FIXED | _grammar(rng) | {"stream": rng.random() < 0.3, "n": rng.randint(1, 3)}
    return _status(client.post(CHAT, json=body))


def _odd(client: httpx2.Client, rng: Random) -> str:
    content = json.dumps(FIXED | _odd_fields(rng)).encode()
    return _post(client, rng, content)


def _broken(client: httpx2.Client, rng: Random) -> str:
    return _post(client, rng, _body(rng))


def _cancelled(client: httpx2.Client, rng: Random) -> str:
    """A client that leaves, before or after the first bytes."""
    body = FIXED | {"max_tokens": 2000, "stream": True}
    body |= _grammar(rng) if rng.random() < 0.5 else {}
    with suppress(httpx2.TimeoutException):
        wait = httpx2.Timeout(PATIENCE, read=rng.choice([0.01, 0.1, 1.0]))
        with client.stream("POST", CHAT, json=body, timeout=wait) as reply:
            for _, _ in zip(range(rng.randint(0, 5)), reply.iter_bytes(), strict=False):
                pass
    return "left"


def _post(client: httpx2.Client, rng: Random, content: bytes) -> str:
    kind = {"content-type": "application/json"}
    path = rng.choice([CHAT, COMPLETIONS, MESSAGES])
    return _status(client.post(path, content=content, headers=kind))


def _status(reply: httpx2.Response) -> str:
    """The status, which is an error's with a reason, or 200; never 500."""
    assert reply.status_code != 500, reply.text
    if reply.status_code != 200:
        assert reply.json()["error"]["message"], reply.text
    return str(reply.status_code)


KINDS: dict[str, Sent] = {
    "constrained": _constrained,
    "odd": _odd,
    "broken": _broken,
    "cancelled": _cancelled,
}


def fuzz(seed: int, count: int, *flags: str) -> Figures:
    """Send requests; raises AssertionError where the fixed one gets another text."""
    figures = Figures()
    with served(*flags) as (process, url):
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            expected = _text(client)
            for i in range(count):
                rng = Random(f"{seed}/{i}")
                name = rng.choice(list(KINDS))
                began = time.monotonic()
                figures.statuses[f"{name}: {KINDS[name](client, rng)}"] += 1
                figures.slowest = max(figures.slowest, (time.monotonic() - began, f"{name} {i}"))
                if (i + 1) % EVERY == 0 or i + 1 == count:
                    assert _text(client) == expected
                    assert client.get("/health").status_code == 200
                    figures.memory.append(_memory(process.pid))
            _end_while_answering(client, process, figures)
    return figures


def _text(client: httpx2.Client) -> Any:
    reply = client.post(CHAT, json=FIXED)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"]


def _end_while_answering(
    client: httpx2.Client, process: subprocess.Popen[str], figures: Figures
) -> None:
    """SIGTERM while an answer that would take long is under way."""
    body = {"messages": HELLO, "stream": True, "max_tokens": -1, "ignore_eos": True}
    with client.stream("POST", CHAT, json=body) as reply:
        next(reply.iter_bytes())
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        figures.code = process.wait(PATIENCE)
        figures.ending = time.monotonic() - began


def _memory(pid: int) -> float:
    """Resident MiB; 0 where the system does not say so in /proc."""
    with suppress(OSError):
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def main() -> None:
    """Print what became of the requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    given, flags = parser.parse_known_args()
    figures = fuzz(given.seed, given.count, *flags)
    for status, times in sorted(figures.statuses.items()):
        print(f"{status:32} {times:6}")
    print(f"slowest: {figures.slowest[0]:.1f} s, {figures.slowest[1]}")
    print("memory in MiB:", *[f"{each:.0f}" for each in figures.memory])
    print(f"SIGTERM: exit code {figures.code} after {figures.ending:.1f} s")


if __name__ == "__main__":
    main()
