"""GBNF: the language that llama.cpp's own engine reads, or a reason."""

import ctypes
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.core.errors import GrammarError
from localspec.engine.grammar.gbnf import gbnf_as_lark
from localspec.llama import llama_library
from localspec.llama.model import LlamaModel
from tests.support.real_pair import load_model
from tests.support.toy.grammars import accepts

PARTS = ('"a"', '"b"', '"ab"', '"é"', '"\\n"', "[a-c]", "[^a]", "[a\\-\\]]", ".", "[€é]")
REPEATS = ("",) * 12 + ("*", "+", "?", "{2}", "{0,3}", "{1,}", "{0}")


@pytest.fixture(scope="module")
def model(demo_files: tuple[Path, Path]) -> LlamaModel:
    return load_model(demo_files[1])


def random_grammar(rng: random.Random) -> str:
    """A few rules; each mentions later ones, or behind a bracket any: none begins with itself.

    Only what is never empty is repeated: llama.cpp refuses the rest, or never ends.
    """
    names = ["root", *(f"r{i}" for i in range(rng.randint(0, 3)))]

    def item(rule: int, depth: int) -> str:
        kind = rng.random()
        if kind < 0.6 or depth > 2:
            return rng.choice(PARTS)
        if kind < 0.7:
            return f'( "(" {rng.choice(names)} ")" )'
        if kind < 0.85:
            return rng.choice(names[rule + 1 :] or ['"c"'])
        return f"( {alternatives(rule, depth + 1)} )"

    def repeated(rule: int, depth: int) -> str:
        found = item(rule, depth)
        return found + rng.choice(REPEATS if found in PARTS else ("", "", "?"))

    def alternatives(rule: int, depth: int) -> str:
        return " | ".join(
            " ".join(repeated(rule, depth) for _ in range(rng.randint(1, 3)))
            for _ in range(rng.randint(1, 3))
        )

    return "\n".join(f"{name} ::= {alternatives(i, 0)}" for i, name in enumerate(names))


def llama_accepts(model: LlamaModel, grammar: str, text: bytes) -> bool:
    """What llama.cpp's engine says, byte by byte."""
    llama = llama_library.library()
    state = llama.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
    assert state
    by_byte = {model.piece(token): token for token in range(256)}
    stop = next(i for i in range(model.n_vocab) if model.is_stop(i))
    try:
        for token in [*(by_byte[bytes([byte])] for byte in text), stop]:
            data = llama.llama_token_data(token, 0.0, 0.0)
            array = llama.llama_token_data_array(ctypes.pointer(data), 1, -1, False)
            llama.llama_sampler_apply(state, ctypes.byref(array))
            if data.logit != 0:
                return False
            llama.llama_sampler_accept(state, token)
        return True
    finally:
        llama.llama_sampler_free(state)


@pytest.mark.llama
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_the_language_is_that_of_llama_cpp(model: LlamaModel, first: int) -> None:
    accepted = 0
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        grammar = random_grammar(rng)
        lark = gbnf_as_lark(grammar)
        for _ in range(25):
            text = "".join(rng.choices("aabbcé€()\n-]", k=rng.randint(0, 6))).encode()
            expected = llama_accepts(model, grammar, text)
            assert accepts(lark, text) == expected, (grammar, text)
            accepted += expected
    assert accepted > 20


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= word "x"\nword ::= [a-z]+', ("foox", "xx"), ("x", "foo")),
        ('root ::= ("a" | "ab" "x") "b"? | "(" root ")"', ("ab", "abx", "(a)"), ("abb", "(a")),
        ('root ::=\n  "a" | # either\n  "b"\n\n\nother ::= ( "c"\n | root )', ("a", "b"), ("c",)),
        ('root ::= "a" | root "a"', ("a", "aaa"), ("", "b")),
        (r'root ::= "\n\"\\\x41\u00e9\U0001F600" [^\]\\a-z\-] .', ('\n"\\Aé😀A\n',), ("A",)),
        ('root ::= aB a-b\naB ::= "1"\na-b ::= "2"', ("12",), ("1",)),
        ('root ::= "a"{2} "b"{ 1 , 3 } "c"{2,}\r\n', ("aabcc", "aabbbccc"), ("abcc",)),
        ('root ::= ""', ("",), ("a",)),
    ],
)
def test_notation(grammar: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    lark = gbnf_as_lark(grammar)
    assert [text for text in good if not accepts(lark, text.encode())] == []
    assert [text for text in bad if accepts(lark, text.encode())] == []


BAD = {
    "empty": ("", "no rule named root"),
    "no root": ('a ::= "b"', "no rule named root"),
    "prose": ("Write a poem.", "Expected ::="),
    "an open text": ('root ::= "abc', "unexpected end"),
    "an unknown escape": (r'root ::= "\d"', "no such escape"),
    "a short escape": (r'root ::= "\x4"', "no such escape"),
    "an escape beyond Unicode": (r'root ::= "\UFFFFFFFF"', "no such escape"),
    "an open class": ("root ::= [abc", "unexpected end"),
    "an empty class": ("root ::= []", "no character between"),
    "a falling range": ("root ::= [z-a]", "range is reversed"),
    "an open group": ('root ::= ("a"', "Expected '\\)'"),
    "a group too many": ('root ::= "a")', "Expected name"),
    "not defined": ("root ::= missing", "root of the grammar mentions missing"),
    "a token": ('root ::= "a" !<[5]>', "Expected name"),
    "nested": (f'root ::= {"(" * 200_000}"a"{")" * 200_000}', "nested too deeply"),
}


@pytest.mark.parametrize(("grammar", "said"), BAD.values(), ids=BAD)
def test_what_is_no_gbnf_is_a_sentence(grammar: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        gbnf_as_lark(grammar)
    assert "\n" not in caught.value.message and caught.value.hint


@given(st.text(st.sampled_from('root ::="ab[]()|*+?{}0,3^-\\xu\n.<!#'), max_size=60))
@settings(max_examples=3 * settings().max_examples)
def test_any_text_is_a_grammar_or_a_sentence(text: str) -> None:
    try:
        assert gbnf_as_lark(text).startswith("start: ")
    except GrammarError as error:
        assert len(error.message) < 200
