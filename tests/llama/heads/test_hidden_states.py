"""Hidden states by position: which row goes with which token, and how many are kept."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.heads.hidden_states import KEPT, HiddenStates

WIDTH = 2


def rows(position: int, count: int, version: int) -> np.ndarray:
    """Rows that tell where they belong."""
    return np.array([[position + i + 1, version] for i in range(count)], np.float32)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 400), st.integers(0, 300)),
            st.tuples(st.just("truncate"), st.integers(0, 400), st.just(0)),
            st.tuples(st.just("trim"), st.just(0), st.just(0)),
        )
    )
)
def test_a_row_is_the_last_one_heard_of_the_position_before(
    events: list[tuple[str, int, int]],
) -> None:
    states, known, end = HiddenStates(WIDTH), dict[int, int](), 0
    for version, (name, position, count) in enumerate(events, 1):
        if name == "add":
            if position > end:
                known.clear()
            known = {at: each for at, each in known.items() if at < position}
            known |= dict.fromkeys(range(position, position + count), version)
            end = position + count
            states.add(position, rows(position, count, version))
        elif name == "truncate":
            known = {at: each for at, each in known.items() if at < position}
            end = min(end, position)
            states.truncate(position)
        else:
            known = {at: each for at, each in known.items() if at >= end - KEPT}
            states.trim()
            assert states.end - states.begin <= KEPT
        assert states.end == end
        found = states.inputs(0, end + 3)
        expected = [[at, known[at - 1]] if at - 1 in known else [0, 0] for at in range(end + 3)]
        assert np.array_equal(found, expected)


def test_rows_are_copies() -> None:
    states, given_rows = HiddenStates(WIDTH), np.ones((1, WIDTH), np.float32)
    states.add(0, given_rows)
    given_rows[:] = 7
    assert np.array_equal(states.inputs(1, 2), [[1, 1]])
