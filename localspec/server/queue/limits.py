"""Queue limits and their errors."""

from dataclasses import dataclass

from localspec.core.errors import LocalspecError


@dataclass(frozen=True, slots=True)
class Limits:
    """Most waiting jobs; seconds that a job may wait, and that an answer may take in its slot."""

    waiting: int = 64
    queue_seconds: float = 600.0
    answer_seconds: float = 3600.0


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

    def __init__(self, seconds: float, retry_after: int) -> None:
        super().__init__(f"No slot was free for {seconds:g} s.", f"Ask again in {retry_after} s.")
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


class Closing(Unavailable):
    """The server takes no more requests, or ended one that was under way."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", "Ask again when it is back.")
