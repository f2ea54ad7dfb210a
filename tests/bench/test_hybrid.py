"""The hybrid's demo: all ways to draft for it say the plain text, and each draft is its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.bench.demo import padded_hybrid
from localspec.bench.hybrid import QUESTIONS, open_ways, run_hybrid_demo
from localspec.bench.padding.layout import PaddedShape
from localspec.bench.plan import BenchPlan
from localspec.core.config import DraftTokens
from localspec.core.sampling_params import SamplingParams

pytestmark = pytest.mark.llama

UNPADDED = (PaddedShape(320, 5, 512, 6), PaddedShape(128, 2, 384, 3))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled hybrid and draft as they are, converted only."""
    monkeypatch.setattr(padded_hybrid, "__defaults__", (UNPADDED,))


def plan(length: DraftTokens, tokens: int = 8) -> BenchPlan:
    return BenchPlan(SamplingParams(temperature=0), (0, length), 1, tokens)


@pytest.mark.usefixtures("small")
def test_every_way_is_compared_with_the_same_plain_answers() -> None:
    heard: list[tuple[str, int, int]] = []
    results = list(
        run_hybrid_demo(
            draft_tokens=2,
            repeats=1,
            max_tokens=8,
            threads=1,
            on_progress=lambda *told: heard.append(told),
        )
    )
    assert [result.quantization for result in results] == ["F16", "Q4_0"]
    for result in results:
        assert [one.task for one in result.comparisons] == ["draft model", "MTP"]
        plain, again = (one.sides[0] for one in result.comparisons)
        assert plain == again and len(plain.answers[0]) == len(QUESTIONS)
        for one in result.comparisons:
            off, drafted = one.figures(loops=True)
            assert off.drafted == 0 < drafted.drafted and drafted.draft_tokens == 2
            assert drafted.text in ("same", "rounding")
        assert json.loads(json.dumps(result.as_json()))["ways"][1]["task"] == "MTP"
        assert result.target.quantization == result.quantization
    assert heard[-1] == ("measuring the Q4_0 hybrid", 3 * len(QUESTIONS), 3 * len(QUESTIONS))


@pytest.mark.usefixtures("small")
def test_each_way_drafts_in_its_own_manner() -> None:
    files = padded_hybrid("F16", lambda label, done, total: None)
    with open_ways(files, plan("auto"), 1) as ways:
        assert [way.name for way in ways] == ["plain", "lookup", "draft model", "MTP"]
        drafts = [way.engine.draft for way in ways]
        assert drafts[0] is drafts[1] is None and drafts[2] is not None and drafts[3] is not None
        assert drafts[2].header.path == files[1] and drafts[3].header.path == files[0]
        prompt = ways[0].engine.encode_text("abc abc abc abc abc abc")
        plain, *drafted = (way.answer(prompt) for way in ways)
        assert not plain.stats.drafted
        assert "draft" not in drafted[0].stats.sources
        for way, one in zip(ways[1:], drafted, strict=True):
            assert all(
                each.proven_at is not None
                for each in way.differences("abc", prompt, [plain], [one])
            )


@pytest.mark.usefixtures("small")
def test_prompt_lookup_is_a_way_of_auto_alone() -> None:
    files: tuple[Path, Path] = padded_hybrid("F16", lambda label, done, total: None)
    with open_ways(files, plan(3), 1) as ways:
        assert [way.name for way in ways] == ["plain", "draft model", "MTP"]


@pytest.mark.usefixtures("small")
def test_another_text_is_found() -> None:
    files = padded_hybrid("F16", lambda label, done, total: None)
    with open_ways(files, plan(2), 1) as ways:
        prompt = ways[0].engine.encode_text("import os")
        plain = ways[0].answer(prompt)
        other = ways[0].answer([*prompt, plain.tokens[0]])
        (found,) = ways[2].differences("import", prompt, [plain], [other])
        assert found.prompt == "import" and not found.repeatable and found.proven_at is None
