"""A conversation with one engine: messages, settings, and the answers that extend them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from localspec.chat.answer import Answer, Piece, collect
from localspec.chat.message import Message, assistant_turn
from localspec.chat.stats import GenerationStats
from localspec.chat.window import fit, require_room, visible
from localspec.core.errors import LocalspecError
from localspec.core.generate_options import GenerateOptions
from localspec.core.sampling_params import SamplingParams
from localspec.speculative.loop import TokenModel


class Introduced(Protocol):
    """What is known of a pair on this machine."""

    def introduce(self, say: Callable[[str], None]) -> None:
        """Get to know the pair, as auto needs to; say what that takes and shows."""
        ...


class ChatEngine(Protocol):
    """A loaded pair with the model's chat template; see `engine.Engine`."""

    @property
    def target(self) -> TokenModel: ...

    @property
    def draft(self) -> TokenModel | None: ...

    @property
    def can_roll_back(self) -> bool:
        """Whether the target's last tokens can be forgotten."""
        ...

    @property
    def profile(self) -> Introduced: ...

    def token_rules(self, params: SamplingParams) -> object:
        """Raise UsageError where the parameters name a token that the model does not have."""
        ...

    def stream(self, prompt: Sequence[int], options: GenerateOptions) -> Iterator[Piece]:
        """Generate after the prompt; see `engine.generate.stream_generate`."""
        ...

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

    def stream(self, response: Piece) -> None:
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
    """A conversation with one engine. ``options`` hold for each answer.

    ``turns`` holds all of it; the model is shown those from index ``oldest`` on. ``file`` is where
    the conversation was saved or loaded last: saving it there again is safe.
    """

    engine: ChatEngine
    ui: ChatUI
    options: GenerateOptions = GenerateOptions()
    system: str | None = None
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
        answer = collect(self.engine.stream(prompt, self.options), self.ui.stream)
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

        oldest = fit(turns, self.oldest, lambda i: len(encode(i)), n_ctx, self.options.max_tokens)
        prompt = encode(oldest)
        require_room(len(prompt), n_ctx)
        if left_out := unseen(turns[self.oldest : oldest]):
            self.ui.say(f"The context of {n_ctx} tokens is full. {left_out}")
        return oldest, prompt


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
