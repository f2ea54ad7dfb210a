"""Heads that draft as a user meets them: judged, shown, listed, offered, fetched, kept."""

import json
from pathlib import Path

import pytest

from localspec import download
from localspec.core import paths
from localspec.library import acquire
from localspec.library.pairs import catalog
from tests.support.command import Command
from tests.support.fake_hub import FakeHub
from tests.support.files.head_files import (
    assistant_bytes,
    dflash2_bytes,
    dflash_bytes,
    dspark_bytes,
    eagle3_bytes,
    mtp_bytes,
    target_bytes,
)
from tests.support.library import zoo
from tests.support.library.hub_pair import told


@pytest.fixture(autouse=True)
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """These files have headers that fit, but no weights that llama.cpp would load."""
    monkeypatch.setattr(acquire, "proven", lambda check: check)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder that no tool knows, with targets and heads of all kinds."""
    folder = tmp_path / "mine"
    for name, data in {
        "own.gguf": target_bytes(),
        "plain.gguf": target_bytes(heads=0),
        "left.gguf": target_bytes(held=0),
        "llama.gguf": target_bytes("llama", heads=0),
        "heads/mtp-plain.gguf": mtp_bytes(),
        "heads/assistant.gguf": assistant_bytes(),
        "heads/eagle3-x.gguf": eagle3_bytes(),
        "heads/dflash-x.gguf": dflash_bytes(),
        "heads/broken.gguf": eagle3_bytes(layers=(1, 2)),
    }.items():
        zoo.put(folder / name, data)
    return folder


# --- check ---


def test_heads_that_fit_and_others(localspec: Command, models: Path) -> None:
    """Which heads fit which target: checks/test_heads."""
    names = models / "own.gguf", models / "heads" / "dflash-x.gguf"
    done = localspec("check", *names)
    assert (done.code, done.err) == (0, "")
    verdict = done.out.splitlines()[-1]
    assert verdict == "compatible as draft-dflash; llama.cpp's own rule accepts this pair"
    document = json.loads(localspec("check", *names, "--json").out)
    assert document["compatible"] is True and document["spec_type"] == "draft-dflash"
    for name, data in (("draft-dspark", dspark_bytes()), ("draft-dflash", dflash2_bytes())):
        done = localspec("check", names[0], zoo.put(models / "variant.gguf", data))
        assert done.out.splitlines()[-1].startswith(f"compatible as {name};"), done.out
    done = localspec("check", models / "llama.gguf", models / "heads" / "mtp-plain.gguf")
    assert (done.code, done.err) == (1, "") and "architecture qwen35, not llama" in done.out
    assert done.out.splitlines()[-1].startswith("not compatible")


def test_heads_of_its_own(localspec: Command, models: Path) -> None:
    own = models / "own.gguf"
    for names in ((own, "mtp"), (own, own), ("--target", own, "--draft", "mtp")):
        done = localspec("check", *names)
        assert (done.code, done.err) == (0, "")
        verdict = done.out.splitlines()[-1]
        assert verdict.startswith("compatible as draft-mtp, with heads of its own; ")
        assert sum(line.startswith(("target", "draft")) for line in done.out.splitlines()) == 1
    left = localspec("check", models / "left.gguf", "mtp")
    assert left.code == 1 and "error   left.gguf names 1 prediction head" in left.out
    reason = "left.gguf names 1 prediction head, but its conversion left them out. No sidecar"
    assert left.err.startswith(reason) and left.err.count("\n") == 1
    document = json.loads(localspec("check", models / "left.gguf", "mtp", "--json").out)
    assert document["compatible"] is False and document["llama_cpp"]["rule"] == "heads-missing"
    twice = localspec("check", models / "left.gguf", models / "left.gguf")
    assert twice.code == 1 and "error   left.gguf names 1 prediction head" in twice.out


# --- inspect ---


def test_inspect_shows_what_a_file_of_heads_is(localspec: Command, models: Path) -> None:
    for name, words in (
        ("heads/eagle3-x", "an EAGLE-3 head (draft-eagle3)"),
        ("heads/dflash-x", "a DFlash head (draft-dflash)"),
        ("heads/assistant", "1 multi-token prediction head (draft-mtp)"),
        ("own", "1 prediction head of its own, used unless another draft is named: "),
    ):
        done = localspec("inspect", models / f"{name}.gguf")
        assert (done.code, done.err) == (0, "") and words in done.out, name
    variant = zoo.put(models / "dspark-x.gguf", dspark_bytes())
    done = localspec("inspect", variant)
    assert done.code == 0 and "a DSpark head (draft-dspark)" in done.out
    assert "blocks of 8 tokens in one pass, with a confidence for each" in done.out
    broken = localspec("inspect", models / "heads" / "broken.gguf")
    assert broken.code == 1 and "error   broken.gguf names 2 layers" in broken.out
    document = json.loads(localspec("inspect", models / "heads" / "dflash-x.gguf", "--json").out)
    assert document["runs"] is False
    assert document["as_draft"] == {
        "spec_type": "draft-dflash", "heads": 0, "target_layers": [0, 2], "target_width": 64,
        "block_size": 8, "reduced_vocabulary": None,
    }  # fmt: skip


# --- list and suggest ---


def test_list_shows_heads_below_their_model(localspec: Command, models: Path) -> None:
    zoo.put(models / "mtp-plain.gguf", mtp_bytes(heads=1, keys={"context_length": 8192}))
    done = localspec("list", "--no-header", "--folder", models)
    assert (done.code, done.err) == (0, "")
    shown = [line.split("\t")[0] for line in done.out.splitlines()]
    at = shown.index("plain.gguf")
    assert shown[at + 1 : at + 3] == ["+ heads/mtp-plain.gguf", "+ mtp-plain.gguf"]
    assert shown[-2:] == ["+ heads/dflash-x.gguf", "+ heads/eagle3-x.gguf"]
    document = json.loads(localspec("list", "--folder", models, "--json").out)
    served = {each["name"]: [s["name"] for s in each["sidecars"]] for each in document["models"]}
    assert served["plain.gguf"] == ["heads/mtp-plain.gguf", "mtp-plain.gguf"]
    assert served["own.gguf"] == []
    assert [each["name"] for each in document["sidecars"]] == [
        *("heads/dflash-x.gguf", "heads/eagle3-x.gguf")
    ]


def test_list_of_nothing_but_heads(localspec: Command, tmp_path: Path) -> None:
    zoo.put(tmp_path / "alone" / "mtp-x.gguf", mtp_bytes())
    done = localspec("list", "--no-header", "--folder", tmp_path / "alone")
    assert done.code == 0 and done.out.startswith("+ mtp-x.gguf\t") and done.err == ""


def test_suggest_offers_own_heads_first(localspec: Command, models: Path) -> None:
    own = models / "own.gguf"
    done = localspec("suggest", own)
    assert (done.code, done.err) == (0, "")
    first, why, command = done.out.splitlines()[:3]
    assert first == "mtp: prediction heads in the target's own file"
    assert why == "   1 head; nothing to fetch"
    assert command == f"   localspec chat --target {own} --draft mtp"
    assert json.loads(localspec("suggest", own, "--json").out)["own_heads"] == 1


def test_suggest_offers_sidecars_before_models(localspec: Command, models: Path) -> None:
    zoo.put(models / "mtp-plain.gguf", mtp_bytes())
    done = localspec("suggest", models / "plain.gguf", "--folder", models)
    assert done.code == 0
    names = [line for line in done.out.splitlines() if line[:1].isdigit()]
    assert any(name.endswith("/mtp-plain.gguf") for name in names)
    assert any(name.endswith("/dflash-x.gguf") for name in names)
    assert "   1 multi-token prediction head; " in done.out and "   a DFlash head; " in done.out


# --- on the Hub ---


@pytest.fixture
def heads_on_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub.add("org/own-GGUF", "own-Q4_K_M.gguf", target_bytes())
    hub.add("org/plain-GGUF", "plain-Q4_K_M.gguf", target_bytes(heads=0))
    hub.add("org/plain-GGUF", "mtp-plain.gguf", mtp_bytes())
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.0)
    return hub


def test_suggest_names_heads_in_the_targets_repository(
    heads_on_hub: FakeHub, localspec: Command
) -> None:
    done = localspec("suggest", "org/plain-GGUF")
    assert done.code == 0
    first = done.out.splitlines()[0]
    assert first.startswith("in its repository: hf:org/plain-GGUF/mtp-plain.gguf (")
    assert first.endswith("localspec check org/plain-GGUF hf:org/plain-GGUF/mtp-plain.gguf")
    document = json.loads(localspec("suggest", "org/plain-GGUF", "--json").out)
    assert document["in_repository"] == ["hf:org/plain-GGUF/mtp-plain.gguf"]
    judged = localspec("check", "org/plain-GGUF", "mtp")
    assert judged.code == 0 and "compatible as draft-mtp; " in judged.out


def test_download_names_heads_in_the_repository(heads_on_hub: FakeHub, localspec: Command) -> None:
    done = localspec("download", "org/plain-GGUF")
    said = done.err.splitlines()[-1]
    assert said.startswith("org/plain-GGUF has multi-token prediction heads for it (")
    command = said.partition(": localspec ")[2].partition(" fetches")[0]
    assert localspec(*command.split()).err.count("fetches") == 0
    assert localspec("download", "org/plain-GGUF").err.count("fetches") == 0  # they are here
    assert localspec("download", "org/own-GGUF").err.count("heads") == 0
    done = localspec("check", "org/plain-GGUF", "mtp")
    assert done.code == 0 and "Asking" not in done.err


def test_a_pair_of_one_file_is_downloaded_and_listed(
    heads_on_hub: FakeHub, localspec: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = catalog.find_pair("qwen3.6-27b-mtp")
    repo, file = spec.target.repo, spec.target.file or ""
    heads_on_hub.add(repo, file, target_bytes(), licence="apache-2.0")
    done = localspec("download", spec.name)
    assert done.code == 0
    assert done.out == f"{paths.models_folder() / repo / file}\n"
    row = next(line for line in localspec("pairs").out.splitlines() if line.startswith(spec.name))
    assert row.split("\t")[2] == "both"
    shown = localspec("pair", "show", spec.name)
    assert "draft         prediction heads of the target\n" in shown.out
    assert "kind          draft-mtp\n" in shown.out
    assert localspec("check", spec.name).code == 0
    verified = localspec("verify", spec.name)
    assert verified.code == 0 and len(verified.out.splitlines()) == 1


def test_a_pair_without_the_heads_it_should_have_is_not_fetched(
    heads_on_hub: FakeHub, localspec: Command
) -> None:
    spec = catalog.find_pair("qwen3.6-27b-mtp")
    heads_on_hub.add(spec.target.repo, spec.target.file or "", target_bytes(held=0))
    done = localspec("download", spec.name)
    assert done.code == 1 and "its conversion left them out" in done.err
    assert not any(paths.models_folder().rglob("*.gguf"))


# --- pairs of one's own ---


def test_a_pair_of_ones_own_may_draft_with_heads(localspec: Command, models: Path) -> None:
    own = models / "own.gguf"
    done = localspec("pair", "add", "mine", "--target", own, "--draft", "mtp")
    assert (done.code, done.out) == (0, "")
    shown = json.loads(localspec("pair", "show", "mine", "--json").out)
    assert (shown["target"], shown["draft"]) == (str(own), "mtp")
    assert shown["here"] == [True, True] and shown["size"] == own.stat().st_size
    assert localspec("check", "mine").code == 0
    assert localspec("verify", "mine").out.splitlines()[0].startswith("right ")
    refused = localspec("pair", "add", "bad", "--target", models / "left.gguf", "--draft", "mtp")
    assert refused.code == 1 and "left them out" in told(refused)[0]
    assert localspec("pair", "add", "mtp", "-m", own, "-md", own).code == 2  # a word of --draft


def test_a_pair_with_a_sidecar_beside_its_target(localspec: Command, models: Path) -> None:
    zoo.put(models / "mtp-plain.gguf", mtp_bytes())
    plain = models / "plain.gguf"
    assert localspec("pair", "add", "two", "--target", plain, "--draft", "mtp").code == 0
    verified = localspec("verify", "two")
    assert verified.code == 0 and len(verified.out.splitlines()) == 1
