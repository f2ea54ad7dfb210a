"""Options of an answer: the draft length that the loaded models and the sampling allow."""

from typing import NamedTuple

import pytest

from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.sampling_params import SamplingParams

REFUSAL = ("No draft.", "Give one.")


class Loaded(NamedTuple):
    draft: object | None
    can_roll_back: bool
    vocabularies: object | None = None


@pytest.mark.parametrize(
    ("asked", "has_draft", "rolls_back", "looks_up", "length"),
    [
        ("auto", True, False, True, "auto"),
        ("auto", False, True, True, "auto"),
        ("auto", False, False, True, 0),
        ("auto", False, True, False, 0),
        (4, True, False, True, 4),
        (4, False, True, True, 0),  # lookups have no fixed length
        (0, False, False, True, 0),
    ],
)
def test_the_draft_length_that_the_loaded_models_allow(
    asked: DraftTokens, has_draft: bool, rolls_back: bool, looks_up: bool, length: DraftTokens
) -> None:
    models = Loaded("draft" if has_draft else None, rolls_back)
    options = GenerateOptions(draft_tokens=asked, prompt_lookup=looks_up, max_tokens=7)
    assert options.allowed(models) == GenerateOptions(
        draft_tokens=length, prompt_lookup=looks_up, max_tokens=7
    )
    if asked == 4 and not has_draft:
        with pytest.raises(UsageError, match=r"No draft\."):
            options.allowed(models, REFUSAL)
    else:
        assert options.allowed(models, REFUSAL).draft_tokens == length


def test_rejection_allows_no_auto_where_something_drafts() -> None:
    rejecting = GenerateOptions(SamplingParams(acceptance="rejection", temperature=1.0))
    for models in (Loaded("draft", False), Loaded(None, True)):
        with pytest.raises(UsageError, match="must be fixed"):
            rejecting.allowed(models)
    assert rejecting.allowed(Loaded(None, False)).draft_tokens == 0
    fixed = GenerateOptions(rejecting.sampling, draft_tokens=4)
    assert fixed.allowed(Loaded("draft", True)) == fixed


def test_rejection_needs_the_distributions_of_the_targets_tokens() -> None:
    rejecting = GenerateOptions(SamplingParams(acceptance="rejection", temperature=1.0), 4)
    by_text = Loaded("draft", True, "other")
    with pytest.raises(UsageError, match="this one drafts by text"):
        rejecting.allowed(by_text)
    plain = GenerateOptions(rejecting.sampling, 0)
    greedy = GenerateOptions(SamplingParams(acceptance="rejection", temperature=0), 4)
    assert plain.allowed(by_text) == plain and greedy.allowed(by_text) == greedy
