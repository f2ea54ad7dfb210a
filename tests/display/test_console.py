"""Display: what is shown on which stream, on a terminal and in a pipe, wide and narrow."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from localspec.bench.demo import PairResult
from localspec.core.errors import LocalspecError
from localspec.display import bench as scoreboard
from localspec.display import console as display
from localspec.engine.doctor import DoctorReport
from localspec.engine.stats import GenerationStats
from localspec.metadata.header import read_header
from localspec.pairing import check_pair
from localspec.speculative.loop import Prefill, Round
from tests.support.answers import made_answer, made_comparison
from tests.support.real_pair import TinyFiles
from tests.support.streams import COLOUR, Streams

# -- figures -------------------------------------------------------------------------------


def made_stats(drafted: int = 0, accepted: int = 0) -> GenerationStats:
    stats = GenerationStats()
    stats.start(Prefill(tokens=20, cached=0, seconds=0.5))
    stats.add(Round((1,), 0, 0, 0.25))
    stats.add(Round(tuple(range(accepted + 1)), drafted, accepted, 0.75))
    return stats


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
    ],
)
def test_figures_in_words(
    streams: Streams, stats: GenerationStats, reason: str, seed: int | None, expected: str
) -> None:
    display.figures(stats, reason, seed)
    assert streams.read() == ("", expected + "\n")


def test_why_nothing_is_drafted_is_said(streams: Streams) -> None:
    display.figures(made_stats(), "stop", None, "verify too dear here")
    display.figures(made_stats(), "stop", None, "off")  # as asked for
    drafted, off = streams.read()[1].splitlines()
    assert " · draft off (verify too dear here) · prompt 21" in drafted
    assert "draft" not in off


def test_what_drafting_gained(streams: Streams) -> None:
    drafted, plain = made_answer(2.0, reading=0.5), made_answer(4.0)
    display.compared(drafted, plain)
    display.compared(made_answer(8.0, [1, 2]), plain)
    display.compared(made_answer(0.0, []), plain)
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
    assert display.meter(stats, draft_tokens, 80) == expected


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
    assert display.meter(stats, 4, width) == expected


# -- text ----------------------------------------------------------------------------------

NASTY = "a\x1b[31mred\x07\r\n\tb\x00c\x9b2Jd\u202ee"


def test_control_sequences_are_shown_on_a_terminal_not_obeyed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    display.text(NASTY)
    display.text("\x1b")
    display.text("[2J")
    out, err = streams.read()
    assert out == "a␛[31mred␇\n\tb␀c\ufffd2Jd\ufffde␛[2J" and err == ""


def test_a_pipe_receives_the_text_itself(streams: Streams) -> None:
    display.text(NASTY)
    display.end_text(NASTY)
    assert streams.read() == (NASTY, "")


@pytest.mark.parametrize(("last", "ending"), [("text", "\n"), ("", "\n"), ("text\n", "")])
def test_the_line_ends_on_a_terminal(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, last: str, ending: str
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    display.end_text(last)
    assert streams.read() == (ending, "")


def test_json_is_one_line(streams: Streams) -> None:
    display.json_line({"text": "zwei\nZeilen, größer", "none": None})
    out, err = streams.read()
    assert out.count("\n") == 1 and out.endswith("\n") and "größer" in out and err == ""
    assert json.loads(out) == {"text": "zwei\nZeilen, größer", "none": None}


# -- sentences -----------------------------------------------------------------------------

SENTENCE = "A sentence with [bold]brackets[/], a :bug: and quite a few words " * 3


def test_sentences_are_never_cut_nor_interpreted(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    display.note(SENTENCE)
    display.error(LocalspecError(SENTENCE, "Hint: " + SENTENCE))
    expected = f"{SENTENCE}\nError: {SENTENCE}\nHint: {SENTENCE}\n"
    assert streams.read() == ("", expected)


def test_an_error_without_a_hint_is_one_line(streams: Streams) -> None:
    display.error(LocalspecError("It is so."))
    assert streams.read() == ("", "Error: It is so.\n")


def test_names_cannot_steer_the_terminal(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    display.note("the file \x1b]0;title\x07 x\n.gguf")
    display.error(LocalspecError("the file \x1b[2J y", "hint \x1b[2J"))
    _, err = streams.read()
    assert "\x1b]0" not in err and "\x1b[2J" not in err and "\x07" not in err
    assert r"\x1b]0;title\x07 x\n.gguf" in err


def show_everything(tiny: TinyFiles) -> None:
    target, draft = read_header(tiny.target), read_header(tiny.draft)
    scoreboard.demo_intro(3)
    scoreboard.demo_result(made_result(tiny))
    display.pair_report(check_pair(target, draft), target, draft)
    device = {"name": "CPU", "description": "A CPU", "kind": "CPU", "free": 2**30, "total": 2**31}
    display.examination(
        DoctorReport({"memory_total": 2**34, "devices": [device]}, ["Mend [it] " * 20])
    )
    display.note(SENTENCE)
    display.error(LocalspecError(SENTENCE, "Hint."))
    display.figures(made_stats(4, 2), "stop", 3)


def made_result(tiny: TinyFiles) -> PairResult:
    target, draft = read_header(tiny.target), read_header(tiny.draft)
    return PairResult((target, draft), target, draft, made_comparison(task="Q4_0"))


def test_no_escape_codes_outside_a_terminal(tiny: TinyFiles, streams: Streams) -> None:
    show_everything(tiny)
    assert not any("\x1b" in text for text in streams.read())


def test_colours_on_a_terminal_unless_the_user_objects(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    show_everything(tiny)
    assert all(COLOUR.search(text) for text in streams.read())
    monkeypatch.setenv("NO_COLOR", "1")
    show_everything(tiny)
    assert not any(COLOUR.search(text) for text in streams.read())


# -- reports -------------------------------------------------------------------------------


def test_a_pair_report_in_words(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    target, draft = read_header(tiny.target), read_header(tiny.draft)
    report = check_pair(target, draft)
    display.pair_report(report, target, draft)
    out, err = streams.read()
    lines = out.splitlines()
    assert err == "" and len(lines) == 3 + len(report.findings)
    assert lines[0] == "target  target.gguf: llama, 87k parameters, F16, 272 tokens, context 1024"
    for line, finding in zip(lines[2:], report.findings, strict=False):
        assert line == f"{finding.level:<8}{finding.message} {finding.hint}"
    assert lines[-1] == "compatible; llama.cpp's own rule accepts this pair"


def test_an_examination_in_words(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    device = {"name": "CUDA0", "description": "A card", "kind": "GPU", "free": 2**30}
    facts: dict[str, object] = {
        "memory_total": 2**34,
        "models_folder": "/a folder/\x1b[2J",
        "gpu_offload": True,
        "devices": [device | {"total": 3 * 2**30}],
    }
    display.examination(DoctorReport(facts, ["Close [all] other programs and windows, please."]))
    assert streams.read()[0].splitlines() == [
        "memory total      16.0 GiB",
        r"models folder     /a folder/\x1b[2J",
        "gpu offload       True",
        "device            CUDA0: A card (GPU, 1.0 GiB of 3.0 GiB free)",
        "advice: Close [all] other programs and windows, please.",
    ]


# -- progress ------------------------------------------------------------------------------


def test_progress_is_silent_without_a_terminal(streams: Streams) -> None:
    with display.progress() as report:
        report("padding", 1, 2)
        report("padding", 2, 2)
    assert streams.read() == ("", "")


def test_progress_is_a_bar_on_stderr(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    with display.progress() as report:
        report("padding", 1, 2)
    out, err = streams.read()
    assert out == "" and "padding" in err and "50%" in err


def test_labels_cannot_steer_the_terminal(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stdout, sys.stderr)
    with display.progress() as report:
        report("a[/b] \x1b]0;title\x07", 1, 2)
    err = streams.read()[1]
    assert r"a[/b] \x1b]0;title\x07" in err and "\x1b]0" not in err


def screen(written: str) -> list[str]:
    """The lines a terminal shows after what was written, styles left out."""
    lines = [""]
    for part in re.findall(r"\x1b\[[\d;?]*[a-zA-Z]|\n|\r|[^\x1b\n\r]+", written):
        if part == "\n":
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part == "\x1b[1A":
            lines.pop()
        elif part[0] not in "\r\x1b":
            lines[-1] += part
    return lines


def test_results_do_not_land_on_the_line_of_a_bar(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoreboard.demo_result(made_result(tiny))
    expected = streams.read()[0].splitlines()
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that no sentence is wrapped
    monkeypatch.setattr(sys, "stderr", sys.stdout)  # one terminal for both
    streams.make_terminals(monkeypatch, sys.stdout)
    with display.progress() as report:
        for step in (1, 2):
            report("measuring", step, 2)
        scoreboard.demo_result(made_result(tiny))
        report("measuring more", 1, 1)
        scoreboard.demo_result(made_result(tiny))
    assert screen(streams.read()[0]) == [*expected, *expected, ""]


def test_results_in_a_file_do_not_follow_the_bar(
    tiny: TinyFiles, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    with display.progress() as report:
        report("measuring", 1, 2)
        scoreboard.demo_result(made_result(tiny))
    out, err = streams.read()
    assert "tok/rnd" in out and "\x1b" not in out
    assert "measuring" in err and "tok/rnd" not in err


def test_a_path_is_shown_by_its_name(tmp_path: Path, tiny: TinyFiles, streams: Streams) -> None:
    odd = tmp_path / "[red]a:bug:[.gguf"
    odd.write_bytes(tiny.target.read_bytes())
    header = read_header(odd)
    display.pair_report(check_pair(header, header), header, header)
    assert "target  [red]a:bug:[.gguf: llama" in streams.read()[0]


def test_json_on_a_terminal_is_ascii(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"text": "\x9b31m \x7f \u202e é"}
    display.json_line(document)
    assert json.loads(streams.read()[0]) == document
    streams.make_terminals(monkeypatch, sys.stdout)
    display.json_line(document)
    shown = streams.read()[0]
    assert json.loads(shown) == document
    assert shown.strip().isascii() and "\x7f" not in shown
