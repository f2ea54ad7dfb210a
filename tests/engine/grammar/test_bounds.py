"""Bounds of grammars: what would end or hang llama.cpp is refused in one sentence."""

from __future__ import annotations

import pytest

from localspec.core.errors import GrammarError
from localspec.engine.grammar.bounds import MAX_CHARACTERS, check_grammar

FINE = {
    "nothing": "root ::=",
    "spread out": 'root ::=\n  "a" | # either\n  "b"\n\n\nother ::= ( "c"\n | root ) # or\n',
    "recursive": 'root ::= "(" root ")" | "x"',
    "right recursive": 'root ::= "a" root | ""',
    "a rule behind one that is never empty": 'root ::= a root | "b"\na ::= "a"+',
    "escapes": r'root ::= "\n\"\\\x41\u00e9\U0001F600" [^\]\\a-z\-] [] .',
    "repeated": 'root ::= "a"{2} "b"{1,3} "c"{2,} "d"{ 0 , 2000 } ("e" | "f")* "g"?',
    "repetition of what may be empty": 'root ::= ("a"*)* "b"',
    "line ends of Windows": 'root ::= "a"\r\nb ::= "c"\r\n',
    "the last of two": 'root ::= root "a"\nroot ::= "b"',
}
BAD = {
    "empty": ("", "no rule named root"),
    "no root": ('a ::= "b"', "no rule named root"),
    "prose": ("Write a poem.", "Line 1 of the grammar: expected ::=, not 'a poem.'"),
    "a rule that goes on in the next line": ('root ::= "a"\n | "b"', "Line 2 .* name of a rule"),
    "an open text": ('root ::= "abc', "Line 1 .* a text between quotes"),
    "an unknown escape": (r'root ::= "\d"', "escapes such as"),
    "an open class": ("root ::= [abc", r"characters between \[ and \]"),
    "an open group": ('root ::= ("a"', "a closing parenthesis, not the end of the line"),
    "a group too many": ('root ::= "a")', r"the end of the rule, not '\)'"),
    "nothing to repeat": ("root ::= *", "something to repeat"),
    "an open repetition": ('root ::= "a"{2', "a repetition such as"),
    "not defined": ("root ::= missing", "root of the grammar mentions missing"),
    "too often": ('root ::= "a"{0,100000}', "repeats from 0 to 100000 times"),
    "ends before it begins": ('root ::= "a"{5,2}', "repeats from 5 to 2 times"),
    "a token": ('root ::= "a" !<[5]>', "refers to a token"),
    "left recursive": ('root ::= root "a" | "b"', "begins with itself: root begins root"),
    "left recursive through others": (
        'root ::= a\na ::= ("x"? b)\nb ::= root "c"', "begins with itself",
    ),
    "left recursive behind what may be empty": (
        'root ::= x root "b" | "a"\nx ::= y\ny ::= ""', "begins with itself",
    ),
    "nested": (f"root ::= {'(' * 200_000}\"a\"{')' * 200_000}", "nests more than 50"),
    "a chain": (
        "\n".join(f"a{i} ::= a{i + 1}" for i in range(20_000)) + '\na20000 ::= "x"\nroot ::= a0',
        "begins in more than 10000 ways",
    ),
    "many ways": (
        "root ::= a0\na40 ::= \"\"\n"
        + "\n".join(f"a{i} ::= a{i + 1} | a{i + 1}" for i in range(40)),
        "begins in more than 10000 ways",
    ),
    "many ways in repetitions": ('root ::= ((("a"*){0,99}){0,99}){0,99}', "more than"),
    "large": (f'root ::= "{"a" * 1000}"{{2000}}', "more than 100000 characters"),
    "long": ("#" * (MAX_CHARACTERS + 1), "longer than"),
    "a NUL": ('root ::= "a\0b"', "bytes that are no text"),
    "half a surrogate pair": ('root ::= "\udcff"', "bytes that are no text"),
}  # fmt: skip


@pytest.mark.parametrize("grammar", FINE.values(), ids=FINE)
def test_good_grammars_pass(grammar: str) -> None:
    check_grammar(grammar)


@pytest.mark.parametrize(("grammar", "said"), BAD.values(), ids=BAD)
def test_bad_grammars_are_refused_in_a_sentence(grammar: str, said: str) -> None:
    with pytest.raises(GrammarError, match=said) as caught:
        check_grammar(grammar)
    assert "\n" not in caught.value.message and len(caught.value.message) < 200
    assert caught.value.hint
