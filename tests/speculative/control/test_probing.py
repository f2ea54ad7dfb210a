"""TimedDraft: what a step of a draft model teaches of its costs."""

from itertools import islice

import pytest

from localspec.speculative.control.pair_profile import GroupAcceptance, LossBudget, PairProfile
from localspec.speculative.control.probing import TimedDraft
from localspec.speculative.control.valuation import Valuation
from localspec.speculative.drafters import ModelDrafter
from localspec.speculative.loop import ALONE, BatchShare
from tests.support.toy.models import GREEDY, FakeClock, ToyModel, never_stop


@pytest.mark.parametrize("batch_share, share, width", [(ALONE, 1, 1), (BatchShare(4, 3), 4, 4)])
def test_a_shared_step_costs_a_share_and_teaches_what_the_whole_pass_costs(
    batch_share: BatchShare, share: int, width: int
) -> None:
    clock = FakeClock()
    model = ToyModel(clock=clock, seconds=8.0)
    model.batch_share = batch_share
    known = PairProfile()
    acceptance = GroupAcceptance(known, "greedy")
    value = Valuation(known, acceptance, has_draft=True)
    drafter = ModelDrafter(model, GREEDY, 16, never_stop)
    timed = TimedDraft(drafter, known, acceptance, value, LossBudget(), clock)
    assert len(list(islice(timed.candidates([1, 2, 3], 3), 2))) == 2
    assert timed.take_spent() == pytest.approx(2 * 8.0 / share)
    assert known.draft.knows(width) and known.draft.knows(width + 2)
    assert not known.draft.knows(width + 1)
    assert known.draft.seconds(width, 3) == pytest.approx(8.0)


@pytest.mark.parametrize("drafting, learnt", [(1, 0.0), (2, 1 / 3), (4, 1.0)])
def test_steps_teach_how_many_sequences_draft_together(drafting: int, learnt: float) -> None:
    model = ToyModel()
    model.batch_share = BatchShare(drafting, 0)
    known = PairProfile()
    acceptance = GroupAcceptance(known, "greedy")
    value = Valuation(known, acceptance, has_draft=True)
    value.sequences = 4  # in a pass of the target
    drafter = ModelDrafter(model, GREEDY, 16, never_stop)
    timed = TimedDraft(drafter, known, acceptance, value, LossBudget(), FakeClock())
    for _ in range(100):
        next(timed.candidates([1, 2, 3], 3))
    assert known.company == pytest.approx(learnt, abs=0.02)
