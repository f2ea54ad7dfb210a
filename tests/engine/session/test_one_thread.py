"""One thread computes, whoever asks; Ctrl-C at any moment leaves slots that answer."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import localspec
from tests.support.programs.pressed import LAST
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama

PATIENCE = 120  # seconds until a program that hangs is given up
_ROOT = Path(__file__).parents[3]
_PROGRAMS = "tests.support.programs"


def test_one_native_thread_computes(tiny: TinyFiles, tmp_path: Path) -> None:
    """In a server with four slots, an event loop, threads of a library's user, a batch."""
    done = subprocess.run(
        [sys.executable, "-m", f"{_PROGRAMS}.computing_threads"]
        + [str(tiny.target), str(tiny.draft), str(tmp_path)],
        capture_output=True, text=True, cwd=_ROOT, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["computing"]) == 4
    for program, threads in found["computing"].items():
        assert len(threads) == 1 and threads != [found["main"]], program


@pytest.mark.parametrize("thread", ["own", "adopted"])
def test_ctrl_c_at_any_moment_leaves_slots_that_answer(tiny: TinyFiles, thread: str) -> None:
    """While prompts are read, drafts are made, tokens are verified, or between two of these."""
    dice, presses = random.Random(thread), 12
    arguments = [thread, str(tiny.target), str(tiny.draft), str(presses)]
    with subprocess.Popen(
        [sys.executable, "-m", f"{_PROGRAMS}.pressed", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        try:
            for _ in range(presses):
                assert program.stdout.readline() == "ready\n"
                time.sleep(dice.random() ** 2 / 2)
                program.send_signal(signal.SIGINT)
                line = program.stdout.readline()
                assert line == "pressed\n", program.communicate(timeout=PATIENCE)
            out, err = program.communicate(timeout=PATIENCE)
        finally:
            program.kill()
    assert program.returncode == 0, err
    with localspec.load(tiny.target, threads=1, ctx_size=1024) as alone:
        expected = alone.generate(LAST, temperature=0, raw=True, ignore_eos=True, max_tokens=20)
    assert json.loads(out) == expected.tokens
