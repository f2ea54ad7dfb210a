"""Settings that `localspec tune` found: kept, used by commands, stale, undone."""

from pathlib import Path

import pytest

from localspec.commands.flags import tuned
from localspec.commands.flags.settings import Tuned, read_settings
from localspec.core import paths
from localspec.core.errors import FileProblem
from tests.support.command import Command, Done
from tests.support.real_pair import TinyFiles

HERE = "the machine of now"


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "this_machine", lambda: HERE)


def config(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_found_settings_are_kept_below_those_of_the_user(localspec: Command) -> None:
    path = config("# mine\nthreads = 2\n")
    tuned.keep("big", None, {"threads": 1, "draft_tokens": "off"})
    assert path.read_text().startswith("# mine\nthreads = 2\n")
    found = read_settings().tuned_for("/m/big.gguf")
    assert found is not None and found.values == {"threads": 1, "draft_tokens": "off"}
    assert found.machine == HERE
    listed = localspec("config").out
    assert f"threads\t1\tlocalspec tune, big, {found.date}" in listed and "threads\t2" in listed


def test_tuning_again_replaces_all_that_was_found() -> None:
    tuned.keep("big", None, {"threads": 1})
    tuned.keep("big", None, {"row_kernels": False})
    found = read_settings().tuned_for("big")
    assert found is not None and found.values == {"row_kernels": False}


def test_undo_forgets_one_model() -> None:
    tuned.keep("big", None, {"threads": 1})
    tuned.keep("small", None, {"threads": 2})
    assert tuned.undo("/m/big.gguf") and not tuned.undo("big")
    assert list(read_settings().tuned) == ["small"]
    assert tuned.undo("small") and "tuned" not in paths.config_file().read_text()


def test_another_machine_or_build_makes_them_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned.keep("big", None, {"threads": 1})
    assert tuned.tuned_values(read_settings(), "big", None, ())[0] == {"threads": 1}
    monkeypatch.setattr(tuned, "this_machine", lambda: "another")
    values, note = tuned.tuned_values(read_settings(), "big", None, ())
    assert values == {} and note.endswith("Measure again: localspec tune big")
    assert "of another machine or build" in tuned.shown_for(read_settings())


def test_another_draft_is_another_pair() -> None:
    tuned.keep("big", "/m/y.gguf", {"threads": 1})
    settings = read_settings()
    assert tuned.tuned_values(settings, "big", "other/y.gguf", ())[0] == {"threads": 1}
    for draft in (None, "/m/z.gguf"):
        assert tuned.tuned_values(settings, "big", draft, ()) == ({}, "")


def test_a_faster_draft_is_named_where_a_flag_names_one() -> None:
    tuned.keep("big", "y.gguf", {"threads": 1, "draft_model": "/m/z.gguf"})
    values, note = tuned.tuned_values(read_settings(), "big", "y.gguf", ())
    assert values == {} and note.endswith("found a faster draft: --draft /m/z.gguf")


def test_a_flag_wins_over_what_was_found() -> None:
    tuned.keep("big", None, {"threads": 1, "row_kernels": False})
    values, note = tuned.tuned_values(read_settings(), "big", None, {"threads": 4})
    assert values == {"row_kernels": False} and "threads" not in note
    assert tuned.tuned_values(read_settings(), "other", None, ()) == ({}, "")


@pytest.mark.parametrize("text", ["tuned = 3", "[tuned]\nbig = 3", "[tuned.big]\nthreds = 1"])
def test_a_damaged_table_is_named(text: str) -> None:
    config(text)
    with pytest.raises(FileProblem, match=r"tuned|threds"):
        read_settings()


def test_this_machine_is_the_same_at_each_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = tuned.this_machine()
    assert tuned.this_machine() == first
    monkeypatch.setattr("localspec.core.machine.cpu_name", lambda: "another processor")
    assert tuned.this_machine() != first


def run(localspec: Command, tiny: TinyFiles, *flags: str) -> Done:
    config_flags = ("-m", tiny.target, "-c", "256", "--temp", "0", "-n", "4", *flags)
    return localspec("run", *config_flags, "the thing")


@pytest.mark.llama
def test_run_uses_what_was_found_and_says_so(localspec: Command, tiny: TinyFiles) -> None:
    tuned.keep("target", None, {"threads": 1, "draft_model": str(tiny.draft)})
    found = read_settings().tuned_for("target")
    assert isinstance(found, Tuned)
    done = run(localspec, tiny)
    assert done.code == 0
    assert f"Settings of localspec tune of {found.date}: threads=1 draft_model=" in done.err
    assert "drafted" in done.err or "draft" in done.err
    assert "localspec tune" not in run(localspec, tiny, "-md", str(tiny.draft), "-t", "1").err


@pytest.mark.llama
def test_the_note_names_only_what_is_used(localspec: Command, tiny: TinyFiles) -> None:
    tuned.keep("target", None, {"threads": 1, "draft_tokens": "3"})
    assert "threads=1 draft_tokens=3." in run(localspec, tiny).err
    assert "threads=1." in run(localspec, tiny, "--draft", "off").err
    assert localspec("config", "set", "--for", "target", "threads", "1").code == 0
    assert "localspec tune" not in run(localspec, tiny, "--draft", "off").err
