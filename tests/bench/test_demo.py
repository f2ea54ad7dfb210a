"""Demo: the padded pair and hybrid, each draft beside plain decoding, saved for the next time."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.bench import demo
from localspec.bench.demo import HYBRID_QUESTIONS, QUESTIONS, open_variants, run_demo
from localspec.bench.equality import DifferenceFinder
from localspec.bench.figures import FEWEST_PROMPTS
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.plan import Variant
from localspec.core import paths
from localspec.core.options.load_options import DraftTokens
from localspec.engine.engine import Engine
from tests.support.real_pair import TinyFiles, load_model
from tests.support.toy.bench import plan

SMALL = (PaddedShape(128, 2, 128, 3), PaddedShape(128, 2, 96, 2))
UNPADDED = (PaddedShape(320, 5, 512, 6), PaddedShape(128, 2, 384, 3))  # the bundled hybrid's


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
    results = list(run_demo("pair", plan(0, 3, max_tokens=8), threads=1))
    assert [result.quantization for result in results] == ["F16", "Q4_0"]
    for result in results:
        (comparison,) = result.comparisons
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
        list(run_demo("pair", plan(0, 2, repeats=2, max_tokens=2), 1, heard))
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
    files = (*paths.demo_pair(), paths.demo_hybrid())
    assert recorded == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# -- the hybrid ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("converted")


@pytest.fixture
def unpadded(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled hybrid and draft as they are, converted only, once for all tests."""
    monkeypatch.setattr(demo.padded_hybrid, "__defaults__", (UNPADDED,))
    monkeypatch.setattr(demo, "demo_folder", lambda: converted)


@pytest.fixture
def opened(unpadded: None, request: pytest.FixtureRequest) -> Iterator[list[Variant]]:
    """Its variants with a draft length."""
    length: DraftTokens = request.param
    files = demo.padded_hybrid("F16", lambda label, done, total: None)
    with open_variants(files, plan(0, length, max_tokens=8), 1) as variants:
        yield variants


@pytest.mark.llama
@pytest.mark.usefixtures("unpadded")
def test_every_variant_is_compared_with_the_same_plain_answers() -> None:
    heard = Heard()
    results = list(run_demo("hybrid", plan(0, 2, max_tokens=8), 1, heard))
    assert [result.quantization for result in results] == ["F16", "Q4_0"]
    for result in results:
        assert [one.task for one in result.comparisons] == ["draft model", "MTP"]
        plain, again = (one.sides[0] for one in result.comparisons)
        assert plain == again and len(plain.answers[0]) == len(HYBRID_QUESTIONS)
        for one in result.comparisons:
            off, drafted = one.figures(one.names)
            assert off.drafted == 0 < drafted.drafted and drafted.draft_tokens == 2
            assert drafted.text in ("same", "rounding")
        assert json.loads(json.dumps(result.as_json()))["ways"][1]["task"] == "MTP"
        assert result.padded[0].quantization == result.quantization
    total = 2 * 3 * len(HYBRID_QUESTIONS)
    assert heard.last["measuring"] == (total, total)


@pytest.mark.llama
@pytest.mark.parametrize("opened", ["auto"], indirect=True)
def test_each_variant_has_its_own_draft(opened: list[Variant]) -> None:
    assert [variant.name for variant in opened] == ["plain", "lookup", "draft model", "MTP"]
    target, alone, *drafts = (variant.engine.draft for variant in opened)
    assert target is alone is None
    stems = [draft.header.path.name.split("-")[0] for draft in drafts if draft is not None]
    assert stems == ["draft", "hybrid"]
    prompt = opened[0].engine.encode_text("abc abc abc abc abc abc")
    plain, *drafted = (variant.answer(prompt) for variant in opened)
    assert not plain.stats.drafted
    assert "draft" not in drafted[0].stats.sources
    finder = DifferenceFinder("abc", prompt, plain.tokens)
    for variant, one in zip(opened[1:], drafted, strict=True):
        assert all(each.proven_at is not None for each in finder.explain(variant, [one]))


@pytest.mark.llama
@pytest.mark.parametrize("opened", [3], indirect=True)
def test_prompt_lookup_is_a_variant_of_auto_alone(opened: list[Variant]) -> None:
    assert [variant.name for variant in opened] == ["plain", "draft model", "MTP"]


@pytest.mark.llama
@pytest.mark.parametrize("opened", [2], indirect=True)
def test_another_text_is_found(opened: list[Variant]) -> None:
    prompt = opened[0].engine.encode_text("import os")
    plain = opened[0].answer(prompt)
    other = opened[0].answer([*prompt, plain.tokens[0]])
    (found,) = DifferenceFinder("import", prompt, plain.tokens).explain(opened[2], [other])
    assert found.prompt == "import" and not found.repeatable and found.proven_at is None
