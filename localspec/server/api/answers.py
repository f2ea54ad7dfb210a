"""The answers to one request: their pieces in order of arrival, and the text so far."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from localspec.chat.answer import Piece, called_or
from localspec.chat.stats import GenerationStats
from localspec.chat.tools.tool import ToolCall
from localspec.engine.session.job import GenerationRequest, Job, received
from localspec.engine.session.limits import Closing
from localspec.engine.session.session import Session
from localspec.server.metrics import Metrics
from localspec.speculative.loop import DraftStatus
from localspec.speculative.sampling.logprobs import TokenLogprob


@dataclass(slots=True)
class Choice:
    """One of the answers, as far as it has come; ``pieces`` counts those that were added.

    ``reasoning_tokens`` are those that released a text of the reasoning; ``truncated`` is set if
    the context ended the answer.
    """

    index: int
    job: Job
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    reasoning_tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    pieces: int = 0
    finish_reason: str | None = None
    stop_text: str | None = None
    truncated: bool = False
    stats: GenerationStats = field(default_factory=GenerationStats)
    status: DraftStatus = DraftStatus.DRAFTING

    def add(self, piece: Piece) -> None:
        """Add the next piece; ``finish_reason`` is then one of OpenAI's."""
        self.pieces += 1
        self.texts.append(piece.text)
        self.tokens += piece.tokens
        self.thoughts.append(piece.reasoning)
        self.reasoning_tokens += sum(part.reasoning for part in piece.parts)
        self.logprobs += piece.logprobs
        self.tool_calls += piece.tool_calls
        self.stats, self.status = piece.stats, piece.status
        if piece.stop_text in self.job.request.options.stop:  # else it is the chat template's
            self.stop_text = piece.stop_text
        self.truncated = piece.finish_reason == "context"
        if piece.finish_reason is not None:
            reason = called_or(piece.finish_reason, self.tool_calls)
            self.finish_reason = "length" if reason == "context" else reason

    @property
    def has_logprobs(self) -> bool:
        return self.job.request.options.logprobs is not None

    @property
    def seed(self) -> int:
        return self.job.request.options.sampling.seed

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.thoughts)


class Answers:
    """The answers to one request; iterate once, until each is complete.

    Call `close` exactly once, also if the iteration was not finished.
    """

    def __init__(
        self, session: Session, requests: Sequence[GenerationRequest], metrics: Metrics
    ) -> None:
        self._session = session
        self.choices = [Choice(i, job) for i, job in enumerate(session.submit(requests))]
        self._began = time.monotonic()
        self._metrics = metrics
        self._pieces = self._merge()

    @property
    def complete(self) -> bool:
        return all(choice.finish_reason for choice in self.choices)

    @property
    def stats(self) -> GenerationStats:
        total = GenerationStats()
        for choice in self.choices:
            total.merge(choice.stats)
        return total

    def __aiter__(self) -> AsyncIterator[tuple[Choice, Piece]]:
        return self._pieces

    def unread(self) -> list[tuple[int, int]]:
        """Of each prompt that is being read: the tokens read so far, and all."""
        states = [self._session.state_of(choice.job) for choice in self.choices]
        return [
            (state.n_prompt_tokens_processed, state.n_prompt_tokens)
            for state in states
            if state is not None and state.n_prompt_tokens_processed < state.n_prompt_tokens
        ]

    async def rest(self) -> None:
        """Wait until all answers are complete."""
        for choice in self.choices:
            choice.job.collect()
        async for _ in self._pieces:
            pass

    def close(self) -> None:
        """Cancel answers that are still under way, and count the answers in the metrics."""
        for choice in self.choices:
            choice.job.cancel()
            self._metrics.count_answer(choice.stats)

    async def _merge(self) -> AsyncIterator[tuple[Choice, Piece]]:
        """Each piece as it comes, added to its choice; raises Closing for a cut-off answer.

        Pieces with a progress are not part of the answer, and are not added.
        """
        choices = {choice.job: choice for choice in self.choices}
        async for job, piece in received(list(choices)):
            choice = choices[job]
            if piece is not None and piece.progress is not None:
                yield choice, piece
            elif piece is not None:
                if not choice.pieces:
                    waited = time.monotonic() - self._began
                    self._metrics.first_token_seconds.observe(waited)
                choice.add(piece)
                yield choice, piece
            elif choice.finish_reason is None:
                raise Closing
