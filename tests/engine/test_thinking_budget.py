"""ThinkingBudget: thoughts end after so many tokens, whatever is tried before and taken back."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.chat.reasoning import Splitter, tagged
from localspec.chat.templates.template import ChatTemplate
from localspec.engine.engine import Engine
from localspec.engine.thinking_budget import ThinkingBudget
from tests.support.chat.templates import DEEPSEEK_R1

FORM = tagged("<think>", "</think>")
START = 7  # tokens of the prompt
VOCAB = 256  # a token is a byte


def ids_of(text: str, special: bool) -> list[int]:
    return list(text.encode())


def budget(
    most: int,
    state: str = "start",
    message: str = "",
    within: "Callable[[int], Only] | None" = None,
) -> ThinkingBudget:
    return ThinkingBudget(
        FORM, state, START, most, message, VOCAB, lambda token: bytes([token]), ids_of, within
    )


class Only:
    """A constraint that allows one text, from its position on."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.start = text.encode(), start

    def mask(self, position: int, history: Sequence[int]) -> NDArray[np.bool]:
        mask = np.zeros(VOCAB, np.bool)
        mask[self.text[position - self.start]] = True
        return mask

    def allows(self, token: int, position: int, history: Sequence[int]) -> bool:
        return token == self.text[position - self.start]

    def forced(self, position: int, history: Sequence[int]) -> list[int]:
        return [*self.text[position - self.start :]]


def said(constraint: ThinkingBudget, wanted: str) -> str:
    """An answer that would be ``wanted``: another token where that is not allowed."""
    history, found, left = [0] * START, list[int](), list(wanted.encode())
    while left:
        position = START + len(found)
        forced = constraint.forced(position, history)
        mask = constraint.mask(position, history)
        token = left[0]
        if not constraint.allows(token, position, history):
            assert not mask[token]
            token = int(mask.argmax())
            assert mask.sum() == 1 and forced[0] == token
        else:
            left.pop(0)
        found.append(token)
        history.append(token)
    return bytes(found).decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("most", "state", "wanted", "text"),
    [
        (5, "start", "<think>abcdefgh", "<think>abcde</think>fgh"),
        (5, "start", "<think>ab</think>cdefghij", "<think>ab</think>cdefghij"),
        (5, "start", "no thoughts at all", "no thoughts at all"),
        (5, "thoughts", "abcdefgh", "abcde</think>fgh"),
        (0, "thoughts", "abc", "</think>abc"),
        (0, "start", "<think>abc", "<think></think>abc"),
        (3, "answer", "<think>abcdefgh", "<think>abcdefgh"),
        (2, "thoughts", "a€€b", "a€</think>€b"),  # no character is cut
        (9, "thoughts", "abcde</think>fg", "abcde</think>fg"),  # the model begins the mark
    ],
)
def test_thoughts_end_after_so_many_tokens(most: int, state: str, wanted: str, text: str) -> None:
    assert said(budget(most, state), wanted) == text


def test_a_message_stands_before_the_mark() -> None:
    found = said(budget(2, "thoughts", " Enough."), "abcd")
    assert found == "ab Enough.</think>cd"


@pytest.mark.parametrize("message", ["", " Enough." * 20])
def test_elsewhere_another_constraint_holds_from_its_beginning(message: str) -> None:
    found = said(budget(2, "thoughts", message, lambda start: Only("xyz", start)), "xyxyz")
    assert found == f"xy{message}</think>xyz"


def test_the_prompt_is_free() -> None:
    assert budget(0, "thoughts").mask(START - 1, [0] * (START - 1)).all()


@given(st.integers(0, 12), st.integers(0, 2**32), st.text("ab<think/>é", max_size=40))
def test_drafts_that_are_taken_back_change_nothing(most: int, seed: int, wanted: str) -> None:
    chooser = random.Random(seed)
    tried, plain = budget(most, "thoughts"), budget(most, "thoughts")
    history = [0] * START
    for token in wanted.encode():
        for _ in range(chooser.randrange(3)):  # drafts, which are rejected
            draft = [*history, *chooser.choices(range(VOCAB), k=chooser.randrange(9))]
            window = [0, *draft[-chooser.randrange(1, 9) :]]  # after BOS
            tried.forced(len(draft), draft)
            tried.forced(len(draft), window)
        position = len(history)
        assert tried.forced(position, history) == plain.forced(position, history)
        history.append(token)


@given(st.integers(0, 12), st.text("ab<think/>", max_size=40))
def test_no_more_tokens_are_thoughts(most: int, wanted: str) -> None:
    text = said(budget(most, "thoughts"), wanted)
    splitter, thoughts = Splitter(FORM, "thoughts"), 0
    for byte in text.partition("</think>")[0].encode():
        thoughts += 1
        splitter.push(chr(byte))
    assert thoughts <= most or "</think>" not in text


@pytest.mark.llama
def test_the_forced_end_has_no_blank_in_front(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vocabularies of SentencePiece add one to each text, which would part a mark."""
    monkeypatch.setattr(engine, "template", ChatTemplate(DEEPSEEK_R1))
    output = engine.encode_chat([{"role": "user", "content": "Hello"}]).output
    assert output.ids_of is not None
    plain, tokenize = output.ids_of("ink>", True), engine.target.tokenize
    blank = tokenize(" ", add_special=False, parse_special=False)
    assert b"".join(map(engine.piece, plain)) == b"ink>"
    monkeypatch.setattr(
        engine.target, "tokenize", lambda text, **told: [*blank, *tokenize(text, **told)]
    )
    assert output.ids_of("ink>", True) == plain
