# ruff: noqa: F401, F811  (fixtures are imported)
"""LM Studio's settings of a model: one kind of draft switched on, and where files belong."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core.errors import IncompatiblePair
from localspec.export.facts import Exported
from localspec.export.lm_studio import lm_studio
from localspec.hub.provenance import Provenance, write_record
from tests.support.exports import Facts, facts, facts_of, model

SPEC = "llm.load.llama.speculativeDecoding."


def settings(made: Exported, part: str) -> dict[str, object]:
    return {field["key"]: field["value"] for field in json.loads(made.text)[part]["fields"]}


@pytest.mark.parametrize(
    ("kind", "switch"),
    [
        ("model", "draftSimple"),
        ("own heads", "draftMtp"),
        ("mtp", "draftMtpSidecar"),
        ("assistant", "draftMtpSidecar"),
        ("dflash", "draftDflashSidecar"),
    ],
)
def test_one_kind_of_draft_is_on(facts: Facts, kind: str, switch: str) -> None:
    known = facts(kind)
    made = lm_studio(known)
    load = settings(made, "load")
    on = {key.removeprefix(SPEC) for key, value in load.items() if value is True}
    off = {key.removeprefix(SPEC) for key, value in load.items() if value is False}
    assert on == {switch} and len(off) == 4
    assert load["llm.load.contextLength"] == 4096 and load[f"{SPEC}draftMaxTokens"] == 4
    name = known.draft.path.stem
    assert load[f"{SPEC}draftModel"] == ("" if known.own_heads else f"local/{name}/{name}.gguf")
    assert not made.executable


def test_heads_without_a_setting(facts: Facts) -> None:
    with pytest.raises(IncompatiblePair, match="LM Studio has no setting for an EAGLE-3 head"):
        lm_studio(facts("eagle3"))


def test_sampling(facts: Facts) -> None:
    made = lm_studio(facts(sampling={"temperature": 0.5, "top_p": 0.9, "dry_base": 2.0}))
    assert settings(made, "operation") == {
        "llm.prediction.temperature": 0.5,
        "llm.prediction.topPSampling": {"checked": True, "value": 0.9},
    }
    assert made.notes[-1].endswith("no such setting: dry_base.")


def test_notes_import_both_files_and_name_the_settings_file(facts: Facts) -> None:
    known = facts()
    *imports, save, _ = lm_studio(known).notes
    for note, header in zip(imports, known.models, strict=True):
        words = shlex.split(note.partition(": ")[2])
        assert words[:3] == ["lms", "import", "--symbolic-link"] and words[-1] == str(header.path)
    assert "/user-concrete-model-default-config/local/big/big.gguf.json" in save


def test_files_of_its_own_and_downloaded_ones_keep_their_names(tmp_path: Path) -> None:
    home = tmp_path / ".lmstudio" / "models" / "org" / "Big-GGUF"
    home.mkdir(parents=True)
    target, draft = model(home, "big"), model(tmp_path, "small")
    origin = Provenance("org/Small-GGUF", "main", "0" * 40, "small.gguf", 1, "0" * 64)
    write_record(draft.path, origin)
    made = lm_studio(facts_of(target, draft))
    assert settings(made, "load")[f"{SPEC}draftModel"] == "org/Small-GGUF/small.gguf"
    imported = [note for note in made.notes if "lms import" in note]
    assert len(imported) == 1 and "--user-repo org/Small-GGUF" in imported[0]
    assert any("default-config/org/Big-GGUF/big.gguf.json" in note for note in made.notes)


def test_what_llama_cpp_refuses_is_refused(facts: Facts) -> None:
    known = facts()
    report = replace(known.report, llama_cpp_accepts=False, llama_cpp_rule="bos-id")
    with pytest.raises(IncompatiblePair, match="LM Studio cannot run this pair"):
        lm_studio(replace(known, report=report))
