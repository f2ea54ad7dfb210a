"""Advice: one sentence where the figures give a reason, none where they do not."""

from dataclasses import replace

import pytest

from localspec.chat.stats import GenerationStats, PassStats, SourceStats
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.advice import advise

GREEDY = SamplingParams(temperature=0)


def answer(
    drafted: int = 200, accepted: int = 120, step: float = 0.1, reading: float = 0.1
) -> GenerationStats:
    """An answer of 200 tokens in ten seconds, where a plain pass takes a tenth of a second."""
    return GenerationStats(
        answers=1,
        tokens=200,
        rounds=80,
        drafted=drafted,
        accepted=accepted,
        seconds=10.0,
        draft_seconds=drafted * step * 0.1,
        draft_prompt_seconds=reading,
        passes={1: PassStats(10, 1.0), 4: PassStats(70, 7.0)},
        sources={"draft": SourceStats(70, drafted, accepted)},
    )


@pytest.mark.parametrize(
    "stats, params, word",
    [
        (answer(accepted=20), GREEDY, "Only 10% of the draft's tokens"),
        (answer(accepted=20), SamplingParams(temperature=1.4), "At temperature 1.4 only 10%"),
        (answer(step=0.5), GREEDY, "costs 50% of one of the target"),
        (answer(reading=30.0), GREEDY, "30.0 s to read the prompt"),
    ],
)
def test_a_reason_gets_its_sentence(
    stats: GenerationStats, params: SamplingParams, word: str
) -> None:
    found = advise(stats, params)
    assert found is not None and word in found


@pytest.mark.parametrize(
    "stats",
    [
        answer(),
        answer(drafted=30, accepted=2),  # too few to tell
        replace(answer(step=0.5), plain_seconds=12.0),  # it gains all the same
        GenerationStats(),
        GenerationStats(tokens=200, seconds=10.0),
    ],
)
def test_good_or_few_figures_get_none(stats: GenerationStats) -> None:
    assert advise(stats, GREEDY) is None


def test_what_the_index_drafted_is_not_held_against_the_draft() -> None:
    stats = answer()
    stats.sources = {"lookup": SourceStats(70, 200, 10)}
    assert advise(stats, GREEDY) is None


def test_without_a_plain_pass_nothing_is_said_of_a_step() -> None:
    stats = answer(step=0.9)
    del stats.passes[1]
    assert advise(stats, GREEDY) is None


def test_heads_have_no_other_size() -> None:
    few = advise(replace(answer(accepted=20), drafter="prediction heads"), GREEDY)
    assert few is not None and "10% of the tokens that the heads drafted" in few
    for stats in (answer(step=0.5), answer(reading=30.0)):
        assert advise(replace(stats, drafter="prediction heads"), GREEDY) is None
