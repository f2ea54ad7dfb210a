"""A server on a free loopback port, in this process, over toys or a real pair."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx2
import numpy as np
from numpy.typing import NDArray

from localspec.chat.message import read_messages
from localspec.chat.templates.continuation import Continues, goes_on
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.chat.tools.tool import ToolChoice
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.caches.prefix_cache import PrefixCache
from localspec.engine.generate import TextEngine
from localspec.engine.session.limits import Limits
from localspec.engine.session.session import Session
from localspec.engine.text_stream import OutputFormat, Prompt
from localspec.server.app import MAX_BODY, make_app
from localspec.server.guard import LOOPBACK, Access
from localspec.server.listen import Server, Tls, bind, listen, url
from localspec.server.service import Defaults, Service
from tests.support.toy.chat import ChatToy
from tests.support.toy.models import ToyModel

if TYPE_CHECKING:
    from localspec.engine.engine import Engine

PATIENCE = 60.0  # seconds, for what should take none
HELLO = [{"role": "user", "content": "hello"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class ServedModel(ToyModel):
    """ASCII codes as tokens, three of which are those of fill-in-the-middle."""

    header = SimpleNamespace(vocab=None)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode("ascii", "replace"))

    def piece(self, token: int, special: bool = False) -> bytes:
        return bytes([token])

    def fim_tokens(self) -> dict[str, int]:
        return {"pre": 1, "suf": 2, "mid": 3}


class ServedToy(ChatToy):
    """A ChatToy whose prompts know how to be read; it breaks where it is asked to ``break``."""

    template = ChatTemplate(CHATML)
    model_type = ServedModel

    def __init__(self, *, quirk: float | None = 0.3, common: bytes = b"abc de") -> None:
        super().__init__(quirk=quirk, common=common)
        self.told: list[dict[str, object]] = []

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        variables: Mapping[str, object] | None = None,
        continues: Continues = None,
        generation: bool = True,
        owner: str = "",
    ) -> Prompt:
        told = {"thinking": thinking, "tools": tools, "tool_choice": tool_choice}
        self.told.append({**told, "variables": variables})
        read = read_messages(messages)
        ids = super().encode_chat(read)
        if goes_on(read, continues) or not generation:
            del ids[-1]
        return Prompt(ids, OutputFormat(self.piece))

    def encode_text(self, text: str, *, special: bool = False) -> Prompt:
        if text == "break":
            raise RuntimeError("the secret of /home/somebody")
        return Prompt(text.encode("ascii", "replace"), OutputFormat(self.piece))


class Gate(ToyModel):
    """A target that answers pass by pass, as it is let: ``passes`` counts those begun."""

    def __init__(self, n_ctx: int = 100_000) -> None:
        super().__init__(n_vocab=129, n_ctx=n_ctx, favoured=[*b"abc de"])
        self._open = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.passes = 0

    def let(self, passes: int = 1) -> None:
        """Let so many passes be made."""
        if passes:
            self._open.release(passes)

    def decode(self, tokens: Sequence[int], rows: int) -> NDArray[np.float32]:
        self.passes += 1
        self.began.release()
        assert self._open.acquire(timeout=PATIENCE)
        return super().decode(tokens, rows)


def gated_toy() -> tuple[ServedToy, Gate]:
    """An engine without a draft, and its target."""
    toy = ServedToy(quirk=None)
    toy.target = gate = Gate()
    return toy, gate


@dataclass
class Site:
    """A running server, and a client of it."""

    url: str
    service: Service
    server: Server
    client: httpx2.Client
    lines: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.client.get(path, headers=headers)

    def post(self, path: str, body: object, **headers: str) -> httpx2.Response:
        data = json.dumps(body)  # with escapes, also of what is no Unicode
        kind = {"content-type": "application/json"}
        return self.client.post(path, content=data, headers=kind | headers)

    def ask(self, path: str = CHAT, /, **fields: object) -> Any:
        """The JSON of a reply that must be one."""
        reply = self.post(path, _asked(path) | fields)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def refused(self, path: str = CHAT, /, **fields: object) -> tuple[int, dict[str, Any]]:
        """Status and error of a request that must fail."""
        reply = self.post(path, _asked(path) | fields)
        return reply.status_code, error_of(reply)

    def line_with(self, *texts: str) -> str:
        """The log's first line with one of these texts; it may be written after its reply."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for line in tuple(self.lines):
                if any(text in line for text in texts):
                    return line
            time.sleep(0.01)
        raise AssertionError(f"no line with {texts} in {self.lines}")

    def stream(self, path: str = CHAT, /, **fields: object) -> list[dict[str, Any]]:
        """The events of a stream that must be complete."""
        reply = self.post(path, _asked(path) | fields | {"stream": True})
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8", reply.text
        *events, last = events_of(reply.text)
        assert last == "[DONE]"
        return [json.loads(event) for event in events]


def _asked(path: str) -> dict[str, object]:
    return {"messages": HELLO} if path == CHAT else {"prompt": "hello"}


def events_of(text: str) -> list[str]:
    """The data of server-sent events, without the comments of a busy machine's pauses."""
    *events, rest = re.sub("^: .*\n", "", text, flags=re.MULTILINE).split("\n\n")
    assert rest == ""
    assert all(event.startswith("data: ") for event in events)
    return [event.removeprefix("data: ") for event in events]


def error_of(reply: httpx2.Response) -> dict[str, Any]:
    """The error of a reply, which must have OpenAI's form."""
    assert reply.headers["content-type"] == "application/json", reply.text
    body = reply.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    is_full = error["type"] == "exceed_context_size_error"
    figures = {"n_prompt_tokens", "n_ctx"} if is_full else set()
    assert error.keys() == {"message", "type", "param", "code", *figures}
    assert isinstance(error["message"], str) and isinstance(error["type"], str)
    return error


def text_of(events: Sequence[dict[str, Any]], index: int = 0, key: str = "content") -> str:
    """What the events of a stream say of one choice."""
    choices = [choice for event in events for choice in event["choices"]]
    mine = [choice for choice in choices if choice["index"] == index]
    return "".join([c["delta"].get(key, "") if "delta" in c else c["text"] for c in mine])


@contextmanager
def serving(
    engine: Engine | ServedToy,
    *,
    access: Access = LOOPBACK,
    defaults: Defaults | None = None,
    limits: Limits | None = None,
    max_body: int = MAX_BODY,
    grace: float = 0,
    names: Sequence[str] = ("toy", "other name"),
    slots: Sequence[TextEngine] = (),
    prefixes: PrefixCache | None = None,
    share_cache: bool = False,
    slot_folder: Path | None = None,
    tls: Tls | None = None,
) -> Iterator[Site]:
    """Serve while the block runs; without defaults, greedy answers of eight tokens.

    A toy answers itself where it has no ``slots``.
    """
    defaults = defaults or Defaults(GenerateOptions(SamplingParams(temperature=0), max_tokens=8))
    lines: list[str] = []
    limits = limits or Limits()
    from localspec.engine.engine import Engine

    opened = (
        engine.open_session(limits, prefixes)
        if isinstance(engine, Engine)
        else Session(slots or [engine], None, limits, prefixes)
    )
    with closing(opened) as session:
        service = Service(
            cast("Engine", engine),
            session,
            defaults,
            names,
            share_cache=share_cache,
            slot_folder=slot_folder,
        )
        app = make_app(service, access, max_body=max_body, say=lines.append)
        server = Server(app, session, lines.append, grace, tls=tls)
        listening = bind("127.0.0.1", 0)
        listen(listening)  # who asks before the server has begun waits
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            address = url(listening, tls)
            with httpx2.Client(base_url=address, timeout=PATIENCE, verify=False) as client:
                yield Site(address, service, server, client, lines)
        finally:
            server.end()
            thread.join()
