"""Grammars over single bytes: whether a text obeys, without a model."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from localspec.engine.grammar.constraint import GrammarVocabulary
from localspec.engine.grammar.matcher import CompiledGrammar, TokenTexts

if TYPE_CHECKING:
    from llguidance import LLTokenizer


_TOKENS = [*(bytes([i]) for i in range(256)), b"<stop>"]


@cache
def byte_tokenizer() -> LLTokenizer:
    """256 bytes, and a token that ends an answer."""
    return TokenTexts(_TOKENS, [256], lambda text: list(text.encode())).tokenizer()


def byte_vocabulary() -> GrammarVocabulary:
    """The same, for a child process of its own."""
    return GrammarVocabulary(_TOKENS, [256], lambda text: list(text.encode()))


def accepts(grammar: str, text: bytes) -> bool:
    """Whether a grammar lets a text through, and then the end."""
    matcher = CompiledGrammar(grammar, byte_tokenizer()).matcher()
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()
