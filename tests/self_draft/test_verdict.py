"""The verdict: when a self-draft pays, why not, as JSON, and measured with real llama.cpp."""

import json
from dataclasses import replace
from typing import Any

import pytest

from localspec.engine.engine import Engine
from localspec.self_draft import judge as module
from localspec.self_draft.judge import judge
from localspec.self_draft.trial import ANSWER_TOKENS
from localspec.self_draft.verdict import DraftVerdict
from tests.support.llama.self_drafts import LOSES, PAYS
from tests.support.real_pair import TinyFiles, options


def test_it_pays_only_beyond_the_noise_and_beyond_prompt_lookup() -> None:
    assert PAYS.pays and PAYS.reason == ""
    for changes in (
        {"speedup_interval": (0.99, 2.0)},
        {"over_lookup_interval": (0.99, 2.0)},
        {"speedup_interval": None, "speedup": 1.05},
        {"over_lookup_interval": None, "over_lookup": 1.05},
    ):
        assert not replace(PAYS, **changes).pays
    assert replace(PAYS, speedup_interval=None, over_lookup_interval=None).pays


def test_the_reason_is_what_would_have_to_change() -> None:
    assert "at most 1.02x" in replace(LOSES, ceiling=1.02).reason
    assert "at most 2.50x" in LOSES.reason
    assert "drafted nothing" in replace(LOSES, acceptance_rate=None).reason
    lookup = replace(PAYS, over_lookup=1.01, over_lookup_interval=(0.9, 1.1)).reason
    assert lookup.startswith("Prompt lookup alone") and "1.10x" in lookup


@pytest.mark.parametrize("one", [PAYS, LOSES, replace(PAYS, speedup_interval=None)])
def test_json_gives_it_back(one: DraftVerdict) -> None:
    document = json.loads(json.dumps(one.as_json()))
    assert document["pays"] is one.pays
    assert DraftVerdict.from_json(document) == one


@pytest.mark.parametrize(
    "change",
    [
        {"text": "other"},
        {"speedup": None},
        {"speedup": "fast"},
        {"speedup_interval": [1]},
        {"prompts": []},
    ],
)
def test_other_json_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(json.dumps(PAYS.as_json())) | change
    with pytest.raises((ValueError, LookupError, TypeError)):
        DraftVerdict.from_json(document)


@pytest.mark.llama
def test_all_ways_answer_the_same_prompts(tiny: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TOKENS", 12)
    heard: list[tuple[int, int]] = []
    with Engine.load(options(tiny.target), options(tiny.draft)) as pair:
        asked = {f"prompt {i}": pair.encode_text("ab" * (i + 9)) for i in range(6)}
        found = judge(
            pair,
            asked,
            [1.0] * 17,
            0.1,
            budget=0.0,
            on_answer=lambda done, total: heard.append((done, total)),
        )
        assert pair.draft is not None and found.draft_memory == pair.draft.memory.total
    assert found.prompts == 4  # as few as an interval needs
    assert heard[-1] == (3 * 4, 3 * 4)
    assert found.text in ("same", "rounding") and found.speedup > 0 and found.over_lookup > 0
    assert found.speedup_interval is not None and found.over_lookup_interval is not None
    assert found.ceiling == pytest.approx(17 / 2.6)


def test_prompts_and_repeats_are_as_many_as_the_time_allows() -> None:
    asked = {str(i): [0] * 10 for i in range(8)}
    each = 3 * (10 * 1.0 + ANSWER_TOKENS * 1.0)  # seconds, three ways
    for budget, prompts, repeats in (
        (0, 4, 1),
        (5 * each, 5, 1),
        (8 * each, 8, 1),
        (17 * each, 8, 2),
        (1e9, 8, 3),
    ):
        found, times = module._affordable(asked, [1.0, 2.0], budget)
        assert (len(found), times) == (prompts, repeats)
