# ruff: noqa: F401, F811  (fixtures are imported)
"""Shelf: which drafts are offered for the zoo's models and why, and pairs beside what is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.core import machine, paths
from localspec.core.errors import FileProblem, UnknownPair
from localspec.engine import profile_store
from localspec.hub.reference import parse_reference
from localspec.library import user_pairs
from localspec.library.catalog import load_catalog
from localspec.library.local_models import LocalModel, find_models, model_of
from localspec.library.pairs import drafts_for, pair_row, pair_rows
from localspec.library.resolve import on_disk
from localspec.library.suggest import Suggestions
from localspec.metadata.header import ModelHeader, read_header
from tests.support import zoo
from tests.support.model_folders import MODEL
from tests.support.toys import toy_knowledge

GB = 10**9
LLAMA_1B = "bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf"
QWEN3_SMALL = "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
QWEN25_SMALL = "lmstudio-community/Qwen2.5-0.5B-Instruct-GGUF/Qwen2.5-0.5B-Instruct-Q8_0.gguf"
TINY = "zoo/tiny-GGUF/tiny-draft-F16.gguf"


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GB of it, half of them free."""
    monkeypatch.setattr(machine, "memory", lambda: (4 * GB, 8 * GB))


@pytest.fixture
def ours(in_zoo: zoo.Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Other tools' models of the zoo, beside a models folder that may be written."""
    monkeypatch.setenv("LOCALSPEC_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def header(name: str) -> ModelHeader:
    """The header of a model of the zoo, by a part of its name."""
    (path,) = [model.path for model in find_models().models if name in model.name]
    return read_header(path)


def drafts(found: Suggestions) -> dict[str, tuple[str, ...]]:
    return {draft.name: draft.reasons for draft in found.drafts}


# --- drafts ---


@pytest.mark.parametrize(
    ("target", "expected", "known"),
    [
        ("Llama-3.1-8B", [LLAMA_1B], ["llama3.1-8b"]),
        ("Qwen2.5-14B", [QWEN25_SMALL], ["qwen2.5-14b"]),
        ("Qwen3-8B", [QWEN3_SMALL, QWEN25_SMALL, "janhq/Jan-v1-4B-Q4_K_M"], []),
        ("Jan-v1-4B", [QWEN3_SMALL, QWEN25_SMALL], []),
        ("gemma-3-27b", ["ggml-org/gemma-3-1b-it-GGUF/gemma-3-1b-it-Q8_0.gguf"], ["gemma3-27b"]),
        (
            "Llama-2-13B",
            ["TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF/tinyllama-1.1b-chat-v1.0.Q8_0.gguf"],
            ["llama2-13b"],
        ),
        ("tiny-target", [TINY], []),
        ("llama3:8b", [], []),
        ("Mistral-Small", [], []),
        ("mamba", [], []),
        (QWEN3_SMALL, [], []),
    ],
)
def test_the_right_drafts_in_the_right_order(
    in_zoo: zoo.Zoo, target: str, expected: list[str], known: list[str]
) -> None:
    found = drafts_for(header(target))
    assert [draft.name for draft in found.drafts] == expected
    assert [pair.name for pair in found.known] == known
    shown = {name for names in in_zoo.shown.values() for name in names}
    offered = [*expected, *(refusal.name for refusal in found.refused)]
    assert set(offered) <= shown and len(set(offered)) == len(offered)


def test_each_draft_has_its_reasons(in_zoo: zoo.Zoo) -> None:
    reasons = drafts(drafts_for(header("Qwen3-8B")))
    assert reasons[QWEN3_SMALL][:2] == ("8.0 times smaller", "Q8_0")
    assert reasons["janhq/Jan-v1-4B-Q4_K_M"][:2] == ("2.0 times smaller", "too large to gain much")
    assert all(each[-1].startswith("both need ") for each in reasons.values())


@pytest.mark.parametrize(
    ("target", "draft", "words", "harmless"),
    [
        ("llama3:8b", LLAMA_1B, "1 unused or reserved token differs: 503: ", True),
        ("Qwen2.5-14B", QWEN3_SMALL, "2 padding tokens differ: 603: '[PAD603]' against ", True),
        ("gemma-3-27b", "gemma-2-2b", "the target has 703 tokens, the draft 403", True),
        ("mamba", QWEN3_SMALL, "the target has 302 tokens, the draft 605", False),
        ("Mistral-7B", QWEN3_SMALL, "is SPM (llama), the draft's BPE (gpt2)", False),
        ("Llama-3.1-8B", QWEN3_SMALL, "add_bos is true (default) for the target but false", False),
    ],
)
def test_each_refusal_has_the_right_reason(
    in_zoo: zoo.Zoo, target: str, draft: str, words: str, harmless: bool
) -> None:
    (refusal,) = [each for each in drafts_for(header(target)).refused if draft in each.name]
    assert words in refusal.reason and refusal.hint
    assert refusal.harmless is harmless


def test_the_nearest_refusal_comes_first(in_zoo: zoo.Zoo) -> None:
    refused = drafts_for(header("llama3:8b")).refused
    assert refused[0].name == LLAMA_1B
    flags = [i for i, each in enumerate(refused) if each.reason.startswith("add_bos")]
    kinds = [i for i, each in enumerate(refused) if "SPM" in each.reason]
    assert flags and kinds and 0 < min(flags) and max(flags) < min(kinds)
    assert refused[-1].name == "nomic-embed-text:latest"  # which continues no text at all


def test_only_smaller_models_that_can_be_read_are_looked_at(
    in_zoo: zoo.Zoo, tmp_path: Path
) -> None:
    target = header("Llama-3.1-8B")
    folder = tmp_path / "more"
    small = (on_disk(LLAMA_1B) or Path()).read_bytes()
    zoo.put(folder / "copy-Q8_0.gguf", small + b"\0")
    zoo.put(folder / "cut.gguf", small[:600])
    zoo.put(folder / "large-Q8_0.gguf", small + bytes(target.n_bytes))
    zoo.put(folder / "itself.gguf", target.path.read_bytes())
    found = drafts_for(target, [folder])
    assert {draft.name for draft in found.drafts} == {
        *(LLAMA_1B, str(folder / "copy-Q8_0.gguf")),
        str(folder / "large-Q8_0.gguf"),  # fewer parameters in a larger file
    }
    assert folder / "copy-Q8_0.gguf" in [draft.path for draft in found.drafts]
    names = {Path(refusal.name).name for refusal in found.refused}
    assert not names & {"cut.gguf", "itself.gguf"}
    with pytest.raises(FileProblem, match="is not a folder"):
        drafts_for(target, [folder / "nosuch"])


def test_what_was_measured_here_counts(in_zoo: zoo.Zoo) -> None:
    target, draft = header("Qwen3-8B"), header("Jan-v1-4B")
    known = toy_knowledge()
    for _ in range(200):
        known.of("draft model, greedy").observe(1.5, True)
    profile_store.save(profile_store.profile_path([target, draft], {}), known)
    found = drafts_for(target)
    assert found.drafts[0].path == draft.path  # else the last one
    assert found.drafts[0].reasons[-1].startswith("measured here: ")
    assert "measured" not in " ".join(found.drafts[1].reasons)


def test_free_memory_is_told_where_it_is_known(
    in_zoo: zoo.Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = header("tiny-target")
    assert "free" not in drafts(drafts_for(target))[TINY][-1]
    monkeypatch.setattr(machine, "memory", lambda: (1 << 20, 8 * GB))
    assert drafts(drafts_for(target))[TINY][-1].endswith(", 1 MiB are free")
    monkeypatch.setattr(machine, "memory", lambda: None)
    assert "free" not in drafts(drafts_for(target))[TINY][-1]


def test_a_disk_without_models_has_no_drafts(animals: zoo.Zoo) -> None:
    path = Path(animals.environment["LOCALSPEC_MODELS"]) / TINY.replace("draft", "target")
    found = drafts_for(read_header(path))
    # Nothing is listed here; the target's own folder is looked through all the same.
    assert [draft.path for draft in found.drafts] == [path.with_name("tiny-draft-F16.gguf")]
    alone = path.rename(path.parent.parent / "alone.gguf")
    assert drafts_for(read_header(alone)) == Suggestions((), (), ())


# --- pairs ---


def test_own_pairs_come_before_the_known_ones(in_zoo: zoo.Zoo, ours: Path) -> None:
    user_pairs.add("zebra", "hf:org/a", "hf:org/b", {})
    user_pairs.add("ant", "hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF", {})
    rows = pair_rows()
    assert [row.name for row in rows[:2]] == ["ant", "zebra"]
    assert [row.name for row in rows[2:]] == [pair.name for pair in load_catalog()]
    assert [row.own for row in rows] == [True, True] + [False] * len(load_catalog())
    for row in rows:
        json.dumps(row.as_json())


def test_what_is_here_of_a_pair(in_zoo: zoo.Zoo, ours: Path) -> None:
    user_pairs.add("half", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "hf:org/nosuch-GGUF", {})
    user_pairs.add("both", "hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", {})
    user_pairs.add("gone", str(ours / "a.gguf"), str(ours / "b.gguf"), {})
    here = {row.name: row.here for row in pair_rows()}
    assert here["half"] == (True, False)
    assert here["both"] == (True, True)
    assert here["gone"] == (False, False)
    assert here["llama3.1-8b"] == (True, True)
    assert here["qwen2.5-7b"] == (False, True)
    assert here["gemma3-27b"] == (True, False)  # of the draft another quantisation is here
    assert here["gpt-oss-120b"] == (False, False)


def test_the_size_of_an_own_pair_is_known_where_both_models_are_here(
    in_zoo: zoo.Zoo, ours: Path
) -> None:
    user_pairs.add("both", "hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF", {})
    user_pairs.add("half", "hf:Qwen/Qwen3-8B-GGUF", "hf:org/nosuch-GGUF", {})
    rows = {row.name: row for row in pair_rows()}
    expected = header("Qwen3-8B").n_bytes + header(QWEN3_SMALL).n_bytes
    assert (rows["both"].size, rows["both"].fits) == (expected, True)
    assert (rows["half"].size, rows["half"].fits) == (None, None)


def test_all_parts_of_a_split_model_count(in_zoo: zoo.Zoo, ours: Path, animals: zoo.Zoo) -> None:
    folder = Path(animals.environment["LOCALSPEC_MODELS"])
    (target,) = folder.rglob("Qwen2.5-14B*-00001-of-00002.gguf")
    draft = str((on_disk(QWEN25_SMALL) or Path()).absolute())
    user_pairs.add("split", str(target), draft, {})
    sizes = read_header(target).n_bytes + read_header(Path(draft)).n_bytes
    assert pair_row("split").size == sizes


def test_what_fits_this_memory(in_zoo: zoo.Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in pair_rows()}
    small, large = rows["llama3.1-8b"], rows["llama3.1-70b"]
    assert small.size == round(6.24 * GB) and large.size and large.size > 40 * GB
    assert (small.fits, large.fits) == (True, False)
    assert small.spec is not None and small.spec.name == small.name
    monkeypatch.setattr(machine, "memory", lambda: (1, small.size))  # nothing left for caches
    assert pair_row("llama3.1-8b").fits is False
    monkeypatch.setattr(machine, "memory", lambda: None)
    assert {row.fits for row in pair_rows()} == {None}


def test_pairs_of_a_family() -> None:
    user_pairs.add("my-Qwen", "hf:org/a", "hf:org/b", {})
    user_pairs.add("other", "hf:org/a", "hf:org/b", {})
    rows = pair_rows("qwen")
    assert rows[0].name == "my-Qwen" and len(rows) > 5
    assert all("qwen" in f"{row.name} {row.family}".lower() for row in rows)
    assert [row.name for row in pair_rows("OTHER")] == [
        "other"
    ]  # no family, but a name of one's own
    with pytest.raises(UnknownPair, match="'nosuch'"):
        pair_rows("nosuch")


def test_one_pair_by_its_name(in_zoo: zoo.Zoo, ours: Path) -> None:
    known = pair_row("QWEN3-14B")
    assert (known.name, known.own, known.family) == ("qwen3-14b", False, "Qwen3")
    assert known.licenses == ("apache-2.0", "apache-2.0")
    user_pairs.add("Qwen3-14b", "hf:org/a", "hf:org/b", {})
    mine = pair_row("qwen3-14b")
    assert (mine.name, mine.own, mine.target) == ("Qwen3-14b", True, "hf:org/a")
    with pytest.raises(UnknownPair, match="near it: qwen3"):
        pair_row("qwen3-1")


def test_a_known_pair_as_json_tells_all_of_it() -> None:
    document = pair_row("qwen2.5-coder-32b").as_json()
    assert json.loads(json.dumps(document))["gain"]["standing"] == "unconfirmed"
    assert {"advice", "gotchas", "sources", "vocab", "size", "here", "fits"} <= document.keys()
    assert "spec" not in document
    user_pairs.add("mine", "hf:org/a", "hf:org/b", {})
    assert {"size", "here", "fits", "own"} <= pair_row("mine").as_json().keys()


def test_a_damaged_pair_is_told() -> None:
    zoo.put(paths.models_folder() / "pairs" / "broken.toml", "target = 3")
    with pytest.raises(FileProblem, match=r"broken\.toml cannot be used"):
        pair_row("broken")


# --- a reference among the models of this disk ---


def local(repo: str | None, *files: str, folder: Path) -> LocalModel:
    paths = tuple(zoo.put(folder / (repo or "none") / file, MODEL) for file in files)
    name = f"{repo}/{files[0]}" if repo else files[0]
    return LocalModel(paths[0], "localspec", name, len(MODEL), paths, repo=repo)


def test_a_reference_means_the_same_here_as_on_the_hub(tmp_path: Path) -> None:
    models = [
        local("org/repo", "model-Q8_0.gguf", folder=tmp_path),
        local("org/repo", "model-Q4_K_M.gguf", folder=tmp_path),
        local(
            "org/repo",
            "BF16/model-BF16-00001-of-00002.gguf",
            "BF16/model-BF16-00002-of-00002.gguf",
            folder=tmp_path,
        ),
        local("org/other", "model-F16.gguf", folder=tmp_path),
        local(None, "model-F32.gguf", folder=tmp_path),
    ]

    def meant(name: str) -> str | None:
        reference = parse_reference(name)
        assert reference is not None
        found = model_of(reference, models)
        return found and found.path.name

    assert meant("org/repo:q8_0") == "model-Q8_0.gguf"
    assert meant("org/repo") == "model-Q4_K_M.gguf"
    assert meant("org/other") == "model-F16.gguf"
    assert meant("hf:org/repo/BF16/model-BF16-00001-of-00002.gguf") == (
        "model-BF16-00001-of-00002.gguf"
    )
    assert meant("hf:org/repo/bf16/model-bf16-00002-of-00002.gguf") == (
        "model-BF16-00001-of-00002.gguf"
    )
    for name in ("org/repo:F32", "org/repo:F16", "org/nosuch", "hf:org/repo@dev", "org/other:Q8_0"):
        assert meant(name) is None


def test_a_reference_that_fits_two_models_means_none(tmp_path: Path) -> None:
    reference = parse_reference("org/repo:Q8_0")
    assert reference is not None
    models = [local("org/repo", f"{size}-Q8_0.gguf", folder=tmp_path) for size in ("big", "small")]
    assert model_of(reference, models) is None
    assert model_of(reference, models[:1]) == models[0]
    assert model_of(reference, []) is None
