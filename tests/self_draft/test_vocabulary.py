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
    choose_ids,
    count_file,
    count_tokens,
    frequent_ids,
)
from tests.support.real_pair import GREEDY, fresh


def prompt(words: str) -> list[Message]:
    return [{"role": "user", "content": words}]


PROMPTS = [prompt("the thing"), prompt("and another")]


def test_the_order_of_what_is_kept() -> None:
    counts = Counter({50: 3, 40: 9, 30: 1})
    assert choose_ids(counts, {60}, 1, 100) == [60]
    assert choose_ids(counts, {60}, 2, 100) == [40, 60]
    assert choose_ids(counts, {60}, 4, 100) == [30, 40, 50, 60]
    assert choose_ids(counts, {60}, 6, 100) == [0, 1, 30, 40, 50, 60]
    assert choose_ids(counts, {60}, 6, 45) == [0, 1, 2, 3, 30, 40]  # the draft has no more


@given(
    st.dictionaries(st.integers(0, 60), st.integers(1, 9)),
    st.sets(st.integers(0, 60)),
    st.integers(1, 70),
    st.integers(1, 50),
)
def test_as_many_as_there_are(
    counts: dict[int, int], always: set[int], n_ids: int, n_vocab: int
) -> None:
    ids = choose_ids(Counter(counts), always, n_ids, n_vocab)
    assert ids == sorted(set(ids)) and len(ids) == min(n_ids, n_vocab)
    assert all(0 <= token < n_vocab for token in ids)
    wanted = {token for token in always if token < n_vocab}
    assert wanted <= set(ids) or set(ids) <= wanted


@pytest.mark.llama
def test_what_the_target_says_is_counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 12)
    counts = count_tokens(engine, PROMPTS)
    expected: Counter[int] = Counter()
    for each in PROMPTS:
        encoded = engine.encode_chat(each)
        expected.update(encoded)
        expected.update(fresh(engine, encoded, GREEDY, 0, 12).tokens)
    assert counts == expected
    first, second = (engine.encode_chat(each) for each in PROMPTS)
    calls = itertools.count(1)
    fewer = count_tokens(engine, PROMPTS, lambda: next(calls) > 3)  # one is before the answer
    said = fresh(engine, first, GREEDY, 0, 12).tokens[:3]
    assert fewer == Counter([*first, *second, *said])


@pytest.mark.llama
def test_marks_and_ends_of_turns_are_kept(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 4)
    written = set(
        engine.target.tokenize("<|im_start|><|im_end|>", add_special=False, parse_special=True)
    )
    ends = {token for token in range(engine.target.n_vocab) if engine.is_stop(token)}
    assert len(written) == 2 and ends
    counts = count_tokens(engine, PROMPTS)
    ids = frequent_ids(engine, counts, 8, engine.target.n_vocab)
    assert written | ends <= set(ids) and len(ids) == 8
    assert set(frequent_ids(engine, counts, 8, 100)).isdisjoint(written)


@pytest.mark.llama
def test_a_prompt_that_fills_the_context_is_counted_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 4)
    long = prompt("the thing " * engine.target.n_ctx)
    assert count_tokens(engine, [long]).total() >= engine.target.n_ctx


@pytest.mark.llama
def test_a_text_of_the_users_is_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(words: str) -> Counter[int]:
        return Counter(engine.target.tokenize(words, add_special=False, parse_special=False))

    text, lines = tmp_path / "text.txt", tmp_path / "lines.jsonl"
    text.write_text("the thing and the other")
    assert count_file(engine, text) == counted("the thing and the other")
    lines.write_text('{"messages": [{"role": "user", "content": "the"}], "n": 3}\n\n"and"\n')
    assert count_file(engine, lines) == counted("user") + counted("the") + counted("and")
    monkeypatch.setattr(vocabulary, "_PIECE", 3)
    assert count_file(engine, text) == sum(
        map(counted, ["the", " th", "ing", " an", "d t", "he ", "oth", "er"]), Counter()
    )


@pytest.mark.llama
def test_text_that_cannot_be_counted(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    for text, kind, words in (
        ("", UsageError, "has no text"),
        ("{}\n", UsageError, "has no text"),
        ('"a"\n{\n', FileProblem, "Line 2 of .*no JSON"),
        ("[" * 10**5, FileProblem, "Line 1 of .*no JSON"),
        ("a" * 200, FileProblem, "cannot be read"),
    ):
        monkeypatch.setattr(vocabulary, "MAX_BYTES", 150 if words.startswith("cannot") else 10**6)
        path.write_text(text)
        with pytest.raises(kind, match=words):
            count_file(engine, path)
    with pytest.raises(FileProblem, match="cannot be read"):
        count_file(engine, tmp_path / "missing.txt")
