"""The tokens that a grammar allows or forces next, by llguidance's matcher."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localspec.engine.grammar.source import limits, read_grammar, refused
from localspec.speculative.prefix import common_prefix
from localspec.speculative.sampling.constrained import RECALL

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_DEAD_END = "NoExtensionBias"  # llguidance's error where no token is allowed


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
        """Token ids of a text that a grammar forces, as the model would write it.

        Tokenized behind a line break, as some vocabularies add a blank before a text.
        """
        lead = self._tokenize("\n")
        whole = self._tokenize("\n" + text)
        ids = whole[len(lead) :] if whole[: len(lead)] == lead else self._tokenize(text)
        if b"".join(self.tokens[i] for i in ids) == text.encode():
            return ids
        return self._longest_first(text.encode())

    def _longest_first(self, text: bytes) -> list[int]:
        """Token ids for a text whose tokenization loses bytes; up to a byte without a token."""
        ids: list[int] = []
        while text:
            sizes = range(min(len(text), self._longest), 0, -1)
            size = next((n for n in sizes if text[:n] in self._by_text), 0)
            if not size:
                break
            ids.append(self._by_text[text[:size]])
            text = text[size:]
        return ids

    @cached_property
    def _by_text(self) -> dict[bytes, int]:
        return {text: i for i, text in enumerate(self.tokens) if text}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.tokens))

    def tokenizer(self) -> "LLTokenizer":
        """llguidance's tokenizer with a tree of all tokens: takes 0.5 s for 150,000."""
        from llguidance import LLTokenizer

        return LLTokenizer(self, eos_token=self.special_token_ids)  # type: ignore[arg-type]


class CompiledGrammar:
    """A grammar over a vocabulary; raises GrammarError for an invalid one."""

    def __init__(self, text: str, tokenizer: "LLTokenizer") -> None:
        from llguidance import LLMatcher

        self._beginning = LLMatcher(tokenizer, read_grammar(text), log_level=0, limits=limits())
        if self._beginning.is_error():
            raise refused(self._beginning.get_error())
        self.n_vocab = tokenizer.vocab_size
        self.stops = list(tokenizer.eos_tokens)

    def matcher(self) -> "LLMatcher":
        """A matcher at the beginning of the grammar."""
        return self._beginning.deep_copy()


class GrammarConstraint:
    """The tokens that a grammar allows in the answer that begins at position ``start``.

    An ``endless`` answer goes on where the grammar allows it. Caches the masks of the last
    positions: drafting and verifying ask for the same ones.
    """

    def __init__(self, grammar: CompiledGrammar, start: int, *, endless: bool = False) -> None:
        self._grammar = grammar
        self._start = start
        self._endless = endless
        self._matcher = grammar.matcher()
        self._read = 0  # tokens that the matcher consumed
        self._tokens: list[int] = []  # of the answer, drafted ones included
        # By the number of tokens before the position:
        self._masks: dict[int, NDArray[np.bool]] = {}
        self._forced: dict[int, list[int]] = {}

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        """Whether `mask` allows this token; avoids computing the mask where possible."""
        length = self._follow(position, history)
        if length < 0:
            return True
        if length in self._masks or token in self._grammar.stops:
            return bool(self._mask(length)[token])
        if forced := self._forced_at(length):
            return token == forced[0]
        return self._reach(length) and self._matcher.validate_tokens([token]) == 1

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        """The tokens allowed at ``position``; see `constrained.Constraint`."""
        length = self._follow(position, history)
        return np.ones(self._grammar.n_vocab, np.bool) if length < 0 else self._mask(length)

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        """The only possible tokens from ``position`` on; none where there is a choice."""
        length = self._follow(position, history)
        return [] if length < 0 else self._forced_at(length)

    def _forced_at(self, length: int) -> list[int]:
        if length not in self._forced:
            reached = self._reach(length)
            self._forced[length] = self._matcher.compute_ff_tokens() if reached else []
            self._forced.pop(length - RECALL, None)
        return self._forced[length]

    def _mask(self, length: int) -> NDArray[np.bool]:
        if length not in self._masks:
            self._masks[length] = self._compute(length)
            self._masks.pop(length - RECALL, None)
        return self._masks[length]

    def _compute(self, length: int) -> NDArray[np.bool]:
        n_vocab = self._grammar.n_vocab
        if not self._reach(length):
            return np.zeros(n_vocab, np.bool)
        packed = np.zeros(-(-n_vocab // 32), np.uint32)
        self._matcher.unsafe_compute_mask_ptr(packed.ctypes.data, packed.nbytes)
        if self._matcher.is_error():
            self._fail()
            return np.zeros(n_vocab, np.bool)
        bits = np.unpackbits(packed.view(np.uint8), count=n_vocab, bitorder="little")
        mask: NDArray[np.bool] = bits.view(np.bool)
        if self._endless and np.count_nonzero(mask) > np.count_nonzero(mask[self._grammar.stops]):
            mask[self._grammar.stops] = False
        return mask

    def _fail(self) -> None:
        """Restart the matcher after a dead end; raise GrammarError where a limit was exceeded."""
        reason = self._matcher.get_error()
        self._matcher, self._read = self._grammar.matcher(), 0
        if not reason.startswith(_DEAD_END):
            raise refused(reason)

    def _follow(self, position: int, history: Sequence[int]) -> int:
        """Make the end of the history the answer; returns its length, negative before ``start``."""
        length = position - self._start
        if length < 0:
            return length
        both = min(length, len(self._tokens))
        # A draft's window begins with BOS, which does not precede the rest.
        first = max(0, both - RECALL, length - len(history) + 1)
        if first > both:
            raise ValueError(f"the history has {len(history)} tokens, too few after {both}")
        recent = list(history[len(history) - (length - first) :])
        shared = first + common_prefix(self._tokens[first:both], recent)
        if shared < length:
            self._masks = {at: mask for at, mask in self._masks.items() if at <= shared}
            self._forced = {at: ids for at, ids in self._forced.items() if at <= shared}
            self._roll_back(shared)
            self._tokens[shared:] = recent[shared - first :]
        return length

    def _roll_back(self, length: int) -> None:
        if self._read > length:
            self._matcher.rollback(self._read - length)
            self._read = length

    def _reach(self, length: int) -> bool:
        """Consume the first ``length`` tokens; False where the grammar rejects one of them."""
        self._roll_back(length)
        self._read += self._matcher.try_consume_tokens(self._tokens[self._read : length])
        if self._matcher.is_error():
            self._fail()
        return self._read == length
