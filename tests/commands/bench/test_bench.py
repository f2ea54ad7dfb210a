"""The command bench: a table, one JSON document, and what ends it early."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from localspec.bench.report.page import render
from localspec.core import machine
from localspec.core.errors import EngineError, FileProblem
from localspec.llama import llama_library
from localspec.llama.row_kernels import RowKernels
from tests.support.command import Command, Done
from tests.support.real_pair import TinyFiles

pytestmark = pytest.mark.llama


@pytest.fixture
def bench(localspec: Command, tiny: TinyFiles, tmp_path: Path) -> Command:
    """`localspec bench --thorough` on the tiny pair: two tasks, one thread, 4 tokens, 2 repeats."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"task": task, "prompt": f"the {word}"} for task in ("one", "two") for word in "ab"]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    pair = ("-m", tiny.target, "-md", tiny.draft)

    def call(*arguments: str | Path, pair: Sequence[str | Path] = pair) -> Done:
        flags = ("-t", "1", "-n", "4", "--thorough", "--repeats", "2", "--prompts", prompts)
        return localspec("bench", *pair, *flags, *arguments)

    return call


def table(done: Done) -> list[str]:
    """What was shown, without the sentence on rounding that a build with row kernels adds."""
    return [line for line in done.out.splitlines() if "to the last bit" not in line]


def test_bench_says_that_drafted_text_is_plain_text(kernels: RowKernels, bench: Command) -> None:
    done = bench("--draft-tokens", "3")
    assert done.code == 0 and "rounding" not in done.out
    assert done.out.splitlines()[-1] == (
        "Passes of all widths round alike: the drafted text is the plain text, to the last bit."
    )


def test_bench_shows_a_table_and_what_it_means(bench: Command) -> None:
    done = bench("--draft-tokens", "3,0,auto")
    assert done.code == 0
    assert "New on this machine" in done.err and "localspec bench" not in done.err
    extent = r"3 settings x 2 repeats x 4 prompts: about \d+ (second|minute|hour)s?, and more"
    assert len(re.findall(extent, done.err)) == 1
    figures = r"plain [\d.]+ tok/s; about \d+ seconds? left"
    row = rf"(?m)^(one|two), the first prompt: {figures}$"
    assert re.findall(row, done.err) == ["one", "two"]
    head, *rows, advice = table(done)
    assert head.split()[:3] == ["task", "draft", "tok/s"]
    assert [row.split()[:2] for row in rows if row[0] != " "] == [
        ["one", "off"], ["two", "off"], ["all", "off"],
    ]  # fmt: skip
    assert [row.split()[0] for row in rows if row[0] == " "] == ["3", "auto"] * 3
    assert all(row.endswith(("same", "rounding")) for row in rows if row[0] == " ")
    assert advice.startswith(("Fastest here: --draft ", "No clear winner: --draft "))


def test_verbose_adds_details(bench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_library.log, "verbose", False)
    done = bench("--draft-tokens", "3,auto", "-v")
    _, _, details = done.out.partition("\nMeasured (cost in plain tokens)\n")
    assert re.search(r"^  --draft 3 +\d.* tokens a round, cost \d", details, re.M)
    assert re.search(r"^  estimate: every drafted token right +\d", details, re.M)
    assert re.search(r"^  pair +\d+ MB \(weights ", details, re.M)


def test_bench_ends_with_one_json_document(
    bench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "other_work", lambda: "Others work.")
    path, page = tmp_path / "result.json", tmp_path / "page.html"
    flags = ("--draft", "2", "--temp", "0.8", "--seed", "9", "--report", page)
    done = bench(*flags, "--json", "--output", path)
    assert done.code == 0
    document = json.loads(done.out)
    assert done.out.count("\n") == 1 and "\ntask " in done.err
    assert json.loads(path.read_text()) == document
    assert page.read_text() == render(document)
    assert f"\nReport: {page}\n" in done.err
    assert "busy" in done.err.rpartition("\ntask ")[2]  # at the verdict too
    assert document["complete"] is True
    assert document["settings"]["draft_tokens"] == [0, 2]
    assert document["settings"]["sampling"]["seed"] == 9
    assert document["settings"]["sampling"]["temperature"] == 0.8
    assert [task["task"] for task in document["tasks"]] == ["one", "two"]
    for task in document["tasks"]:
        assert [side["draft_tokens"] for side in task["sides"]] == [0, 2]
        assert len(task["sides"][1]["speedup_by_repeat"]) == 2
        assert task["sides"][1]["speedup_interval"] is None  # two prompts
    low, high = document["overall"]["sides"][1]["speedup_interval"]
    assert 0 < low <= document["overall"]["sides"][1]["speedup"] <= high


def test_bench_of_rejection_explains_no_text(bench: Command) -> None:
    done = bench("--acceptance", "rejection", "--temp", "0.8", "-n", "20")
    assert done.code == 0
    rows = [row for row in done.out.splitlines() if row[0] == " "]
    assert [row.split()[0] for row in rows] == ["2", "4", "8"] * 3
    assert all(row.endswith("redrawn") for row in rows)


def test_bench_measures_our_own_prompts_greedily(localspec: Command, tiny: TinyFiles) -> None:
    pair = ("-m", tiny.target, "-md", tiny.draft)
    flags = ("-t", "1", "-n", "2", "-r", "1", "-c", "1024", "--json", "--tasks", "edit,code")
    done = localspec("bench", "--thorough", *pair, *flags)
    document = json.loads(done.out)
    names = [prompt["name"] for prompt in document["prompts"]]
    assert names == ["code 1", "code 2", "edit 1", "edit 2"]
    assert document["settings"]["draft_tokens"] == [0, 2, 4, 8, "auto"]
    assert document["settings"]["sampling"]["temperature"] == 0
    assert document["settings"]["sampling"]["seed"] == 0


@pytest.fixture
def quick(localspec: Command, tiny: TinyFiles, tmp_path: Path) -> Command:
    """`localspec bench` as it is by default, on the tiny pair and three prompts of two tasks."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"task": task, "prompt": f"the {word}"} for task, word in ("1a", "1b", "2a")]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    pair = ("-m", tiny.target, "-md", tiny.draft)

    def call(*arguments: str | Path) -> Done:
        return localspec("bench", *pair, "-t", "1", "-n", "4", "--prompts", prompts, *arguments)

    return call


def test_a_quick_bench_asks_one_prompt_of_each_task_in_turn(quick: Command) -> None:
    done = quick("--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["settings"]["draft_tokens"] == [0, "auto"]
    assert document["settings"]["repeats"] == 1
    found = [(each["name"], each["task"]) for each in document["prompts"]]
    assert found == [("all 1", "1"), ("all 2", "2"), ("all 3", "1")]
    assert "2 settings x 1 repeat x 3 prompts" in done.err
    kinds = r"By kind of text \(1 to 2 prompts each\): 1 \d\.\d\dx, 2 \d\.\d\dx\."
    assert re.search(kinds, " ".join(done.err.split()))
    assert document["complete"] is True


@pytest.mark.parametrize("thorough", [False, True])
def test_a_quick_bench_ends_when_its_time_is_over(
    quick: Command, monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    from localspec.commands.bench import bench

    monkeypatch.setattr(bench, "QUICK_SECONDS", 0.0)
    done = quick("--json", *(["--thorough", "-r", "1"] if thorough else []))
    assert done.code == 0
    measured = json.loads(done.out)["overall"]["prompts"]
    assert measured == (["1 1", "1 2", "2 1"] if thorough else ["all 1"])
    assert ("measured 1 of 3 prompts; --thorough measures all." in done.err) == (not thorough)


def test_bench_without_a_draft(bench: Command, tiny: TinyFiles) -> None:
    done = bench("--prompt-lookup", "off", pair=("-m", tiny.target))
    assert done.code == 0 and "name a draft to compare it" in done.out
    assert len(table(done)) == 5
    done = bench(pair=("-m", tiny.target))
    assert done.code == 0 and "auto found nothing worth drafting" in done.out
    assert len(table(done)) == 8
    refused = bench("--draft", "4", pair=("-m", tiny.target))
    assert refused.code == 2 and "no draft model" in refused.err and refused.out == ""


@pytest.mark.parametrize("draft", [(), ("--draft", "mtp")])
def test_bench_of_heads_measures_several_lengths(
    bench: Command, architecture: Callable[[str], Path], draft: tuple[str, ...]
) -> None:
    target = ("-m", architecture("qwen35-mtp"))
    done = bench(*draft, "-c", "256", "--repeats", "1", "--json", pair=target)
    assert done.code == 0
    assert json.loads(done.out)["settings"]["draft_tokens"] == [0, 2, 4, 8, "auto"]
    assert "Fastest here" in done.err


def test_an_unexplained_difference_is_a_failure(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.llama.model import LlamaModel

    honest = LlamaModel.decode

    def moody(self: LlamaModel, tokens: Sequence[int], rows: int) -> object:
        logits = honest(self, tokens, rows)
        return -logits if rows > 1 else logits

    monkeypatch.setattr(LlamaModel, "decode", moody)
    done = bench("--draft", "3", "--json")
    assert done.code == 1
    assert "DIFFERENT" in done.err and "NOT rounding" in done.err
    document = json.loads(done.out)
    assert document["overall"]["sides"][1]["text"] == "different"
    assert document["overall"]["differences"][0]["proven_at"] is None


@pytest.mark.parametrize(
    ("problem", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "Stopped"),
        (None, 130, "Stopped"),  # SIGTERM
        (EngineError("Out of memory.", "Buy some."), 1, "Error: Out of memory."),
    ],
)
def test_what_ends_a_bench_early_keeps_what_was_measured(
    bench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    problem: BaseException | None, code: int, sentence: str,
) -> None:  # fmt: skip
    from localspec.bench.plan import Variant

    left = iter(range(2 + 3 * 4 + 1))  # warm-up, three prompts, and one answer of the fourth
    stream = Variant._stream

    def interrupted(*arguments: Any) -> object:
        if next(left, None) is None:
            if problem is not None:
                raise problem
            signal.raise_signal(signal.SIGTERM)
        return stream(*arguments)

    monkeypatch.setattr(Variant, "_stream", interrupted)
    path = tmp_path / "result.json"
    done = bench("--draft", "2", "--output", path, "--json")
    assert done.code == code and "Traceback" not in done.err
    assert "Stopped early: 3 prompts measured." in done.err and sentence in done.err
    document = json.loads(path.read_text())
    assert document["complete"] is False
    assert document["overall"]["prompts"] == ["one 1", "one 2", "two 1"]
    assert json.loads(done.out) == document


def test_results_survive_a_file_that_cannot_be_written(
    bench: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    from localspec.bench.report import report

    done = iter([True, True])
    write = report.write_report

    def full(path: Path, text: str) -> None:
        if next(done, None) is None:
            raise FileProblem("No bench_run.", "Make some.")
        write(path, text)

    monkeypatch.setattr(report, "write_report", full)
    finished = bench("--draft", "2", "--output", folder / "result.json", "--json")
    assert finished.code == 1 and "No bench_run." in finished.err
    assert json.loads(finished.out)["complete"] is True


def test_results_survive_a_reader_that_leaves(tiny: TinyFiles, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ("-t", "1", "-n", "64", "-r", "2", "-c", "1024", "--tasks", "code,edit", "-o", path)
    pair = ("-m", tiny.target, "-md", tiny.draft)
    arguments = [str(argument) for argument in ("bench", "--thorough", *pair, *flags)]
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline().startswith("task")
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert json.loads(path.read_text())["tasks"][0]["task"] == "code"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--tasks", ","], 2, "There is no task ','. Tasks here: one, two."),
        (["--tasks", "one,three"], 2, "There is no task 'three'. Tasks here: one, two."),
        (["--prompts", "none.jsonl"], 1, "none.jsonl cannot be read: No such file"),
        (["--output", "none/result.json"], 1, "cannot be written to none/result.json"),
        (["--report", "none/page.html"], 1, "cannot be written to none/page.html"),
        (["--reasoning-budget", "5"], 2, "Leave out --reasoning-budget"),
        (["--repeats", "0"], 2, "whole number from 1 to"),
        (["--temp", "-1"], 2, "expected a number from 0 to 100, not '-1'."),
        (["--draft", "99"], 2, "exceeds the maximum"),
        (["-n", "9999"], 1, "it needs a context of"),
        (["-c", "8"], 1, "it needs a context of"),
    ],
)
def test_bench_of_bad_input(bench: Command, arguments: list[str], code: int, sentence: str) -> None:
    done = bench(*arguments)
    assert done.code == code and "Traceback" not in done.err
    assert sentence in " ".join(done.sentences.split())
