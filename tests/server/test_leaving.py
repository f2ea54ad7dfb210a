"""Clients that leave while their prompt is read: the part that was read is kept for the next."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.engine.engine import Engine
from localspec.llama import llama_library
from tests.support.real_pair import TinyFiles, options
from tests.support.served import CHAT, COMPLETIONS, PATIENCE, Site, serving

pytestmark = pytest.mark.llama

LONG = "the thing reads " * 40
TALK = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
BODIES: dict[str, dict[str, object]] = {
    CHAT: TALK,
    COMPLETIONS: {"prompt": LONG, "max_tokens": 4},
    "/completion": {"prompt": LONG, "n_predict": 4},
    "/v1/messages": TALK,
    "/v1/responses": {"input": LONG, "max_output_tokens": 4},
}
READ = 3  # steps before the client leaves


@pytest.fixture(scope="module", params=[1, 2], ids=["one slot", "two slots"])
def site(request: pytest.FixtureRequest, tiny: TinyFiles) -> Iterator[tuple[Site, Engine]]:
    with Engine.load(options(tiny.target, ctx_size=1024, parallel=request.param)) as engine:
        with serving(engine) as served:
            yield served, engine


@contextlib.contextmanager
def asking(site: Site, path: str, body: dict[str, object]) -> Iterator[socket.socket]:
    """A connection with a request, closed without reading the reply."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE) as connection:
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        yield connection


def cached(reply: dict[str, Any]) -> int:
    """The prompt tokens that a reply of any API says were cached."""
    usage = reply.get("usage", {})
    for details in ("prompt_tokens_details", "input_tokens_details"):
        if details in usage:
            return int(usage[details]["cached_tokens"])
    return int(usage["cache_read_input_tokens"] if usage else reply["timings"]["cache_n"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_what_was_read_is_kept_up_to_the_last_step(
    site: tuple[Site, Engine], monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    served, engine = site
    step, asked = engine.target.prompt_step, BODIES[path] | {"model": "toy"}
    session = served.service.session
    for slot in session.slots():  # hold nothing of the test before
        served.ask(COMPLETIONS, prompt=[9, 9], cache_prompt=False, id_slot=slot.id)
    passes, reading, left = list[int](), threading.Event(), threading.Event()
    llama = llama_library.library()
    decode = llama.llama_decode

    def read(*arguments: Any) -> Any:
        passes.append(1)
        if len(passes) == READ + 1:
            reading.set()
            left.wait(PATIENCE)
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(llama, "llama_decode", read)
        with asking(served, path, asked | {"stream": stream}):
            assert reading.wait(PATIENCE)
        running = session._running()
        while not all(job.cancelled for job in running):
            time.sleep(0.01)
        left.set()
        while session.running:
            time.sleep(0.01)
    again = served.post(path, asked).json()
    whole = READ + (engine.target.options.parallel > 1)  # whose passes are not ended halfway
    assert cached(again) == whole * step and step < 128
