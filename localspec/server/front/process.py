"""A model in a process of its own: `localspec serve` as a child, and their messages."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import httpx2

from localspec.core import host, worker
from localspec.core.errors import LocalspecError, NotEnoughMemory, UsageError
from localspec.engine.session.limits import Unavailable

_VARIABLE = "LOCALSPEC_FRONT"
_LONGEST_LINE = 2**20
_SECONDS_TO_END = 6.0  # more than a server takes at its end
_SECONDS_TO_DIE = 2.0  # from a lost connection to the exit code


@dataclass(frozen=True, slots=True)
class FrontHandshake:
    """Facts from a front for a model's process, in the environment: other users cannot read it."""

    names: tuple[str, ...]  # of the model
    key: str  # the process answers only requests with it
    keyed: bool  # whether clients have keys, and share nothing

    @classmethod
    def from_environment(cls) -> "FrontHandshake | None":
        """In the child: the handshake that it got, if any; from then on it ends with the front."""
        text = os.environ.pop(_VARIABLE, None)
        if text is None:
            return None
        threading.Thread(target=_end_with_front, daemon=True).start()
        fields = json.loads(text)
        return cls(**fields | {"names": tuple(fields["names"])})

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """In the child: report to the front why nothing is served."""
        try:
            yield
        except LocalspecError as problem:
            memory = isinstance(problem, NotEnoughMemory)
            _tell(error=[*map(without_folders, (problem.message, problem.hint))], memory=memory)
            raise

    @staticmethod
    def report(port: int, mapped: int, meta: Mapping[str, Any]) -> None:
        """In the child: report to the front its port, and its mapped weights in bytes."""
        _tell(port=port, mapped=mapped, meta=meta)


def without_folders(text: str) -> str:
    """The text with file names in place of paths: clients get it, stderr has it whole."""
    ends = [place for place, character in enumerate(text) if character == os.sep]
    for begin in ends:
        if begin and text[begin - 1].isalnum():  # "and/or"
            continue
        for end in reversed([each for each in ends if each > begin]):
            folder = text[begin : end + 1]
            if folder.strip(os.sep) and os.path.isdir(folder):
                return text[:begin] + without_folders(text[end + 1 :])
    return text


def _tell(**fields: Any) -> None:
    """Report to the front; later output goes to the log."""
    print(json.dumps(fields), flush=True)
    os.dup2(2, 1)


def _end_with_front() -> None:
    """Shut down when stdin ends: at once while loading, later as by Ctrl-C."""
    while os.read(0, 1):
        pass
    signal.raise_signal(signal.SIGTERM)


class ModelFailed(Unavailable):
    """A model's process refused to load it, or ended, with ``process_code``."""

    code = "model_failed"

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 503,
        memory: bool = False,
        process_code: int | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.memory = memory  # whether less memory in use may help
        self.process_code = process_code


class ModelProcess:
    """One child process. Use it in one event loop; each line of its log goes to ``say``."""

    def __init__(
        self,
        names: tuple[str, ...],
        arguments: Sequence[str],
        say: Callable[[str], None],
        *,
        keyed: bool = False,
    ) -> None:
        self.name, self.mapped = names[0], 0
        self._port = 0
        self.meta: Mapping[str, Any] = {}
        self._handshake = FrontHandshake(names, secrets.token_urlsafe(32), keyed)
        self.headers = {"authorization": f"Bearer {self._handshake.key}"}  # for requests
        self._arguments = arguments
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._stopped = False

    def url(self, path: str, query: Sequence[tuple[str, str]] = ()) -> httpx2.URL:
        """The URL of a decoded path in the process: the path cannot change host or port."""
        where = httpx2.URL(scheme="http", host="127.0.0.1", port=self._port, path=path)
        return where.copy_with(params=query) if query else where

    async def start(self) -> None:
        """Load the model; raises ModelFailed with the child's reason."""
        if self._stopped:
            raise self._unloaded()
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *worker.command("localspec"),
                "serve",
                *self._arguments,
                env={**host.environment(), _VARIABLE: json.dumps(asdict(self._handshake))},
                stdin=pipe,  # its end tells the child that the front is gone
                stdout=pipe,
                stderr=pipe,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C is for the front
            )
        except UsageError as problem:
            raise ModelFailed(problem.message, problem.hint) from None
        except OSError as error:
            raise ModelFailed(f"No process could be started for {self.name}: {error}.") from None
        assert process.stdout is not None and process.stderr is not None
        self._log = asyncio.create_task(self._forward(process.stderr))
        if self._stopped and process.stdin is not None:
            process.stdin.close()
        report = await _report(process.stdout)
        if "port" not in report:
            raise await self.ended(report)
        self._port, self.mapped, self.meta = report["port"], report["mapped"], report["meta"]

    async def ended(self, report: Mapping[str, Any] = MappingProxyType({})) -> ModelFailed:
        """Wait for the process's end, and return the reason; ``report`` is the process's own."""
        await self._wait()
        if self._stopped:
            return self._unloaded()
        assert self._process is not None
        code = self._process.returncode
        if "error" in report:
            return ModelFailed(*report["error"], memory=report["memory"], process_code=code)
        message = f"The process of {self.name} ended ({worker.Ended(code, '', '').reason})."
        hint = "Ask again: it is started again."
        return ModelFailed(message, hint, status=502, process_code=code)

    async def lost(self) -> ModelFailed:
        """Why a connection to the process broke."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.ended(), _SECONDS_TO_DIE)
        return ModelFailed(f"The connection to {self.name} was lost.", "Ask again.", status=502)

    async def stop(self) -> None:
        """End the process; answers under way have the time that a server gives them."""
        self._stopped = True
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._wait(), _SECONDS_TO_END)
        except TimeoutError:
            self.kill()
            # The system may not end it: it reads from a disk that does not answer.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wait(), _SECONDS_TO_DIE)

    def kill(self) -> None:
        self._stopped = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _wait(self) -> None:
        assert self._process is not None
        await self._process.wait()
        if self._log is not None:
            await asyncio.wait([self._log])

    async def _forward(self, log: asyncio.StreamReader) -> None:
        while True:
            with contextlib.suppress(ValueError):  # a line that is too long is left out
                if not (line := await log.readline()):
                    return
                self._say(f"{self.name}: {line.decode(errors='replace').rstrip()}")

    def _unloaded(self) -> ModelFailed:
        return ModelFailed(f"{self.name} was unloaded.", "Ask again: it is loaded again.")


async def _report(output: asyncio.StreamReader) -> Mapping[str, Any]:
    """The child's report, which llama.cpp's output may surround; empty if it ended before."""
    while True:
        with contextlib.suppress(ValueError):  # as are JSON's errors and too long lines
            if not (line := await output.readline()):
                return {}
            document = json.loads(line)
            if isinstance(document, dict):
                return document
