"""Bounds of what is asked for at the same time, and what those are told who reach them."""

from dataclasses import dataclass

from localspec.core.errors import LocalspecError


@dataclass(frozen=True, slots=True)
class Limits:
    """Jobs that may wait for a slot, and seconds: in the queue, and of an answer in its slot."""

    waiting: int = 64
    queue_seconds: float = 600.0
    answer_seconds: float = 3600.0


class QueueFull(LocalspecError):
    """As many requests wait as may (HTTP 429); ``retry_after`` is in seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(
            f"The queue is full ({waiting} waiting).", f"Ask again in {retry_after} s."
        )
        self.retry_after = retry_after


class QueueTimeout(LocalspecError):
    """A request waited for as long as may be (HTTP 503); ``retry_after`` is in seconds."""

    def __init__(self, seconds: float, retry_after: int) -> None:
        super().__init__(f"No slot was free for {seconds:g} s.", f"Ask again in {retry_after} s.")
        self.retry_after = retry_after


class AnswerTimeout(LocalspecError):
    """The time of an answer was over before its first token (HTTP 503, without Retry-After).

    Later than that there is no error: the answer ends as one that reached its ``max_tokens``.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The prompt was not read within the {seconds:g} s that an answer may take.",
            "Shorten the prompt.",
        )


class Closing(LocalspecError):
    """The server takes no more requests, or ended one that was under way (HTTP 503)."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", "Ask again when it is back.")
