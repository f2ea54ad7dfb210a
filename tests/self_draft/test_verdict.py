"""The verdict: when a self-draft pays, why not, and as JSON."""

import json
from dataclasses import replace
from typing import Any

import pytest

from localspec.self_draft.verdict import DraftVerdict
from tests.support.llama.self_drafts import LOSES, PAYS


def test_it_pays_only_beyond_the_noise_and_beyond_prompt_lookup() -> None:
    assert PAYS.pays and PAYS.reason == ""
    for changes in (
        {"speedup_interval": (0.99, 2.0)},
        {"over_lookup_interval": (0.99, 2.0)},
        {"speedup_interval": None, "speedup": 1.05},
        {"over_lookup_interval": None, "over_lookup": 1.05},
        {"whole_heads": 1.5},
    ):
        assert not replace(PAYS, **changes).pays
    assert replace(PAYS, speedup_interval=None, over_lookup_interval=None).pays
    assert replace(PAYS, whole_heads=1.4).pays


def test_the_reason_is_what_would_have_to_change() -> None:
    assert "at most 1.02x" in replace(LOSES, ceiling=1.02).reason
    assert "at most 2.50x" in LOSES.reason
    assert "drafted nothing" in replace(LOSES, acceptance_rate=None).reason
    heads = replace(PAYS, whole_heads=1.6).reason
    assert heads == "The whole heads are as fast: 1.60x plain."
    lookup = replace(PAYS, over_lookup=1.01, over_lookup_interval=(0.9, 1.1)).reason
    assert lookup.startswith("Prompt lookup alone") and "1.10x" in lookup


@pytest.mark.parametrize(
    "one", [PAYS, LOSES, replace(PAYS, speedup_interval=None, whole_heads=1.2)]
)
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
