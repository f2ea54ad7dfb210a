"""A conversation with one engine: messages, settings, and the answers that extend them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from localspec.core.config import DraftTokens
from localspec.core.errors import LocalspecError
from localspec.core.sampling_params import (
    SamplingParams,
)
from localspec.engine.chat.template import Message
from localspec.engine.generate import (
    Answer,
    GenerationResponse,
    TextEngine,
    collect,
    stream_generate,
)
from localspec.engine.stats import GenerationStats


class ChatEngine(TextEngine, Protocol):
    """An engine that also knows the model's chat template."""

    def encode_chat(
        self, messages: Sequence[Message], *, thinking: bool | None = None
    ) -> list[int]:
        """Token ids of a conversation, up to the assistant's turn."""
        ...


class ChatUI(Protocol):
    """User interface of a chat: reads messages, shows answers."""

    def read(self) -> str:
        """One message; EOFError at the end of input, KeyboardInterrupt at Ctrl-C."""
        ...

    def stream(self, response: GenerationResponse) -> None:
        """Show a piece of the answer, and the figures so far."""
        ...

    def end_answer(self, answer: Answer) -> None:
        """Close the answer and show its figures."""
        ...

    def show_stats(self, stats: GenerationStats) -> None:
        """Show the sums of the conversation."""
        ...

    def say(self, sentence: str) -> None:
        """Tell something that is no answer."""
        ...

    def complain(self, problem: LocalspecError) -> None:
        """Tell what went wrong and what to do."""
        ...


@dataclass(slots=True)
class Chat:
    """A conversation with one engine. ``max_tokens`` bounds each answer, None is the context.

    ``file`` is where the conversation was saved or loaded last: saving it there again is safe.
    """

    engine: ChatEngine
    ui: ChatUI
    params: SamplingParams
    draft_tokens: DraftTokens
    suffix: bool = True
    system: str | None = None
    thinking: bool | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    turns: list[Message] = field(default_factory=list)
    total: GenerationStats = field(default_factory=GenerationStats)
    file: Path | None = None

    def answer(self, turns: list[Message]) -> None:
        """Answer the last user turn and keep both, also when Ctrl-C ended the answer.

        An answer that did not begin leaves the conversation as it was.
        """
        messages = turns
        if self.system is not None:
            messages = [{"role": "system", "content": self.system}, *turns]
        prompt = self.engine.encode_chat(messages, thinking=self.thinking)
        responses = stream_generate(
            self.engine,
            prompt,
            self.params,
            self.draft_tokens,
            suffix=self.suffix,
            max_tokens=self.max_tokens,
            stop=self.stop,
            grammar=self.grammar,
        )
        answer = collect(responses, self.ui.stream)
        if answer.tokens:
            self.turns = [*turns, {"role": "assistant", "content": answer.text}]
        self.total.merge(answer.stats)
        self.ui.end_answer(answer)
