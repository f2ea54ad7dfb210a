"""`localspec serve` with several models as a process, its children, and a request of each API."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import httpx2

from tests.support.served import CHAT, COMPLETIONS, PATIENCE

LENGTH = 24  # tokens of an answer
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
        with suppress(OSError, ValueError):  # it has ended, or does not run its command yet
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found[Path(line[line.index(b"serve") + 1].decode()).stem] = pid
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


class Form(NamedTuple):
    """A path, the fields of a request with a text, and where replies and events have the answer."""

    path: str
    fields: Callable[[str], dict[str, Any]]
    whole: Callable[[Any], Any]
    part: Callable[[Any], str] | None = None  # nothing is streamed

    def body(self, model: str, number: int) -> dict[str, Any]:
        fields = self.fields(f"Tell me of number {number}.")
        limits = {"max_tokens": LENGTH, "max_output_tokens": LENGTH}
        return {"model": model, "seed": number, **limits, **fields}


def user(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _block(event: Any) -> str:
    """The text of an event of /v1/messages."""
    return str(event["delta"]["text"]) if event["type"] == "content_block_delta" else ""


def _output(event: Any) -> str:
    """The text of an event of /v1/responses."""
    return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


FORMS = (
    Form(COMPLETIONS, lambda text: {"prompt": text}, lambda reply: reply["choices"][0]["text"],
         lambda event: str(event["choices"][0]["text"])),
    Form(CHAT, user, lambda reply: reply["choices"][0]["message"]["content"],
         lambda event: str(event["choices"][0]["delta"].get("content", ""))),
    Form("/v1/messages", user, lambda reply: reply["content"][0]["text"], _block),
    Form("/v1/messages/count_tokens", user, lambda reply: reply["input_tokens"]),
    Form("/v1/responses", lambda text: {"input": text},
         lambda reply: reply["output"][0]["content"][0]["text"], _output),
    Form("/completion", lambda text: {"prompt": text}, lambda reply: reply["content"],
         lambda event: str(event["content"])),
    Form("/infill", lambda text: {"input_prefix": text}, lambda reply: reply["content"],
         lambda event: str(event["content"])),
    Form("/tokenize", lambda text: {"content": text}, lambda reply: reply["tokens"]),
    Form("/apply-template", user, lambda reply: reply["prompt"]),
)  # fmt: skip
