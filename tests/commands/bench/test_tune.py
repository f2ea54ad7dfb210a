"""The command tune: lists, measures, keeps what is faster, and undoes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.bench.figures import FEWEST_PROMPTS
from localspec.bench.tuning.candidates import NOW, Candidate
from localspec.bench.tuning.search import (
    UNTRIED,
    Finalist,
    Outcome,
    Ratioed,
    Search,
    Tried,
    TriedType,
)
from localspec.bench.tuning.trial import Answered
from localspec.bench.tuning.types import TypeCosts
from localspec.commands.flags import tuned
from localspec.commands.flags.settings import read_settings
from localspec.core import machine
from tests.support.command import Command, Done
from tests.support.files.tiny_models import write_tiny_model
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama

ANSWERED = Answered(10, 9, 2.0, 0.5, 1.2, {1: 9}, 0, 20)
KERNELS = Candidate("kernels", {"row_kernels": False}, rounds=True)
THREADS = Candidate("threads", {"threads": 1})


def outcome(
    interval: tuple[float, float], reason: str = "It crashed.", *, with_types: bool = False
) -> Outcome:
    now = Finalist(NOW, 1.0, Ratioed(), ANSWERED, 10**9, False)
    best = Finalist(KERNELS.values, 1.3, Ratioed(1.25, interval), ANSWERED, 10**9, True)
    tried = Tried(KERNELS, 1.3), Tried(THREADS, None, reason)
    here, failed = (
        TypeCosts("F16", 3 * 10**9, {}, Path("/m/t-f16.gguf")),
        TypeCosts("Q6_K", reason="No room."),
    )
    types = TriedType(here, 0.6, "current"), TriedType(failed)
    return Outcome(tried, (now, best), 100.0, types if with_types else ())


@pytest.fixture
def tune(localspec: Command, tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`localspec tune` on the tiny pair, on a quiet machine."""
    monkeypatch.setattr(machine, "other_work", lambda: None)

    def call(*flags: str) -> Done:
        pair = ("-m", tiny.target, "-md", tiny.draft, "-t", "1", "-c", "1024")
        return localspec("tune", *pair, *flags)

    return call


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a search find an outcome without measuring."""

    def find(found: Outcome, searches: list[Search] = []) -> None:  # noqa: B006
        def run(search: Search) -> Outcome:
            searches.append(search)
            return found

        monkeypatch.setattr(Search, "run", run)

    return find


def test_a_dry_run_lists_what_would_be_tried(tune: Command) -> None:
    done = tune("--dry-run")
    assert done.code == 0 and "flash_attention=off\tmay round otherwise" in done.out
    assert "With this time: about 3 minutes." in done.err
    listed = json.loads(tune("--dry-run", "--json", "--time", "90s").out)
    assert listed["seconds"] == 90 and {"flash_attention": "off"} in listed["candidates"]
    assert not read_settings().tuned


def test_other_drafts_on_this_disk_and_types_are_listed(localspec: Command, tmp_path: Path) -> None:
    target, draft, other = (
        write_tiny_model(tmp_path / f"{name}.gguf", seed=1, layers=layers, context_length=256)
        for name, layers in (("target", 3), ("draft", 1), ("other", 1))
    )
    assert other.exists()
    pair = "tune", "-m", target, "-md", draft, "--dry-run"
    done = localspec(*pair, "--types")
    assert "draft_model=other.gguf" in done.out and "draft_model=draft.gguf" not in done.out
    assert "Then for some minutes types of the target: Q8_0, Q6_K" in done.err  # it is F16
    assert json.loads(localspec(*pair, "--types", "--json").out)["types"][0] == "Q8_0"
    assert json.loads(localspec(*pair, "--json").out)["types"] == []
    assert "types of the target" not in localspec(*pair).err


def test_tune_measures_the_pair_in_the_time(tune: Command) -> None:
    done = tune("--time", "30s", "--json", "--for", "code")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["model"] == "target" and found["seconds"] > 0
    assert found["measured"][0]["settings"] == {} and found["measured"][0]["generation_tps"] > 0
    tried = [each["settings"] for each in found["tried"]]
    assert {"draft_tokens": "off"} in tried and {"prompt_lookup": False} in tried
    assert ("target" in read_settings().tuned) == bool(found["kept"])


def test_what_is_faster_beyond_doubt_is_kept_and_undone(tune: Command, finds: Any) -> None:
    finds(outcome((1.1, 1.4)))
    done = tune()
    assert done.code == 0 and "row_kernels=off\t4.5\t1.25x\t1.10 to 1.40\t1.20 s" in done.out
    assert "threads=1\t–\tIt crashed." in done.out
    assert done.sentences == (
        "Kept for target: row_kernels=off, which may round otherwise. Whole answers come 1.25 "
        "times as fast (measured for 100 seconds). Back: localspec tune --undo target"
    )
    assert read_settings().tuned["target"].values == {"row_kernels": False}
    assert "are forgotten" in tune("--undo").err and not read_settings().tuned
    again = tune("--undo")
    assert again.code == 0
    assert "Nothing to undo: tune has kept no settings for target." in again.sentences


def test_a_report_is_one_page_with_both_tables(tune: Command, finds: Any, tmp_path: Path) -> None:
    finds(outcome((1.1, 1.4)))
    page = tmp_path / "tune.html"
    assert tune("--report", str(page)).code == 0
    text = page.read_text()
    assert "row_kernels=off" in text and "It crashed." in text and "1.10 to 1.40" in text
    assert "http" not in text and "Kept for target" in text
    refused = tune("--report", str(tmp_path))
    assert refused.code == 1 and "cannot be written" in refused.err


def test_types_are_a_table_of_their_own(tune: Command, finds: Any, tmp_path: Path) -> None:
    searches, page = list[Search](), tmp_path / "tune.html"
    finds(outcome((1.1, 1.4), with_types=True), searches)
    done = tune("--types", "--report", str(page))
    assert "F16\t3.0 GB\t0.60x\tcurrent\tt-f16.gguf is here" in done.out
    assert "Q6_K\t–\t–\t\tNo room." in done.out
    assert "writes another text, so none was chosen." in done.err
    assert "0.60x" in page.read_text() and "No room." in page.read_text()
    first, second = json.loads(tune("--json").out)["types"]
    assert (first["type"], first["predicted_speedup"], first["size"]) == ("F16", 0.6, 3 * 10**9)
    assert (second["predicted_speedup"], second["remark"]) == (None, "No room.")
    assert searches[0].types and not searches[1].types  # measured only with the flag


def test_without_types_none_are_named(tune: Command, finds: Any, tmp_path: Path) -> None:
    finds(outcome((1.1, 1.4)))
    done = tune("--report", str(tmp_path / "tune.html"))
    assert "TYPE" not in done.out and "another text" not in done.err
    assert "Other types" not in (tmp_path / "tune.html").read_text()


def test_ctrl_c_says_that_nothing_changed(tune: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(search: Search) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "run", interrupt)
    done = tune()
    assert done.code == 130 and "Stopped: the settings stay as they are." in done.err


def test_what_may_be_noise_is_not_kept(tune: Command, finds: Any) -> None:
    finds(outcome((0.98, 1.4)))
    done = tune()
    assert "Nothing that was tried is clearly faster" in done.err and not read_settings().tuned
    assert "longer --time" not in done.err
    finds(outcome((0.98, 1.4), UNTRIED))
    assert "(100 seconds); a longer --time tries the others." in " ".join(tune().err.split())


def test_tuning_again_goes_on_from_what_was_found(tune: Command, finds: Any) -> None:
    tuned.keep("target", "draft.gguf", {"draft_tokens": "4"})
    searches = list[Search]()
    finds(outcome((1.1, 1.4)), searches)
    assert tune().code == 0
    assert searches[0].pair.answers["draft_tokens"] == "4"
    both = {"draft_tokens": "4", "row_kernels": False}
    assert read_settings().tuned["target"].values == both
    finds(outcome((0.98, 1.4)))
    tune()
    assert read_settings().tuned["target"].values == both


@pytest.mark.parametrize("kind", ["code", "chat", "edit", "agent", None])
def test_each_kind_has_prompts_enough_for_an_interval(
    tune: Command, finds: Any, kind: str | None
) -> None:
    searches = list[Search]()
    finds(outcome((1.1, 1.4)), searches)
    tune(*([] if kind is None else ["--for", kind]))
    assert len(searches[0].held) >= FEWEST_PROMPTS and len(searches[0].recorded) >= 2


def test_ctrl_c_while_types_are_measured_keeps_the_settings(tune: Command, finds: Any) -> None:
    finds(replace(outcome((1.1, 1.4), with_types=True), stopped=True))
    done = tune("--types")
    assert done.code == 130 and "Stopped: 2 of 6 types were measured." in done.err
    assert "row_kernels=off\t4.5\t1.25x" in done.out and "F16\t3.0 GB" in done.out
    assert read_settings().tuned["target"].values == {"row_kernels": False}


def test_another_program_makes_it_take_longer(
    tune: Command, finds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = list[float]()

    def run(search: Search) -> Outcome:
        seconds.append(search.seconds)
        return outcome((1.1, 1.4))

    monkeypatch.setattr(Search, "run", run)
    tune("--time", "2m")
    monkeypatch.setattr(machine, "other_work", lambda: "Other programs use 1.0 of 2 cores.")
    assert "Measuring takes longer for that." in tune("--time", "2m").err
    assert seconds == [120, 180]


@pytest.mark.parametrize("time", ["soon", "3", "29s", "25h", "m", "nan", "infs", ""])
def test_a_time_that_is_none_is_refused(tune: Command, time: str) -> None:
    done = tune("--time", time)
    assert done.code == 2 and "is not a time from 30s to 24h" in done.sentences


def test_rpc_is_refused(tune: Command) -> None:
    done = tune("--rpc", "127.0.0.1:50052")
    assert done.code == 2 and "tune measures this machine alone." in done.sentences
