"""Drafts of another vocabulary, by text: the text stays the target's, joints are right."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.speculative import text_drafter
from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft
from localspec.speculative.drafters import MODEL
from localspec.speculative.loop import Controller, Round
from localspec.speculative.text_drafter import TextDrafter, TextVocabulary, Vocabularies
from tests.support.toy.models import GREEDY, ToyModel, emitted, start_answer, toy_profile

BYTES = [bytes([i]) for i in range(256)]
MARKS = [b"<bos>", b"<end>", b"<turn>"]
STORY = "Zoë paints the tall house; Jörg pays 12 € for it. 早上好, 世界! " * 3


def vocabulary(
    words: Sequence[str], marks: Sequence[bytes] = MARKS, *, begins: bool = False, lead: str = ""
) -> TextVocabulary:
    """Bytes, words and control tokens; longest words first. SentencePiece adds a ``lead``."""
    texts = [*BYTES, *(word.encode() for word in words), *marks]
    first = len(texts) - len(marks)
    ids = {text: i for i, text in reversed(list(enumerate(texts[:first])))}
    longest = max(map(len, ids))

    def longest_first(data: bytes) -> list[int]:
        found, place = list[int](), 0
        while place < len(data):
            size = next(n for n in range(longest, 0, -1) if data[place : place + n] in ids)
            found.append(ids[data[place : place + size]])
            place += len(data[place : place + size])
        return found

    def tokenize(text: str, special: bool) -> list[int]:
        if special and text.encode() in marks:
            return [first + list(marks).index(text.encode())]
        return longest_first((lead + text).encode())

    return TextVocabulary(
        lambda token: b"" if token >= first else texts[token],
        lambda token: texts[token],
        tokenize,
        lambda token: texts[token] == b"<end>",
        (first + list(marks).index(b"<bos>"),) if begins else (),
        first + list(marks).index(b"<end>") if b"<end>" in marks else None,
    )


def size(words: TextVocabulary) -> int:
    """How many tokens it has."""
    count = 256
    with pytest.raises(IndexError):
        while words.control(count):
            count += 1
    return count


class Reciter(ToyModel):
    """Says the token of its vocabulary that goes on with a story."""

    def __init__(self, words: TextVocabulary, story: str = STORY, *, n_ctx: int = 600) -> None:
        super().__init__(n_vocab=size(words), n_ctx=n_ctx)
        self._words, self._story = words, story.encode()

    def row(self, context: Sequence[int]) -> NDArray[np.float32]:
        said = b"".join(map(self._words.piece, context))
        # The longest token that goes on, as the tokenizer would cut it.
        rest = self._story[len(said) :]
        logits = np.zeros(self.n_vocab, np.float32)
        for token in range(self.n_vocab):
            piece = self._words.piece(token)
            if piece and rest.startswith(piece) and self._story.startswith(said):
                logits[token] = len(piece)
        if not rest and self._words.end is not None:
            logits[self._words.end] = 1
        return logits


def drafter(model: ToyModel, target: TextVocabulary, draft: TextVocabulary) -> TextDrafter:
    return TextDrafter(model, GREEDY, Vocabularies(target, draft))


def answer(
    target: ToyModel, controller: Controller, prompt: Sequence[int], words: TextVocabulary
) -> list[Round]:
    return list(start_answer(target, controller, prompt, 60, is_stop=words.is_stop))


WORDS = st.lists(
    st.text(st.sampled_from(" abcdeéß€早世"), min_size=1, max_size=4), max_size=12, unique=True
)


@given(
    WORDS, WORDS, st.integers(0, 99), st.lists(st.integers(0, 270), min_size=1, max_size=40),
    st.sampled_from([1, 3, 8, None]), st.sampled_from([24, 200]), st.sampled_from(["", " "]),
)  # fmt: skip
def test_the_text_is_that_of_plain_decoding(
    ours: list[str],
    theirs: list[str],
    seed: int,
    prompt: list[int],
    length: int | None,
    n_ctx: int,
    lead: str,
) -> None:
    target = vocabulary(ours)
    draft = vocabulary(theirs, MARKS[:2], begins=bool(seed % 2), lead=lead)
    favoured = [*b" abcde", *"é早€".encode(), *range(256, size(target))]

    def model() -> ToyModel:
        return ToyModel(n_vocab=size(target), n_ctx=160, seed=seed, favoured=favoured)

    prompt = [min(token, size(target) - 1) for token in prompt]
    other = ToyModel(n_vocab=size(draft), n_ctx=n_ctx, seed=seed, favoured=[*range(97, 101), 32])
    drafting = drafter(other, target, draft)
    controller: Controller = Adaptive(toy_profile(), float, drafting)
    if length is not None:
        controller = FixedLength(drafting, length, float)
    plain = emitted(answer(model(), NoDraft(), prompt, target))
    assert emitted(answer(model(), controller, prompt, target)) == plain


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("lead", ["", " "])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([], ["pa", "in", " t", "he", "ë ", "上好"]),
        ([" paints", " the", " tall", " house", " pays", "早上好"], [" pa", "ints", " h", "ou"]),
        ([" t", "all", " ho", "use"], [" tall", " house", " paints", "Jörg"]),
    ],
)
def test_who_recites_the_same_text_is_right(
    ours: list[str], theirs: list[str], lead: str, length: int
) -> None:
    target, draft = vocabulary(ours), vocabulary(theirs, lead=lead)
    model = Reciter(draft, lead + STORY if lead else STORY)
    controller = FixedLength(drafter(model, target, draft), length, float)
    prompt = target.tokenize(STORY[:9], False)
    rounds = answer(Reciter(target), controller, prompt, target)
    assert emitted(rounds) == emitted(answer(Reciter(target), NoDraft(), prompt, target))
    accepted, drafted = sum(one.accepted for one in rounds), sum(one.drafted for one in rounds)
    if lead:  # the draft's text begins with a blank that the target's lacks
        return
    assert accepted >= 0.75 * drafted > 0


def test_a_long_text_is_tokenized_once() -> None:
    """All but its end, from a blank between two words on."""
    target, sizes = vocabulary([" the", " tall"]), list[int]()
    plain = vocabulary([" t", "he", " house"])

    def tokenize(text: str, special: bool) -> list[int]:
        sizes.append(len(text))
        return plain.tokenize(text, special)

    draft = plain._replace(tokenize=tokenize)
    drafting = drafter(ToyModel(n_vocab=size(draft), n_ctx=9000), target, draft)
    text = "the tall house " * 400
    context = target.tokenize(text, False)
    drafting.read(context)
    assert sum(sizes) < 1.2 * len(text)
    for token in target.tokenize("and the tall house once more" * 20, False):
        sizes.clear()
        context.append(token)
        drafting.unread(context)
        assert sum(sizes) < 2 * text_drafter._LONGEST_TAIL
    joined = b"".join(map(draft.piece, drafting._text.tokens))
    assert joined == b"".join(map(target.piece, context))
    assert [*drafting._text.tokens] == plain.tokenize(joined.decode(), False)


def test_control_tokens_have_counterparts_by_their_text() -> None:
    target = vocabulary([], [b"<bos>", b"<end>", b"<turn>", b"<other>"])
    draft = vocabulary(["ab"], [b"<turn>", b"<bos>", b"<end>"], begins=True)
    bos, end, turn, other = range(256, 260)
    drafting = drafter(ToyModel(n_vocab=size(draft)), target, draft)
    drafting.unread([bos, *b"ab", turn, other, *b"ab", end])
    ab, their_turn, their_bos, their_end = range(256, 260)
    assert drafting._text.tokens == [their_bos, ab, their_turn, ab, their_end]


def test_the_end_of_the_draft_is_the_targets() -> None:
    target, draft = vocabulary([], [b"<bos>", b"<stop>", b"<end>"]), vocabulary(["ab"], [b"<end>"])
    named = target._replace(is_stop=lambda token: token == 257, end=257)
    assert drafter(ToyModel(n_vocab=258), target, draft)._stop(257) == 258
    unnamed = vocabulary(["ab"], [b"<eot>", b"<bos>"])._replace(is_stop=lambda token: token == 257)
    assert drafter(ToyModel(n_vocab=259), named, unnamed)._stop(257) == 257
    assert drafter(ToyModel(n_vocab=259), named, unnamed)._stop(258) == 256  # which stops nothing


def test_nothing_is_proposed_within_a_character() -> None:
    target, draft = vocabulary([]), vocabulary(["é"])
    drafting = drafter(Reciter(draft), target, draft)
    context = list("Zoë".encode())
    assert next(drafting.propose(context[:-1]), None) is None
    first = next(drafting.propose(context))
    assert (first.token, first.group, first.source) == (ord(" "), MODEL, "draft")
    assert next(drafting.propose(list(b"Zo"), context[2:3]), None) is None
    assert next(drafting.propose(list(b"Zo"), context[2:])).token == ord(" ")


def test_a_word_is_proposed_when_it_is_finished() -> None:
    """Else the first letters would be taken for a token that the target would not say."""
    target, draft = vocabulary([" pai", " paints", " the"]), vocabulary([" pai", "nts"])
    drafting = drafter(Reciter(draft), target, draft)
    context = target.tokenize("Zoë", False)
    found = list(islice(drafting.propose(context), 2))
    assert [target.piece(each.token) for each in found] == [b" paints", b" the"]


def test_confidence_is_the_least_of_the_tokens_in_it() -> None:
    target, draft = vocabulary([" paints", " the"]), vocabulary([" pai", "nts"])
    drafting = drafter(Reciter(draft), target, draft)
    plain = {each.token: each.confidence for each in
             islice(drafting._model.propose(draft.tokenize("Zoë", False)), 3)}  # fmt: skip
    first = next(drafting.propose(target.tokenize("Zoë", False)))
    assert first.confidence == min(plain[256], plain[257]) < max(plain[256], plain[257])


def test_a_review_judges_tokens_that_begin_and_end_as_the_drafts_do() -> None:
    target, draft = vocabulary([" paints", " the", "wrong"]), vocabulary([" pai", "nts", "e t"])
    drafting = drafter(Reciter(draft), target, draft)
    context = target.tokenize("Zoë paints the tall", False)
    reviewed = drafting.score_past_tokens(context, 7)
    # " the" ends within a token of the draft, as does the blank after it.
    assert [target.piece(token) for _, token in reviewed] == [b" paints", *(b"a", b"l", b"l")]
    assert all(candidate.token == token for candidate, token in reviewed)
    context[-1] = ord("k")
    again = drafter(Reciter(draft), target, draft)
    *right, (last, token) = again.score_past_tokens(context, 7)
    assert last.token != token and all(each.token == came for each, came in right)


def test_a_proposal_is_tokenized_after_the_targets_last_tokens() -> None:
    words = vocabulary(["x"])  # its second "x" stands after "a"
    after_a = 256

    def tokenize(text: str, special: bool) -> list[int]:
        found = words.tokenize(text, special)
        plain = [ord("x") if token == after_a else token for token in found]
        return [
            after_a if i and token == ord("x") and plain[i - 1] == ord("a") else token
            for i, token in enumerate(plain)
        ]

    target, draft = words._replace(tokenize=tokenize), vocabulary([])
    assert tokenize("ax", False) == [ord("a"), after_a] and tokenize("x", False) == [ord("x")]
    proposer = drafter(Reciter(draft, "a pa" + "x is. "), target, draft)
    first = next(proposer.propose(list(b"a pa")))
    assert first.token == after_a
