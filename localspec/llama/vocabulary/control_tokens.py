"""Control tokens in text: those of a template or a raw prompt count, those in messages are text."""

import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol


class TextTokenizer(Protocol):
    """Tokenizer of a text; see `model.LlamaModel`."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class ControlTokens:
    """The texts that `llama_tokenize` reads as control tokens with ``parse_special``.

    A text that must not be read so is divided by a mark (`divided`) before a chat template writes
    it; the parts of the written text between the marks are then given to `tokenize`.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1)
        self._first = {text[0] for text in self._texts}
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)

    def begins(self, text: str) -> bool:
        return any(text[:length] in self._texts for length in self._lengths)

    def divided(self, value: Any, mark: str) -> Any:
        """Plain data with the mark after the first character of each control token."""
        if isinstance(value, str):
            cuts = [0, *(begin + 1 for begin, _ in self._matches(value)), len(value)]
            return mark.join([value[low:high] for low, high in pairwise(cuts)])
        if isinstance(value, Mapping):
            return {self.divided(k, mark): self.divided(each, mark) for k, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.divided(each, mark) for each in value]
        return value

    def tokenize(
        self, tokenizer: TextTokenizer, parts: Sequence[str], *, add_special: bool
    ) -> list[int]:
        """Token ids of the joined parts, in which no control token reaches over two parts.

        A text between two control tokens that contains a part's end is tokenized by itself:
        `llama_tokenize` does so with every text between two control tokens.
        """
        text, tokens, at = "".join(parts), list[int](), 0
        for begin, end in self._divided_places(text, parts):
            for low, high, parses in ((at, begin, True), (begin, end, False)):
                if low < high:
                    tokens += tokenizer.tokenize(
                        text[low:high], add_special=add_special and low == 0, parse_special=parses
                    )
            at = end
        rest = text[at:]
        if rest or not at:
            tokens += tokenizer.tokenize(
                rest, add_special=add_special and at == 0, parse_special=True
            )
        return tokens

    def _divided_places(self, text: str, parts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Begin and end of the texts between control tokens in which a part ends."""
        ends = [*accumulate(map(len, parts))][:-1]
        bounds = [0]
        for low, high in pairwise([0, *ends, len(text)]):
            for begin, end in self._found(text[low:high]):
                bounds += [low + begin, low + end]
        bounds.append(len(text))
        for low, high in zip(bounds[::2], bounds[1::2], strict=True):
            if bisect_right(ends, low) < bisect_left(ends, high):
                yield low, high

    def _found(self, text: str) -> Iterator[tuple[int, int]]:
        """Begin and end of each control token that does not begin within another."""
        at = 0
        for begin, end in self._matches(text):
            if begin >= at:
                yield begin, end
                at = end

    def _matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Begin and end of the longest control token at each place where there is one."""
        for begin in sorted(at for first in self._first for at in _places(text, first)):
            for length in self._lengths:
                if text[begin : begin + length] in self._texts:
                    yield begin, begin + length
                    break


def new_mark() -> str:
    """A text that no request can hold, as it is new each time, and that no template changes."""
    return secrets.token_hex(8)


def _places(text: str, character: str) -> Iterator[int]:
    at = text.find(character)
    while at >= 0:
        yield at
        at = text.find(character, at + 1)
