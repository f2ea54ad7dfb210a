"""Knowledge: what a pair usually gains, and acceptance kept apart by how texts are sampled."""

from __future__ import annotations

from localspec.speculative.control.knowledge import GroupAcceptance, Knowledge
from localspec.speculative.drafters import MODEL, Candidate
from tests.support.toys import toy_knowledge


def test_what_a_pair_usually_gains() -> None:
    known = toy_knowledge()
    assert known.usual_gain(16) is None
    for i in range(200):
        known.of(f"{MODEL}, greedy").observe(2.0, i % 4 != 0)
    found = known.usual_gain(16)
    assert found is not None
    gain, acceptance = found
    assert 0.6 < acceptance < 0.85
    assert 1.5 < gain < 4  # passes cost the same at any width, steps a tenth


def test_candidates_teach_up_to_the_first_wrong_one() -> None:
    known = Knowledge()
    acceptance = GroupAcceptance(known, "greedy")
    candidates = [Candidate(token, 2.0, MODEL) for token in (3, 4, 5, 6)]
    acceptance.observe_all(candidates, [3, 9])  # the target said something else, and no more
    acceptance.observe_all(candidates, [8, 4, 5, 6])
    acceptance.observe_all(candidates, [3])
    assert 3.9 < acceptance.of(MODEL).observations <= 4
    assert GroupAcceptance(known, "coupled at 0.8").of(MODEL).observations == 0
