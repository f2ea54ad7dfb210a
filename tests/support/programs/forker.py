"""Children of `worker.ask` forked from one process that has imported what they need.

    python -m tests.support.programs.forker

Reads a request as a line of JSON, runs its module in a fork, and writes how that ended.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from localspec.core import host
from localspec.core.worker import Ended

ROOT = Path(__file__).parents[3]
# They import all that the children need; their own code runs anew in each.
MODULES = (
    "localspec.engine.loading.child", "localspec.llama.memory.probe", "localspec.llama.quantize",
)  # fmt: skip


class Forker:
    """That process, started when it is first asked; after Ctrl-C in a question, another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, module: str, question: Any) -> Ended:
        """As `worker.ask`, without a limit of time."""
        asked = {
            "module": module,
            "question": json.dumps(question, default=str),
            "environment": host.environment(),
            "folder": str(Path.cwd()),
        }
        process = self._process = self._process or self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            return Ended(*json.loads(process.stdout.readline()))
        except BaseException:
            self.close()
            raise

    def _started(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "tests.support.programs.forker"]
        # Ctrl-C is for the test
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, start_new_session=True
        )

    def close(self) -> None:
        """End it; a child that still runs ends when it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _become(asked: dict[str, Any], streams: list[int]) -> None:
    """In the fork: be a process that runs a module with these streams."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    code = 1
    try:
        os.setsid()
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.stdin = os.fdopen(0)
        sys.argv = [asked["module"]]
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _fork(asked: dict[str, Any]) -> tuple[int, str, str]:
    """Exit code and output of a child."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)  # the end of this process is to end the child
            _become(asked, [reading, output.fileno(), log.fileno()])
        os.close(reading)
        with os.fdopen(writing, "w") as questions:
            questions.write(asked["question"] + "\n")
            questions.flush()
            _, status = os.waitpid(child, 0)
        texts = []
        for file in (output, log):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def main() -> None:
    """Answer requests until the parent ends."""
    for module in MODULES:
        __import__(module)
    from localspec.llama import llama_library

    llama_library.ggml()
    for module in MODULES:
        del sys.modules[module]  # else runpy warns
    for line in sys.stdin:
        print(json.dumps(_fork(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
