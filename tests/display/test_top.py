"""Servers on a terminal: one block for each model that fits, and plain lines in a pipe."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from localspec.display import top
from localspec.server.watch import ModelFigures, ServerFigures
from tests.support.programs.streams import Streams
from tests.support.programs.terminal import Terminal

MODEL = ModelFigures(
    "qwen", "ready", True, running=2, waiting=1, slots=4, busy=2, tokens=12345,
    generation_tps=38.04, answered=10000, rounds=5000, drafts=4000, drafted=8000, accepted=5000,
    by_source={"draft": 4000, "lookup": 1000, "forced": 0}, by_position=(3000, 2000),
    prompts=((312, 1024, 131.0),),
)  # fmt: skip
SERVER = ServerFigures("http://127.0.0.1:8080", 7, 100.0, 3 * 2**30, (MODEL,))
LINES = [
    "qwen: ready",
    "  address           http://127.0.0.1:8080",
    "  requests               2 running,   1 waiting",
    "  slots                  2 of 4 busy",
    "  prompt               312 of 1,024, about 2 minutes left",
    "  tok/s                  – now, average   38.0",
    "  tokens            12,345 so far,  2.00 a round",
    "  accepted             62% of 8,000 drafted",
    "    first n right      75% 50%  ▆▅",
    "  share of the text",
    "    draft model        40%",
    "    prompt lookup      10%",
    "  memory               3.2 GB",
]


def test_in_a_pipe_it_is_listed_once(streams: Streams) -> None:
    top.watch(lambda: [SERVER], 1.0)
    out, err = streams.read()
    assert (out.splitlines(), err) == (LINES, "")


def watched(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, columns: int, *looks: Sequence[ServerFigures]
) -> tuple[str, str]:
    """What a terminal gets while these are seen; then Ctrl-C."""
    streams.make_terminals(monkeypatch, sys.stdout)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    seen = iter(looks)

    def look() -> Sequence[ServerFigures]:
        found = next(seen, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    top.watch(look, 2.0)
    return streams.read()


@pytest.mark.parametrize("columns", [80, 40])
def test_each_line_fits_and_the_speed_is_that_since_the_last_look(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    later = replace(SERVER, at=102.0, models=(replace(MODEL, tokens=12445),))
    out, err = watched(streams, monkeypatch, columns, [SERVER], [later])
    assert err == "" and "\x1b[3" not in out
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", line) for line in out.splitlines()]
    assert all(len(line) <= columns for line in lines)
    assert any(line.startswith("  tok/s               50.0 now, average") for line in lines)
    (bar,) = {line for line in lines if line.startswith("    draft model        40% ")}
    assert bar.count("█") == (10 if columns == 80 else 5)


def test_rows_and_words_keep_their_places(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = replace(MODEL, running=0, waiting=12, busy=0, tokens=7, prompts=(), generation_tps=None)
    busy = replace(idle, running=12, tokens=1200, prompts=(*MODEL.prompts, (1, 9, None)))
    shown = []
    for models in (idle, busy):
        top.watch(lambda models=models: [replace(SERVER, models=(models,))], 1.0)  # type: ignore[misc]
        shown.append(streams.read()[0].splitlines())
    assert "  prompt               312 of 1,024, about 2 minutes left; 1 more" in shown[1]
    words = re.compile("running|waiting|of 4|now|average|so far|a round|memory|[a-z/]+  ")
    places = [[[found.span() for found in words.finditer(line)] for line in one] for one in shown]
    assert places[0] == places[1]


@pytest.mark.parametrize("key", ["xq", "\x03"])
def test_q_and_ctrl_c_end_it(key: str) -> None:
    code = (
        "from localspec.display.top import watch\n"
        "from localspec.server.watch import ModelFigures, ServerFigures\n"
        "server = ServerFigures('http://a', 7, 1.0, 0, (ModelFigures('qwen', 'stuck'),))\n"
        "watch(lambda: [server], 60)\n"
        "print('ended', input())\n"
    )
    with Terminal(code) as terminal:
        terminal.wait(lambda window: "qwen: stuck" in window.text)
        terminal.type(key)
        time.sleep(0.3)
        terminal.type("by line\n")
        terminal.wait(lambda window: "ended by line" in window.text, 20)
        assert "xq" not in terminal.window.text


def test_what_is_typed_while_it_looks_is_not_echoed() -> None:
    code = (
        "import time\n"
        "from localspec.display.top import watch\n"
        "from tests.display.test_top import SERVER\n"
        "def look():\n"
        "    time.sleep(0.5)\n"
        "    return [SERVER]\n"
        "watch(look, 0.1)\n"
        "print('ended')\n"
    )
    with Terminal(code, columns=60, rows=14) as terminal:
        terminal.wait(lambda window: "qwen: ready" in window.text)
        time.sleep(0.3)  # it looks again
        terminal.type("q\n")
        terminal.wait(lambda window: "ended" in window.text, 20)
        shown = terminal.window.text.splitlines()
        assert [line for line in shown if line in ("q", LINES[0])] == LINES[:1]


def test_long_names_are_cut_and_escaped(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = replace(SERVER, models=(replace(MODEL, model="\x1b[2J" + "x" * 90),))
    out, _ = watched(streams, monkeypatch, 40, [hostile])
    assert "\\x1b[2Jxxx" in out and "\x1b[2J" not in out and "…" in out


def test_it_ends_with_the_last_server(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = watched(streams, monkeypatch, 80, [SERVER], [])
    assert "No server is running any more." in err


@pytest.mark.parametrize("state", ["ready", "stuck"])
def test_a_model_without_figures(streams: Streams, state: str) -> None:
    top.watch(lambda: [replace(SERVER, memory=0, models=(ModelFigures("a", state),))], 1.0)
    lines = streams.read()[0].splitlines()
    assert lines[0] == f"a: {state}"
    assert ("  requests          unknown: set LOCALSPEC_API_KEY" in lines) == (state == "ready")
    assert lines[-1] == "  memory            unknown"
