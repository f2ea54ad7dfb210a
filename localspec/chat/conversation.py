"""A conversation with one engine: messages, settings, and the answers that extend them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from localspec.core.config import DraftTokens
from localspec.core.errors import LocalspecError
from localspec.core.sampling_params import SamplingParams
from localspec.chat.answer import Answer, GenerationResponse, collect
from localspec.chat.message import Message, assistant_turn
from localspec.chat.window import fit, visible
from localspec.engine.generate import TextEngine, require_room, stream_generate
from localspec.chat.stats import GenerationStats


class ChatEngine(TextEngine, Protocol):
    """An engine that also knows the model's chat template."""

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to the assistant's turn."""
        ...

    def system_notes(self, system: str) -> list[str]:
        """What of this system message, or beside it, the chat template ignores, in sentences."""
        ...


class ChatUI(Protocol):
    """User interface of a chat: reads messages, shows answers."""

    def read(self) -> str:
        """One message; EOFError at the end of input, KeyboardInterrupt at Ctrl-C."""
        ...

    def stream(self, response: GenerationResponse) -> None:
        """Show a piece of the answer, and the figures so far."""
        ...

    def end_answer(self, answer: Answer, filled: float) -> None:
        """Close the answer and show its figures; ``filled`` is the used share of the context."""
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

    ``turns`` holds all of it; the model is shown those from index ``oldest`` on. ``file`` is where
    the conversation was saved or loaded last: saving it there again is safe.
    """

    engine: ChatEngine
    ui: ChatUI
    params: SamplingParams
    draft_tokens: DraftTokens
    suffix: bool = True
    system: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    turns: list[Message] = field(default_factory=list)
    oldest: int = 0
    total: GenerationStats = field(default_factory=GenerationStats)
    file: Path | None = None

    def answer(self, turns: list[Message]) -> None:
        """Answer the last user turn and keep both, also when Ctrl-C ended the answer.

        An answer that did not begin leaves the conversation as it was. Raises PromptTooLong where
        the last turn alone leaves no room for an answer.
        """
        oldest, prompt = self._make_room(turns)
        answer = self._generate(prompt)
        if answer.tokens:
            self.turns = [*turns, assistant_turn(answer.text, answer.reasoning)]
            self.oldest = oldest
        self.total.merge(answer.stats)
        self.ui.end_answer(answer, _used(answer.stats) / self.engine.target.n_ctx)
        if answer.finish_reason == "context":
            self.ui.say(
                "The answer filled the context: the next one is given with the oldest turns left "
                "out. /undo forgets this one; --max-tokens bounds each."
            )

    def encode(self, turns: Sequence[Message], oldest: int) -> list[int]:
        """Token ids of the system message and of the turns from ``oldest`` on."""
        messages = visible(turns, oldest)
        if self.system is not None:
            messages = [{"role": "system", "content": self.system}, *messages]
        return self.engine.encode_chat(messages)

    def _make_room(self, turns: Sequence[Message]) -> tuple[int, list[int]]:
        """Index of the oldest turn to show, and the prompt; tells how many more are left out."""
        n_ctx = self.engine.target.n_ctx

        @cache
        def encode(oldest: int) -> list[int]:
            return self.encode(turns, oldest)

        oldest = fit(turns, self.oldest, lambda i: len(encode(i)), n_ctx, self.max_tokens)
        prompt = encode(oldest)
        require_room(len(prompt), n_ctx)
        if left_out := unseen(turns[self.oldest : oldest]):
            self.ui.say(f"The context of {n_ctx} tokens is full. {left_out}")
        return oldest, prompt

    def _generate(self, prompt: list[int]) -> Answer:
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
        return collect(responses, self.ui.stream)


def unseen(left_out: Sequence[Message]) -> str:
    """How many questions are among the turns that are left out, as a sentence; empty for none."""
    count = sum(turn["role"] == "user" for turn in left_out)
    if count == 0:
        return ""
    which = "question and its answer" if count == 1 else f"{count} questions and their answers"
    return f"The model no longer sees the oldest {which}."


def _used(stats: GenerationStats) -> int:
    """Tokens of the context that a prompt and its answer take."""
    return stats.cached_tokens + stats.prompt_tokens + stats.tokens
