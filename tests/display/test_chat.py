"""Screen: the chat as seen in a window, through a real pseudo-terminal, and through pipes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.chat.conversation import Chat
from localspec.chat.input_loop import run
from localspec.chat.slash_commands import COMMANDS
from localspec.chat.stats import GenerationStats
from localspec.core import paths
from localspec.core.errors import FileProblem
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.display import chat as screen
from localspec.display.chat import PlainChat
from localspec.display.pieces import AnswerStyle
from localspec.speculative.loop import DraftStatus, Round
from tests.support.alike import alike, some_of
from tests.support.programs.streams import Streams
from tests.support.real_pair import TinyFiles
from tests.support.toy.chat import Reciter

pytest.importorskip("pty")
from tests.support.programs.terminal import Terminal, Window  # noqa: E402  it needs one too

# A chat with a Reciter: the pieces of its answers, seconds for each of them.
RECITE = """
import json, sys
from tests.support.toy.chat import Reciter
from localspec.display.terminal import console
from localspec.display.pieces import AnswerStyle
from localspec.chat.conversation import Chat
from localspec.chat.input_loop import run
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
console.prepare_streams()
engine = Reciter(json.loads(sys.argv[1]), float(sys.argv[2]))
from localspec.display.chat import open_screen
with open_screen(AnswerStyle(stats=True)) as screen:
    run(Chat(engine, screen, GenerateOptions(SamplingParams(temperature=0), 0)))
"""
# Its answers begin with thoughts, and are Markdown.
THINKING = """
from localspec.chat.reasoning import tagged
from localspec.engine.text_stream import Prompt, OutputFormat
encode, form = Reciter.encode_chat, tagged("<think>", "</think>")
Reciter.encode_chat = lambda self, turns: Prompt(
    encode(self, turns), OutputFormat(self.piece, form)
)
engine = """
MARKDOWN = RECITE.replace("open_screen(", "open_screen(markdown=True, look=")
# It rings the bell before some of its words, and goes on when the window has another size.
RESIZED = """
import os, time
from tests.support.toy.chat import Reciter
decode = Reciter.decode
def decoded(self, tokens, rows):
    if len(self.tokens) in (15, 30, 45, 60):
        size = os.get_terminal_size()
        os.write(1, b"\\a")
        while os.get_terminal_size() == size:
            time.sleep(0.005)
    return decode(self, tokens, rows)
Reciter.decode = decoded
"""
CLI = "from localspec.cli import main\nmain()\n"
METER = re.compile(r"(?m)^[\d.–]+ tok/s")
FIGURES = re.compile(r"(?m)^\d+ tokens · ")


def reciting(answers: Sequence[Sequence[str]], seconds: float = 0.0, **more: object) -> Terminal:
    code = str(more.pop("before", "")) + RECITE
    return Terminal(code, json.dumps(answers), str(seconds), **more)  # type: ignore[arg-type]


@contextmanager
def chatting(
    answers: Sequence[Sequence[str]], *questions: str, seconds: float = 0.0, **more: object
) -> Iterator[Terminal]:
    """A chat after its answers to the questions; the next prompt is there."""
    with reciting(answers, seconds, **more) as terminal:
        for turn, question in enumerate(questions, 1):
            terminal.prompt(turn)
            terminal.type(f"{question}\n")
        terminal.prompt(len(questions) + 1)
        yield terminal


@contextmanager
def answering(
    answers: Sequence[Sequence[str]], seconds: float = 0.02, **more: object
) -> Iterator[Terminal]:
    """A chat in the middle of its first answer, to "ask"."""
    with reciting(answers, seconds, **more) as terminal:
        terminal.prompt(1)
        terminal.type("ask\n")
        terminal.wait(meter_shown)
        yield terminal


def test_a_blank_line_stands_between_an_answer_and_the_next_question() -> None:
    with chatting([["fine"]], "ask") as terminal:
        assert re.search(r"(?m)^\d+ tokens · .*\n\n>>>", terminal.window.text)
        leave(terminal)


def leave(terminal: Terminal) -> None:
    """Ctrl-D ends the chat well."""
    terminal.type("\x04")
    assert terminal.leave() == 0 and "Traceback" not in terminal.window.text


def meter_shown(window: Window) -> bool:
    return any(re.match(r"[\d.–]+ tok/s", line) for line in window.view)


def answer_of(window: Window, question: str = "ask") -> str:
    """What stands between a question and the figures of its answer."""
    found = re.search(
        rf"(?ms)^>>> {re.escape(question)}\n(.*?)\n?^\d+ tokens · ", window.text + "\n"
    )
    assert found, window.text
    return found.group(1)


def words(count: int, word: str = "word") -> list[str]:
    return [f"{word}{i} " for i in range(count)]


# -- a conversation in a window ------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, alike(80)])
def test_an_answer_with_its_meter(columns: int) -> None:
    pieces = [*words(30), "\n", "second line\n", "\n", *words(12, "more")]
    with answering([pieces], columns=columns) as terminal:
        shown = next(line for line in terminal.window.view if "tok/s" in line)
        assert "word0" in terminal.window.text  # text and meter at the same time
        assert METER.match(shown) and not terminal.window.cursor_visible
        terminal.prompt(2)
        text = answer_of(terminal.window)
        assert text == re.sub(" +$", "", "".join(pieces), flags=re.MULTILINE)
        assert not meter_shown(terminal.window) and not METER.search(terminal.window.text)
        assert terminal.window.cursor_visible
        leave(terminal)


def test_a_line_longer_than_the_window_is_high() -> None:
    pieces = words(120)
    with answering([pieces, ["short"]], 0.01, columns=40, rows=8) as terminal:
        terminal.wait(lambda window: bool(FIGURES.search(window.text)))
        assert answer_of(terminal.window).split() == "".join(pieces).split()
        terminal.prompt(2)
        terminal.type("again\n")
        terminal.prompt(3)
        assert answer_of(terminal.window, "again") == "short"


@pytest.mark.parametrize("rows", [2, alike(3), 4])
def test_a_window_hardly_higher_than_the_prompt(rows: int) -> None:
    pieces = [*words(40), "\nend\n"]
    with chatting([pieces], "ask", seconds=0.01, columns=40, rows=rows) as terminal:
        assert answer_of(terminal.window).split() == "".join(pieces).split()


@pytest.mark.parametrize("columns", [alike(40), 41])
def test_wide_characters(columns: int) -> None:
    pieces = ["\u6f22\u5b57", "\u304b\u306a", " \U0001f600 ", "e\u00e9"] * 15
    with answering([pieces], 0.01, columns=columns) as terminal:
        terminal.prompt(2)
        assert answer_of(terminal.window) == "".join(pieces)


CONTROLS = [
    *("a\x1b[2J", "b\x1b", "]0;title\x07", "\x9b31m", "c\rd\x08\u202ee", "\r\n", "\x1b[31mend")
]
MARKUP = ["[bold]x[/bold] ", ":smile: ", "[/] ", "http://a.b/c 'd' 12"]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (CONTROLS, "a\u241b[2Jb\u241b]0;title\u2407\ufffd31mcd\u2408\ufffde\n\u241b[31mend"),
        (MARKUP, "".join(MARKUP)),
    ],
)
def test_control_characters_are_shown_and_markup_is_text(pieces: list[str], shown: str) -> None:
    with chatting([pieces], "ask", seconds=0.05) as terminal:  # the window refuses unknown controls
        assert answer_of(terminal.window) == shown


@pytest.mark.parametrize(
    "columns", some_of((20, 21, 22, 40, 80), (21, 22, 40))
)  # 20: the meter fills its line
def test_ctrl_c_in_an_answer(columns: int) -> None:
    with answering([words(500), ["well"]], columns=columns) as terminal:
        terminal.wait(lambda window: meter_shown(window) and "word20" in window.text)
        terminal.type("\x03")
        terminal.prompt(2)
        said = answer_of(terminal.window).replace("^C", "")
        assert "".join(words(500)).startswith(said.rstrip()) and "word20" in said
        assert "cancelled" in terminal.window.text and not meter_shown(terminal.window)
        assert terminal.window.cursor_visible
        terminal.type("still there?\n")
        terminal.prompt(3)
        assert answer_of(terminal.window, "still there?") == "well"
        terminal.type("/exit\n")
        assert terminal.leave() == 0


def test_ctrl_z_leaves_a_clean_window_and_the_answer_once() -> None:
    """A terminal of its own has no shell: the process goes on at once, in a new block."""
    with reciting([words(500)], 0.02) as terminal:
        terminal.prompt(1)
        terminal.type("ask\n")
        terminal.wait(lambda window: meter_shown(window) and not window.cursor_visible)
        before = len(terminal.raw)
        terminal.signal(signal.SIGTSTP)
        again = re.compile(r"\x1b\[\?25h.*\x1b\[\?25l.*tok/s", re.DOTALL)
        terminal.wait(lambda window: bool(again.search(terminal.raw, before)))
        terminal.type("\x03")
        terminal.prompt(2)
        count = int(re.findall(r"(?m)^(\d+) tokens", terminal.window.text)[0])
        said = answer_of(terminal.window).replace("^C", "")
        assert said.split() == "".join(words(count)).split()


def test_ctrl_c_shows_what_may_begin_a_stop_string() -> None:
    held = "".join(words(500)[1:]) + "END"  # everything behind the first word
    code = RECITE.replace("temperature=0), 0", f"temperature=0), 0, stop=({held!r},)")
    with Terminal(code, json.dumps([words(500)]), "0.02") as terminal:
        terminal.prompt(1)
        terminal.type("ask\n")
        terminal.wait(lambda window: meter_shown(window) and "word0" in window.text)
        time.sleep(0.2)  # for a few words more
        assert "word1" not in terminal.window.text
        terminal.type("\x03")
        terminal.prompt(2)
        count = int(re.findall(r"(?m)^(\d+) tokens", terminal.window.text)[0])
        said = answer_of(terminal.window).replace("^C", "")
        assert count > 1 and said.split() == "".join(words(count)).split()


def test_keys_typed_during_an_answer_wait_for_the_prompt() -> None:
    with answering([words(40), ["well"], ["two"]]) as terminal:
        terminal.type("typed ahead\n")
        terminal.paste("pasted\nahead")
        terminal.type("\n")
        terminal.prompt(4)
        assert len(FIGURES.findall(terminal.window.text)) == 3
        assert answer_of(terminal.window) == "".join(words(40)).rstrip()
        assert answer_of(terminal.window, "typed ahead") == "well"
        terminal.type("shown again")
        terminal.wait(lambda window: window.view[window.row] == ">>> shown again")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_the_process_is_ended(number: int) -> None:
    with answering([words(500)]) as terminal:
        assert not terminal.echoes()
        terminal.signal(number)
        assert terminal.leave() == 128 + number
        assert terminal.echoes() and terminal.window.cursor_visible


def test_ctrl_c_at_the_prompt() -> None:
    with chatting([["well"]]) as terminal:
        terminal.type("half a ques\x03")
        terminal.prompt(2)
        assert re.search("(?m)^Ctrl-C stops an answer", terminal.window.text)
        terminal.type("\x03")
        assert terminal.leave() == 0
        assert "Traceback" not in terminal.window.text


def test_what_is_left_ends_its_line() -> None:
    with chatting([["well"]]) as terminal:
        leave(terminal)
        assert terminal.window.column == 0  # the shell's prompt comes next


def test_several_lines() -> None:
    with chatting([["one"], ["two"]]) as terminal:
        for turn, (first, second) in enumerate(
            (('"""first', 'second"""'), ("first\\", "second")), 2
        ):
            terminal.type(f"{first}\n")
            terminal.wait(lambda window: window.view[window.row] == "...")
            terminal.type(f"{second}\n")
            terminal.prompt(turn)
        assert len(FIGURES.findall(terminal.window.text)) == 2


def test_a_paste_is_one_message() -> None:
    with chatting([["one"], ["two"]]) as terminal:
        terminal.paste("def f():\n    return 1\n")
        terminal.type("What is this?\n")
        terminal.prompt(2)
        assert len(FIGURES.findall(terminal.window.text)) == 1
        terminal.paste("/* C */\nint i;")
        terminal.type("\n")
        terminal.prompt(3)
        assert len(FIGURES.findall(terminal.window.text)) == 2
        assert "There is no command" not in terminal.window.text


def test_tab_completes_commands_settings_and_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words")
    lines = ["/und\t", "/set temper\t", "/think sh\t", f"/read {tmp_path}/no\t"]
    with chatting([["well"]], "ask", *lines) as terminal:
        for typed in (">>> /undo", "temperature 0 ", "Thoughts are shown", "notes.txt begins"):
            assert typed in terminal.window.text.replace("\n", " ")  # a long path has its own line


# -- Markdown and thoughts ------------------------------------------------------------------


def test_markdown_scrolls_and_nothing_is_lost_or_doubled() -> None:
    code = ["```python\n", *(f"x{i} = {i}\n" for i in range(40)), "```\n\n"]
    pieces = [
        "# Title\n\n",
        "some **bo",
        "ld** words\n\n",
        *code,
        "- one\n",
        "- two\n\n",
        "the end",
    ]
    with Terminal(MARKDOWN, json.dumps([pieces]), "0.01", columns=60, rows=12) as terminal:
        terminal.prompt(1)
        terminal.type("ask\n")
        terminal.wait(lambda window: "x30 = 30" in window.view[-4] or "x30" in window.text)
        assert any("x2 = 2" in line for line in terminal.window.gone)  # while it grows
        terminal.prompt(2)
        lines = [line.strip() for line in answer_of(terminal.window).splitlines() if line.strip()]
        items = ["\u2022 one", "\u2022 two", "the end"]
        assert lines == ["# Title", "some bold words", *(f"x{i} = {i}" for i in range(40)), *items]
        terminal.type("/copy code\n")
        terminal.prompt(3)
        assert terminal.window.clipboard == "".join(code[1:-1])


@pytest.mark.parametrize("code", [RECITE, MARKDOWN])
@pytest.mark.parametrize("sizes", [(38, 23, 60, 31), alike((80, 90, 30, 29))])
def test_a_resized_window_keeps_no_line_twice_and_loses_none(
    code: str, sizes: Sequence[int]
) -> None:
    pieces = ["before\n\n", *words(60), "\n\n", "- item\n", *words(30, "more")]
    with Terminal(RESIZED + code, json.dumps([pieces]), "0.01", columns=60, rows=40) as terminal:
        terminal.prompt(1)
        terminal.type("ask\n")
        for turn, columns in enumerate(sizes, 1):
            terminal.wait(lambda _, turn=turn: terminal.raw.count("\a") == turn)  # type: ignore[misc]
            terminal.resize(columns)
        terminal.prompt(2)
        shown, said = answer_of(terminal.window), "".join(pieces)
        assert re.findall(r"[a-z]+\d*", shown) == re.findall(r"[a-z]+\d*", said)
        leave(terminal)


@pytest.mark.parametrize("command", ["/think hide", "/think show"])
def test_thoughts_are_folded_when_they_end(command: str) -> None:
    pieces = ["<think>", *words(20, "thought"), "</think>", "*so* be it"]
    code = MARKDOWN.replace("engine = ", THINKING, 1)
    with Terminal(code, json.dumps([pieces]), "0.02") as terminal:
        terminal.prompt(1)
        terminal.type(f"{command}\n")
        terminal.prompt(2)
        terminal.type("ask\n")
        terminal.wait(lambda window: "thought9" in window.text)
        terminal.prompt(3)
        folded = "Thought for 21 tokens; /think shows them."
        first, last = answer_of(terminal.window).strip().split("\n\n")
        assert first == (folded if command == "/think hide" else "".join(pieces[1:21]).strip())
        assert last == "so be it"
        terminal.type("/think\n")
        terminal.prompt(4)
        assert "thought0 thought1" in terminal.window.text


def test_a_dumb_terminal() -> None:
    pieces = [*words(20), "\nend"]
    with chatting([pieces], "ask", seconds=0.01, term="dumb") as terminal:
        assert answer_of(terminal.window).split() == "".join(pieces).split()
        assert "\x1b[1A" not in terminal.raw


@pytest.mark.parametrize("letters", [4094, 5000])
@pytest.mark.parametrize("letter", [alike("a"), "\u4e2d"])
def test_a_line_that_the_terminal_cuts_is_refused(letters: int, letter: str) -> None:
    with reciting([["fine"], ["fine"]], term="dumb") as terminal:
        terminal.prompt(1)
        terminal.type(letter * (letters // len(letter.encode())) + "\n")
        terminal.wait(lambda window: len(re.findall("(?m)^>>>", window.text)) == 2)
        told = "The terminal cuts lines at 4,095 bytes" in terminal.window.text
        assert told == (letters == 5000) and ("fine" in terminal.window.text) == (letters == 4094)
        terminal.type("ask\n")
        terminal.wait(lambda window: "fine" in window.text.rpartition("ask")[2])
        leave(terminal)


@pytest.mark.llama
def test_what_is_pasted_while_the_model_loads_is_kept_whole(tiny: TinyFiles) -> None:
    flags = ("-m", str(tiny.target), "-t", "1", "-n", "2", "--draft", "off", "-c", "512")
    with Terminal(CLI, "chat", *flags) as terminal:
        terminal.wait(lambda window: terminal.takes_keys())
        assert ">>>" not in terminal.window.text and not terminal.echoes()
        terminal.paste("z" * 6000 + "\n")
        terminal.wait(lambda window: "Error: " in window.text)
        assert "Loading" in terminal.raw
        (tokens,) = re.findall(r"has ([\d,]+) tokens", terminal.window.text.replace("\n", " "))
        assert int(tokens.replace(",", "")) >= 6000
        leave(terminal)


def test_plain_and_quiet_redraw_nothing() -> None:
    """For screen readers, which read again what is drawn again."""
    code = RECITE.replace("prepare_streams()", "prepare_streams(); console.be_quiet(True)")
    answers = [[*words(20), "\n", "*end*"], ["fine"]]
    with Terminal(code, json.dumps(answers), "0.01") as terminal:
        for turn in 1, 2:
            terminal.wait(lambda window, turn=turn: window.text.count(">>>") == turn)  # type: ignore[misc]
            terminal.type("ask\n")
        terminal.wait(lambda window: window.text.count(">>>") == 3)
        terminal.type("/nonsense\n")
        terminal.wait(lambda window: window.text.count(">>>") == 4)
        terminal.type("\x04")
        assert terminal.leave() == 0
        answer = "".join(answers[0]).replace(" \n", "\n")
        shown = re.sub(r"(?m)^\d+ tokens · .*\n", "", terminal.window.text)
        assert shown.startswith(f">>> ask\n{answer}\n>>> ask\nfine\n>>> /nonsense")
        assert not re.findall(r"\x1b\[[\d;]*[A-GJKST]|\r(?!\n)", terminal.raw)


def test_answers_into_a_pipe_are_asked_for_on_stderr(tmp_path: Path) -> None:
    code = f"import os; os.dup2(os.open({str(tmp_path / 'out')!r}, os.O_CREAT | os.O_WRONLY), 1)\n"
    with reciting([["a"], ["b"]], before=code) as terminal:
        for turn, typed in enumerate(("ask\n", '"""\ntwo\nlines"""\n', "\x04"), 1):
            terminal.wait(lambda window, turn=turn: window.text.count(">>>") == turn)  # type: ignore[misc]
            terminal.type(typed)
        assert terminal.leave() == 0
        assert ">>> ask\n" in terminal.window.text and "... ... " in terminal.window.text
        assert (tmp_path / "out").read_text() == "a\nb\n"


def test_the_real_command(tiny: TinyFiles) -> None:
    flags = ("-m", str(tiny.target), "-md", str(tiny.draft), "-t", "1", "--stats", "-n", "40")
    with Terminal(CLI, "chat", *flags, "--draft", "3") as terminal:
        terminal.prompt(1)
        terminal.type("hello\n")
        terminal.prompt(2)
        figures = [line for line in terminal.window.text.split("\n") if FIGURES.match(line)]
        assert len(figures) == 1 and re.search(r" \d+ of \d+ drafted", figures[0])
        terminal.type("/draft off\nagain\n")
        terminal.prompt(4)
        assert len(FIGURES.findall(terminal.window.text)) == 2
        terminal.type("/nonsense\n")
        terminal.prompt(5)
        assert "There is no command /nonsense" in terminal.window.text
        leave(terminal)


def test_a_killed_chat_continues_where_its_last_answer_ended(tiny: TinyFiles) -> None:
    flags = ("-m", str(tiny.target), "-t", "1", "--seed", "3", "--draft", "off", "-n", "20")
    with Terminal(CLI, "chat", *flags) as terminal:
        terminal.prompt(1)
        assert f"Target {tiny.target.name}, no draft model" in terminal.window.text
        terminal.type("hello\n")
        terminal.prompt(2)
    with Terminal(CLI, "chat", "--continue", "-t", "1") as terminal:  # the first was killed
        terminal.prompt(2)
        assert "continues (2 messages" in terminal.window.text
        assert terminal.window.text.count(">>> hello") == 1
        terminal.type("/clear\n")
        terminal.prompt(3)
        assert "the one before is saved as 20" in terminal.window.text
        leave(terminal)


# -- the input history ---------------------------------------------------------------------


def messages_in(history: Path) -> list[str]:
    """The messages of a history, all of one line."""
    lines = history.read_text("utf-8").splitlines()
    return [line.removeprefix("+") for line in lines if line.startswith("+")]


def test_the_history_is_private_and_comes_back() -> None:
    history = paths.history_file()
    with chatting([["well"]], "remember me") as terminal:
        leave(terminal)
    assert messages_in(history) == ["remember me"]
    assert history.stat().st_mode & 0o777 == 0o600
    with chatting([["well"]]) as terminal:
        terminal.type("\x1b[A")
        terminal.wait(lambda window: window.view[window.row] == ">>> remember me")
        terminal.type("\n")
        terminal.prompt(2)
        leave(terminal)


def test_the_history_is_bounded() -> None:
    history = paths.history_file()
    history.parent.mkdir(parents=True)
    entries = (f"\n# then\n+{'word ' * 200}{i}\n" for i in range(1500))
    history.write_text("".join(entries), encoding="utf-8")
    with chatting([["well"]], "the last") as terminal:
        leave(terminal)
    *kept, before, last = messages_in(history)
    assert 400 < len(kept) < 600 and before.endswith(" 1499") and last == "the last"


def test_two_chats_and_a_killed_one_keep_all_messages() -> None:
    with chatting([["well"]] * 2, "first") as one, chatting([["well"]] * 2, "second") as other:
        one.type("third\n")
        one.prompt(3)
        with chatting([["well"]], "killed"):
            pass
        for terminal in (one, other):
            leave(terminal)
    assert messages_in(paths.history_file()) == ["first", "second", "third", "killed"]


@pytest.mark.parametrize("way", ["flag", "setting", "variable"])
def test_without_saving_nothing_typed_is_written(
    tiny: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if way == "setting":
        monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config.toml"))
        (tmp_path / "config.toml").write_text("save = false\n")
    elif way == "variable":
        monkeypatch.setenv("LOCALSPEC_SAVE", "0")
    flags = ["-m", str(tiny.target), "-t", "1", "--draft", "off", "-n", "4"]
    with Terminal(CLI, "chat", *flags, *(["--no-save"] if way == "flag" else [])) as terminal:
        terminal.prompt(1)
        terminal.type("classified\n")
        terminal.prompt(2)
        terminal.type("/clear\n")
        terminal.prompt(3)
        terminal.type("\x1b[A\x1b[A")  # within the chat it comes back
        terminal.wait(lambda window: window.view[window.row] == ">>> classified")
        terminal.type("\x15")
        leave(terminal)
    folders = {tmp_path, Path.home(), paths.history_file().parent}
    written = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert not [file for file in written if b"classified" in file.read_bytes()]


@pytest.mark.parametrize("made", ["folder", "parent is a file", "bytes"])
def test_a_history_that_cannot_be(made: str) -> None:
    history = paths.history_file()
    if made == "folder":
        history.mkdir(parents=True)
    elif made == "bytes":
        history.parent.mkdir(parents=True)
        history.write_bytes(b"\xff\xfe\x00\n\x80caf\xe9\n")
    else:
        history.parent.parent.mkdir(parents=True)
        history.parent.write_text("in the way", encoding="utf-8")
    with chatting([["well"]], "ask") as terminal:
        leave(terminal)
        assert ("could not be saved" in terminal.window.text) == (made != "bytes")


# -- without a terminal --------------------------------------------------------------------


def chat_process(
    *arguments: str | Path, text: str | bytes | None, **more: object
) -> subprocess.CompletedProcess[bytes]:
    """`localspec chat` with standard input from a pipe; None closes it."""
    command = [sys.executable, "-m", "localspec", "chat", *map(str, arguments)]
    data = text.encode() if isinstance(text, str) else text
    if data is None:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    return subprocess.run(command, input=data, capture_output=True, env=environment, **more)  # type: ignore[call-overload, no-any-return]


def piped(monkeypatch: pytest.MonkeyPatch, text: str, answers: Sequence[Sequence[str]]) -> Chat:
    """A chat whose messages come from a pipe, run to its end."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    with screen.open_screen(AnswerStyle(stats=True)) as ui:
        assert isinstance(ui, screen.PlainChat)
        chat = Chat(Reciter(answers), ui, GenerateOptions(SamplingParams(temperature=0), 0))  # type: ignore[arg-type]
        run(chat)
    return chat


def test_stats_say_why_the_draft_was_not_used_as_the_last_answer_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stats = GenerationStats(drafter="draft model")
    stats.add(Round((1, 2), 1, 1, 0.1, sources=("lookup",)), 0.1)
    PlainChat().show_stats(stats, DraftStatus.ANSWER_TOO_SHORT)
    assert "draft model off (reading the prompt costs more" in " ".join(
        capsys.readouterr().err.split()
    )


def test_stats_show_acceptance_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    stats = GenerationStats()
    PlainChat().show_stats(stats, DraftStatus.DRAFTING)
    assert "by position" not in capsys.readouterr().err
    stats.add(Round((1, 2, 3), 3, 2, 0.1), 0.1)
    stats.add(Round((4,), 1, 0, 0.1), 0.1)
    PlainChat().show_stats(stats, DraftStatus.DRAFTING)
    shown = "accepted by position in the draft: 50% 100% 0%"
    assert shown in capsys.readouterr().err.splitlines()


def test_stats_on_a_terminal_have_small_bars(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.make_terminals(monkeypatch, sys.stderr)
    monkeypatch.setenv("COLUMNS", "80")
    stats = GenerationStats()
    for drafted, accepted in ((2, 2), (2, 1), (1, 0), (1, 1)):
        stats.add(Round((0,) * (accepted + 1), drafted, accepted, 0.1), 0.1)
    PlainChat().show_stats(stats, DraftStatus.DRAFTING)
    assert "draft: 75% 50%  ▆▅" in streams.read()[1]


def test_help_is_a_table_in_a_narrow_window() -> None:
    with chatting([], columns=60, rows=40) as terminal:
        terminal.type("/help\n")
        terminal.prompt(2)
        shown = terminal.window.text
        assert re.search(r"(?m)^/retry .* {2}answer .*;\n {25}once", shown), shown
        leave(terminal)


def test_pipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'one\n"""\ntwo\r\nlines\n"""\n\n/stats\n/nothing\nthree'
    answers = [["a\x1b[2J", "b"], ["c", "\n"], ["d"]]
    chat = piped(monkeypatch, text, answers)
    out, err = capsys.readouterr()
    assert out == "a\x1b[2Jb\nc\nd\n"  # a pipe receives the text itself
    asked = [turn["content"] for turn in chat.turns if turn["role"] == "user"]
    assert asked == ["one", "two\nlines", "three"]
    assert len(FIGURES.findall(err)) == 4  # each answer's and those of /stats
    assert len(re.findall("· 2 answers so far$", err, re.MULTILINE)) == 1
    assert "Error: There is no command /nothing." in err and "\x1b" not in err
    assert ">>>" not in out + err and "Ctrl-D" not in err
    assert not paths.history_file().exists()


def test_notes_and_help_leave_stdout_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(monkeypatch, "/help\n/system x\n/set\n/exit\nnever read\n", [["a"]])
    out, err = capsys.readouterr()
    assert out == "" and all(name in err for name in COMMANDS)


@pytest.mark.parametrize("side", ["stdin", "stdout"])
def test_half_a_terminal_is_none(
    side: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(getattr(sys, side), "isatty", lambda: True)
    with screen.open_screen() as ui:
        assert isinstance(ui, screen.PlainChat)


@pytest.mark.llama
def test_closed_standard_input_is_the_end(tiny: TinyFiles) -> None:
    done = chat_process("-m", tiny.target, "-t", "1", "--draft", "off", text=None)
    assert (done.returncode, done.stdout) == (0, b"") and b"Traceback" not in done.stderr


@pytest.mark.llama
def test_bytes_that_are_no_text_in_a_pipe(tiny: TinyFiles) -> None:
    flags = ("-m", tiny.target, "-t", "1", "-n", "2", "--draft", "off")
    done = chat_process(*flags, text=b"caf\xe9 \xff\n")
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"Error: Standard input is not UTF-8 text")
    assert b"Traceback" not in done.stderr


def test_a_pipe_that_is_no_text_is_a_file_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(FileProblem):
        screen.PlainChat().read()


# -- an answer cut short -------------------------------------------------------------------

FAILING = """
from localspec.core.errors import EngineError
decode = Reciter.decode
def failing(self, tokens, rows):
    if len(self.tokens) == 12:
        self.truncate(0)
        raise EngineError("It broke.", "Mend it.")
    return decode(self, tokens, rows)
Reciter.decode = failing
"""


def test_an_engine_that_fails_in_an_answer() -> None:
    code = RECITE.replace("engine = ", FAILING + "engine = ")
    answers = json.dumps([words(30), ["fine"]])
    with Terminal(code, answers, "0.05") as terminal:
        terminal.prompt(1)
        terminal.type("ask\n")
        terminal.wait(meter_shown)
        terminal.prompt(2)
        assert re.search(r"(?m)^word0 .*word11$", terminal.window.text)
        assert re.search(r"(?m)^Error: It broke\.\nMend it\.$", terminal.window.text)
        assert not meter_shown(terminal.window) and terminal.window.cursor_visible
        leave(terminal)
