"""A conversation with one engine: turns, settings, and the interfaces it needs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from localspec.chat.answer import Answer, Piece, collect
from localspec.chat.conversation_store import Autosave, SavedConversation, models_of
from localspec.chat.message import Message, assistant_turn
from localspec.chat.stats import GenerationStats
from localspec.chat.window import fit, require_prompt_fits, visible
from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions, LoadedModels
from localspec.core.options.sampling_params import SamplingParams, sampling_fields
from localspec.speculative.history import AnswerHistory
from localspec.speculative.loop import DraftStatus, TokenModel


class ChatProfile(Protocol):
    """The measured costs of a pair."""

    def introduce(self, say: Callable[[str], None]) -> None: ...


class ChatEngine(LoadedModels, Protocol):
    """The part of `engine.Engine` that a chat uses."""

    history: AnswerHistory | None

    @property
    def target(self) -> TokenModel: ...
    @property
    def draft(self) -> TokenModel | None: ...
    @property
    def profile(self) -> ChatProfile: ...
    def token_rules(self, params: SamplingParams) -> object: ...
    def stream(
        self, prompt: Sequence[int], options: GenerateOptions, *, reports_progress: bool = False
    ) -> Iterator[Piece]: ...
    def stream_with_plain(
        self,
        prompt: Sequence[int],
        options: GenerateOptions,
        say: Callable[[str], None],
        *,
        reports_progress: bool = False,
    ) -> AbstractContextManager[tuple[Iterator[Piece], Iterator[Piece]]]: ...
    def encode_chat(self, messages: Sequence[Message]) -> list[int]: ...
    def system_notes(self, system: str) -> list[str]: ...


class ChatUI(Protocol):
    """User interface of a chat: reads messages, shows answers."""

    def read(self) -> str:
        """One message; EOFError at the end of input, KeyboardInterrupt at Ctrl-C."""

    def stream(self, piece: Piece) -> None:
        """Show a piece of the answer and the figures so far, or how much of the prompt is read."""

    def end_answer(self, answer: Answer, filled: float) -> None:
        """Show the figures of a complete answer; ``filled`` is the used share of the context."""

    def recall(self, answer: str) -> None:
        """Show the text of an earlier answer."""

    def show_stats(self, stats: GenerationStats, status: DraftStatus) -> None:
        """Show the figures of the whole conversation; ``status`` is that of its last answer."""

    def follow(
        self, what: str, expected: int | None, limit: int | None
    ) -> AbstractContextManager[Callable[[Piece], None]]:
        """Show the progress of an answer whose pieces are not shown, by its tokens."""

    def compare(self, drafted: Answer, plain: Answer, text: str) -> None:
        """Show the speed of two answers to one question, and whether their texts agree."""

    def trace(
        self, path: Path, pieces: Sequence[Piece], answer: Answer, question: str, models: str
    ) -> None:
        """Write a page about an answer's rounds; raises FileProblem."""

    def fold_thoughts(self, fold: bool) -> None:
        """Replace the thoughts of an answer by one line when they end, or leave them."""

    def show_thoughts(self, thoughts: str) -> None:
        """Show thoughts that were folded."""

    def copy(self, text: str) -> None:
        """Put text into the clipboard, and say so; raises UsageError if there is no clipboard."""

    def say(self, sentence: str) -> None:
        """Show a note."""

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show labels, each with its words."""

    def complain(self, problem: LocalspecError) -> None:
        """Show an error and its hint."""


@dataclass(slots=True)
class Chat:
    """A conversation with one engine; ``options`` apply to each answer.

    The prompt contains the ``turns`` from index ``oldest`` on. ``file`` is the file in which the
    conversation was saved or loaded last, and may be overwritten. ``pair`` has the models and
    their settings, as in `SavedConversation`; ``autosave`` is None for a chat that is not saved.
    ``attached`` is text of files that begins the next message. ``asked`` has the turns as they were
    before the last question and with it: one without an answer can be repeated. ``load_pair``
    replaces ``engine``, ``options`` and ``pair`` by those of another pair. ``shown`` is the last
    answer as it came, with the turns that it ends.
    """

    engine: ChatEngine
    ui: ChatUI
    options: GenerateOptions = GenerateOptions()
    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    oldest: int = 0
    total: GenerationStats = field(default_factory=GenerationStats)
    file: Path | None = None
    pair: Mapping[str, Any] = field(default_factory=dict)
    autosave: Autosave | None = None
    attached: str = ""
    asked: tuple[list[Message], list[Message]] | None = None
    load_pair: "Callable[[Chat, str], None] | None" = None
    shown: tuple[list[Message], list[Piece], Answer] | None = None

    def ask(self, text: str) -> None:
        """Answer a message, preceded by the text of the files that were read for it."""
        self.answer([*self.turns, {"role": "user", "content": self.attached + text}])

    def answer(self, turns: list[Message]) -> None:
        """Answer the last user turn and add both to the conversation, also after Ctrl-C.

        Without a single token, the conversation stays as it was, but for ``asked``. Raises
        PromptTooLong if the last turn alone leaves no room for an answer.
        """
        oldest, prompt = self._make_room(turns)
        self.asked = self.turns, turns
        shown = list[Piece]()

        def show(piece: Piece) -> None:
            self.ui.stream(piece)
            shown.append(piece)

        answer = collect(self.engine.stream(prompt, self.options, reports_progress=True), show)
        if answer.tokens:
            self.turns = [*turns, assistant_turn(answer.text, answer.reasoning)]
            self.oldest = oldest
            if turns[-1]["content"].startswith(self.attached):
                self.attached = ""
            self.shown = self.turns, shown, answer
        self.total.merge(answer.stats)
        stats = answer.stats
        used = stats.prompt_tokens + stats.tokens
        self.ui.end_answer(answer, used / self.engine.target.n_ctx)
        if answer.finish_reason == "context":
            self.ui.say(
                "The answer filled the context: the next one is given with the oldest turns left "
                "out. /undo forgets this one; --max-tokens bounds each."
            )

    def document(self) -> dict[str, object]:
        """The conversation as it is saved, with the sampling of its next answer."""
        params = self.options.sampling
        sampling = {name: getattr(params, name) for name in sampling_fields()}
        settings = {**self.pair.get("settings", {}), **sampling}
        pair = {**self.pair, "settings": settings}
        return {"system": self.system, "messages": [*self.turns], "pair": pair}

    @property
    def models(self) -> str:
        return models_of(self.pair)

    def begin_again(self) -> str:
        """Forget the turns; returns a sentence about the stored copy, if any."""
        name = self.autosave.name if self.autosave is not None and self.turns else None
        self.turns, self.oldest, self.file = [], 0, None
        if self.autosave is None or name is None:
            return "The conversation is forgotten."
        self.autosave = Autosave()
        return f"A new conversation begins; the one before is saved as {name}."

    def resume(self, saved: SavedConversation) -> None:
        """Go on with the turns and the system message of a saved conversation."""
        self.begin_again()
        self.turns, self.system = saved.messages, saved.system
        if self.autosave is not None:
            self.autosave = Autosave(None, self.document())

    def show_end(self) -> None:
        """Show how the last question begins, and its answer."""
        for turn in self.turns[-2:]:
            if turn["role"] == "user":
                asked, *more = turn["content"].splitlines() or [""]
                self.ui.say(f">>> {asked}{' …' if more else ''}".expandtabs(4))
            else:
                self.ui.recall(turn["content"])

    def save(self) -> None:
        """Save the changes; a problem is reported once, and then nothing more is saved."""
        try:
            if self.autosave is not None and self.turns:
                self.autosave.save(self.document(), self.ui.say)
        except LocalspecError as problem:
            self.autosave = None
            self.ui.complain(problem)

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
