"""Report: a document that says what was measured, and a file that is complete or untouched."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from localspec import __version__
from localspec.bench.plan import BenchPlan
from localspec.bench.prompts import BenchPrompt
from localspec.bench.report.report import Report, require_writable
from localspec.bench.run import run_bench
from localspec.core.errors import FileProblem
from localspec.engine.engine import Engine
from tests.support.real_pair import GREEDY, options

pytestmark = pytest.mark.llama

PLAN = BenchPlan(GREEDY, (0, 2), repeats=1, max_tokens=8)
PROMPTS = {
    task: [BenchPrompt(task, ({"role": "user", "content": f"the {task}"},))]
    for task in ("one", "two")
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


def reported(engine: Engine, path: Path | None = None, *, complete: bool = True) -> Any:
    """What a run over all prompts is told as, by way of JSON."""
    tasks = {task: [engine.encode_text(task)] for task in PROMPTS}
    report = Report(engine, PLAN, PROMPTS, path)
    report.save(list(run_bench(engine, tasks, PLAN)) if complete else [], complete=complete)
    return json.loads(json.dumps(report.document))


def test_a_document_tells_pair_machine_settings_and_memory(engine: Engine) -> None:
    again = reported(engine)
    assert (again["format"], again["version"], again["complete"]) == (4, __version__, True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", again["date"])
    for role in ("target", "draft"):
        assert again[role]["quantization"] == "F16" and again[role]["file"].endswith(".gguf")
        assert again[role]["threads"] == 1
    assert again["draft"]["spec_type"] == "draft-simple" and "spec_type" not in again["target"]
    assert again["settings"]["draft_tokens"] == [0, 2]
    assert again["settings"]["sampling"]["temperature"] == 0
    assert {"seed", "top_k"} <= set(again["settings"]["sampling"])
    assert again["machine"]["cpu"] and again["machine"]["devices"][0]["name"] == "CPU"
    memory = again["memory"]
    for part in ("weights", "kv", "compute", "total"):
        both = memory["target"][part] + memory["draft"][part]
        assert memory["pair"][part] == both > memory["target"][part]


def test_a_document_tells_prompts_figures_and_every_answer(engine: Engine) -> None:
    again = reported(engine)
    assert again["prompts"] == [
        {"name": f"{task} 1", "task": task,
         "messages": [{"role": "user", "content": f"the {task}"}]}
        for task in PROMPTS
    ]  # fmt: skip
    assert [task["task"] for task in again["tasks"]] == ["one", "two"]
    assert again["overall"]["prompts"] == ["one 1", "two 1"]
    drafted = [one for one in again["answers"] if one["draft_tokens"] == 2]
    assert [one["prompt"] for one in drafted] == ["one 1", "two 1"]
    assert again["overall"]["sides"][1]["tokens"] == sum(one["tokens"] for one in drafted)
    assert sum(task["sides"][1]["tokens"] for task in again["tasks"]) == 16


def test_a_run_that_was_stopped_says_so(engine: Engine) -> None:
    result = reported(engine, complete=False)
    assert result["complete"] is False and result["overall"] is None and result["tasks"] == []


def test_without_a_draft(demo_files: tuple[Path, Path]) -> None:
    with Engine.load(options(demo_files[0], ctx_size=256)) as engine:
        result = reported(engine, complete=False)
    assert result["draft"] is None and result["memory"]["draft"] is None
    assert result["memory"]["pair"] == result["memory"]["target"]


def test_a_result_replaces_an_older_one(engine: Engine, folder: Path) -> None:
    path = folder / "result.json"
    path.write_text("old")
    require_writable(path)
    assert path.read_text() == "old" and os.listdir(folder) == ["result.json"]
    result = reported(engine, path, complete=False)
    assert json.loads(path.read_text("utf-8")) == result


def test_texts_of_any_kind_are_kept(engine: Engine, folder: Path) -> None:
    prompts = {"\udcff": [BenchPrompt("\udcff", ({"role": "user", "content": "Gr\u00f6\u00dfe"},))]}
    path = folder / "result.json"
    Report(engine, PLAN, prompts, path).save([], complete=True)
    text = path.read_text("utf-8")
    assert "Gr\u00f6\u00dfe" in text
    assert json.loads(text)["prompts"][0]["task"] == "\udcff"


def test_looking_leaves_nothing(folder: Path) -> None:
    require_writable(folder / "new.json")
    assert os.listdir(folder) == []
    require_writable(Path(os.devnull))


def test_places_that_cannot_be_written(engine: Engine, folder: Path) -> None:
    for path, reason in (
        (folder / "none" / "result.json", "No such file or directory"),
        (folder, "is a folder"),
    ):
        with pytest.raises(FileProblem, match=reason):
            require_writable(path)
        report = Report(engine, PLAN, PROMPTS, path)
        with pytest.raises(FileProblem, match="cannot be written"):
            report.save([], complete=True)
        assert report.document["complete"] is True
    assert os.listdir(folder) == []
