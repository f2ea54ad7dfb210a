"""A few mutated headers of each run; `python -m tests.fuzz.headers` does thousands."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.metadata.header import read_header
from tests.fuzz.headers import fuzz, judge
from tests.support.files.gguf_files import model_keys, model_tensors, words, write_gguf

VALUES = st.one_of(
    st.integers(0, (1 << 32) - 1),
    st.floats(width=32),
    st.booleans(),
    st.text(max_size=20),
    st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=6),
)
KEYS = st.sampled_from(
    "block_count embedding_length attention.head_count attention.head_count_kv expert_count "
    "attention.key_length attention.value_length rope.dimension_count rope.scaling.type "
    "expert_used_count expert_gating_func ssm.inner_size sliding_window context_length".split()
)


@pytest.mark.llama  # which says what the tensors of each architecture are
def test_mutated_headers_end_in_an_answer_or_in_our_error(tmp_path: Path) -> None:
    outcomes, _ = fuzz(tmp_path, seed=1, count=120)
    assert outcomes.total() == 120 and outcomes["accepted"] and outcomes["refused"]


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_values_end_in_an_answer_or_in_our_error(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, object]
) -> None:
    folder, keys = tmp_path_factory.getbasetemp(), model_keys(words(300))
    other = read_header(write_gguf(folder / "other.gguf", keys, model_tensors(64)))
    keys |= {f"llama.{key}": value for key, value in changes.items()}
    judge(write_gguf(folder / "any.gguf", keys, model_tensors(64)), other)
