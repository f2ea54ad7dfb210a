"""Queue limits and their errors."""

import math
import sys
from dataclasses import dataclass

from localspec.core.errors import LocalspecError

STEP_SECONDS = 300.0  # of a server: a wide pass of a large model on a slow machine is one step


@dataclass(frozen=True, slots=True)
class Limits:
    """Most waiting jobs; seconds that a job may wait, that an answer may take in its slot, and
    that one step of the compute thread may take. By default there are none.
    """

    waiting: int = sys.maxsize
    queue_seconds: float = math.inf
    answer_seconds: float = math.inf
    step_seconds: float = math.inf
    prompt_share: float | None = None


NO_LIMITS = Limits()


class Unavailable(LocalspecError):
    """The server gives no answer now; ``status`` is HTTP's, ``retry_after`` in seconds."""

    status = 503
    code: str | None = None
    retry_after: int | None = None


class QueueFull(Unavailable):
    """The queue has no room for another request."""

    status, code = 429, "queue_full"

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(
            f"The queue is full ({waiting} waiting).", f"Ask again in {retry_after} s."
        )
        self.retry_after = retry_after


class QueueTimeout(Unavailable):
    """A request waited for a slot longer than allowed."""

    code = "queue_full"

    def __init__(self, seconds: float, retry_after: int, room: str = "") -> None:
        super().__init__(
            f"No slot{room} was free for {seconds:g} s.", f"Ask again in {retry_after} s."
        )
        self.retry_after = retry_after


class AnswerTimeout(Unavailable):
    """The time of an answer ran out before its first token.

    After the first token there is no error: the answer ends as if it had reached ``max_tokens``.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The prompt was not read within the {seconds:g} s that an answer may take.",
            "Shorten the prompt.",
        )


class Stalled(Unavailable):
    """A slot has made no progress for longer than `Limits.step_seconds`."""

    code = "slot_stalled"

    def __init__(self, seconds: float, slots: int = 1) -> None:
        super().__init__(
            f"{slots} of the server's slots made no progress for {seconds:g} s.",
            "Ask again later; if it lasts, restart the server.",
        )


class Closing(Unavailable):
    """The server takes no more requests, or ended one that was under way."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", "Ask again when it is back.")
