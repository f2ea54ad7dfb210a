"""Demo: a small padded pair measured both ways, kept for the next time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from localspec.bench import demo
from localspec.bench.demo import QUESTIONS, PairResult, padded_pair, run_demo
from localspec.bench.padding.layout import PaddedShape
from localspec.core import paths
from localspec.engine.engine import Engine
from tests.support.real_pair import TinyFiles, load_model

SMALL = (PaddedShape(128, 2, 128, 3), PaddedShape(128, 2, 96, 2))


@pytest.fixture
def small(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny pair in place of the bundled one, padded a little; returns the cache folder."""
    monkeypatch.setattr(paths, "demo_pair", lambda: (tiny.target, tiny.draft))
    monkeypatch.setattr(padded_pair, "__defaults__", (SMALL,))
    return paths.cache_folder() / "demo"


def measure() -> list[PairResult]:
    return list(run_demo(draft_tokens=3, repeats=1, max_tokens=8, threads=1))


@pytest.mark.llama
def test_both_quantizations_say_the_same_text(small: Path) -> None:
    results = measure()
    assert [result.comparison.task for result in results] == ["F16", "Q4_0"]
    for result in results:
        plain, drafted = result.comparison.figures()
        assert drafted.text in ("same", "rounding")
        assert plain.drafted == 0 < drafted.drafted
        assert drafted.draft_tokens == 3
        assert len(result.comparison.names) == len(QUESTIONS)
        assert not result.comparison.looping()
        assert result.target.quantization == result.draft.quantization == result.comparison.task
        before, after = result.bundled, (result.target, result.draft)
        for one, other in zip(before, after, strict=True):
            assert one.parameters < other.parameters
        again = json.loads(json.dumps(result.as_json()))
        assert again["quantization"] == result.comparison.task
        assert [each["draft_tokens"] for each in again["sides"]] == [0, 3]
        assert again["target"]["parameters"] == result.target.parameters


@pytest.mark.llama
def test_padded_files_are_kept_for_the_next_time(small: Path) -> None:
    heard: list[str] = []
    run_demo_labels(heard)
    assert {label for label in heard if "padding" in label} == {
        f"padding the {role} ({kind})"
        for role in ("demo target", "draft")
        for kind in demo.QUANTIZATIONS
    }
    files = {path: path.stat().st_mtime_ns for path in small.iterdir()}
    assert len(files) == 4
    heard.clear()
    run_demo_labels(heard)
    assert not any("padding" in label for label in heard)
    assert {path: path.stat().st_mtime_ns for path in small.iterdir()} == files


def run_demo_labels(heard: list[str]) -> None:
    last: dict[str, tuple[int, int]] = {}

    def on_progress(label: str, done: int, total: int) -> None:
        heard.append(label)
        assert last.get(label, (0, total))[0] <= done <= total
        last[label] = (done, total)

    for _ in run_demo(draft_tokens=2, repeats=2, max_tokens=2, threads=1, on_progress=on_progress):
        pass
    assert all(done == total for done, total in last.values())
    assert last["measuring the F16 pair"][1] == len(QUESTIONS) * 2 * 2


@pytest.mark.llama
def test_questions_fit_into_the_context(demo_files: tuple[Path, Path]) -> None:
    with Engine(load_model(demo_files[0], ctx_size=64), None) as engine:
        for question in QUESTIONS:
            ids = engine.encode_chat([{"role": "user", "content": question}])
            assert len(ids) + 256 < demo.CTX_SIZE  # 256: the most that demo lets one ask for


def test_the_bundled_files_are_those_whose_sums_are_recorded() -> None:
    folder = paths.demo_pair()[0].parent
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    recorded = {name: digest for digest, name in (line.split() for line in lines)}
    files = (*paths.demo_pair(), paths.demo_hybrid())
    assert recorded == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
