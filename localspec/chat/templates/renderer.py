"""Rendering of untrusted chat templates in a child process with limits of time and memory."""

import atexit
import datetime
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from localspec.chat.templates.sandbox import MAX_CHARACTERS
from localspec.core.errors import TemplateError, TemplateLimitExceeded, UsageError
from localspec.core.worker import Worker, WorkerEnded, WorkerLimits, not_started

LIMITS = WorkerLimits(2.0, 2**30)  # ordinary conversations take less than a thousandth of the time
_MOST_REPLY = 12 * MAX_CHARACTERS + 100  # a character may be twelve in JSON
_HINT = (
    "Give another with --chat-template, a text or a name such as chatml; --raw completes a prompt "
    "without a template."
)


class Renderer:
    """A child process that renders templates; started by the first one, and after each overrun.

    Thread-safe: templates are rendered one after the other.
    """

    def __init__(self, limits: WorkerLimits = LIMITS) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def prepare(self) -> None:
        """Start the child, which takes about 0.1 s, while something else is done."""
        with self._lock, suppress(OSError):
            self._running()

    def fill(
        self, source: str, variables: Mapping[str, Any], now: datetime.datetime, name: str
    ) -> str:
        """The text of a template; ``now`` is the time of ``strftime_now``.

        Raises TemplateError, in which ``name`` is the subject, TemplateLimitExceeded, WorkerLost
        and UsageError for variables that are not plain data.
        """
        question = {"source": source, "variables": variables, "now": now.isoformat()}
        text: str = self._ask(question, name)["text"]
        return text

    def names_read(self, source: str, name: str) -> frozenset[str]:
        """The names of the variables that a template reads; raises as `fill` does."""
        return frozenset(self._ask({"source": source}, name)["names"])

    def close(self) -> None:
        running, self._worker = self._worker, None
        if running is not None:
            running.close()

    def _ask(self, question: Mapping[str, object], name: str) -> dict[str, Any]:
        answer = self._answer(question, name)
        if "error" in answer:
            raise TemplateError(f"{name} cannot be rendered: {answer['error']}.", _HINT)
        return answer

    def _answer(self, question: Mapping[str, object], name: str) -> dict[str, Any]:
        """The child's reply; a child that is killed from outside is replaced once."""
        with self._lock:
            try:
                try:
                    return self._exchange(question)
                except WorkerEnded as lost:
                    if lost.ended.cause != "killed":
                        raise
                    return self._exchange(question)
            except WorkerEnded as lost:
                self._refuse(lost, name)
            except OSError as error:
                raise not_started("to render the chat template", error) from None

    def _exchange(self, question: Mapping[str, object]) -> dict[str, Any]:
        worker = self._running()
        try:
            reply: dict[str, Any] = worker.ask(question)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"The messages or the variables of the chat template are not plain data: {error}.",
                "Give texts, numbers, lists and dictionaries.",
            ) from error
        return reply

    def _running(self) -> Worker:
        """The child, started if there is none or it ended."""
        if self._worker is None or self._worker.ended:
            self.close()
            self._worker = Worker("localspec.chat.templates.sandbox", self._limits, _MOST_REPLY)
            atexit.unregister(self.close)
            atexit.register(self.close)
        return self._worker

    def _refuse(self, lost: WorkerEnded, name: str) -> NoReturn:
        """Raise TemplateLimitExceeded if the template is at fault, else WorkerLost."""
        if (problem := lost.outside(self._limits)) is not None:
            raise problem
        raise TemplateLimitExceeded(f"{name} {lost.excess(self._limits)}.", _HINT)


SHARED = Renderer()
