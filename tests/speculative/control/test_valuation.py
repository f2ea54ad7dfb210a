"""Valuation: what reading tokens again costs counts against a draft."""

from __future__ import annotations

from localspec.speculative.control.knowledge import GroupAcceptance, Knowledge
from localspec.speculative.control.valuation import Valuation
from localspec.speculative.drafters import MODEL, Candidate

CANDIDATES = [Candidate(token, 1.0, MODEL) for token in range(4)]


def valuation(replay: float = 0.0) -> Valuation:
    """Passes of one second and a tenth for each token more; steps of a tenth."""
    known = Knowledge(replay=replay)
    for width in range(1, 34):
        known.verify.observe(width, 0, 0.9 + 0.1 * width)
    known.draft.observe(1, 0, 0.1)
    value = Valuation(known, GroupAcceptance(known, "greedy"), has_draft=True)
    value.prepare(0)
    return value


def test_what_is_read_again_makes_a_draft_worth_less() -> None:
    cheap, dear = valuation(), valuation(replay=0.5)
    count, worth = cheap.best(CANDIDATES)
    less, lower = dear.best(CANDIDATES)
    assert count > 0 and less > 0
    assert abs((worth - lower) - 0.5 * cheap.rate()) < 1e-9
    assert dear.gain < cheap.gain
    assert abs(dear.loss_of_trial(3, 0) - cheap.loss_of_trial(3, 0) - 0.5) < 1e-9
    assert valuation(replay=9.0).best(CANDIDATES)[0] == 0


def test_what_is_pending_is_read_by_a_plain_pass_too() -> None:
    value = valuation()
    alone = value.plain_worth
    _, worth = value.best(CANDIDATES)
    value.expect(3)
    assert abs(alone - value.plain_worth - 0.3 * value.rate()) < 1e-9
    assert abs(worth - value.best(CANDIDATES)[1] - 0.3 * value.rate()) < 1e-9
    value.expect(100)  # wider than any pass that is priced
    assert value.best(CANDIDATES)[0] == 0
