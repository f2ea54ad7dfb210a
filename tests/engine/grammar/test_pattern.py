"""Regular expressions as GBNF: which can be said, and that what is said can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import GrammarError
from localspec.engine.grammar.bounds import check_grammar
from localspec.engine.grammar.pattern import pattern_rule


@pytest.mark.parametrize(
    "pattern", [r"(?=a)b", r"(a)\1", "(?i)a", "(?i:a)", r"\bword\b", "a$b", r"[\x00-\x1f]"]
)
def test_what_a_grammar_cannot_say(pattern: str) -> None:
    assert pattern_rule(pattern) is None


def test_what_is_no_pattern() -> None:
    for pattern in ("(", "[a", "*", "a{2,1}", "(" * 5000):
        with pytest.raises(GrammarError, match="no regular expression"):
            pattern_rule(pattern)


@given(st.text('ab0"\\.[]^$()|*+?{},-dwsDWS é\n', max_size=9))
def test_a_rule_can_be_read(pattern: str) -> None:
    try:
        rule = pattern_rule(pattern)
    except GrammarError:
        return
    if rule is not None:
        check_grammar(f'root ::= "x" ( {rule} )\nchar ::= [a-z]')
