"""Which tokens a trimmed draft keeps: marks always, then what is said, then the lowest ids."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.message import Message
from localspec.core.errors import FileProblem, UsageError
from localspec.engine.engine import Engine
from localspec.self_draft import vocabulary
from localspec.self_draft.vocabulary import (
    count_file,
    count_tokens,
    coverage,
    rank,
    ranked,
)
from tests.support.real_pair import GREEDY, fresh


def prompt(words: str) -> list[Message]:
    return [{"role": "user", "content": words}]


PROMPTS = [prompt("the thing"), prompt("and another")]


def test_the_order_of_what_is_kept() -> None:
    counts = Counter({50: 3, 40: 9, 30: 1})
    assert rank(counts, {60}, 100)[:6] == [60, 40, 50, 30, 0, 1]
    assert rank(counts, {60}, 45)[:6] == [40, 30, 0, 1, 2, 3]  # the draft has no more


@given(
    st.dictionaries(st.integers(0, 60), st.integers(1, 9)),
    st.sets(st.integers(0, 60)),
    st.integers(1, 50),
)
def test_each_token_has_one_rank(counts: dict[int, int], always: set[int], n_vocab: int) -> None:
    ids = rank(Counter(counts), always, n_vocab)
    assert sorted(ids) == list(range(n_vocab))
    first = len([token for token in always if token < n_vocab])
    assert set(ids[:first]) <= always
    said = [counts.get(token, 0) for token in ids[first:]]
    assert said == sorted(said, reverse=True)


@pytest.mark.llama
def test_what_the_target_says_is_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 12)
    counts = count_tokens(engine, PROMPTS)
    encoded = [engine.encode_chat(each) for each in PROMPTS]
    said = [fresh(engine, each, GREEDY, 0, 12).tokens for each in encoded]
    assert counts == [Counter([*a, *b]) for a, b in zip(encoded, said, strict=True)]
    calls = itertools.count(1)
    fewer = count_tokens(engine, PROMPTS, lambda: next(calls) > 3)  # one is before the answer
    assert fewer == [Counter([*encoded[0], *said[0][:3]]), Counter(encoded[1])]


@pytest.mark.parametrize(
    ("covered", "rows"),
    [([0.5, 0.97, 0.98, *[1.0] * 997], 64), ([0.9] * 99 + [1.0], 70), ([0.5, 1.0], 1)],
)
def test_rows_that_cover_almost_all(covered: list[float], rows: int) -> None:
    assert vocabulary.enough_rows(covered) == rows


@pytest.mark.llama
def test_marks_and_ends_of_turns_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 4)
    written = set(
        engine.target.tokenize("<|im_start|><|im_end|>", add_special=False, parse_special=True)
    )
    ends = {token for token in range(engine.target.n_vocab) if engine.is_stop(token)}
    assert len(written) == 2 and ends
    counts = count_tokens(engine, PROMPTS)
    ids = ranked(engine, counts, engine.target.n_vocab)
    assert written | ends <= set(ids[:8]) and len(ids) == engine.target.n_vocab
    assert len(ranked(engine, counts, 100)) == 100


@pytest.mark.llama
def test_a_prompt_that_fills_the_context_is_counted_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 4)
    long = prompt("the thing " * engine.target.n_ctx)
    (counts,) = count_tokens(engine, [long])
    assert counts.total() >= engine.target.n_ctx


@pytest.mark.llama
def test_a_text_of_the_users_is_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(words: str) -> Counter[int]:
        return Counter(engine.target.tokenize(words, add_special=False, parse_special=False))

    text, lines = tmp_path / "text.txt", tmp_path / "lines.jsonl"
    text.write_text("the thing and the other")
    assert count_file(engine, text) == [counted("the thing and the other")]
    lines.write_text('{"messages": [{"role": "user", "content": "the"}], "n": 3}\n\n"and"\n')
    assert count_file(engine, lines) == [*map(counted, ["the", "user", "and"])]
    monkeypatch.setattr(vocabulary, "_PIECE", 3)
    pieces = ["the", " th", "ing", " an", "d t", "he ", "oth", "er"]
    assert count_file(engine, text) == [*map(counted, pieces)]


@pytest.mark.llama
def test_text_that_cannot_be_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    for text, kind, words in (
        ("", UsageError, "has no text"),
        ("{}\n", UsageError, "has no text"),
        ('"a"\n{\n', FileProblem, "Line 2 of .*not JSON"),
        ("[" * 10**5, FileProblem, "Line 1 of .*not JSON"),
        ("a" * 200, FileProblem, "cannot be read"),
    ):
        monkeypatch.setattr(vocabulary, "MAX_BYTES", 150 if words.startswith("cannot") else 10**6)
        path.write_text(text)
        with pytest.raises(kind, match=words):
            count_file(engine, path)
    with pytest.raises(FileProblem, match="cannot be read"):
        count_file(engine, tmp_path / "missing.txt")


@pytest.mark.llama
def test_text_is_covered_by_what_other_texts_say(engine: Engine) -> None:
    texts, size = [Counter({100: 5, 101: 1}), Counter({100: 3, 102: 1})], engine.target.n_vocab
    covered = coverage(engine, texts, size)
    assert len(covered) == size and covered[-1] == 1 and covered == sorted(covered)
    first = ranked(engine, texts, size).index(100)  # behind the marks
    assert covered[first : first + 2] == pytest.approx([0.8, 0.8])  # the others are in one text
    assert coverage(engine, texts, 101)[-1] == pytest.approx(0.8)  # others have no row
