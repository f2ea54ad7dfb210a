"""Pairs as rows of a list: what is here of each, what fits, own ones before the known."""

import json
from pathlib import Path

import pytest

from localspec.core import machine, paths
from localspec.core.errors import FileProblem, UnknownPair
from localspec.library.pairs import user_pairs
from localspec.library.pairs.catalog import estimated, find_pair, load_catalog
from localspec.library.pairs.listing import pair_row, pair_rows, recommended
from localspec.library.resolve import Resolver
from localspec.metadata.header import read_header
from tests.support.library import zoo
from tests.support.library.model_folders import models_here, zoo_header

GB = 10**9
QWEN3_SMALL = "Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
QWEN25_SMALL = "lmstudio-community/Qwen2.5-0.5B-Instruct-GGUF/Qwen2.5-0.5B-Instruct-Q8_0.gguf"


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 GB of it, half of them free."""
    monkeypatch.setattr(machine, "memory", lambda: (4 * GB, 8 * GB))


@pytest.fixture
def ours(in_zoo: zoo.Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Other tools' models of the zoo, beside a models folder that may be written."""
    monkeypatch.setenv("LOCALSPEC_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def test_own_pairs_come_before_the_known_ones(in_zoo: zoo.Zoo, ours: Path) -> None:
    user_pairs.add("zebra", "hf:org/a", "hf:org/b", {})
    user_pairs.add("ant", "hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF", {})
    rows = pair_rows(models_here())
    assert [row.name for row in rows[:2]] == ["ant", "zebra"]
    assert [row.name for row in rows[2:]] == [pair.name for pair in load_catalog()]
    assert [row.own for row in rows] == [True, True] + [False] * len(load_catalog())
    for row in rows:
        json.dumps(row.as_json())


def test_what_is_here_of_a_pair(in_zoo: zoo.Zoo, ours: Path) -> None:
    user_pairs.add("half", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "hf:org/nosuch-GGUF", {})
    user_pairs.add("both", "hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF:Q8_0", {})
    user_pairs.add("gone", str(ours / "a.gguf"), str(ours / "b.gguf"), {})
    here = {row.name: row.here for row in pair_rows(models_here())}
    assert here["half"] == (True, False)
    assert here["both"] == (True, True)
    assert here["gone"] == (False, False)
    assert here["llama3.1-8b"] == (True, True)
    assert here["qwen2.5-7b"] == (False, True)
    assert here["gemma3-27b"] == (True, False)  # of the draft another quantisation is here
    assert here["gpt-oss-120b"] == (False, False)


def test_the_size_of_an_own_pair_takes_both_models(in_zoo: zoo.Zoo, ours: Path) -> None:
    user_pairs.add("both", "hf:Qwen/Qwen3-8B-GGUF", "hf:Qwen/Qwen3-0.6B-GGUF", {})
    user_pairs.add("half", "hf:Qwen/Qwen3-8B-GGUF", "hf:org/nosuch-GGUF", {})
    rows = {row.name: row for row in pair_rows(models_here())}
    expected = zoo_header("Qwen3-8B").n_bytes + zoo_header(QWEN3_SMALL).n_bytes
    assert (rows["both"].size, rows["both"].fits) == (expected, True)
    assert (rows["half"].size, rows["half"].fits) == (None, None)


def test_all_parts_of_a_split_model_count(in_zoo: zoo.Zoo, ours: Path, animals: zoo.Zoo) -> None:
    folder = Path(animals.environment["LOCALSPEC_MODELS"])
    (target,) = folder.rglob("Qwen2.5-14B*-00001-of-00002.gguf")
    draft = str((Resolver().on_disk(QWEN25_SMALL) or Path()).absolute())
    user_pairs.add("split", str(target), draft, {})
    sizes = read_header(target).n_bytes + read_header(Path(draft)).n_bytes
    assert pair_row("split", models_here()).size == sizes


def test_what_fits_this_memory(in_zoo: zoo.Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.name: row for row in pair_rows(models_here())}
    small, large = rows["llama3.1-8b"], rows["llama3.1-70b"]
    assert small.size == round(6.24 * GB) and large.size and large.size > 40 * GB
    assert (small.fits, large.fits) == (True, False)
    assert small.spec is not None and small.spec.name == small.name
    monkeypatch.setattr(machine, "memory", lambda: (1, small.size))  # nothing left for caches
    assert pair_row("llama3.1-8b", models_here()).fits is False
    monkeypatch.setattr(machine, "memory", lambda: None)
    assert {row.fits for row in pair_rows(models_here())} == {None}


def test_pairs_of_a_family() -> None:
    user_pairs.add("my-Qwen", "hf:org/a", "hf:org/b", {})
    user_pairs.add("other", "hf:org/a", "hf:org/b", {})
    rows = pair_rows(models_here(), "qwen")
    assert rows[0].name == "my-Qwen" and len(rows) > 5
    assert all("qwen" in f"{row.name} {row.family}".lower() for row in rows)
    assert [row.name for row in pair_rows(models_here(), "OTHER")] == [
        "other"
    ]  # no family, but a name of one's own
    with pytest.raises(UnknownPair, match="'nosuch'"):
        pair_rows(models_here(), "nosuch")


def test_one_pair_by_its_name(in_zoo: zoo.Zoo, ours: Path) -> None:
    known = pair_row("QWEN3-14B", models_here())
    assert (known.name, known.own, known.family) == ("qwen3-14b", False, "Qwen3")
    assert known.licenses == ("apache-2.0", "apache-2.0")
    user_pairs.add("Qwen3-14b", "hf:org/a", "hf:org/b", {})
    mine = pair_row("qwen3-14b", models_here())
    assert (mine.name, mine.own, mine.target) == ("Qwen3-14b", True, "hf:org/a")
    with pytest.raises(UnknownPair, match="near it: qwen3"):
        pair_row("qwen3-1", models_here())


def test_the_bundled_pair_is_shown_unless_the_user_has_one_of_its_name(ours: Path) -> None:
    row = pair_row("Demo", models_here())
    assert (row.name, row.family, row.own, row.here) == ("demo", "bundled", False, (True, True))
    user_pairs.add("demo", "/a.gguf", "/b.gguf", {})
    row = pair_row("Demo", models_here())
    assert (row.family, row.own, row.target) == ("your own", True, "/a.gguf")


def test_a_known_pair_as_json_tells_all_of_it() -> None:
    document = pair_row("qwen2.5-coder-7b", models_here()).as_json()
    assert json.loads(json.dumps(document))["gain"]["standing"] == "unconfirmed"
    assert {"advice", "gotchas", "sources", "vocab", "size", "here", "fits"} <= document.keys()
    assert "spec" not in document
    user_pairs.add("mine", "hf:org/a", "hf:org/b", {})
    assert {"size", "here", "fits", "own"} <= pair_row("mine", models_here()).as_json().keys()


def test_a_damaged_pair_is_told() -> None:
    zoo.put(paths.models_folder() / "pairs" / "broken.toml", "target = 3")
    with pytest.raises(FileProblem, match=r"broken\.toml cannot be used"):
        pair_row("broken", models_here())


@pytest.mark.parametrize(
    ("memory", "expected"),
    [(24, "llama3.1-8b"), (5, "qwen2.5-coder-1.5b"), (4, None), (64, "qwen2.5-coder-32b")],
)
def test_the_pair_to_try_first(
    monkeypatch: pytest.MonkeyPatch, memory: int, expected: str | None
) -> None:
    monkeypatch.setattr(machine, "memory", lambda: (memory * 10**9, memory * 10**9))
    best = recommended(pair_rows([]))
    assert (best and best.name) == expected


def test_every_known_pair_has_a_gain_with_its_source() -> None:
    for row in pair_rows([]):
        assert row.gain is not None, row.name
        assert row.gain.source or row.gain.standing in ("unconfirmed", "expected")
    assert pair_row("qwen2.5-coder-1.5b", []).gain == find_pair("qwen2.5-coder-1.5b").gain


def test_an_estimate_agrees_with_what_was_measured() -> None:
    for name, measured in (("qwen2.5-coder-1.5b", 1.19), ("qwen2.5-coder-7b", 1.53)):
        found = estimated(find_pair(name))
        assert found is not None
        times = float(found.what.removeprefix("CPU ").partition("x,")[0])
        assert times == pytest.approx(measured, abs=0.1)
    assert estimated(find_pair("qwen3.6-27b-mtp")) is None  # heads in the target's file
