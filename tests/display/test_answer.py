"""Figures of an answer: the closing line, the meter, the comparison with plain."""

import pytest

from localspec.chat.answer import Answer
from localspec.chat.stats import GenerationStats
from localspec.display.answer import compared, figures, meter, only_thoughts, status_words
from localspec.speculative.loop import DraftStatus, FinishReason
from tests.support.answers import made_answer, made_stats
from tests.support.programs.streams import Streams


@pytest.mark.parametrize(
    ("stats", "reason", "seed", "expected"),
    [
        (
            made_stats(),
            "stop",
            None,
            "2 tokens · 2.0 tok/s · prompt 21 tokens at 40.0 tok/s · TTFT 0.75 s",
        ),
        (
            made_stats(4, 3),
            "length",
            7,
            "5 tokens · 5.0 tok/s · acceptance 75% (3 of 4 drafted) · 2.50 tokens/round · prompt "
            "21 tokens at 40.0 tok/s · TTFT 0.75 s · seed 7 · stopped at --max-tokens",
        ),
        (
            made_stats(3, 0),
            "context",
            0,
            "2 tokens · 2.0 tok/s · acceptance 0% (0 of 3 drafted) · 1.00 tokens/round · prompt "
            "21 tokens at 40.0 tok/s · TTFT 0.75 s · seed 0 · stopped at the end of the context "
            "(--ctx-size)",
        ),
        (GenerationStats(), "cancelled", None, "cancelled while reading the prompt"),
        (
            GenerationStats(prompt_tokens=9),
            "length",
            None,
            "0 tokens · – tok/s · prompt 9 tokens · stopped at --max-tokens",
        ),
    ],
)
def test_figures_in_words(
    streams: Streams, stats: GenerationStats, reason: str, seed: int | None, expected: str
) -> None:
    figures(stats, reason, seed)
    assert streams.read() == ("", expected + "\n")


def test_cached_tokens_are_said(streams: Streams) -> None:
    stats = made_stats()
    stats.cached_tokens = 300
    figures(stats, "stop", None)
    assert " · prompt 21 tokens at 40.0 tok/s, 300 cached · TTFT" in streams.read()[1]


def test_why_nothing_is_drafted_is_said(streams: Streams) -> None:
    figures(made_stats(), "stop", None, DraftStatus.VERIFICATION_TOO_SLOW)
    figures(made_stats(), "stop", None, DraftStatus.OFF)  # as asked for
    drafted, off = streams.read()[1].splitlines()
    assert " · draft off (verification too slow here) · prompt 21" in drafted
    assert "draft" not in off


@pytest.mark.parametrize(
    ("text", "reasoning", "reason", "words"),
    [
        ("", "so", "length", "with --max-tokens or --ctx-size, or less"),
        (" \n", "so", "context", "still thinking"),
        ("", "so", "stop", "ended inside its thoughts"),
        ("", "so", "cancelled", ""),  # by whoever reads this
        ("", "", "stop", ""),
        ("yes", "so", "length", ""),
    ],
)
def test_an_answer_that_is_nothing_but_thoughts(
    streams: Streams, text: str, reasoning: str, reason: FinishReason, words: str
) -> None:
    only_thoughts(Answer(text, [1], made_stats(), reason, reasoning=reasoning))
    out, err = streams.read()
    assert out == "" and words in err and bool(words) == bool(err)


def test_each_status_has_words_or_needs_none() -> None:
    silent = {DraftStatus.DRAFTING, DraftStatus.OFF}
    assert {status for status in DraftStatus if not status_words(status)} == silent


def test_what_drafting_gained(streams: Streams) -> None:
    drafted, plain = made_answer(2.0, reading=0.5), made_answer(4.0)
    compared(drafted, plain)
    compared(made_answer(8.0, [1, 2]), plain)
    compared(made_answer(0.0, []), plain)
    assert streams.read()[1].splitlines() == [
        "Without drafting 10.0 tok/s: 1.60x, the same text.",
        "Without drafting 10.0 tok/s: 0.03x, another text; localspec bench finds out why.",
    ]


@pytest.mark.parametrize(
    ("stats", "draft_tokens", "expected"),
    [
        (GenerationStats(), 0, "– tok/s · draft off"),
        (made_stats(), 3, "2.0 tok/s · draft 3"),
        (made_stats(4, 3), 4, "5.0 tok/s · acceptance 75% · 2.50 tokens/round · draft 4"),
        (made_stats(3, 0), 0, "2.0 tok/s · acceptance 0% · 1.00 tokens/round · draft off"),
    ],
)
def test_the_meter_in_words(stats: GenerationStats, draft_tokens: int, expected: str) -> None:
    assert meter(stats, draft_tokens, 80) == expected


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (57, "35.0 tok/s · acceptance 75% · 2.50 tokens/round · draft 4"),
        (56, "35.0 tok/s 75% 2.50/round draft 4"),
        (38, "35.0 tok/s 75% 2.50/round draft 4"),
    ],
)
def test_the_meter_in_few_words(width: int, expected: str) -> None:
    stats = made_stats(4, 3)
    stats.seconds /= 7
    assert meter(stats, 4, width) == expected
