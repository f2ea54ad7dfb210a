"""LM Studio's settings, Ollama's Modelfile, and a Python script that runs as it is."""

import ast
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.core.errors import IncompatiblePair
from localspec.core.options.load_options import ALL_LAYERS
from localspec.export.engines import export_pair
from localspec.export.facts import DraftLength, Exported
from localspec.hub.provenance import Provenance, write_record
from localspec.metadata.header import read_header
from tests.support.files.head_files import dflash_bytes, header_of, mtp_bytes, target_bytes
from tests.support.library.exports import Facts, facts_of, model

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
        ("dspark", "draftDsparkSidecar"),
    ],
)
def test_one_kind_of_draft_is_on(facts: Facts, kind: str, switch: str) -> None:
    known = facts(kind)
    made = export_pair("lmstudio", known)
    load = settings(made, "load")
    on = {key.removeprefix(SPEC) for key, value in load.items() if value is True}
    off = {key.removeprefix(SPEC) for key, value in load.items() if value is False}
    assert on == {switch} and len(off) == 4
    assert load["llm.load.contextLength"] == 4096 and load[f"{SPEC}draftMaxTokens"] == 4
    name = known.draft.path.stem
    assert load[f"{SPEC}draftModel"] == ("" if known.own_heads else f"local/{name}/{name}.gguf")
    assert not made.executable


def test_sampling(facts: Facts) -> None:
    made = export_pair(
        "lmstudio", facts(sampling={"temperature": 0.5, "top_p": 0.9, "dry_base": 2.0})
    )
    assert settings(made, "operation") == {
        "llm.prediction.temperature": 0.5,
        "llm.prediction.topPSampling": {"checked": True, "value": 0.9},
    }
    assert made.notes[-1].endswith("no such setting: dry_base.")


def test_notes_import_both_files_and_name_the_settings_file(facts: Facts) -> None:
    known = facts()
    *imports, save, _ = export_pair("lmstudio", known).notes
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
    made = export_pair("lmstudio", facts_of(target, draft))
    assert settings(made, "load")[f"{SPEC}draftModel"] == "org/Small-GGUF/small.gguf"
    imported = [note for note in made.notes if "lms import" in note]
    assert len(imported) == 1 and "--user-repo org/Small-GGUF" in imported[0]
    assert any("default-config/org/Big-GGUF/big.gguf.json" in note for note in made.notes)


# -- Ollama -----------


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def pair(folder: Path, kind: str) -> list[Path]:
    whole = header_of(folder, target_bytes(heads=int(kind == "own heads")), "big model.gguf")
    if kind == "own heads":
        return [whole.path]
    heads = mtp_bytes() if kind == "mtp" else dflash_bytes()
    return [whole.path, header_of(folder, heads, "heads.gguf").path]


@pytest.mark.parametrize("kind", ["own heads", "mtp", "dflash"])
def test_a_modelfile(tmp_path: Path, kind: str) -> None:
    paths = pair(tmp_path, kind)
    made = export_pair("ollama", facts_of(*map(read_header, paths)))
    expected = [f"FROM {paths[0]}", *(f"DRAFT {path}" for path in paths[1:])]
    expected += ["PARAMETER draft_num_predict 4", "PARAMETER num_ctx 4096"]
    assert lines(made.text) == expected and not made.executable


def test_without_a_length_it_is_written_all_the_same(tmp_path: Path) -> None:
    (path,) = pair(tmp_path, "own heads")  # Ollama drafts with them only if a length is set
    known = facts_of(read_header(path), length=DraftLength(None, "unknown"))
    assert "PARAMETER draft_num_predict 4" in lines(export_pair("ollama", known).text)


def test_settings_that_it_has(tmp_path: Path) -> None:
    (path,) = pair(tmp_path, "own heads")
    known = facts_of(
        read_header(path),
        settings={"gpu_layers": ALL_LAYERS, "threads": 2, "flash_attention": "on"},
        sampling={"temperature": 0.5, "repeat_last_n": 32, "xtc_threshold": 0.2},
    )
    made = export_pair("ollama", known)
    assert lines(made.text)[-4:] == [
        "PARAMETER num_gpu 999",
        "PARAMETER num_thread 2",
        "PARAMETER temperature 0.5",
        "PARAMETER repeat_last_n 32",
    ]
    assert made.notes[-1].endswith("no such setting: flash_attention, xtc_threshold.")


def test_a_split_model_must_be_joined(tmp_path: Path) -> None:
    known = facts_of(read_header(pair(tmp_path, "own heads")[0]))
    split = replace(known.target, split_count=3)
    with pytest.raises(IncompatiblePair, match="names one file, and big model.gguf has 3 parts"):
        export_pair("ollama", replace(known, target=split, draft=split))


def test_a_path_that_a_modelfile_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "a\nSYSTEM gotcha.gguf"
    path.write_bytes(target_bytes())
    with pytest.raises(IncompatiblePair, match="a quote or a line break"):
        export_pair("ollama", facts_of(read_header(path)))


# -- Python -----------

QUESTION = ["What", "is", "a lock?"]


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(text)
    return subprocess.run([sys.executable, script, *QUESTION], capture_output=True, text=True)


@pytest.mark.llama
@pytest.mark.parametrize("own", [False, True])
def test_it_runs_as_it_is(tmp_path: Path, own: bool) -> None:
    pair = [paths.bundled_folder() / "hybrid.gguf"] if own else paths.demo_pair()
    settings = {"threads": 1, "draft_threads": 1, "draft_ctx_size": 256, "cache_type_k": "q8_0"}
    settings["draft_cache_type_v"] = "bf16"
    known = facts_of(
        *map(read_header, pair),
        length=DraftLength(3, "3, as given", given=True),
        ctx_size=512,
        settings=settings,
        sampling={"temperature": 0.0},
    )
    text = export_pair("python", known).text
    assert text.count("cache_type_k='q8_0'") == text.count("cache_type_v='bf16'") == 1
    assert ("load_heads=True" in text) is own  # else a second copy of the whole model drafts
    done = ran(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    accepted, _, drafted, *_ = done.stderr.split()
    assert 0 < int(accepted) <= int(drafted)


def test_names_stay_inside_their_quotes(facts: Facts) -> None:
    known = facts(sampling={"dry_sequence_breakers": ('"', "\n")})
    wild = known.target.path.with_name('"""\nraise SystemExit("gotcha")\n\\.gguf')
    known.target.path.rename(wild)
    tree = ast.parse(export_pair("python", replace(known, target=read_header(wild))).text)
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(tree))
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert str(wild) in strings


def test_the_length_is_auto_unless_it_was_given(facts: Facts) -> None:
    learnt = DraftLength(5, "learnt on this machine")
    assert 'DRAFT_TOKENS = "auto"' in export_pair("python", facts(length=learnt)).text
    assert "DRAFT_TOKENS = 4" in export_pair("python", facts()).text


def test_a_lenient_pair_stays_one(facts: Facts) -> None:
    text = export_pair(
        "python", facts(settings={"lenient": True, "exact": True, "gpu_layers": 3})
    ).text
    assert "Engine.load(TARGET, DRAFT, lenient=True)" in text
    assert text.count("exact=True") == 2 and text.count("gpu_layers=3") == 1
