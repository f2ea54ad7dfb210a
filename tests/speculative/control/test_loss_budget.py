"""Loss budget: what drafting may lose, and what is left of it in the next answer."""

import pytest

from localspec.speculative.control.loss_budget import LossBudget


@pytest.mark.parametrize(("gain", "tokens"), [(0.0, 1), (0.125, 2.5), (9.0, 5)])
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
