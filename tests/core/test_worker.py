"""Child processes of this program: how they are run, and how they end."""

import itertools
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from localspec.core import machine
from localspec.core.worker import (
    Ended,
    Worker,
    WorkerEnded,
    WorkerLimits,
    ask,
    command,
    not_started,
)


def test_a_child_ends_with_the_one_that_asked() -> None:
    code = "import time; from localspec.core.worker import question; question(); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as orphan:
        assert orphan.stdin is not None
        orphan.stdin.write(b"{}\n")
        orphan.stdin.close()
        assert orphan.wait(60) == 1


def test_a_module_of_the_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "tool.py").write_text("raise SystemExit(7)")
    (tmp_path / "json" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert subprocess.run(command("json.tool"), input=b"{}", capture_output=True).returncode == 0


def test_how_a_child_ended() -> None:
    endings = {0: "error", 1: "error", -11: "crash", 3: "crash", None: "time", -9: "killed"}
    assert {code: Ended(code, "", "").cause for code in endings} == endings
    assert [Ended(code, "", "").reason for code in endings if code and code != -9] == [
        "exit code 1", "SIGSEGV", "exit code 3",
    ]  # fmt: skip
    assert Ended(None, "", "").reason == "no answer in time"


def test_the_last_lines_of_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loud = "import sys, os\nprint(sys.stdin.readline(), flush=True)\n"
    loud += "for i in range(9999): print(i, 'x' * 5000, file=sys.stderr)\n"
    loud += "print('end', file=sys.stderr, flush=True)\nos.abort()"
    (tmp_path / "loud.py").write_text(loud)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = ask("loud", {"a": 1}, 120)
    assert (ended.reason, ended.output.strip()) == ("SIGABRT", '{"a": 1}')
    assert ended.log.endswith("end\n") and len(ended.log) < 2**20


def test_a_child_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint(1, flush=True)\ntime.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask("slow", None, 1.0).code is None


@pytest.mark.parametrize(
    ("code", "log", "cause"),
    [
        (None, "", "time"),
        (-27, "", "time"),
        (77, "", "memory"),
        (1, "ImportError: x.so: failed to map segment from shared object", "memory"),
        (-6, "memory allocation of 99 bytes failed", "memory"),
        (-9, "", "killed"),
        (-15, "", "killed"),
        (-11, "", "crash"),
        (1, "ImportError: no", "error"),
    ],
)
def test_what_ended_a_child(code: int | None, log: str, cause: str) -> None:
    assert Ended(code, "", log).cause == cause


def test_a_child_that_the_system_does_not_start() -> None:
    lost = not_started("for a grammar", OSError(24, "Too many open files"))
    assert lost.message == "No process could be started for a grammar: Too many open files."
    assert lost.hint.endswith("ulimit -n 1024.")


SERVING = """
import os, sys, time
from localspec.core.worker import Channel
def answer(question):
    if question == "loop":
        while True: pass
    if question == "sleep": time.sleep(600)
    if question == "fail": raise KeyError("what")
    if question == "abort": print("last words", file=sys.stderr, flush=True); os.abort()
    if question == "long": return "a" * 10**6
    if question == "hoard": return len(bytearray(10**9))
    if question == "print": print("no reply")
    return question
Channel().serve(answer)
"""


@pytest.mark.parametrize(
    ("question", "cause", "words"),
    [
        ("loop", "time", "in time"),
        ("sleep", "time", "in time"),
        ("fail", "error", "KeyError: 'what'"),
        ("abort", "crash", "SIGABRT.: last words"),
        ("long", "memory", "memory"),
        ("hoard", "memory", "memory"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of address space")
def test_a_worker_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, cause: str, words: str
) -> None:
    (tmp_path / "serving.py").write_text(SERVING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    monkeypatch.setattr("localspec.core.worker._WALL_PER_SECOND", 6)
    running = Worker("serving", WorkerLimits(0.3, 300 * 2**20), 10**5)
    assert running.ask({"a": ["\ud800", 1]}) == {"a": ["\ud800", 1]}
    assert running.ask("print") == "print"
    with pytest.raises(WorkerEnded, match=words) as raised:
        running.ask(question)
    assert raised.value.ended.cause == cause and running.ended


def test_a_pause_of_the_machine_ends_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serving.py").write_text(SERVING.replace("sleep(600)", "sleep(0.5)"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    times = itertools.chain([0.0], itertools.count(310.0, 0.1))  # paused while the child computes
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: next(times)))
    running = Worker("serving", WorkerLimits(1.0, 300 * 2**20), 10**5)
    try:
        assert running.ask("sleep") == "sleep"
    finally:
        running.close()
