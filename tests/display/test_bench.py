"""Scoreboard: rows that fit any width, and sentences that say what the figures mean."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.cells import cell_len

from localspec.bench.comparison import Comparison
from localspec.core.options.load_options import DraftTokens
from localspec.display import bench as bench_display
from localspec.display.bench import Scoreboard
from localspec.display.terminal import console
from localspec.llama.memory.use import MemoryUse
from tests.support.answers import (
    compared,
    difference,
    made_answer,
    made_comparison,
    made_demo,
    side,
    varied_comparison,
)
from tests.support.programs.streams import COLOUR, Streams
from tests.support.real_pair import TinyFiles

MIB = 2**20


def shown(streams: Streams, *comparisons: Comparison, tasks: Sequence[str] = ("code",)) -> str:
    board = Scoreboard(console.make_console(stderr=False), tasks)
    for comparison in comparisons:
        board.add(comparison)
    out, err = streams.read()
    assert err == ""
    return out


def summed_up(streams: Streams, comparison: Comparison, *, verbose: bool = False) -> list[str]:
    bench_display.summary(console.make_console(stderr=False), comparison, verbose=verbose)
    return streams.read()[0].splitlines()


# -- the table -----------------------------------------------------------------------------


def test_rows_of_plain_and_drafted(streams: Streams) -> None:
    found = varied_comparison((1.25, 1.5, 1.25, 1.5))
    head, plain, drafted = shown(streams, found).splitlines()
    assert head.replace("90% CI", "CI").split() == [
        "task", "draft", "tok/s", "speedup", "CI", "accept", "tok/rnd", "TTFT", "text",
    ]  # fmt: skip
    assert plain.split() == ["code", "off", "31.2", "1.00", "0.12s"]
    assert drafted.split() == [
        "3", "42.6", "1.36x", "1.25-1.50", "62%", "2.50", "0.25s", "same",
    ]  # fmt: skip
    assert "90% CI" in head
    for name, value in (("speedup", "1.36x"), ("90% CI", "1.25-1.50"), ("TTFT", "0.25s")):
        assert head.index(name) + len(name) == drafted.index(value) + len(value)


def test_a_task_that_goes_on_shows_no_speedup_before_its_interval(streams: Streams) -> None:
    board = Scoreboard(console.make_console(stderr=False), ["code"])
    for speedups, is_shown in (((1.25,), False), ((1.25, 1.5, 1.25, 1.5), True)):
        board.update(varied_comparison(speedups), 9.0)
        rows = "\n".join(line.plain for line in board.so_far())
        assert (re.search(r"\d\.\d\dx", rows) is not None) is is_shown


@pytest.mark.parametrize(
    ("columns", "gone"),
    [(80, ""), (76, "TTFT"), (60, "TTFT CI"), (40, "TTFT CI tok/rnd accept")],
)
def test_narrow_terminals_lose_the_least_of_it(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, columns: int, gone: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    streams.make_terminals(monkeypatch, sys.stdout)
    written = shown(streams, made_comparison(), tasks=["summarise"])
    head, *rows = re.sub(r"\x1b\[[\d;]*m", "", written).splitlines()
    assert max(map(len, (head, *rows))) <= columns
    assert not set(gone.split()) & set(head.split())
    assert {"task", "draft", "tok/s", "speedup", "text"} <= set(head.split())
    assert len(rows) == 2


def test_a_pipe_gets_every_column(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    head, *rows = shown(streams, made_comparison()).splitlines()
    assert "TTFT" in head and len(rows) == 2


def test_few_prompts_have_no_interval(streams: Streams) -> None:
    drafted = shown(streams, varied_comparison([1.5, 1.5, 1.5])).splitlines()[2]
    assert drafted.split()[:4] == ["3", "46.9", "1.50x", "62%"]


def test_what_loops_is_named_below_its_row(streams: Streams) -> None:
    everything, something = made_comparison(loops=1), made_comparison(loops=1, prompts=2)
    rows = shown(streams, everything, something).splitlines()[1:]
    assert rows[0] == "code  left out, repeats itself: code 1"
    assert [row.split()[0] for row in rows[1:3]] == ["code", "3"]
    assert rows[3] == "      left out, repeats itself: code 1"
    assert len(rows) == 4


def test_what_a_side_that_drafted_nothing_lost_is_seen(streams: Streams) -> None:
    comparison = compared(side(0, [made_answer(4.0)]), side(3, [made_answer(2.0)]))
    row = shown(streams, comparison).splitlines()[2]
    assert row.split() == ["3", "20.0", "2.00x", "1.00", "1.00s", "same"]


@pytest.mark.parametrize(
    ("proven_at", "word", "speedups", "colour"),
    [
        (2, "rounding", (1.25, 1.5) * 2, "32"),
        (None, "DIFFERENT", (1.25, 1.5) * 2, "1;31"),
        (2, "rounding", (0.7, 0.9) * 2, "33"),
        (2, "rounding", (0.7, 1.2) * 2, ""),
        (2, "rounding", (1.25, 1.5), ""),
    ],
)
def test_what_matters_is_coloured(
    streams: Streams,
    monkeypatch: pytest.MonkeyPatch,
    proven_at: int | None,
    word: str,
    speedups: Sequence[float],
    colour: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    streams.make_terminals(monkeypatch, sys.stdout)
    comparison = varied_comparison(speedups, differences=[difference(proven_at=proven_at)])
    last = shown(streams, comparison).splitlines()[-1]
    assert word in last
    found = COLOUR.search(last)
    assert (found.group() if found else "") == (f"\x1b[{colour}m" if colour else "")


def test_names_cannot_steer_the_terminal(streams: Streams) -> None:
    name = "\x1b[2J[bold]" + "x" * 99
    written = shown(streams, made_comparison(task=name), tasks=[name])
    assert "\x1b" not in written and "[bold]" in written
    assert len(written.splitlines()[2]) < 100
    loops = shown(streams, made_comparison(task=name, loops=1), tasks=[name])
    said = summed_up(
        streams, made_comparison(task=name, differences=[difference(name, proven_at=None)])
    )
    assert "\x1b" not in loops + "".join(said) and "[bold]" in said[-1]


def test_columns_stand_below_each_other_whatever_they_hold(streams: Streams) -> None:
    slow = (
        side(0, [made_answer(4.0, ttft=123.4)]),
        side(3, [made_answer(4.0, drafted=9, ttft=10.1)]),
    )
    names = ["\u7ffb\u8bd1\u4efb\u52a1", "x" * 40, "code"]
    rows = shown(streams, *(compared(*slow, task=name) for name in names), tasks=names).splitlines()
    assert {cell_len(row) for row in rows[1::2]} == {cell_len(rows[0].removesuffix("  text"))}
    assert "123s" in rows[1] and "10s" in rows[2] and "x" * 19 + "\u2026" in rows[3]


# -- sentences -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speedups", "sentence"),
    [
        (
            (1.01, 1.1, 1.2, 1.4),
            "Fastest here: --draft 3, 1.16x the speed of plain decoding (90% CI 1.07 to 1.29).",
        ),
        (
            (0.8, 0.9, 0.95, 0.99),
            "Fastest here: --draft off; the best draft (--draft 3) reaches 0.90x the speed of "
            "plain decoding (90% CI 0.85 to 0.97).",
        ),
        (
            (0.9, 0.95, 1.2, 1.4),
            "No clear winner: --draft 3 reaches 1.08x the speed of plain decoding (90% CI 0.95 to "
            "1.25); bench --thorough measures more.",
        ),
        (
            (0.3, 0.25, 0.35),
            "Fastest here: --draft off, 3.4 times as fast as --draft 3.",
        ),
        (
            (0.7, 0.7, 0.7),  # as on a machine that was busy for a minute
            "No winner yet: fewer than 4 prompts decide nothing.",
        ),
        (
            (1.4, 1.4, 1.4),
            "No winner yet: fewer than 4 prompts decide nothing.",
        ),
    ],
)
def test_the_advice_follows_the_interval(
    streams: Streams, speedups: Sequence[float], sentence: str
) -> None:
    assert summed_up(streams, varied_comparison(speedups)) == [sentence]


def test_the_best_of_several_lengths_is_named(streams: Streams) -> None:
    measured: tuple[tuple[DraftTokens, float, int], ...] = (
        (0, 10.0, 0),
        (2, 8.0, 40),
        ("auto", 5.0, 60),
        (8, 9.0, 99),
    )
    sides = [
        side(length, [made_answer(seconds, rounds=20, drafted=drafted, accepted=drafted // 2)] * 4)
        for length, seconds, drafted in measured
    ]
    assert summed_up(streams, compared(*sides))[0].startswith("Fastest here: --draft auto, ")
    mistaken = compared(*sides, differences=[difference(draft_tokens="auto", proven_at=None)])
    assert summed_up(streams, mistaken)[0].startswith("Fastest here: --draft 2, ")


@pytest.mark.parametrize(
    ("plain", "drafted", "sentence"),
    [
        (
            (10.0, 11.0),
            (9.6, 9.8),
            "No clear winner: --draft 3 reaches 1.08x the speed of plain decoding; fewer than 4 "
            "prompts decide nothing; plain decoding alone differs by 10% between repeats.",
        ),
        ((10.0, 11.0), (8.0, 8.0), "Fastest here: --draft 3, 1.31x "),
        ((10.0, 11.0), (12.0, 13.0), "Fastest here: --draft off; the best draft (--draft 3) "),
    ],
)
def test_no_draft_wins_within_the_noise_of_plain_decoding(
    streams: Streams, plain: Sequence[float], drafted: Sequence[float], sentence: str
) -> None:
    sides = [
        side(0, *([made_answer(seconds)] for seconds in plain)),
        side(3, *([made_answer(each, drafted=40, accepted=9)] for each in drafted)),
    ]
    assert summed_up(streams, compared(*sides))[0].startswith(sentence)


def test_a_draft_of_which_nothing_was_accepted_is_not_the_fastest(streams: Streams) -> None:
    lucky = compared(side(0, [made_answer(3.0)]), side(3, [made_answer(2.0, drafted=9)]))
    assert summed_up(streams, lucky) == [
        "Fastest here: --draft off; no drafted token was accepted."
    ]


def test_another_text_is_never_recommended(streams: Streams) -> None:
    sentence = summed_up(streams, made_comparison(differences=[difference(proven_at=None)]))[0]
    assert sentence.startswith("No draft length can be recommended")


def test_plain_alone_has_a_figure_too(streams: Streams) -> None:
    comparison = compared(side(0, [made_answer(4.0)]))
    assert summed_up(streams, comparison) == [
        "Plain decoding reaches 10.0 tok/s; name a draft to compare it."
    ]


def test_short_answers_draft_nothing(streams: Streams) -> None:
    sides = (side(0, [made_answer(4.0)]), side(3, [made_answer(4.0)]))
    (sentence,) = summed_up(streams, compared(*sides))
    assert sentence.startswith("Nothing was drafted")


def test_differences_are_explained(streams: Streams) -> None:
    differences = [
        difference("code 2", position=41, margin=0.00031),
        difference(position=0, margin=None, proven_at=None),
        difference(repeatable=False, proven_at=None),
        difference(proven_at=None, apart=0.2512),
    ]
    found = made_comparison(prompts=2, differences=differences)
    _, *said = summed_up(streams, found)
    _, rounding, mistake, fickle, near, *_ = summed_up(streams, found, verbose=True)
    assert said == [mistake, fickle]  # rounding is a detail
    assert rounding == (
        "code 2, draft 3: another text from token 42 on, the two likeliest tokens 0.00031 logits "
        "apart. By rounding only (a near tie); --exact prevents it."
    )
    assert mistake.startswith("code 1, draft 3: ") and "from token 1 on. NOT" in mistake
    assert near.endswith(
        "A near tie, closer than the 0.25 logits by which passes of equal width differ on this "
        "device: probably rounding."
    )
    assert "NOT rounding" in mistake and "NOT repeatable" in fickle


@pytest.mark.parametrize("prompts", [1, 4])
def test_details_are_for_the_verbose(streams: Streams, prompts: int) -> None:
    seconds: tuple[tuple[DraftTokens, float], ...] = ((0, 9.0), (2, 6.0), ("auto", 4.0), (4, 4.5))
    sides = [
        side(length, [made_answer(s, rounds=20, drafted=9 * (length != 0)) for _ in range(prompts)])
        for length, s in seconds
    ]
    for each in (answer for one in sides[1:3] for answer in one.answers[0]):
        each.stats.outcomes = {(3, 3): 2, (3, 1): 1, (1, 0): 1}
    assert len(summed_up(streams, compared(*sides))) == 1
    assert summed_up(streams, compared(*sides), verbose=True)[1:] == [
        "Measured (cost in plain tokens)",
        "  --draft 2     2.00 tokens a round, cost 1.33",
        "  --draft auto  2.00 tokens a round, cost 0.89",
        "  --draft 4     2.00 tokens a round, cost 1.00",
        "Accepted by position in the draft",
        "  --draft 2     75% 67% 67%",
        "  --draft auto  75% 67% 67%",
    ]


def test_memory_is_a_detail(streams: Streams) -> None:
    target, draft = MemoryUse(4500 * MIB, 512 * MIB, 88 * MIB), MemoryUse(100 * MIB, 0, 12 * MIB)
    board = Scoreboard(console.make_console(stderr=False), ["code"])
    board.finish([], {}, {"target": target, "draft": draft, "pair": target + draft})
    board.finish([], {}, {"target": target, "draft": None, "pair": target})
    assert streams.read()[0].splitlines() == [
        "Memory",
        "  target  5.3 GB (weights 4.7 GB, KV 537 MB, compute 92 MB)",
        "  draft   117 MB (weights 105 MB, KV 0 bytes, compute 13 MB)",
        "  pair    5.5 GB (weights 4.8 GB, KV 537 MB, compute 105 MB)",
        "Memory",
        "  target  5.3 GB (weights 4.7 GB, KV 537 MB, compute 92 MB)",
    ]


@pytest.mark.parametrize("columns", ["80", "40"])
def test_the_demo_fits(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    bench_display.demo_result(made_demo(tiny, loops=1, prompts=5))
    title, _, plain, drafted, loops = streams.read()[0].splitlines()
    assert title.startswith("Q4_0: the 87k target padded to 87k parameters, the 87k draft")
    assert plain.startswith("Q4_0") and drafted.endswith("same") and loops.endswith("Q4_0 1")


@pytest.mark.parametrize(
    ("speedups", "is_busy", "words"),
    [
        ((0.7, 1.3, 0.9, 1.1), True, "the same text; this machine is too busy to tell at which"),
        ((0.7, 1.3, 0.9, 1.1), False, "the same text at 0.95x the speed of plain decoding (90%"),
        ((1.5, 1.6, 1.5, 1.4), True, "the same text at 1.50x the speed of plain decoding (90%"),
        ((1.5,), True, "too busy to tell"),
    ],
)
def test_a_busy_machine_decides_nothing(
    tiny: TinyFiles, streams: Streams, speedups: Sequence[float], is_busy: bool, words: str
) -> None:
    found = replace(made_demo(tiny), comparison=varied_comparison(speedups))
    bench_display.demo_end([found], "localspec chat NAME", is_busy=is_busy)
    assert words in streams.read()[1]
