"""A short, fixed form of the fuzzers of grammars, requests, saved slots and command lines."""

import sys
from pathlib import Path

import pytest

from localspec.engine.grammar import process
from tests.fuzz import command_lines, grammars, requests, states


def test_hostile_grammars_are_answered_or_refused(
    monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    count = 24 if thorough else 12
    monkeypatch.setattr(process, "LIMITS", process.LIMITS._replace(seconds=3.0))
    figures = grammars.fuzz(seed=0, count=count)
    assert figures.outcomes.total() == count


@pytest.mark.llama
def test_a_server_outlives_hostile_requests(thorough: bool) -> None:
    count = 40 if thorough else 20
    figures = requests.fuzz(0, count, "-t", "1")
    assert figures.statuses.total() == count and figures.code == 0


@pytest.mark.llama
def test_changed_slot_files_change_no_other_answer(tmp_path: Path) -> None:
    assert states.fuzz(seed=0, count=25, folder=tmp_path) == []


@pytest.mark.llama
def test_random_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    count = 60 if thorough else 30
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", command_lines.NOBODY)
    for name in ("argv", "stdin"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # put back at the end
    command_lines.prepare(tmp_path)
    ends, _ = command_lines.fuzz(seed=3, count=count)
    assert ends.total() == count
