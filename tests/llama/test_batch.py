"""Tokens cut into batches."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama import llama_library
from localspec.llama.batch import Batch, TreeBatch, chunks


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 64))
def test_all_tokens_once_and_all_rows_of_the_last_batch(count: int, size: int, rows: int) -> None:
    rows = min(rows, count, size)
    parts = chunks(range(count), rows, size)
    assert [token for tokens, _ in parts for token in tokens] == list(range(count))
    assert all(0 < len(tokens) <= size for tokens, _ in parts)
    assert [wanted for _, wanted in parts] == [0] * (len(parts) - 1) + [rows]
    assert len(parts[-1][0]) >= rows


@given(st.integers(1, 900), st.integers(1, 256), st.integers(1, 128), st.integers(0, 64))
def test_no_pass_of_a_prompt_is_short(count: int, size: int, step: int, rows: int) -> None:
    rows, step = min(rows, count, size), min(size, step)
    *parts, (last, wanted) = chunks(range(count), rows, size, step)
    assert [*(token for tokens, _ in parts for token in tokens), *last] == [*range(count)]
    assert wanted == rows <= len(last) <= max(rows, min(size, step + step // 2))
    if 2 * rows <= step < size // 2:
        assert all(len(tokens) == step for tokens, _ in parts)
        assert len(last) > step // 2 or not parts


@pytest.mark.llama
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 4)), max_size=6))
def test_parts_of_a_batch_stand_side_by_side(parts: list[tuple[int, int, int]]) -> None:
    """Whatever the batch held before; llama.cpp reads the arrays, not what was written down."""
    batch = filled()
    batch.clear()
    expected = []
    for length, rows, sequence in parts:
        tokens, rows = [*range(length)], min(rows, length)
        batch.add(tokens, 5, rows, sequence)
        wanted = [i >= length - rows for i in tokens]
        expected += [(i, 5 + i, sequence, 1, wanted[i]) for i in tokens]
    native = batch.native
    assert native.n_tokens == len(expected)
    assert expected == [
        (native.token[i], native.pos[i], native.seq_id[i][0], native.n_seq_id[i], native.logits[i])
        for i in range(native.n_tokens)
    ]


@pytest.mark.llama
@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=8))
def test_each_token_of_a_tree_has_its_sequences(sequences: list[set[int]]) -> None:
    batch = forked()
    own = [sorted(each) for each in sequences]
    batch.fill([*range(len(own))], [9] * len(own), own)
    native = batch.native
    assert native.n_tokens == len(own)
    for i, expected in enumerate(own):
        assert [native.seq_id[i][j] for j in range(native.n_seq_id[i])] == expected
        assert (native.token[i], native.pos[i], native.logits[i]) == (i, 9, 1)


@functools.cache
def forked() -> TreeBatch:
    """One for all examples, as above."""
    return TreeBatch(llama_library.library(), 8, 5)


@functools.cache
def filled() -> Batch:
    """One for all examples, which find in it what others left."""
    return Batch(llama_library.library(), 64)
