"""Growing text: however it is cut into pieces, it is shown as if it had come at once."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from localspec.display.terminal.growing_text import MarkdownText

PARTS = [
    *("- an item\n", "  - nested\n", "2. two **b\n", "10. ten\n", "   5) five\n", "+ other\n"),
    *("words with `code` ", "\n", "\n\n", "```python\nx = 1\n", "```\n", "~~~\n", "    indented\n"),
    *("| a | b |\n", "|---|---|\n", "> quote\n", "# Head\n", "---\n", "===\n", "<div>html</div>\n"),
    *("[a **link**](c)", "![image](u)", "[r]: http://z\n", "[r]", "\\(", "**bold**", "*it"),
    *("long words that will wrap around the small width of the window ", "\t", "* * *\n", "\\\n"),
    *("2 * 3 * 4 ", "snake_case _it_ ", "list[int] [1] ", "a < b ", "<http://a.b> "),
    "~~gone~~ ~5 ",
]


def shown(pieces: list[str], rows: int = 20) -> list[str]:
    """What is printed for good in a window 40 columns wide, but for blank lines."""
    out = io.StringIO()
    console = Console(file=out, width=40)
    text = MarkdownText(console)
    for piece in pieces:
        text.add(piece)
        for final in text.final(rows):
            console.print(final, soft_wrap=True)
        list(text.unfinished(rows))
    for final in text.end():
        console.print(final, soft_wrap=True)
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


@given(st.lists(st.sampled_from(PARTS), max_size=20), st.integers(1, 6), st.integers(0, 6))
def test_pieces_change_nothing(parts: list[str], size: int, rows: int) -> None:
    source = "".join(parts)
    assert shown([source[i : i + size] for i in range(0, len(source), size)], rows) == shown(
        [source]
    )


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("one\ntwo", ["one", "two"]),  # a poem keeps its lines
        ("<b>a</b> &lt; &#27;[2J &#x202e;", ["<b>a</b> < \ufffd[2J \ufffd"]),
        ("[here](http://x.y)", ["here (http://x.y)"]),
        ("[r]: http://z", ["[r]: http://z"]),
        ("3. a\n7. b", [" 3 a", " 7 b"]),
        (
            "# A comment without a fence\nx = 1\n## b",
            ["# A comment without a fence", "x = 1", "## b"],
        ),
        (f"```\n\tx = {'y' * 50}\n```", [f"    x = {'y' * 50}"]),  # copied as one line
    ],
)
def test_nothing_is_hidden(source: str, lines: list[str]) -> None:
    assert shown([source]) == lines


def test_a_paragraph_is_final_but_for_its_last_rows_unless_markup_is_open() -> None:
    console = Console(file=io.StringIO(), width=20)
    for source, rows in (("word " * 20, 3), ("a * b_c " * 10, 2), ("**bold " * 20, 0)):
        text, final = MarkdownText(console), list[object]()
        for i in range(0, len(source), 5):
            text.add(source[i : i + 5])
            final += text.final(20)
        assert len(final) == rows, source


def test_code_is_padded_with_no_blanks() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system="256")
    text = MarkdownText(console)
    text.add("```python\ndef f():\n\n    return 'a'\n```\n")
    for final in text.end():
        console.print(final, soft_wrap=True)
    shown = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert "\x1b[" in out.getvalue() and shown == "def f():\n\n    return 'a'\n"
