"""PairProfile: what a pair usually gains, and acceptance kept apart by how texts are sampled."""

from dataclasses import replace

import pytest

from localspec.speculative.control.pair_profile import (
    FIRST_TRIAL,
    GroupAcceptance,
    LossBudget,
    PairProfile,
)
from localspec.speculative.drafters import MODEL, Candidate
from localspec.speculative.loop import Round
from tests.support.toy.models import toy_profile


def test_what_a_pair_usually_gains() -> None:
    known = toy_profile()
    assert known.usual_best(16) is None
    for i in range(200):
        known.of(f"{MODEL}, greedy").observe(2.0, i % 4 != 0)
    found = known.usual_best(16)
    assert found is not None
    gain, length = found
    assert 1.5 < gain < 4 and 1 < length < 16  # passes cost the same at any width, steps a tenth
    block = known.usual_best(16, drafts_block=True)
    assert block is not None and block[1] == 16  # one step gives all tokens


def test_candidates_teach_up_to_the_first_wrong_one() -> None:
    known = PairProfile()
    acceptance = GroupAcceptance(known, "greedy")
    candidates = [Candidate(token, 2.0, MODEL) for token in (3, 4, 5, 6)]
    acceptance.observe_all(candidates, [3, 9])  # the target said something else, and no more
    acceptance.observe_all(candidates, [8, 4, 5, 6])
    acceptance.observe_all(candidates, [3])
    assert 3.9 < acceptance.of(MODEL).pair.observations <= 4
    assert GroupAcceptance(known, "coupled at 0.8").of(MODEL).pair.observations == 0


def test_answers_teach_how_long_those_to_such_prompts_become() -> None:
    known = PairProfile()
    assert known.answer_length(100) == known.answer_length(5000) == 64
    for _ in range(60):
        known.observe_answer(5000, 400)
    assert known.answer_length(4500) == pytest.approx(400, abs=2)
    assert known.answer_length(100) == 64
    known.observe_answer(4500, 16, cut=True)  # it would have gone on
    assert known.answer_length(4500) == pytest.approx(400, abs=2)
    known.observe_answer(4500, 800, cut=True)
    assert known.answer_length(4500) > 430


def test_the_groups_seen_least_make_room() -> None:
    known = PairProfile()
    for i in range(1, 2000):
        group = known.of(f"{MODEL}, coupled at {i / 10}")
        for _ in range(1 + i % 7):
            group.observe(2.0, True)
    assert len(known.acceptance) == 256
    assert {round(each.observations) for each in list(known.acceptance.values())[:-1]} == {7}


def test_reading_again_is_charged_to_the_draft_before_it() -> None:
    known = PairProfile()
    for width in range(1, 9):
        known.verify.observe(width, 0, float(width))
    plain = Round((1,), 0, 0, 1.0, verify_seconds=1.0)
    drafted = Round((1, 2), 3, 1, 4.0, verify_seconds=4.0, width=4)
    after = Round((1,), 0, 0, 3.0, verify_seconds=3.0, width=3, replayed=2)
    for _ in range(60):
        known.observe_pass(drafted)
        known.observe_pass(after)
    assert 1.9 < known.replay < 2.1
    for _ in range(60):  # without a draft before it, nothing is learnt
        known.observe_pass(plain)
    assert 1.9 < known.replay < 2.1
    for _ in range(60):
        known.observe_pass(drafted)
    assert known.replay < 0.1


def test_what_plain_decoding_costs_is_known_where_nobody_drafts() -> None:
    """Not where only this answer had no draft, in a pass with others' drafts."""
    known = toy_profile()
    beside = Round((1,), 0, 0, 1.0, verify_seconds=1.0, width=9, sequences=4, others=8)
    assert beside.is_plain
    known.observe_pass(beside)
    assert known.since_plain == 1
    known.observe_pass(Round((1, 2), 2, 1, 1.0, verify_seconds=1.0, width=6, sequences=4, others=3))
    assert known.since_plain == 3
    known.observe_pass(Round((1,), 0, 0, 1.0, verify_seconds=1.0, width=4, sequences=4, others=3))
    assert known.since_plain == 0


def test_a_plain_pass_behind_a_wider_one_teaches_only_that_plain_ones_are_quicker() -> None:
    known = PairProfile()
    plain, wide = (
        Round((1,), 0, 0, 1.0, verify_seconds=1.0),
        Round((1,), 3, 0, 4.0, verify_seconds=4.0, width=4),
    )
    known.observe_pass(plain)
    known.observe_pass(plain)
    for seconds in (1.5, 1.5, 1.5):
        known.observe_pass(wide)
        known.observe_pass(replace(plain, verify_seconds=seconds))
    assert known.verify.seconds(1, 0) == 1.0 and known.since_plain == 6
    known.observe_pass(plain)
    assert known.since_plain == 0
    known.observe_pass(wide)
    known.observe_pass(replace(plain, verify_seconds=0.5))
    assert known.verify.seconds(1, 0) < 0.75 and known.since_plain == 0


def test_a_draft_is_tried_against_its_costs_soon_then_seldom() -> None:
    known, tried = toy_profile(), []
    known.trial_interval = FIRST_TRIAL
    for token in range(1, 1100):
        known.observe_pass(Round((1,), 0, 0, 1.0, verify_seconds=1.0))
        if known.take_trial():
            tried.append(token)
    assert tried == [16, 80, 336, 592, 848]


def filling_profile() -> PairProfile:
    """Passes that cost as many seconds as they have tokens, after one of four tokens."""
    known = PairProfile(fills=True)
    for width in range(1, 9):
        known.verify.observe(width, 0, float(width))
    known.observe_pass(Round((1,), 3, 0, 4.0, verify_seconds=4.0, width=4))
    return known


def test_a_change_of_width_costs_what_a_plain_pass_behind_a_wider_one_takes_longer() -> None:
    known = filling_profile()
    known.observe_pass(Round((1,), 0, 0, 1.5, verify_seconds=1.5))
    assert known.change == 0.5
    known.observe_pass(Round((1,), 0, 0, 1.9, verify_seconds=1.9))  # behind another plain one
    assert known.change == 0.5
    known.observe_pass(Round((1,), 3, 0, 4.0, verify_seconds=4.0, width=4))
    known.observe_pass(Round((1,), 0, 0, 9.0, verify_seconds=9.0))  # held up by something else
    assert 0.5 < known.change < 0.6


def test_a_pass_is_filled_up_where_that_costs_less_than_a_change_of_width() -> None:
    known = filling_profile()
    known.change = 1.5
    assert known.filling(3, 0) == 1
    assert known.filling(4, 0) == known.filling(5, 0) == 0  # as wide, or wider
    assert known.filling(2, 0) == 0  # two tokens more cost more than a change
    known.fills = False
    assert known.filling(3, 0) == 0


def test_filling_up_pass_after_pass_costs_no_more_than_one_change() -> None:
    known = filling_profile()
    known.change = 3.5
    assert [known.filling(3, 0) for _ in range(5)] == [1, 1, 1, 0, 1]
    known.filling(4, 0)  # a pass of that width was wanted again: filling up has paid
    assert [known.filling(3, 0) for _ in range(4)] == [1, 1, 1, 0]


def test_a_draft_that_saw_no_long_text_grows_with_it_as_the_target_does() -> None:
    known = PairProfile(reading=1.0)
    for past, seconds in ((0, 10.0), (1000, 20.0), (0, 10.0), (1000, 20.0)):
        known.verify.observe(1, past, seconds)
    known.draft.observe(1, 0, 2.0)
    assert known.draft_seconds(1, 1000) == pytest.approx(4.0, rel=0.02)
    assert known.reading_seconds(1000) == pytest.approx(1500, rel=0.02)
    known.observe_reading(1000, 3000.0)
    assert known.reading_seconds(1000) == pytest.approx(3000)
    assert known.reading_seconds(100) == pytest.approx(120)  # 1 for each, and more behind others
    for _ in range(50):  # whatever becomes of the target's costs
        known.verify.observe(1, 2000, 90.0)
    assert known.reading_seconds(1000) == pytest.approx(3000)
    known.draft.observe(1, 1000, 3.0)  # now it is seen
    assert known.draft_seconds(1, 1000) == pytest.approx(3.0, rel=0.2)


def test_without_costs_of_the_target_nothing_grows() -> None:
    assert PairProfile(reading=2.0).reading_seconds(100) == 200


# -- the loss budget ------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "tokens"), [(0.0, 1), (0.125, 2.5), (9.0, 109)])
def test_at_first_a_few_plain_tokens_may_be_lost(gain: float, tokens: float) -> None:
    budget = LossBudget()
    assert budget.may_spend(tokens * 2.0, 2.0, gain)
    assert not budget.may_spend(tokens * 2.0 + 0.01, 2.0, gain)


def test_a_hundredth_of_the_time_may_be_lost_besides() -> None:
    budget = LossBudget()
    budget.add(1000.0, 1000, 1.0)  # as quick as plain
    assert budget.may_spend(11.0, 1.0, 0.0)
    assert not budget.may_spend(11.1, 1.0, 0.0)


def test_credit_is_bounded_and_ends_with_the_answer() -> None:
    budget = LossBudget()
    budget.add(1.0, 1000, 1.0)
    assert budget.may_spend(17.0, 1.0, 0.0) and not budget.may_spend(17.1, 1.0, 0.0)
    budget.begin_answer()
    assert budget.may_spend(1.0, 1.0, 0.0) and not budget.may_spend(1.1, 1.0, 0.0)


def test_a_debt_is_owed_in_the_next_answer() -> None:
    budget = LossBudget()
    budget.add(10.0, 5, 1.0)
    budget.begin_answer()
    assert not budget.may_spend(0.0, 1.0, 0.0)
    budget.add(1.0, 10, 1.0)
    assert budget.may_spend(0.0, 1.0, 0.0)


def test_a_debt_is_bounded() -> None:
    budget = LossBudget()
    budget.add(50.0, 1, 1.0)  # one round, 49 plain tokens too long
    budget.add(1.0, 1, 1.0)
    assert not budget.may_spend(0.0, 1.0, 0.0)
    assert budget.may_spend(0.0, 1.0, 9.0)
    for _ in range(350):
        budget.add(1.0, 1, 1.0)
    assert budget.may_spend(0.0, 1.0, 0.0)


def test_what_goes_on_losing_is_forbidden_in_the_longest_answer() -> None:
    budget, lost = LossBudget(), 0.0
    for _ in range(5000):
        drafts = budget.may_spend(0.0, 1.0, 0.0)
        seconds = 1.5 if drafts else 1.0
        budget.add(seconds, 1, 1.0)
        lost += seconds - 1.0
    assert 40 < lost < 0.0102 * 5000 + 5


def test_a_step_for_its_time_changes_all_costs_of_the_draft() -> None:
    known = toy_profile()
    known.reading, before = 0.5, known.draft.seconds(1, 0)
    known.observe_step(0, before / 2)
    assert known.draft.seconds(1, 0) == pytest.approx(before / 2)
    assert known.reading == pytest.approx(0.25)
    known.observe_step(0, 0.0)  # a clock that is too coarse
    assert known.draft.seconds(1, 0) == pytest.approx(before / 20)
