"""Tokens cut into batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.llama.batch import chunks


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 64))
def test_all_tokens_once_and_all_rows_of_the_last_batch(count: int, size: int, rows: int) -> None:
    rows = min(rows, count, size)
    parts = chunks(range(count), rows, size)
    assert [token for tokens, _ in parts for token in tokens] == list(range(count))
    assert all(0 < len(tokens) <= size for tokens, _ in parts)
    assert [wanted for _, wanted in parts] == [0] * (len(parts) - 1) + [rows]
    assert len(parts[-1][0]) >= rows
