"""Demo: the padded pair, drafted beside plain decoding, saved for the next time."""

import hashlib
import json
from pathlib import Path

import pytest

from localspec.bench import demo
from localspec.bench.demo import QUESTIONS, run_demo
from localspec.bench.figures import FEWEST_PROMPTS
from localspec.bench.padding.layout import PaddedShape
from localspec.core import paths
from localspec.engine.engine import Engine
from tests.support.real_pair import TinyFiles, load_model
from tests.support.toy.bench import plan

SMALL = (PaddedShape(128, 2, 128, 3), PaddedShape(128, 2, 96, 2))


class Heard:
    """A progress callback that checks what it is told."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}

    def __call__(self, label: str, done: int, total: int) -> None:
        assert self.last.get(label, (0, total))[0] <= done <= total
        self.last[label] = (done, total)


@pytest.fixture
def small(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny pair in place of the bundled one, padded a little; returns the cache folder."""
    monkeypatch.setattr(paths, "demo_pair", lambda: (tiny.target, tiny.draft))
    monkeypatch.setattr(demo.padded_pair, "__defaults__", (SMALL,))
    return paths.cache_folder() / "demo"


@pytest.mark.llama
def test_an_answer_is_watched_plain_then_drafted(small: Path) -> None:
    files = demo.padded_pair("F16", lambda label, done, total: None)
    seen: dict[object, list[int]] = {0: [], 3: []}
    for length, piece in demo.watch_demo(plan(0, 3, max_tokens=8), files, threads=1):
        seen[length] += piece.tokens
    assert seen[0] == seen[3] and len(seen[0]) == 8


@pytest.mark.llama
def test_both_quantizations_say_the_same_text(small: Path) -> None:
    results = list(run_demo(plan(0, 3, max_tokens=8), threads=1))
    assert [result.quantization for result in results] == ["F16", "Q4_0"]
    for result in results:
        comparison = result.comparison
        plain, drafted = comparison.figures()
        assert drafted.text in ("same", "rounding")
        assert plain.drafted == 0 < drafted.drafted
        assert drafted.draft_tokens == 3
        assert FEWEST_PROMPTS <= len(comparison.names) <= len(QUESTIONS)
        assert not comparison.looping()
        assert comparison.task == result.quantization
        for before, after in zip(result.bundled, result.padded, strict=True):
            assert before.parameters < after.parameters
            assert after.quantization == result.quantization
        again = json.loads(json.dumps(result.as_json()))
        assert again["quantization"] == result.quantization
        assert [each["draft_tokens"] for each in again["sides"]] == [0, 3]
        assert again["target"]["parameters"] == result.padded[0].parameters


@pytest.mark.llama
def test_padded_files_are_there_the_next_time(small: Path) -> None:
    padding = {
        f"padding the {role} ({kind})"
        for role in ("demo target", "draft")
        for kind in demo.QUANTIZATIONS
    }
    files: dict[Path, int] = {}
    for labels in (padding, set[str]()):
        heard = Heard()
        list(run_demo(plan(0, 2, repeats=2, max_tokens=2), 1, heard))
        assert {label for label in heard.last if "padding" in label} == labels
        assert all(done == total for done, total in heard.last.values())
        assert heard.last["measuring"][1] == 2 * len(QUESTIONS) * 2 * 2
        there = {path: path.stat().st_mtime_ns for path in small.iterdir()}
        assert len(there) == 4 and there == (files or there)
        files = there


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
    files = (*paths.demo_pair(), paths.bundled_folder() / "hybrid.gguf")
    assert recorded == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
