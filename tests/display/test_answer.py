"""Figures of an answer: the closing line, the meter, the comparison with plain."""

import pytest

from localspec.chat.answer import Answer
from localspec.chat.stats import Drafter, GenerationStats, PassStats, SourceStats
from localspec.display.answer import compared, figures_line, meter, only_thoughts
from localspec.display.terminal.console import note
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
            "2 tokens · 2.0 tok/s · nothing drafted · prompt 21 tokens at 40.0 tok/s · TTFT 0.75 s",
        ),
        (
            made_stats(4, 3),
            "length",
            7,
            "5 tokens · 5.0 tok/s · 3 of 4 drafted tokens accepted · 2.50 tokens/round · prompt "
            "21 tokens at 40.0 tok/s · TTFT 0.75 s · seed 7 · stopped at --max-tokens",
        ),
        (
            made_stats(3, 0),
            "context",
            0,
            "2 tokens · 2.0 tok/s · 0 of 3 drafted tokens accepted · 1.00 tokens/round · prompt "
            "21 tokens at 40.0 tok/s · TTFT 0.75 s · seed 0 · stopped at the end of the context "
            "(--ctx-size)",
        ),
        (GenerationStats(), "cancelled", None, "cancelled while reading the prompt"),
        (
            GenerationStats(read_tokens=9),
            "length",
            None,
            "0 tokens · – tok/s · nothing drafted · prompt 9 tokens · stopped at --max-tokens",
        ),
    ],
)
def test_figures_in_words(
    streams: Streams, stats: GenerationStats, reason: str, seed: int | None, expected: str
) -> None:
    note(figures_line(stats, reason, seed))
    assert streams.read() == ("", expected + "\n")


def test_cached_tokens_are_said(streams: Streams) -> None:
    stats = made_stats()
    stats.cached_tokens = 300
    note(figures_line(stats, "stop", None))
    assert " · prompt 321 tokens at 40.0 tok/s, 300 cached · TTFT" in streams.read()[1]
    stats.answers = 2  # of a conversation: no answer's time to the first token
    note(figures_line(stats, "stop", None))
    assert "TTFT" not in streams.read()[1]


def test_drafting_that_was_asked_to_be_off_needs_no_reason() -> None:
    stats = made_stats()
    stats.drafter = "draft model"
    assert "off" not in figures_line(stats, "stop", None, DraftStatus.OFF)
    assert "off" not in meter(stats, 99)  # nor one that may come yet


LOOKED_UP = {"lookup": SourceStats(3, 371, 371)}
BOTH = {"draft": SourceStats(9, 20, 12), **LOOKED_UP}
TOO_SLOW = DraftStatus.VERIFICATION_TOO_SLOW


@pytest.mark.parametrize(
    ("sources", "drafter", "status", "expected"),
    [
        (
            LOOKED_UP,
            "draft model",
            TOO_SLOW,
            "prompt lookup: 371 of 371 drafted tokens accepted · draft model off (costs more than "
            "it can gain here)",
        ),
        (
            BOTH,
            "prediction heads",
            DraftStatus.DRAFT_TOO_OFTEN_WRONG,
            "383 of 391 drafted tokens accepted (prediction heads 12 of 20, prompt lookup 371 of "
            "371) · prediction heads off in the last round (expected to be right too seldom "
            "for its cost)",
        ),
        (
            {},
            "draft model",
            TOO_SLOW,
            "draft model off (costs more than it can gain here) · nothing drafted by prompt lookup",
        ),
        (
            LOOKED_UP,
            "draft model",
            DraftStatus.DRAFTING,
            "prompt lookup: 371 of 371 drafted tokens accepted · draft model off (other drafts "
            "promised more)",
        ),
        (
            {},
            "draft model",
            DraftStatus.DRAFTING,
            "draft model off (the answer ended first) · nothing drafted by prompt lookup",
        ),
        ({}, "", DraftStatus.RECENTLY_SLOWER, "drafting off (recently slower than plain)"),
        (
            LOOKED_UP,
            "",
            DraftStatus.RECENTLY_SLOWER,
            "prompt lookup: 371 of 371 drafted tokens accepted · drafting off in the last round "
            "(recently slower than plain)",
        ),
    ],
)
def test_what_drafted_and_what_is_off(
    streams: Streams,
    sources: dict[str, SourceStats],
    drafter: Drafter,
    status: DraftStatus,
    expected: str,
) -> None:
    drafted, accepted = (sum(s[i] for s in sources.values()) for i in (1, 2))
    stats = made_stats()
    stats.sources, stats.drafter, stats.drafted, stats.accepted = (
        sources,
        drafter,
        drafted,
        accepted,
    )
    note(figures_line(stats, "stop", None, status))
    assert f" tok/s · {expected} · " in streams.read()[1]


def test_by_default_speed_gain_and_acceptance(streams: Streams) -> None:
    stats = made_stats(40, 30)
    stats.plain_seconds = 1.62 * stats.seconds
    note(figures_line(stats, "length", 7, full=False))
    note(figures_line(stats, "stop", 7, full=False, estimate=False))  # which is measured next
    note(figures_line(made_stats(), "stop", None, DraftStatus.OFF, full=False))  # as asked for
    assert streams.read()[1].splitlines() == [
        "32.0 tok/s · about 1.6x plain · 30 of 40 drafted tokens accepted · stopped at "
        "--max-tokens",
        "32.0 tok/s · 30 of 40 drafted tokens accepted",
        "2.0 tok/s",
    ]


def test_a_draft_that_was_loaded_in_vain_is_explained(streams: Streams) -> None:
    stats = made_stats(40, 30)
    stats.sources, stats.drafter = {"lookup": SourceStats(3, 40, 30)}, "draft model"
    note(figures_line(stats, "stop", 7, TOO_SLOW, full=False))
    stats.sources["draft"] = SourceStats(1, 2, 2)
    note(figures_line(stats, "stop", 7, TOO_SLOW, full=False))
    first, second = streams.read()[1].splitlines()
    assert first == (
        "32.0 tok/s · prompt lookup: 30 of 40 drafted tokens accepted · draft model off (costs "
        "more than it can gain here)"
    )
    assert "off" not in second


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


def test_what_drafting_gained(streams: Streams) -> None:
    drafted, plain = made_answer(2.0, drafted=9, reading=0.5), made_answer(4.0)
    compared(drafted, plain, "the same text")
    compared(made_answer(8.0, [1, 2], drafted=9), plain, "another text")
    compared(made_answer(8.0), plain, "")
    compared(made_answer(0.0, []), plain, "")
    idle = made_answer(8.0)
    idle.stats.drafter = "draft model"
    compared(idle, plain, "")
    assert streams.read()[1].splitlines() == [
        "Measured: 1.60 times as fast as plain decoding (10.0 tok/s), 0.5 s of the draft's prefill "
        "included; the same text.",
        "Too short to tell: 0.03 times as fast as plain decoding (10.0 tok/s); another text.",
        "Nothing was drafted: both answers are plain decoding, which reaches 10.0 tok/s.",
        "Nothing was drafted: both answers are plain decoding, which reaches 10.0 tok/s. The draft "
        "model was not used; a fixed length (--draft 4, /draft 4) uses it.",
    ]


def test_a_difference_of_a_few_per_cent_names_no_winner(streams: Streams) -> None:
    compared(made_answer(4.1, drafted=9), made_answer(4.0), "the same text")
    assert streams.read()[1].startswith("No clear winner: 0.98 times as fast as plain decoding (")


@pytest.mark.parametrize(
    ("pace", "words"),
    [
        (0.115, "No clear winner: 0.87 times as fast as plain decoding (10.0 tok/s); a "
         "difference below 15% is noise here; the same text."),
        (0.103, "Measured: 0.87 times as fast as plain decoding (10.0 tok/s); the same text."),
    ],
)  # fmt: skip
def test_neither_wins_within_the_noise_of_passes_without_drafts(
    streams: Streams, pace: float, words: str
) -> None:
    drafted, plain = made_answer(4.6, drafted=9), made_answer(4.0)
    drafted.stats.passes[1] = PassStats(20, 20 * pace)
    plain.stats.passes[1] = PassStats(40, 4.0)
    compared(drafted, plain, "the same text")
    assert streams.read()[1] == words + "\n"


@pytest.mark.parametrize(
    ("width", "full", "expected"),
    [
        (80, False, "32.0 tok/s · about 1.6x plain · 30 of 40 drafted tokens accepted"),
        (60, False, "32.0 tok/s · about 1.6x plain"),
        (27, False, "32.0 tok/s"),
        (
            90,
            True,
            "32.0 tok/s · about 1.6x plain · 30 of 40 drafted tokens accepted · 16.00 tokens/round",
        ),
        (60, True, "32.0 tok/s · about 1.6x plain"),
    ],
)
def test_the_meter_shows_as_much_as_fits(width: int, full: bool, expected: str) -> None:
    stats = made_stats(40, 30)
    stats.plain_seconds = 1.62 * stats.seconds
    assert meter(stats, width, full=full) == expected
