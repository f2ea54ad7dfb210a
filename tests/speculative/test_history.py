"""AnswerHistory: what followed an n-gram last is proposed, within bounds, whatever is held."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from localspec.speculative.history import KEY, AnswerHistory, OwnedHistories

texts = st.lists(st.integers(0, 1), max_size=40)  # 64 n-grams, which do not collide


def found(history: AnswerHistory, context: list[int], ahead: list[int] | None = None) -> list[int]:
    return [each.token for each in history.continuation(context, ahead or ())]


def test_an_earlier_answer_is_proposed_to_its_end() -> None:
    history = AnswerHistory(64)
    history.add([*range(20)])
    history.add([*range(100, 110)])
    assert found(history, [7, 7, *range(3, 9)]) == [*range(9, 20)]
    assert found(history, [3, 4, 5], [6, 7, 8, 9]) == [*range(10, 20)]
    assert found(history, [*range(4, 9)]) == []  # five tokens are too few
    assert found(history, [*range(14, 20)]) == []  # nothing followed
    assert found(AnswerHistory(64), [*range(9)]) == []


def test_the_latest_of_two_counts_and_long_matches_are_surer() -> None:
    history = AnswerHistory(256)
    for last in (1, 2):
        history.add([*range(50, 80), last])
    candidates = list(history.continuation([*range(50, 80)]))
    assert [each.token for each in candidates] == [2]
    (short,) = islice(history.continuation([*range(50, 56)]), 1)
    assert short.group == "history 6+" and candidates[0].group == "history 16+"
    assert short.source == "history" and short.confidence < candidates[0].confidence


def test_what_is_overwritten_is_not_proposed() -> None:
    history = AnswerHistory(32)
    history.add([*range(12)])
    assert found(history, [*range(KEY)])
    history.add([*range(100, 125)])
    assert found(history, [*range(KEY)]) == []
    assert len(history) == 32
    history.add([*range(200, 500)])  # longer than all of it: the end stays
    assert found(history, [*range(480, 490)]) == [*range(490, 500)]


@given(st.lists(texts, max_size=8), texts, st.integers(0, 6))
def test_it_equals_a_search_for_the_latest(
    answers: list[list[int]], context: list[int], ahead: int
) -> None:
    history = AnswerHistory(2**14)
    for answer in answers:
        history.add(answer)
    joined = [token for answer in answers for token in (*answer, -1)]
    assert history.tokens().tolist() == joined
    end = context[-KEY:]
    places = [i for i in range(KEY, len(joined)) if joined[i - KEY : i] == end]
    expected = list[int]()
    if len(end) == KEY and places:
        rest = joined[places[-1] :]
        expected = rest[: rest.index(-1)]
    split = max(0, len(context) - ahead)
    assert found(history, context[:split], context[split:]) == expected


@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_what_collides_is_compared(answers: list[list[int]], context: list[int]) -> None:
    """In a small table n-grams share rows: what is proposed followed this one all the same."""
    history = AnswerHistory(32)
    for answer in answers:
        history.add(answer)
    proposed = found(history, context)
    if proposed:
        held, whole = history.tokens().tolist(), [*context[-KEY:], *proposed]
        assert any(held[i : i + len(whole)] == whole for i in range(len(held)))


def test_owners_share_what_was_there_before_any_answer_and_nothing_else() -> None:
    common = AnswerHistory(1024)
    files, mine, everybodys = ([*range(i, i + 20)] for i in (0, 100, 200))
    common.add(files)
    histories = OwnedHistories(common, most=2)

    def known(owner: str, text: list[int]) -> bool:
        history = histories.of(owner)
        assert history is not None
        return bool([*history.continuation(text[:KEY])])

    for owner, text in (("me", mine), ("", everybodys)):
        history = histories.of(owner)
        assert history is not None
        history.add(text)
    for owner in ("", "me", "you"):
        assert known(owner, files)
        assert known(owner, mine) == (owner == "me")
        assert known(owner, everybodys) == (owner == "")
    assert known("me", mine) and known("third", files) and known("me", mine)
    assert histories.of("") is common
    assert known("fourth", files) and known("fifth", files)
    assert not known("me", mine)  # used longest ago
    assert OwnedHistories(None).of("me") is None
