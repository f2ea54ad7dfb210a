"""The programs of docs/library/examples, as a stranger runs them: with the bundled pair."""

import asyncio
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn

import localspec
from docs.library.examples import compare, extract, resume, summarise, tools_async, web_service

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "library" / "examples"
PATIENCE = 60.0
pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def model() -> Iterator[localspec.Model]:
    with localspec.load("demo", threads=1, seed=1, max_tokens=60) as loaded:
        yield loaded


@pytest.mark.parametrize("name", ["summarise", "extract", "tools_async", "compare"])
def test_a_program_runs_without_arguments(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_guide_has_every_program() -> None:
    guide = (ROOT / "docs" / "library" / "api.md").read_text(encoding="utf-8")
    programs = [path.name for path in EXAMPLES.glob("*.py")]
    assert (
        len(programs) == 6 and [name for name in programs if f"examples/{name})" not in guide] == []
    )


def test_a_file_longer_than_the_context_is_summarised(
    model: localspec.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(summarise, "MAX_TOKENS", 12)
    text = "A lock is held by one thread. " * 500
    with pytest.raises(localspec.PromptTooLong):
        model.generate(text)
    assert len(model.tokenize(summarise.summary(model, text))) <= 12 + 1  # BOS
    assert capsys.readouterr().err.count("tokens are read") > 8


def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summarise, "MAX_TOKENS", 8)
    (tmp_path / "here.txt").write_text("A queue keeps an order.")
    summarise.main("demo", str(tmp_path / "nowhere.txt"), str(tmp_path / "here.txt"))
    out, err = capsys.readouterr()
    assert "nowhere.txt" in err and out.startswith(str(tmp_path / "here.txt"))


def test_an_answer_that_is_cut_off_or_invalid_is_tried_again(
    model: localspec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, valid = [], []
    generate = model.generate

    def noted(*given: object, **options: object) -> localspec.Answer:
        answer = generate(*given, **options)  # type: ignore[arg-type]
        ends.append(answer.finish_reason)
        return answer

    class Particular(extract.Booking):
        @classmethod
        def model_validate_json(cls, *given: object, **options: object) -> "Particular":
            valid.append(given)
            if len(valid) == 1:
                extract.Booking(city="Rome", first_day=3, last_day=2)
            return super().model_validate_json(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "generate", noted)
    monkeypatch.setattr(extract, "TRIES", 12)
    monkeypatch.setattr(extract, "MAX_TOKENS", 2)
    found = extract.extract(model, "Rome, from May 3 to May 7.", Particular)
    assert found is not None and found.last_day >= found.first_day
    assert ends[0] == "length" and ends[-1] == "stop" and len(valid) > 1


def test_a_tool_is_called_before_the_final_answer(
    model: localspec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    result = tools_async.result

    def noted(call: localspec.ToolCall) -> dict[str, object]:
        results.append(result(call))
        return results[-1]

    monkeypatch.setattr(tools_async, "result", noted)
    asyncio.run(tools_async.ask(model, "How warm is Rome?"))
    assert results and float(str(results[0]["content"])) > 14
    broken = tools_async.result(localspec.ToolCall("degrees", '{"city": "Paris", "un'))
    assert broken["content"].startswith("Error: ")


@contextmanager
def served(model: localspec.Model) -> Iterator[str]:
    """The web service on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(web_service.make_app(model), log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/ask"
        finally:
            server.should_exit = True
            thread.join()


def until(condition: object) -> None:
    """Wait for a condition that takes no time but that of other threads."""
    ends = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_the_web_service_streams_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_service, "MOST_ANSWERS", 1)
    model = localspec.load("demo", threads=1, ignore_eos=True)
    streams, ask = [], model.stream

    def noted(*given: object, **options: object) -> localspec.Stream:
        streams.append(ask(*given, **options))  # type: ignore[arg-type]
        return streams[-1]

    monkeypatch.setattr(model, "stream", noted)
    with served(model) as url, httpx2.Client(timeout=PATIENCE) as client:
        whole = client.post(url, json={"prompt": "What is a lock?", "max_tokens": 8})
        assert whole.status_code == 200 and whole.text
        for asked, said in (
            ({"prompt": "word " * 4000}, "context"),
            ({"prompt": "word", "temperature": -1}, "temperature"),
            ({"prompt": "word", "max_tokens": -9}, "max_tokens"),
        ):
            refused = client.post(url, json=asked)
            assert refused.status_code == 400 and said in refused.json()["detail"]
        session = model.engine._session
        assert session is not None
        endless = {"prompt": "What is a lock?", "max_tokens": -1}
        with client.stream("POST", url, json=endless) as answer:
            texts = answer.iter_text()  # whose end closes the connection
            assert next(texts)
            busy = client.post(url, json={"prompt": "word"})
            assert busy.status_code == 503 and busy.headers["Retry-After"]
            assert session.running == 1 and not streams[-1]._job.cancelled
        until(lambda: session.running == 0)
        assert streams[-1]._job.cancelled  # it did not go on to the end of the context
        until(lambda: client.post(url, json={"prompt": "a", "max_tokens": 1}).status_code == 200)
        model.close()
        closed = client.post(url, json={"prompt": "word"})
        assert closed.status_code == 503 and "closed" in closed.json()["detail"]


def test_forty_prompts_are_interrupted_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.jsonl"
    command = [sys.executable, str(EXAMPLES / "resume.py"), "demo", str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as program:
        until(lambda: program.poll() is not None or (path.exists() and path.stat().st_size))
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=PATIENCE)
    held = path.read_text()
    assert program.returncode == 1 and err.startswith("Interrupted: "), err
    assert 0 < len(held.splitlines()) < 40
    path.write_text(held + '{"prompt": "cut off by a ki')
    monkeypatch.setattr(resume, "MAX_TOKENS", 4)
    resume.main("demo", path)
    now = path.read_text()
    assert now.startswith(held)
    assert sorted(json.loads(line)["prompt"] for line in now.splitlines()) == resume.PROMPTS


def test_settings_are_compared_from_the_same_start(
    model: localspec.Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = []
    generate = model.generate

    def noted(*given: object, **options: object) -> localspec.Answer:
        answer = generate(*given, **options)  # type: ignore[arg-type]
        cached.append(answer.stats.cached_tokens)
        return answer

    monkeypatch.setattr(model, "generate", noted)
    monkeypatch.setattr(compare, "MAX_TOKENS", 8)
    compare.compare(model, compare.PROMPTS[:1])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("draft")] == [
        "off:",
        "4:",
        "auto:",
    ]
    assert cached == [0, 0, 0]
