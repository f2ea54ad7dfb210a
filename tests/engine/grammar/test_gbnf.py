"""GBNF: what is read of a grammar, and texts written so that they are read as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.grammar.gbnf import Item, mentioned, quoted, read_rules


def test_rules_are_read() -> None:
    rules = read_rules('root ::= "ab" other{2,3} | ( [a-z\\]] )* # end\nother ::= .\n')
    assert rules == {
        "root": (
            [Item(size=2), Item(rule="other", least=2, most=3)],
            [Item(group=([Item(size=4)],), least=0, most=None)],
        ),
        "other": ([Item(size=1)],),
    }
    assert list(mentioned(rules["root"])) == ["other"]


def test_a_repetition_is_repeated_as_a_whole() -> None:
    (((twice,),)) = read_rules('root ::= "a"{2}{3}')["root"]
    assert twice == Item(group=([Item(size=1, least=2, most=2)],), least=3, most=3)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=9))
def test_a_quoted_text_is_one_of_as_many_characters(text: str) -> None:
    assert read_rules(f"root ::= {quoted(text)}") == {"root": ([Item(size=len(text))],)}
