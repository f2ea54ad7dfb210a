"""Conversations: what is carried from answer to answer, and what begins anew."""

from localspec.speculative.control.conversations import Conversations

FIRST = list(range(100))
SECOND = list(range(500, 600))


def test_a_conversation_goes_on_where_its_text_is_extended() -> None:
    known = Conversations()
    first = known.resume(context := list(FIRST))
    assert first.missed_before == 0
    first.missed = 30
    context += range(100, 130)
    second = known.resume([*context, 7, 8])
    assert (second.missed_before, second.missed) == (30, 0)
    second.missed = 12
    assert known.resume(FIRST[:90]).missed_before == 42  # an earlier turn is answered again


def test_thoughts_that_a_template_leaves_out_do_not_end_a_conversation() -> None:
    known = Conversations()
    context = list(FIRST)
    known.resume(context).missed = 30
    context += range(1000, 9000)
    assert known.resume([*FIRST, 1, 2, 3]).missed_before == 30


def test_another_text_begins_anew_and_keeps_the_first() -> None:
    known = Conversations()
    known.resume(list(FIRST)).missed = 30
    for _ in range(3):
        known.resume(list(SECOND)).missed += 5
        assert known.resume([*FIRST[:40], *SECOND]).missed_before == 0  # little in common
    assert known.resume([*FIRST, 1]).missed_before == 30


def test_what_was_missed_is_paid_once() -> None:
    known = Conversations()
    known.resume(list(FIRST)).missed = 30
    again = known.resume(list(FIRST))
    again.draft_has_read()
    assert known.resume(list(FIRST)).missed_before == 0


def test_only_a_few_conversations_are_remembered() -> None:
    known = Conversations()
    for i in range(20):
        known.resume([1000 * i + j for j in range(100)]).missed = 9
    assert known.resume(list(range(100))).missed_before == 0
    assert known.resume([19_000 + j for j in range(100)]).missed_before == 9
    known.clear()
    assert known.resume([19_000 + j for j in range(100)]).missed_before == 0
