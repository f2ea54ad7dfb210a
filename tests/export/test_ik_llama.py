# ruff: noqa: F401, F811  (fixtures are imported)
"""The command of ik_llama.cpp: its settings stand inside --spec-type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair
from localspec.export.facts import DraftLength
from localspec.export.ik_llama import ik_llama
from tests.support.exports import Facts, arguments, facts, option


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("model", "draft:n_max=4,p_min=0.0"),
        ("own heads", "mtp:n_max=4,p_min=0.0"),
        ("mtp", "mtp:n_max=4,p_min=0.0"),
        ("dflash", "dflash:n_max=4,p_min=0.0"),
    ],
)
def test_the_stage_holds_the_length(facts: Facts, tmp_path: Path, kind: str, stage: str) -> None:
    known = facts(kind)
    (words,) = arguments(ik_llama(known).text, tmp_path, programs=["llama-server"])
    assert option(words, "--spec-type") == stage
    assert option(words, "-m") == str(known.target.path)
    assert known.own_heads or option(words, "-md") == str(known.draft.path)
    known = replace(known, length=DraftLength(None, "its own"))
    (words,) = arguments(ik_llama(known).text, tmp_path, programs=["llama-server"])
    assert option(words, "--spec-type") == stage.partition(":")[0]


def test_heads_that_it_does_not_know(facts: Facts) -> None:
    with pytest.raises(IncompatiblePair, match="no --spec-type for an EAGLE-3 head"):
        ik_llama(facts("eagle3"))


def test_flags_that_are_other_than_llama_cpps(facts: Facts, tmp_path: Path) -> None:
    made = ik_llama(
        facts(
            settings={"draft_ctx_size": 512, "draft_threads": 2},
            sampling={"typical_p": 0.5, "dry_sequence_breakers": ("x",)},
        )
    )
    (words,) = arguments(made.text, tmp_path, programs=["llama-server"])
    flags = {"-cd": "512", "-td": "2", "--typical": "0.5"}
    assert {flag: option(words, flag) for flag in flags} == flags
    assert "no such setting: dry_sequence_breakers." in made.notes[0]
    assert "-ngl 999 -ngld 999 is all" in made.notes[1]
    assert ik_llama(facts(settings={"gpu_layers": 3})).notes == ()


def test_differing_vocabularies_are_translated(facts: Facts) -> None:
    known = facts()
    report = replace(known.report, llama_cpp_accepts=False)
    assert "translates tokens" in ik_llama(replace(known, report=report)).notes[-1]
