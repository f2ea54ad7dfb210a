"""Common prefixes: as if all was compared, for lists that grow, change and are seen in part."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.prefix import SharedPrefix, common_prefix

tokens = st.lists(st.integers(0, 2), max_size=6)
changes = st.one_of(
    st.tuples(st.just("grow"), tokens),
    st.tuples(st.just("cut"), st.integers(0, 20)),
    st.tuples(st.just("roll back"), st.tuples(st.integers(0, 20), tokens)),
    st.tuples(st.just("another"), tokens),
    st.tuples(st.just("edited copy"), st.integers(1, 20)),
    st.tuples(st.just("shift"), st.integers(0, 4)),
)


def shared_with_window(held: list[int], context: list[int], shift: int) -> int:
    """The length of the common prefix, all of it compared."""
    window = [*context[:1], *context[1 + shift :]]
    pairs = enumerate(zip(held, window, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(held), len(window)))


@given(st.lists(changes, max_size=20))
def test_a_shared_prefix_is_as_if_all_was_compared(history: list[tuple[str, Any]]) -> None:
    prefix, context, shift = SharedPrefix(), [0], 0
    held: list[int] = []
    for kind, change in history:
        if kind == "grow":
            context += change
        elif kind == "cut":
            del context[max(1, change) :]
        elif kind == "another":
            context = [0, *change]
        elif kind == "edited copy":
            context = [(1 - token) if i == change else token for i, token in enumerate(context)]
        elif kind == "shift":
            shift = change
        else:  # the model forgets, and reads the rest of the window and what it drafted
            kept, drafted = change
            shared = min(kept, shared_with_window(held, context, shift))
            held = [*held[:shared], *[*context[:1], *context[1 + shift :]][shared:], *drafted]
        shift = min(shift, len(context) - 1)
        expected = shared_with_window(held, context, shift)
        assert prefix.measure(held, context, shift) == expected


def test_another_list_or_window_is_compared_from_its_first_token() -> None:
    prefix, held, context = SharedPrefix(), [1, 2, 3, 4], [1, 2, 3, 4, 9, 4]
    assert prefix.measure(held, context) == 4
    assert prefix.measure(held, context, 2) == 1  # 1, 4, 9, 4
    assert prefix.measure(held, context) == 4
    assert prefix.measure(held, [1, 2, 0, 4, 9, 4]) == 2


def test_a_list_that_was_changed_against_the_contract_is_mostly_noticed() -> None:
    prefix, held, context = SharedPrefix(), [1, 2, 3, 4], [1, 2, 3, 4, 5]
    assert prefix.measure(held, context) == 4
    context[2:] = [7, 8, 9]  # as long as before, but its fourth token is another
    assert prefix.measure(held, context) == 2


few_tokens = st.lists(st.integers(0, 2), max_size=8)


@given(few_tokens, few_tokens, st.integers(0, 4), st.integers(0, 3))
def test_common_prefix(a: list[int], b: list[int], start: int, shift: int) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == len(a) or n == len(b) or a[n] != b[n]
    assert common_prefix(a, b, min(start, n)) == n
    if start <= len(a) and start + shift <= len(b):
        n = common_prefix(a, b, start, shift)
        assert a[start:n] == b[start + shift : n + shift] and n >= start
        assert n == len(a) or n + shift == len(b) or a[n] != b[n + shift]
