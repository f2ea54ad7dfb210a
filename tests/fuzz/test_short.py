"""A short, fixed form of the fuzzers of grammars and requests."""

import pytest

from localspec.engine.grammar import process
from tests.fuzz import grammars, requests


def test_hostile_grammars_are_answered_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STEP_SECONDS", 3.0)
    figures = grammars.fuzz(seed=0, count=24)
    assert figures.outcomes.total() == 24


@pytest.mark.llama
def test_a_server_outlives_hostile_requests() -> None:
    figures = requests.fuzz(0, 40, "-t", "1")
    assert figures.statuses.total() == 40 and figures.code == 0
