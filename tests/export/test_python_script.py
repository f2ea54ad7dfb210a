# ruff: noqa: F401, F811  (fixtures are imported)
"""The Python script: it runs as it is, whatever files are called."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.export.facts import DraftLength
from localspec.export.python_script import python_script
from localspec.metadata.header import read_header
from tests.support.exports import Facts, facts, facts_of
from tests.support.real_pair import TinyFiles

QUESTION = ["What", "is", "a lock?"]


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run([sys.executable, script, *QUESTION], capture_output=True, text=True)


@pytest.mark.llama
@pytest.mark.parametrize("own", [False, True])
def test_it_runs_as_it_is(tmp_path: Path, own: bool) -> None:
    pair = [paths.demo_hybrid()] if own else paths.demo_pair()
    settings = {"threads": 1, "draft_threads": 1, "draft_ctx_size": 256}
    known = facts_of(
        *map(read_header, pair),
        length=DraftLength(3, "3, as given", given=True),
        ctx_size=512,
        settings=settings,
        sampling={"temperature": 0.0},
    )
    done = ran(python_script(known).text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    accepted, _, drafted, *_ = done.stderr.split()
    assert 0 < int(accepted) <= int(drafted)


def test_names_stay_inside_their_quotes(facts: Facts) -> None:
    known = facts(sampling={"dry_sequence_breakers": ('"', "\n")})
    wild = known.target.path.with_name('"""\nraise SystemExit("gotcha")\n\\.gguf')
    known.target.path.rename(wild)
    tree = ast.parse(python_script(replace(known, target=read_header(wild))).text)
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(tree))
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert str(wild) in strings


def test_the_length_is_auto_unless_it_was_given(facts: Facts) -> None:
    learnt = DraftLength(5, "learnt on this machine")
    assert 'DRAFT_TOKENS = "auto"' in python_script(facts(length=learnt)).text
    assert "DRAFT_TOKENS = 4" in python_script(facts()).text


def test_a_lenient_pair_stays_one(facts: Facts) -> None:
    text = python_script(facts(settings={"lenient": True, "exact": True, "gpu_layers": 3})).text
    assert "Engine.load(TARGET, DRAFT, lenient=True)" in text
    assert text.count("exact=True") == 2 and text.count("gpu_layers=3") == 1
