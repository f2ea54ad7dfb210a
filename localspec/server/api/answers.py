"""The answers to one request, on their way: merged as they come, and what became of each."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from localspec.chat.answer import Piece
from localspec.chat.stats import GenerationStats
from localspec.chat.tools.tool import ToolCall
from localspec.server.metrics import Metrics
from localspec.server.queue.job import Job, received
from localspec.server.queue.limits import Closing
from localspec.speculative.sampling.logprobs import TokenLogprob


@dataclass(slots=True)
class Choice:
    """One of the answers, as far as it has come."""

    index: int
    job: Job
    parts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    responses: int = 0
    finish_reason: str | None = None
    stats: GenerationStats = field(default_factory=GenerationStats)

    def add(self, response: Piece) -> None:
        """What comes next."""
        self.responses += 1
        self.parts.append(response.text)
        self.thoughts.append(response.reasoning)
        self.logprobs += response.logprobs
        self.tool_calls += response.tool_calls
        self.finish_reason = self._reason(response)
        self.stats = response.stats

    def _reason(self, response: Piece) -> str | None:
        """Why the answer ends here, as OpenAI's API has it: it knows no full context."""
        if response.finish_reason == "context":
            return "length"
        called = self.tool_calls and response.finish_reason == "stop"
        return "tool_calls" if called else response.finish_reason

    @property
    def seed(self) -> int:
        """The one that repeats this answer."""
        return self.job.request.options.sampling.seed

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.parts)

    @property
    def reasoning(self) -> str:
        """The thoughts before it."""
        return "".join(self.thoughts)


class Answers:
    """The answers to one request; to be iterated once, until each is complete.

    Whoever has begun them calls `close` once, in the middle or at the end.
    """

    def __init__(self, jobs: Sequence[Job], metrics: Metrics) -> None:
        self.choices = [Choice(i, job) for i, job in enumerate(jobs)]
        self.asked_at = time.monotonic()
        self._metrics = metrics
        self._parts = self._merge()

    @property
    def complete(self) -> bool:
        """Whether nothing more comes."""
        return all(choice.finish_reason for choice in self.choices)

    @property
    def stats(self) -> GenerationStats:
        """The sums over all answers."""
        total = GenerationStats()
        for choice in self.choices:
            total.merge(choice.stats)
        return total

    def __aiter__(self) -> AsyncIterator[tuple[Choice, Piece]]:
        return self._parts

    async def first(self) -> tuple[Choice, Piece]:
        """What comes first, or the error in its place."""
        return await anext(self._parts)

    async def rest(self) -> None:
        """Wait until they are complete."""
        async for _ in self._parts:
            pass

    def close(self) -> None:
        """Want no more of them, and count what they took."""
        for choice in self.choices:
            choice.job.cancel()
            self._metrics.count_answer(choice.stats)

    async def _merge(self) -> AsyncIterator[tuple[Choice, Piece]]:
        """Each response as it comes, added to its choice."""
        choices = {choice.job: choice for choice in self.choices}
        async for job, response in received(list(choices)):
            choice = choices[job]
            if response is None:
                self._end(choice)
            else:
                self._add(choice, response)
                yield choice, response

    def _add(self, choice: Choice, response: Piece) -> None:
        if not choice.responses:
            waited = time.monotonic() - self.asked_at
            self._metrics.first_token_seconds.observe(waited)
        choice.add(response)

    @staticmethod
    def _end(choice: Choice) -> None:
        """Refuse to call an answer whole that was cut off."""
        if choice.finish_reason is None:
            raise Closing
