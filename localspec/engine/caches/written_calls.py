"""Tool calls as the model wrote them, found by their ids: the next prompt repeats their tokens.

A template writes a call in its own way, so that all after a call in another one is read again.
"""

import threading
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from localspec.chat.message import Message
from localspec.chat.tools.tool import ToolCall, arguments_of
from localspec.engine.text_stream import OutputFormat

MOST_TOKENS = 2**20  # of all answers, about 16 MiB with their texts: servers run for months
_ENTRY = 64  # tokens that take as much memory as an entry without any


@dataclass(frozen=True, slots=True)
class _Answer:
    """The calls of an answer, its text without them, and the tokens of both."""

    calls: Sequence[ToolCall]
    text: str
    tokens: "array[int]"

    def is_in(self, message: Message) -> bool:
        pairs = zip(self.calls, message["tool_calls"], strict=True)
        return message["content"].strip() == self.text.strip() and all(
            made.name == call["function"]["name"]
            and arguments_of(made.arguments) == call["function"]["arguments"]
            for made, call in pairs
        )


@dataclass(slots=True)
class WrittenCalls:
    """Answers by their owner and the ids of their calls; thread-safe.

    Of the owner who has most the least recently used go first: one cannot push out another's.
    """

    most: int = MOST_TOKENS
    _answers: dict[tuple[str, tuple[str, ...]], _Answer] = field(default_factory=dict)
    _held: Counter[str] = field(default_factory=Counter)  # tokens by owner
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(
        self,
        owner: str,
        output: OutputFormat,
        calls: Sequence[ToolCall],
        text: str,
        tokens: Sequence[int],
    ) -> None:
        """Keep a complete answer; ``tokens`` are all of its tokens but the one that ended it."""
        written = _after_thoughts(output, tokens)
        if not written:
            return
        key = owner, tuple(call.id for call in calls)
        with self._lock:
            self._drop(key)
            self._answers[key] = _Answer(tuple(calls), text, array("i", written))
            self._held[owner] += len(written) + _ENTRY
            while self._held.total() > self.most:
                ((largest, _),) = self._held.most_common(1)
                self._drop(next(key for key in self._answers if key[0] == largest))

    def tokens(self, owner: str, message: Message) -> list[int] | None:
        """The tokens of an answer without its thoughts; None where they are not known."""
        if "tool_calls" not in message:
            return None
        key = owner, tuple(call["id"] for call in message["tool_calls"])
        with self._lock:
            found = self._answers.pop(key, None)
            if found is not None:
                self._answers[key] = found  # the most recently used
        return found.tokens.tolist() if found and found.is_in(message) else None

    def _drop(self, key: tuple[str, tuple[str, ...]]) -> None:
        if (answer := self._answers.pop(key, None)) is not None:
            self._held[key[0]] -= len(answer.tokens) + _ENTRY
            self._held += Counter()  # without owners who have nothing


def _after_thoughts(output: OutputFormat, tokens: Sequence[int]) -> Sequence[int]:
    """The tokens after the thoughts; none where they do not begin with a token of their own."""
    pieces = [*map(output.piece, tokens)]
    whole, splitter = b"".join(pieces), output.splitter()
    text = whole.decode("utf-8", "replace")
    parts = [] if splitter is None else splitter.push(text, final=True)
    answer = "".join([part for part, is_thought in parts if not is_thought])
    if splitter is None or answer == text:
        return tokens
    data = answer.lstrip().encode()
    begins = [0, *accumulate(map(len, pieces))]
    at = len(whole) - len(data)
    return tokens[begins.index(at) :] if data and whole.endswith(data) and at in begins else ()
