"""A conversation with one engine: turns, settings, and the interfaces it needs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from localspec.chat.answer import Answer, Piece, collect
from localspec.chat.message import Message, assistant_turn
from localspec.chat.stats import GenerationStats
from localspec.chat.window import fit, require_prompt_fits, visible
from localspec.core.errors import LocalspecError
from localspec.core.generate_options import GenerateOptions
from localspec.core.sampling_params import SamplingParams
from localspec.speculative.history import AnswerHistory
from localspec.speculative.loop import TokenModel


class PairProfile(Protocol):
    """The measured costs of a pair."""

    def introduce(self, say: Callable[[str], None]) -> None: ...


class ChatEngine(Protocol):
    """What a chat needs of `engine.Engine`."""

    history: AnswerHistory | None

    @property
    def target(self) -> TokenModel: ...
    @property
    def draft(self) -> TokenModel | None: ...
    @property
    def can_roll_back(self) -> bool: ...
    @property
    def profile(self) -> PairProfile: ...
    def token_rules(self, params: SamplingParams) -> object: ...
    def stream(self, prompt: Sequence[int], options: GenerateOptions) -> Iterator[Piece]: ...
    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...
    def system_notes(self, system: str) -> list[str]: ...


class ChatUI(Protocol):
    """User interface of a chat: reads messages, shows answers."""

    def read(self) -> str:
        """One message; EOFError at the end of input, KeyboardInterrupt at Ctrl-C."""
        ...

    def stream(self, piece: Piece) -> None:
        """Show a piece of the answer, and the figures so far."""
        ...

    def end_answer(self, answer: Answer, filled: float) -> None:
        """Show the figures of a complete answer; ``filled`` is the used share of the context."""
        ...

    def show_stats(self, stats: GenerationStats) -> None:
        """Show the figures of the whole conversation."""
        ...

    def compare(self, drafted: Answer, plain: Answer, seed_decides: bool) -> None:
        """Show the speed of two answers to one question; ``seed_decides`` the text of both."""
        ...

    def fold_thoughts(self, fold: bool) -> None:
        """Replace the thoughts of an answer by one line when they end, or leave them."""
        ...

    def show_thoughts(self, thoughts: str) -> None:
        """Show thoughts that were folded."""
        ...

    def copy(self, text: str) -> None:
        """Put text into the clipboard, and say so; raises UsageError where there is none."""
        ...

    def say(self, sentence: str) -> None:
        """Show a note."""
        ...

    def complain(self, problem: LocalspecError) -> None:
        """Show an error and its hint."""
        ...


@dataclass(slots=True)
class Chat:
    """A conversation with one engine; ``options`` apply to each answer.

    The prompt contains the ``turns`` from index ``oldest`` on. ``file`` is where the conversation
    was saved or loaded last, and may be overwritten. ``attached`` is text of files that begins the
    next message. ``load_pair`` replaces ``engine`` and ``options`` by those of another pair.
    """

    engine: ChatEngine
    ui: ChatUI
    options: GenerateOptions = GenerateOptions()
    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    oldest: int = 0
    total: GenerationStats = field(default_factory=GenerationStats)
    file: Path | None = None
    attached: str = ""
    load_pair: "Callable[[Chat, str], None] | None" = None

    def ask(self, text: str) -> None:
        """Answer a message, behind the text of the files that were read for it."""
        before = self.turns
        self.answer([*before, {"role": "user", "content": self.attached + text}])
        if self.turns is not before:
            self.attached = ""

    def answer(self, turns: list[Message]) -> None:
        """Answer the last user turn and add both to the conversation, also after Ctrl-C.

        Without a single token, the conversation stays as it was. Raises PromptTooLong where the
        last turn alone leaves no room for an answer.
        """
        oldest, prompt = self._make_room(turns)
        answer = collect(self.engine.stream(prompt, self.options), self.ui.stream)
        if answer.tokens:
            self.turns = [*turns, assistant_turn(answer.text, answer.reasoning)]
            self.oldest = oldest
        self.total.merge(answer.stats)
        stats = answer.stats
        used = stats.cached_tokens + stats.prompt_tokens + stats.tokens
        self.ui.end_answer(answer, used / self.engine.target.n_ctx)
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
        """Index of the oldest turn in the prompt, and the prompt; notes the dropped turns."""
        n_ctx = self.engine.target.n_ctx

        @cache
        def encode(oldest: int) -> list[int]:
            return self.encode(turns, oldest)

        oldest = fit(turns, self.oldest, lambda i: len(encode(i)), n_ctx, self.options.max_tokens)
        prompt = encode(oldest)
        require_prompt_fits(len(prompt), n_ctx)
        if left_out := unseen(turns[self.oldest : oldest]):
            self.ui.say(f"The context of {n_ctx} tokens is full. {left_out}")
        return oldest, prompt


def unseen(left_out: Sequence[Message]) -> str:
    """A sentence about the questions among the dropped turns; empty for none."""
    count = sum(turn["role"] == "user" for turn in left_out)
    if count == 0:
        return ""
    which = "question and its answer" if count == 1 else f"{count} questions and their answers"
    return f"The model no longer sees the oldest {which}."
