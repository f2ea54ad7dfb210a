"""The child process of `GrammarProcess`: reads, compiles and matches."""

import base64
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from localspec.core.errors import GrammarError
from localspec.core.worker import Channel

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from localspec.engine.grammar.matcher import CompiledGrammar, Matching

Changes = list[tuple[int, list[int]]]  # how many tokens of an answer stay, and what follows them
_COMPILED = 8  # grammars that stay compiled


class Steps:
    """Steps of the child with grammars; results are plain data."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._tokenizer: LLTokenizer
        self._matchings: dict[int, Matching] = {}  # by the number of the answer
        self._compiled: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def answer(self, question: list[Any]) -> tuple[str, Any]:
        """Do a step: its name and the values that it takes."""
        step, *values = question
        try:
            return "done", getattr(self, step)(*values)
        except GrammarError as error:
            return "refused", (error.message, error.hint)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # llguidance exports no name for it
                raise
            return "refused", (f"The grammar cannot be read: {error}.", "Simplify it.")

    def read(self, notation: str, text: str) -> tuple[str, tuple[str, ...]]:
        from localspec.engine.grammar.source import convert

        read = convert(notation, text)
        return read.grammar, read.warnings

    def vocabulary(self, tokens: list[str], stops: list[int]) -> None:
        """Take the tokens of a model, a character for each byte."""
        from localspec.engine.grammar.matcher import TokenTexts

        self._tokenizer = TokenTexts(
            [token.encode("latin-1") for token in tokens], stops, self._tokenize
        ).tokenizer()

    def begin(self, answer: int, grammar: str, ended: list[int]) -> tuple[int, list[int]]:
        """Begin an answer, and forget those that ended.

        Returns the vocabulary's size, and the tokens that end answers.
        """
        from localspec.engine.grammar.matcher import CompiledGrammar, Matching

        for each in ended:
            self._matchings.pop(each, None)
        compiled = self._compiled.pop(grammar, None)
        if compiled is None:
            compiled = CompiledGrammar(grammar, self._tokenizer)
        self._compiled[grammar] = compiled
        while len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
        self._matchings[answer] = Matching(compiled)
        return compiled.n_vocab, compiled.stops

    def match(self, answer: int, changes: Changes, step: str, *values: int) -> object:
        """Ask an answer's `Matching`, once it has read the changes; a mask is in base64."""
        matching = self._matchings[answer]
        for shared, tokens in changes:
            matching.follow(shared, tokens)
        found = getattr(matching, step)(*values)
        return base64.b64encode(found).decode() if isinstance(found, bytes) else found

    def _tokenize(self, text: str) -> list[int]:
        """Ask the parent, which holds the model."""
        self._channel.send(("tokenize", text))
        found: list[int] = self._channel.receive()
        return found


if __name__ == "__main__":
    channel = Channel()
    channel.serve(Steps(channel).answer)
