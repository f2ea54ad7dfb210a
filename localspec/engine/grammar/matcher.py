"""The tokens that a grammar allows or forces next, by llguidance's matcher; see `child`."""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from localspec.engine.grammar.source import convert, limits, refused

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_DEAD_END = "NoExtensionBias"  # llguidance's error if no token is allowed


def tokenize_within(text: str, tokenize: Callable[[str], list[int]]) -> list[int]:
    """Token ids of a text after another one.

    Tokenized after a line break, as some vocabularies add a blank before a text.
    """
    lead, whole = tokenize("\n"), tokenize("\n" + text)
    return whole[len(lead) :] if whole[: len(lead)] == lead else tokenize(text)


class TokenTexts:
    """A vocabulary in the form of llguidance's `TokenizerWrapper`.

    Control tokens count as their text, as in llama.cpp, except for those that end an answer.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], stops: list[int], tokenize: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens if stops else [*tokens, b""]  # an added token ends answers
        self.special_token_ids = stops or [len(tokens)]
        self.eos_token_id = self.special_token_ids[0]
        self._tokenize = tokenize

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text that a grammar forces, as the model would write it."""
        ids = tokenize_within(text, self._tokenize)
        if b"".join(self.tokens[i] for i in ids) == text.encode():
            return ids
        return self._longest_first(text.encode())

    def _longest_first(self, text: bytes) -> list[int]:
        """Token ids for a text whose tokenization loses bytes; up to a byte without a token."""
        ids, longest = list[int](), max(map(len, self.tokens))
        while text:
            sizes = range(min(len(text), longest), 0, -1)
            size = next((n for n in sizes if text[:n] in self._by_text), 0)
            if not size:
                break
            ids.append(self._by_text[text[:size]])
            text = text[size:]
        return ids

    @cached_property
    def _by_text(self) -> dict[bytes, int]:
        return {text: i for i, text in enumerate(self.tokens) if text}

    def tokenizer(self) -> "LLTokenizer":
        """llguidance's tokenizer with a tree of all tokens: takes 0.5 s for 150,000."""
        from llguidance import LLTokenizer

        return LLTokenizer(self, eos_token=self.special_token_ids)  # type: ignore[arg-type]


class CompiledGrammar:
    """A grammar over a vocabulary; raises GrammarError for an invalid one."""

    def __init__(self, text: str, tokenizer: "LLTokenizer") -> None:
        from llguidance import LLMatcher

        self._beginning = LLMatcher(
            tokenizer, convert("grammar", text).grammar, log_level=0, limits=limits()
        )
        if self._beginning.is_error():
            raise refused(self._beginning.get_error())
        self.n_vocab = tokenizer.vocab_size
        self.stops = list(tokenizer.eos_tokens)

    def matcher(self) -> "LLMatcher":
        return self._beginning.deep_copy()


class Matching:
    """The tokens that a grammar allows or forces after each beginning of one answer."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self.n_vocab = grammar.n_vocab
        self.stops = grammar.stops
        self._matcher = grammar.matcher()
        self._read = 0  # tokens that the matcher consumed
        self._tokens: list[int] = []  # of the answer, drafted ones included

    def follow(self, shared: int, tokens: list[int]) -> None:
        """Let the answer be its first ``shared`` tokens and then these."""
        self._roll_back(shared)
        self._tokens[shared:] = tokens

    def allows(self, length: int, token: int) -> tuple[list[int], bool]:
        """`forced`, and whether ``token``, which ends no answer, may stand in that place."""
        if forced := self.forced(length):
            return forced, forced[0] == token
        return [], self._reach(length) and self._matcher.validate_tokens([token]) == 1

    def forced(self, length: int) -> list[int]:
        """The only possible tokens after the first ``length`` ones."""
        return self._matcher.compute_ff_tokens() if self._reach(length) else []

    def mask(self, length: int) -> bytes:
        """A bit for each token: whether it may follow the first ``length`` ones."""
        packed = np.zeros(-(-self.n_vocab // 32), np.uint32)
        if self._reach(length):
            self._matcher.unsafe_compute_mask_ptr(packed.ctypes.data, packed.nbytes)
            if self._matcher.is_error():
                self._fail()
                packed[:] = 0
        return packed.tobytes()

    def _fail(self) -> None:
        """Restart the matcher after a dead end; raise GrammarError if a limit was exceeded."""
        reason = self._matcher.get_error()
        self._matcher, self._read = self._grammar.matcher(), 0
        if not reason.startswith(_DEAD_END):
            raise refused(reason)

    def _roll_back(self, length: int) -> None:
        if self._read > length:
            self._matcher.rollback(self._read - length)
            self._read = length

    def _reach(self, length: int) -> bool:
        """Consume the first ``length`` tokens; False if the grammar rejects one of them."""
        self._roll_back(length)
        self._read += self._matcher.try_consume_tokens(self._tokens[self._read : length])
        if self._matcher.is_error():
            self._fail()
        return self._read == length
