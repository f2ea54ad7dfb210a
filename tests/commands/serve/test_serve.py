"""The command serve: flags, what it says, how it ends."""

import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from localspec.commands import session
from localspec.commands.serve import serve as serve_command
from localspec.core import machine
from localspec.display.terminal import console
from localspec.engine.session.limits import STEP_SECONDS, Limits
from localspec.engine.session.session import Session
from localspec.server.listen import Server, bind
from localspec.server.service import Service
from tests.support.command import Command
from tests.support.real_pair import TinyFiles
from tests.support.served import CHAT, HELLO, PATIENCE


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--host", "0.0.0.0"), "On 0.0.0.0 other machines could use this server."),
        (("--api-key", ""), "--api-key has no key."),
        (("--api-key", " , "), "--api-key has no key."),
        (("--cors", "*"), "With --cors '*' every web page could use this server."),
        (("--cors", "example.com"), "--cors example.com is not an origin."),
        (("--api-key-file", "nothing.txt"), "nothing.txt cannot be read"),
        (("--port", "70000"), "65535"),
        (("--max-queue", "0"), "max-queue"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_loaded(
    localspec: Command, flags: tuple[str, ...], sentence: str
) -> None:
    done = localspec("serve", "-m", "no such model.gguf", *flags)
    assert done.code in (1, 2) and sentence in done.sentences and not done.out


def test_the_extra_is_named_where_it_is_missing(
    localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        serve_command, "find_spec", lambda name: None if name == "uvicorn" else find(name)
    )
    done = localspec("serve", "-m", "model.gguf")
    assert done.code == 1
    assert "not installed: uvicorn" in done.err and "pip install '.[serve]'" in done.err


def test_keys_come_from_flag_environment_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, localspec: Command
) -> None:
    heard: list[SimpleNamespace] = []

    def refuse(serving: SimpleNamespace) -> None:
        heard.append(serving)
        raise SystemExit(0)

    file = tmp_path / "keys"
    file.write_text("# mine\nfirst\n\n second \n")
    monkeypatch.setattr(
        session, "make_request", lambda name, groups: SimpleNamespace(draft_tokens=0)
    )
    from localspec.commands.flags.serving import ServingFlags

    access = ServingFlags.access
    monkeypatch.setattr(ServingFlags, "access", lambda self: refuse(access(self)))  # type: ignore[arg-type]
    localspec("serve", "--api-key-file", file, "--api-key", "a,b", "--host", "0.0.0.0")
    assert heard[-1].keys == ("a", "b", "first", "second")
    monkeypatch.setenv("LOCALSPEC_API_KEY", "from outside")
    localspec("serve", "--cors", "http://a,http://b", "--cors-origins", "http://c")
    assert heard[-1].keys == ("from outside",)
    assert heard[-1].origins == ("http://a", "http://b", "http://c")
    assert heard[-1].hosts == ("127.0.0.1",) and heard[-1].off == ()
    localspec("serve", "--no-slots", "--metrics", "--no-ui", "--host", "127.0.0.1, ::1")
    assert heard[-1].hosts == ("127.0.0.1", "::1") and heard[-1].off == ("slots", "ui")
    file.write_text("# none\n")
    assert "There is no key in" in localspec("serve", "--api-key-file", file).err


@pytest.mark.llama
def test_bounds_reach_what_they_bound(
    tiny: TinyFiles, localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, object] = {}

    class Told(Session):
        def __init__(self, slots: Any, batcher: Any, limits: Any, prefixes: Any) -> None:
            made.update(limits=limits, cache=prefixes._limit, say=prefixes._say)
            super().__init__(slots, batcher, limits, prefixes)

    def app(service: Service, access: object, *, max_body: int, say: object) -> None:
        made.update(body=max_body, tokens=service.defaults.options.max_tokens)

    monkeypatch.setattr("localspec.engine.engine.Session", Told)
    monkeypatch.setattr("localspec.server.app.make_app", app)
    monkeypatch.setattr(Server, "run", lambda server, sockets: None)
    flags = "--max-tokens 5 --max-queue 6 --queue-timeout 7 --timeout 8 --cache-ram 9 --max-body 10"
    flags += " --prompt-share 0.4"
    done = localspec("serve", "-m", tiny.target, "-t", "1", "--port", "0", *flags.split())
    assert done.code == 0, done.err
    assert made == {
        "limits": Limits(6, 7, 8, STEP_SECONDS, 0.4),
        "cache": 9 * 2**20, "body": 10 * 2**20, "tokens": 5, "say": console.note,
    }  # fmt: skip


@pytest.mark.llama
def test_a_pair_is_served_by_its_name(
    tiny: TinyFiles, localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[object]()
    monkeypatch.setattr(
        "localspec.server.app.make_app", lambda service, access, **_: made.append(service.names)
    )
    monkeypatch.setattr(Server, "run", lambda server, sockets: None)
    assert localspec("pair", "add", "mine", "-m", tiny.target, "-md", tiny.draft).code == 0
    for flags in (("mine",), ("mine", "--alias", "a,b"), (f"own={tiny.target}",)):
        assert localspec("serve", *flags, "-t", "1", "--port", "0").code == 0
    assert made == [("mine", "target", "target.gguf"), ("a", "b"), ("own",)]
    refused = localspec("serve", "own=mine", "--alias", "a")
    assert refused.code == 2 and "Two names were given: own and a." in refused.sentences


@pytest.mark.llama
@pytest.mark.parametrize(
    ("flags", "mapped"), [((), True), (("--mlock",), False), (("--no-mmap",), False)]
)
def test_the_default_cache_is_a_quarter_of_what_the_models_leave(
    tiny: TinyFiles,
    localspec: Command,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    mapped: bool,
) -> None:
    made = list[int]()

    def app(service: Service, access: object, **_: object) -> None:
        made.append(service.session._prefixes._limit)

    monkeypatch.setattr(machine, "memory", lambda: (2**30, 2**31))
    monkeypatch.setattr("localspec.server.app.make_app", app)
    monkeypatch.setattr(Server, "run", lambda server, sockets: None)
    done = localspec("serve", "-m", tiny.target, "-t", "1", "--port", "0", *flags)
    assert done.code == 0, done.err
    weights = tiny.target.stat().st_size if mapped else 0  # their pages count as available
    assert made == [pytest.approx((2**30 - weights) // 4, abs=2**14)]


@contextmanager
def running(
    tiny: TinyFiles, *flags: str, said: list[str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as a process of its own, and where it listens; ``said`` gets its models."""
    command = [sys.executable, "-m", "localspec", "serve", "-m", str(tiny.target), "-t", "1"]
    process = subprocess.Popen(
        [*command, "--port", "0", *flags], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.match(r"Listening on (http://\S+) \((.*)\)\.$", line):
                if said is not None:
                    said.append(found[2])
                yield process, found[1]
                break
        else:
            raise AssertionError(f"ended with {process.wait()}")
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.llama
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_and_ends_when_told(tiny: TinyFiles, number: signal.Signals) -> None:
    flags = ("-md", str(tiny.draft), "--draft-tokens", "3", "--alias", "mine", "--seed", "7")
    with running(tiny, *flags) as (process, url):
        assert httpx2.get(f"{url}/health", timeout=PATIENCE).json() == {"status": "ok"}
        replies = [
            httpx2.post(
                url + CHAT,
                json={"model": "mine", "messages": HELLO, "max_tokens": 12},
                timeout=PATIENCE,
            ).json()
            for _ in range(2)
        ]
        assert replies[0]["choices"] == replies[1]["choices"]  # by the seed of the command line
        assert replies[0]["choices"][0]["seed"] == 7 and replies[0]["timings"]["draft_n"] > 0
        props = httpx2.get(f"{url}/props", timeout=PATIENCE).json()
        assert props["model"] == "target.gguf" and props["draft"] == "draft.gguf"
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and out == ""
    assert err.count(f"POST {CHAT} 200") == 2 and "Traceback" not in err
    assert err.endswith("The server has ended.\n")


_ENDED_AT_ONCE = """
import os, signal
from localspec import cli
from localspec.display.terminal import console

note = console.note

def end_when_it_listens(sentence):
    note(sentence)
    if sentence.startswith("Listening"):
        os.kill(os.getpid(), signal.SIGTERM)

console.note = end_when_it_listens
cli.main()
"""


@pytest.mark.llama
@pytest.mark.parametrize("others", [(), ("--models-dir", ".")], ids=["one", "several"])
def test_it_ends_when_told_as_soon_as_it_listens(tiny: TinyFiles, others: Sequence[str]) -> None:
    command = [sys.executable, "-c", _ENDED_AT_ONCE, "serve", str(tiny.target), "--port", "0"]
    done = subprocess.run(
        [*command, *others], capture_output=True, text=True, cwd=tiny.target.parent
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.endswith("The server has ended.\n") and "Traceback" not in done.stderr


@pytest.mark.llama
def test_with_two_slots_a_short_answer_does_not_wait_for_a_long_one(tiny: TinyFiles) -> None:
    flags = ("-md", str(tiny.draft), "-np", "2", "-c", "20000", "--temp", "0.8", "--seed", "1")
    with running(tiny, *flags) as (_, url):
        body = {"messages": HELLO, "stream": True, "draft_tokens": 3}
        with httpx2.stream("POST", url + CHAT, json=body, timeout=PATIENCE) as long:
            chunks = long.iter_lines()
            next(chunks)  # it is under way
            short = {"messages": HELLO, "max_tokens": 8, "draft_tokens": 3}
            answer = httpx2.post(url + CHAT, json=short, timeout=PATIENCE).json()
            assert answer["usage"]["completion_tokens"] == 8
            held = httpx2.get(f"{url}/metrics", timeout=PATIENCE).text
            assert re.search(r"requests_processing 1\.0", held)  # the long one


@pytest.mark.llama
def test_slots_share_a_context_of_the_size_that_was_asked_for(tiny: TinyFiles) -> None:
    said, flags = list[str](), ("-md", str(tiny.draft), "-np", "3", "-kvu", "-c", "512")
    with running(tiny, *flags, said=said) as (_, url):
        assert said == ["model target, draft draft.gguf, 3 slots share 512 tokens"]
        props = httpx2.get(f"{url}/props", timeout=PATIENCE).json()
        assert props["n_ctx"] == props["default_generation_settings"]["n_ctx"] == 512
        assert props["total_slots"] == 3
        slots = httpx2.get(f"{url}/slots", timeout=PATIENCE).json()
        assert [slot["n_ctx"] for slot in slots] == [512] * 3
        body = {"prompt": list(range(20)) * 30, "max_tokens": 4}
        refused = httpx2.post(f"{url}/completion", json=body, timeout=PATIENCE)
        error = refused.json()["error"]
        assert (refused.status_code, error["n_prompt_tokens"], error["n_ctx"]) == (400, 600, 512)


@pytest.mark.llama
def test_the_second_signal_ends_it_at_once(tiny: TinyFiles) -> None:
    with running(tiny, "-c", "60000", "--temp", "0.8", "--seed", "1") as (process, url):
        body = {"messages": HELLO, "stream": True}
        with httpx2.stream("POST", url + CHAT, json=body, timeout=PATIENCE) as reply:
            chunks = reply.iter_bytes()
            next(chunks)  # it is under way
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert any(line.startswith("Shutting down; answers") for line in process.stderr)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130


@pytest.mark.llama
def test_a_port_in_use_is_said_before_the_model_is_loaded(
    tiny: TinyFiles, localspec: Command
) -> None:
    with running(tiny) as (_, url):
        port = url.rpartition(":")[2]
        done = localspec("serve", "-m", tiny.target, "--port", port)
    assert done.code == 1 and not done.out
    assert f"Cannot listen on 127.0.0.1, port {port}" in done.err and "--port 0" in done.err


@pytest.mark.llama
def test_where_another_took_the_port_meanwhile_nobody_is_sent_there(
    tiny: TinyFiles, localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(session, "use_template", lambda *_: other.listen())
        done = localspec("serve", "-m", tiny.target, "-t", "1", "--port", str(port))
    assert done.code == 1 and f"port {port}" in done.err and "Listening" not in done.err
