"""Asks a server for answers to chats over HTTP, and times them by the client's clock."""

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a chat; times in seconds.

    ``seconds`` pass from the request to the end of the answer, ``ttft`` until the first part of a
    stream (None: not streamed). ``prompt_seconds`` is the server's own figure.
    """

    text: str
    tokens: int
    seconds: float
    ttft: float | None
    prompt_seconds: float
    timings: Json

    @property
    def generation_seconds(self) -> float:
        """The time after the prompt: by the stream, or without the server's time for the prompt."""
        return self.seconds - (self.prompt_seconds if self.ttft is None else self.ttft)

    @property
    def speed(self) -> float:
        """Tokens per second, without the first where its pass is part of the time for the prompt.

        localspec reads the last token of a prompt from the cache in its first round, whose time it
        counts as generation, and leaves out of ``predicted_per_second`` what it does not count.
        """
        if self.ttft is None and "rounds" in self.timings:
            counted: float = (
                self.timings["predicted_per_second"] * self.timings["predicted_ms"] / 1000
            )
            return counted / self.generation_seconds
        return (self.tokens - 1) / self.generation_seconds


def ask(port: int, messages: Sequence[Json], *, stream: bool = False, **fields: object) -> Reply:
    """A greedy answer; ``fields`` are further fields of the request."""
    body: Json = {"messages": messages, "temperature": 0, "stream": stream} | fields
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    parts: list[str] = []
    timings: Json = {}
    ttft = None
    began = time.perf_counter()
    with urllib.request.urlopen(request) as response:
        for document in events(response) if stream else [json.load(response)]:
            found = list(parts_of(document))
            if stream and ttft is None and any(found):
                ttft = time.perf_counter() - began
            parts += found
            timings = document.get("timings") or timings
    seconds = time.perf_counter() - began
    if not timings:
        raise SystemExit(f"the server on port {port} sent no timings")
    return Reply(
        "".join(parts),
        timings["predicted_n"],
        seconds,
        ttft,
        timings["prompt_ms"] / 1000,
        timings,
    )


def events(response: Any) -> Iterator[Json]:
    """The JSON objects of a stream; raises RuntimeError for an error among them."""
    for line in response:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"])
            yield chunk


def parts_of(document: Json) -> Iterator[str]:
    """Texts, names of tools and parts of arguments in a whole answer or in one event."""
    for choice in document["choices"]:
        said = choice.get("delta") or choice.get("message") or {}
        yield said.get("reasoning_content") or ""
        yield said.get("content") or ""
        for call in said.get("tool_calls") or ():
            yield (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
