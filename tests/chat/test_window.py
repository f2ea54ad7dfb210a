"""Window: which turns are left out, and that as few and as seldom as possible are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.message import Message
from localspec.chat.window import answer_room, fit, visible


def talk(*lengths: int) -> list[Message]:
    """Exchanges of so many tokens each, half of them the answer's, then a question of the last."""
    turns: list[Message] = []
    for length in lengths[:-1]:
        turns.append({"role": "user", "content": "q" * (length // 2)})
        turns.append({"role": "assistant", "content": "a" * (length - length // 2)})
    return [*turns, {"role": "user", "content": "q" * lengths[-1]}]


def tokens(turns: list[Message], oldest: int, system: int = 0) -> int:
    return system + sum(len(turn["content"]) for turn in visible(turns, oldest))


def left_out(*lengths: int, oldest: int = 0, n_ctx: int = 100, n: int | None = None) -> int:
    turns = talk(*lengths)
    return fit(turns, oldest, lambda i: tokens(turns, i), n_ctx, n) // 2


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([10], 0),
        ([99], 0),  # nothing could be left out
        ([120], 0),
        ([30, 30, 15], 0),  # exactly a quarter is free
        ([30, 30, 16], 1),
        ([10, 10, 10, 10, 10, 10, 16], 3),  # until half is free
        ([60, 16], 1),
        ([10, 55, 11], 1),  # half would take the last exchange too
        ([10, 55, 21], 2),
        ([98, 1], 1),  # an answer that filled the context
        ([10, 10, 200], 2),
    ],
)
def test_how_many_exchanges_are_left_out(lengths: list[int], expected: int) -> None:
    assert left_out(*lengths) == expected


def test_a_bound_of_the_answer_needs_less_room() -> None:
    assert [left_out(30, 30, 16, n=n) for n in (None, -1, 90, 25, 24)] == [1, 1, 1, 1, 0]
    assert [answer_room(100, n) for n in (None, -1, -2, 0, 7, 25, 90)] == [25, 25, 25, 0, 7, 25, 25]


def test_what_was_left_out_stays_out() -> None:
    assert left_out(10, 10, 10, 10, oldest=4) == 2


def test_system_messages_among_the_turns_stay() -> None:
    turns: list[Message] = [{"role": "system", "content": "s"}, *talk(4, 4, 1)]
    assert visible(turns, 0) == turns
    assert visible(turns, 3) == [turns[0], *turns[3:]]


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=30), st.integers(0, 30), st.integers(4, 99)
)
def test_the_newest_turns_that_leave_room(lengths: list[int], system: int, n_ctx: int) -> None:
    turns = talk(*lengths)

    def count(oldest: int) -> int:
        return tokens(turns, oldest, system)

    oldest = fit(turns, 0, count, n_ctx, None)
    most = n_ctx - answer_room(n_ctx, None)
    assert turns[oldest]["role"] == "user"
    assert count(oldest) <= most or oldest == len(turns) - 1
    if count(0) <= most:
        assert oldest == 0
    elif oldest:
        # One exchange more would not leave half, nor, if it is the last one, any room.
        assert count(oldest - 2) > (most if oldest == len(turns) - 1 else n_ctx // 2)
    assert fit(turns, oldest, count, n_ctx, None) == oldest
