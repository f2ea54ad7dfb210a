"""The command draft make and --draft self, with real llama.cpp on a target with silent layers."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from localspec.bench import self_draft
from localspec.core import paths
from localspec.engine.engine import Engine
from localspec.metadata.header import read_header
from localspec.self_draft import store, vocabulary
from localspec.self_draft.make import make_draft
from localspec.self_draft.recipe import Recipe
from localspec.self_draft.verdict import DraftVerdict
from tests.support.command import HELLO, Command
from tests.support.llama.self_drafts import LOSES, PAYS

pytestmark = pytest.mark.llama

RECIPE = Recipe(2)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_draft, "ANSWER_TOKENS", 8)
    monkeypatch.setattr(self_draft, "VERDICT_BUDGET", 0.0)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> DraftVerdict:
    """The verdict that is always found, whatever this machine measures."""
    monkeypatch.setattr(self_draft, "judge", lambda *arguments, **more: PAYS)
    return PAYS


@pytest.fixture
def loses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_draft, "judge", lambda *arguments, **more: LOSES)


def keep(target: Path, found: DraftVerdict | None) -> store.StoredDraft:
    """Put a draft of a target into the store."""
    with store.work_folder() as folder:
        draft = folder / "draft.gguf"
        make_draft(read_header(target), RECIPE, draft)
        return store.store_draft(read_header(target), RECIPE, draft, found)


def test_json_tells_all_that_was_found(localspec: Command, silent_target: Path) -> None:
    done = localspec("draft", "make", silent_target, "--layers", "2", "-t", "1", "--json")
    assert done.code == 0 and done.err.startswith("Making a draft of the first 2 of 6 layers in Q4")
    document = json.loads(done.out)
    assert document["target"] == document["source"] == str(silent_target)
    assert document["output"] is None and document["stopped"] is False
    made = document["draft"]
    assert made.pop("n_bytes") > 0
    assert made == {"layers": [0, 1], "type": "Q4_0", "vocab": None, "heads": False}
    assert set(document["verdict"]) == {
        *("pays", "speedup", "speedup_interval", "lookup_speedup", "over_lookup", "reason"),
        *("over_lookup_interval", "acceptance_rate", "mean_accepted_length", "draft_memory"),
        *("text", "ceiling", "prompts", "looping", "whole_heads"),
    }
    assert (document["kept"] is not None) == document["verdict"]["pays"]
    assert document["verdict"]["text"] in ("same", "rounding")


def test_the_verdict_is_one_line(
    localspec: Command, silent_target: Path, tmp_path: Path, judged: DraftVerdict
) -> None:
    output = tmp_path / "draft.gguf"
    flags = ("--layers", "3", "--type", "q4_0", "-t", "1", "-o", output)
    done = localspec("draft", "make", silent_target, *flags)
    assert done.code == 0
    said, place = done.out.splitlines()
    assert said.startswith(
        "It pays: the first 3 of 6 layers in Q4_0 gives 1.50x plain (1.40 to 1.6"
    )
    assert "75% of its tokens" in said and "2.50 tokens" in said and "memory 1 MB" in said
    kept = store.find(read_header(silent_target))
    assert kept is not None and kept.path is not None and kept.verdict == judged
    assert str(kept.path) in place and str(output) in place
    assert output.read_bytes() == kept.path.read_bytes()
    assert read_header(output).block_count == 3


@pytest.mark.usefixtures("loses")
def test_a_no_is_said_plainly_and_remembered(
    localspec: Command, silent_target: Path, tmp_path: Path
) -> None:
    flags = ("draft", "make", silent_target, "-t", "1")
    done = localspec(*flags)
    assert "does NOT pay: all 6 layers in Q4_0 gives 0.90x" in done.out
    assert "at most 2.50x" in done.out and "add --output FILE" in done.out
    kept = store.find(read_header(silent_target))
    assert kept is not None and kept.path is None
    done = localspec(*flags, "-o", tmp_path / "draft.gguf")
    assert done.code == 0 and (tmp_path / "draft.gguf").exists()
    assert "not stored" in done.out and "add --output" not in done.out


def test_what_was_kept_stays_unless_more_is_known(
    localspec: Command, silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt at one draft tells nothing of others."""
    make = ("draft", "make", silent_target, "--type", "keep", "-t", "1", "--layers")
    found: list[DraftVerdict | None] = [LOSES]

    def judge(*arguments: object, **more: object) -> DraftVerdict:
        if found[0] is None:
            raise KeyboardInterrupt
        return found[0]

    monkeypatch.setattr(self_draft, "judge", judge)
    done = localspec(*make, "3")
    assert "goes on as before" in done.out and "add --output FILE" in done.out
    assert store.find(read_header(silent_target)) is None
    kept = keep(silent_target, PAYS)  # of two layers
    for verdict_now in (LOSES, None):
        found[0] = verdict_now
        assert "goes on as before" in localspec(*make, "3").out
        assert store.find(read_header(silent_target)) == kept
    found[0] = LOSES  # measured again
    assert "--draft self says so" in localspec(*make, "2").out
    assert store.find(read_header(silent_target)) == store.StoredDraft(None, RECIPE, LOSES)
    found[0] = PAYS
    assert "Stored for --draft self" in localspec(*make, "3").out


@pytest.mark.usefixtures("judged")
def test_what_cannot_be_copied_is_kept_all_the_same(
    localspec: Command, silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copyfile(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", copyfile)
    flags = ("--layers", "2", "--type", "keep", "-t", "1", "-o", tmp_path / "draft.gguf")
    done = localspec("draft", "make", silent_target, *flags)
    assert done.code == 1 and "No space left" in done.sentences
    kept = store.find(read_header(silent_target))
    assert kept is not None and kept.path is not None
    assert not (tmp_path / "draft.gguf").exists()


@pytest.mark.usefixtures("judged")
def test_a_draft_with_fewer_output_rows(
    localspec: Command, silent_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_draft, "COUNT_BUDGET", 0.0)
    small, output = tmp_path / "small.gguf", tmp_path / "trimmed.gguf"
    made = ("draft", "make", silent_target, "--layers", "2", "--type", "keep", "-t", "1")
    done = localspec(*made, "--vocab", "64", "-o", small)
    assert done.code == 0 and "the first 2 of 6 layers, 64 output rows gives 1.50x" in done.out
    assert "Stored for --draft self" in done.out
    done = localspec("run", "-m", silent_target, "--draft", "self", "-n", "4", "-t", "1", HELLO)
    assert done.code == 0 and "made of the target (1.50x plain" in done.err
    make_draft(read_header(silent_target), RECIPE, small)
    flags = ("draft", "make", silent_target, "-md", small, "--vocab", "128", "-t", "1")
    done = localspec(*flags)
    assert done.code == 2 and "--output FILE" in done.err
    done = localspec(*flags, "-o", small)
    assert done.code == 1 and "is the draft itself" in done.sentences
    done = localspec(*flags, "-o", output, "--json")
    document = json.loads(done.out)
    assert done.code == 0 and document["kept"] is None and document["source"] == str(small)
    assert document["draft"] | {"n_bytes": 0} == {
        **{"layers": [0, 1], "type": "keep", "vocab": 128, "heads": False, "n_bytes": 0}
    }
    greedy = ("run", "-m", silent_target, "-n", "4", "-t", "1", "--temp", "0", HELLO)
    done, plain = localspec(*greedy, "-md", output), localspec(*greedy, "--draft", "off")
    assert done.code == 0 and done.out == plain.out


def test_ctrl_c_keeps_what_there_is_and_says_so(
    localspec: Command, silent_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*arguments: object, **more: object) -> DraftVerdict:
        raise KeyboardInterrupt

    monkeypatch.setattr(self_draft, "judge", judge)
    flags = ("draft", "make", silent_target, "--layers", "2", "--type", "keep", "-t", "1")
    done = localspec(*flags)
    assert done.code == 130 and "Stopped: whether it pays was not measured" in done.out
    done = localspec("run", "-m", silent_target, "--draft", "self", "-n", "4", "-t", "1", HELLO)
    assert done.code == 0 and "made of the target; whether it pays was not measured" in done.err
    assert json.loads(localspec(*flags, "--json").out)["verdict"] is None


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


def test_a_draft_that_pays_drafts(localspec: Command, silent_target: Path) -> None:
    kept = keep(silent_target, PAYS)
    flags = ("-m", silent_target, "-n", "12", "-t", "1", "--temp", "0", "--json", HELLO)
    plain = json.loads(localspec("run", *flags, "--draft", "off").out)
    done = localspec("run", *flags, "--draft", "self", "--draft", "3")
    assert f"Draft: {kept.path}, made of the target (1.50x plain, prompt lookup" in done.err
    drafted = json.loads(done.out)
    assert drafted["drafted"] > 0 == plain["drafted"] and drafted["text"] == plain["text"]
    assert localspec("run", *flags, "--draft", "self", "--draft", "off").err.count("Draft:") == 0


def test_self_needs_a_draft_that_was_made(localspec: Command, silent_target: Path) -> None:
    flags = ("run", "-m", silent_target, "--draft", "self", "-n", "4", "-t", "1", HELLO)
    done = localspec(*flags)
    assert done.code == 1 and "No draft was made of" in done.sentences
    assert f"Make one: localspec draft make {silent_target}" in done.sentences
    kept = keep(silent_target, PAYS)
    assert localspec(*flags).code == 0 and kept.path is not None
    kept.path.write_bytes(b"damaged")
    assert "or it is out of date" in localspec(*flags).sentences


def test_a_draft_that_does_not_pay_is_not_used(localspec: Command, silent_target: Path) -> None:
    keep(silent_target, LOSES)
    flags = ("-m", silent_target, "--draft", "self", "-n", "4", "-t", "1", HELLO)
    done = localspec("run", *flags)
    assert done.code == 0
    line = next(line for line in done.err.splitlines() if "does not pay here" in line)
    assert "0.90x plain, prompt lookup alone 1.10x" in line and "draft make measures again" in line
    done = localspec("run", *flags, "--draft", "4", "--json")
    assert json.loads(done.out)["drafted"] == 0


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


def test_heads_with_fewer_output_rows(
    localspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [PAYS, LOSES]  # of the trimmed heads, and of the whole ones
    monkeypatch.setattr(self_draft, "judge", lambda *arguments, **more: verdicts.pop(0))
    target = Path(shutil.copy(paths.demo_hybrid(), tmp_path / "hybrid.gguf"))
    output, counts = tmp_path / "mtp-hybrid.gguf", tmp_path / "counts.txt"
    counts.write_text("def join(path, *paths):\n    return path\n")
    make = ("draft", "make", target, "--vocab", "512", "-t", "1")
    done = localspec(*make, "--counts", counts, "-o", output)
    assert done.code == 0 and "the MTP heads, 512 output rows gives 1.50x plain" in done.out
    assert "The whole heads give 0.90x plain." in done.out and "Stored for" in done.out
    kept = store.find(read_header(target))
    assert kept is not None and kept.path is not None and kept.verdict is not None
    assert kept.verdict.whole_heads == 0.9 and kept.recipe == Recipe(0, "keep", 512, heads=True)
    assert output.read_bytes() == kept.path.read_bytes()
    ask = ("run", "-m", target, "-n", "12", "-t", "1", "--temp", "0", "--json", HELLO)
    plain = json.loads(localspec(*ask, "--draft", "off").out)
    for named in (("-md", output), ("--draft", "self"), ("--draft", "mtp")):
        done = localspec(*ask, *named, "--draft", "3")
        drafted = json.loads(done.out)
        assert drafted["drafted"] > 0 and drafted["text"] == plain["text"]
    verdicts += [PAYS, PAYS]
    done = localspec(*make, "--counts", counts)
    assert "The whole heads are as fast: 1.50x plain." in done.out
    done = localspec("draft", "make", target, "--counts", counts, "--type", "Q4_0")
    assert done.code == 2 and "Give --vocab N" in done.err


def test_heads_get_as_many_output_rows_as_cover_the_text(
    localspec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_draft, "judge", lambda *arguments, **more: PAYS)
    monkeypatch.setattr(self_draft, "COUNT_BUDGET", 1e9)
    monkeypatch.setattr(vocabulary, "ANSWER_TOKENS", 12)
    target = Path(shutil.copy(paths.demo_hybrid(), tmp_path / "hybrid.gguf"))
    output = tmp_path / "mtp-hybrid.gguf"
    done = localspec("draft", "make", target, "-t", "1", "--json", "-o", output)
    found = json.loads(done.out)
    assert done.code == 0 and found["stopped"] is False
    assert "of the MTP heads, counting" in done.err
    trimmed = read_header(output).trimmed
    assert trimmed is not None and 0 < len(trimmed.ids) < 4096
    assert found["draft"]["vocab"] == len(trimmed.ids) and found["draft"]["heads"]
