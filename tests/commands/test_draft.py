"""The command draft make and --draft self, with real llama.cpp on a target with silent layers."""

import errno
import json
import shlex
import shutil
from pathlib import Path

import pytest

from localspec.core import paths
from localspec.engine.engine import Engine
from localspec.metadata.header import read_header
from localspec.self_draft import making, store, vocabulary
from localspec.self_draft.make import make_draft
from localspec.self_draft.recipe import Recipe
from tests.support.command import HELLO, Command

pytestmark = pytest.mark.llama

RECIPE = Recipe(2)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "COUNT_BUDGET", 0.0)


def keep(target: Path) -> Path:
    """Put a draft of a target into the store."""
    with store.work_folder() as folder:
        draft = folder / "draft.gguf"
        make_draft(read_header(target), RECIPE, draft)
        return store.store_draft(read_header(target), draft)


def test_json_tells_all_that_was_made(localspec: Command, silent_target: Path) -> None:
    done = localspec("draft", "make", silent_target, "--layers", "2", "-t", "1", "--json")
    assert done.code == 0 and done.err.startswith("Making a draft of the first 2 of 6 layers in Q4")
    document = json.loads(done.out)
    assert document["target"] == document["source"] == str(silent_target)
    assert document["output"] is None
    assert document["kept"] == str(store.find(read_header(silent_target)))
    made = document["draft"]
    assert made.pop("n_bytes") > 0
    assert made == {"layers": 2, "type": "Q4_0", "vocab": None, "heads": False}


def test_what_was_made_is_said_with_the_next_command(
    localspec: Command, silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "my draft.gguf"
    flags = ("--layers", "3", "--type", "q4_0", "-t", "1", "-o", output.name)
    monkeypatch.chdir(tmp_path)
    done = localspec("draft", "make", silent_target, *flags)
    kept = store.find(read_header(silent_target))
    assert done.code == 0 and kept is not None
    size, stored, written, judged = done.out.splitlines()
    assert size.startswith("Made: the first 3 of 6 layers in Q4_0, ") and size.endswith("B.")
    assert stored == f"Stored for --draft self: {kept}."
    assert written == f"Written to {output.name}."
    command = ["localspec", "tune", "--target", f"{silent_target}", "--draft", f"{output}"]
    assert judged == f"Whether it pays: {shlex.join(command)}"  # which any folder may type
    assert "--draft self" in localspec("draft", "make", silent_target, *flags[:-2]).out
    assert output.read_bytes() == kept.read_bytes()
    assert read_header(output).block_count == 3


def test_what_cannot_be_copied_is_kept_all_the_same(
    localspec: Command, silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copyfile(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    flags = ("--layers", "2", "--type", "keep", "-t", "1", "-o", tmp_path / "draft.gguf")
    done = localspec("draft", "make", silent_target, *flags)
    assert done.code == 1 and "No space left" in done.sentences
    assert store.find(read_header(silent_target)) is not None
    assert not (tmp_path / "draft.gguf").exists()


def test_a_draft_with_fewer_output_rows(
    localspec: Command, silent_target: Path, tmp_path: Path
) -> None:
    small, output = tmp_path / "small.gguf", tmp_path / "trimmed.gguf"
    made = ("draft", "make", silent_target, "--layers", "2", "--type", "keep", "-t", "1")
    done = localspec(*made, "--vocab", "64", "-o", small)
    assert done.code == 0 and "Made: the first 2 of 6 layers, 64 output rows" in done.out
    assert "Stored for --draft self" in done.out
    done = localspec("run", "-m", silent_target, "--draft", "self", "-n", "4", "-t", "1", HELLO)
    assert done.code == 0 and "made of the target." in done.err
    make_draft(read_header(silent_target), RECIPE, small)
    flags = ("draft", "make", silent_target, "-md", small, "--vocab", "128", "-t", "1")
    done = localspec(*flags)
    assert done.code == 2 and "--output FILE" in done.err
    done = localspec(*flags, "-o", small)
    assert done.code == 1 and "is the draft itself" in done.sentences
    assert f"--draft {output}" in localspec(*flags, "-o", output).out.replace("'", "")
    done = localspec(*flags, "-o", output, "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["kept"] is None and document["source"] == str(small)
    assert document["draft"] | {"n_bytes": 0} == {
        **{"layers": 2, "type": "keep", "vocab": 128, "heads": False, "n_bytes": 0}
    }
    greedy = ("run", "-m", silent_target, "-n", "4", "-t", "1", "--temp", "0", HELLO)
    done, plain = localspec(*greedy, "-md", output), localspec(*greedy, "--draft", "off")
    assert done.code == 0 and done.out == plain.out


def test_bad_wishes_are_told_before_anything_is_loaded(
    localspec: Command, silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "load", None)
    other = Path(shutil.copy(silent_target, tmp_path / "other.gguf"))
    before = other.read_bytes()
    for flags, words in (
        (("--layers", "7"), "has 6 layers"),
        (("--layers", "0"), "a whole number from 1"),
        (("--layers", "many"), "a whole number from 1"),
        (("--type", "Q9_9"), "Q9_9"),
        (("--type", "keep", "--layers", "6"), "the target itself"),
        (("-o", str(silent_target)), "the target itself"),
        (("-o", str(other)), "not a draft made by localspec"),
        (("-o", str(tmp_path / "missing" / "x.gguf")), "There is no folder"),
    ):
        done = localspec("draft", "make", silent_target, *flags)
        assert done.code and words in done.sentences, flags
    assert other.read_bytes() == before
    assert localspec("draft", "make", tmp_path / "none.gguf").code == 1
    assert localspec("draft", "make", silent_target.with_name("none"), "--json").out == ""


def test_the_draft_of_a_target_drafts(localspec: Command, silent_target: Path) -> None:
    kept = keep(silent_target)
    flags = ("-m", silent_target, "-n", "12", "-t", "1", "--temp", "0", "--json", HELLO)
    plain = json.loads(localspec("run", *flags, "--draft", "off").out)
    done = localspec("run", *flags, "--draft", "self", "--draft", "3")
    assert f"Draft: {kept}, made of the target." in done.err
    drafted = json.loads(done.out)
    assert drafted["drafted"] > 0 == plain["drafted"] and drafted["text"] == plain["text"]
    assert localspec("run", *flags, "--draft", "self", "--draft", "off").err.count("Draft:") == 0


def test_tune_tries_the_draft_of_a_target(localspec: Command, silent_target: Path) -> None:
    kept = keep(silent_target)
    listed = localspec("tune", "-m", silent_target, "--dry-run").out
    assert f"draft_model={kept.name}" in listed
    assert (
        kept.name not in localspec("tune", "-m", silent_target, "--draft", "self", "--dry-run").out
    )


def test_self_needs_a_draft_that_was_made(localspec: Command, silent_target: Path) -> None:
    flags = ("run", "-m", silent_target, "--draft", "self", "-n", "4", "-t", "1", HELLO)
    done = localspec(*flags)
    assert done.code == 1 and "No draft was made of" in done.sentences
    assert f"Make one: localspec draft make {silent_target}" in done.sentences
    kept = keep(silent_target)
    assert localspec(*flags).code == 0
    kept.write_bytes(b"damaged")
    done = localspec(*flags)
    assert done.code == 1 and kept.name in done.sentences and "GGUF" in done.sentences


def test_other_commands_say_what_self_is(localspec: Command, silent_target: Path) -> None:
    for arguments in (
        ("check", silent_target, "self"),
        ("export", silent_target, "--draft", "self", "--to", "vllm"),
    ):
        done = localspec(*arguments)
        assert done.code == 2 and "draft make" in done.err, done.err
    done = localspec("pair", "add", "mine", "--target", silent_target, "--draft", "self")
    assert done.code == 2 and "A pair needs a target and a draft" in done.err
    assert localspec("pair", "add", "self", "--target", silent_target).code == 2


def test_heads_with_fewer_output_rows(localspec: Command, tmp_path: Path) -> None:
    target = Path(shutil.copy(paths.bundled_folder() / "hybrid.gguf", tmp_path / "hybrid.gguf"))
    output, counts = tmp_path / "mtp-hybrid.gguf", tmp_path / "counts.txt"
    counts.write_text("def join(path, *paths):\n    return path\n")
    make = ("draft", "make", target, "--vocab", "512", "-t", "1")
    done = localspec(*make, "--counts", counts, "-o", output)
    assert done.code == 0 and "Made: the MTP heads, 512 output rows, " in done.out
    kept = store.find(read_header(target))
    assert kept is not None and output.read_bytes() == kept.read_bytes()
    ask = ("run", "-m", target, "-n", "12", "-t", "1", "--temp", "0", "--json", HELLO)
    plain = json.loads(localspec(*ask, "--draft", "off").out)
    for named in (("-md", output), ("--draft", "self"), ("--draft", "mtp")):
        done = localspec(*ask, *named, "--draft", "3")
        drafted = json.loads(done.out)
        assert drafted["drafted"] > 0 and drafted["text"] == plain["text"]
    done = localspec("draft", "make", target, "--counts", counts, "--type", "Q4_0")
    assert done.code == 2 and "Give --vocab N" in done.err


def test_heads_get_as_many_output_rows_as_cover_the_text(
    localspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "COUNT_BUDGET", 1e9)
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 12)
    target = Path(shutil.copy(paths.bundled_folder() / "hybrid.gguf", tmp_path / "hybrid.gguf"))
    output = tmp_path / "mtp-hybrid.gguf"
    done = localspec("draft", "make", target, "-t", "1", "--json", "-o", output)
    found = json.loads(done.out)
    assert done.code == 0 and "of the MTP heads, counting" in done.err
    trimmed = read_header(output).trimmed
    assert trimmed is not None and 0 < len(trimmed.ids) < 4096
    assert found["draft"]["vocab"] == len(trimmed.ids) and found["draft"]["heads"]
