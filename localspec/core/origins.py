"""Table of origins: the sources of an answer's tokens, and how they are named and shown.

A new kind of draft is a row here and a `speculative.drafters.Lookup`, whose groups of candidates
begin with the row's name.
"""

from typing import NamedTuple


class Origin(NamedTuple):
    """One origin.

    ``name`` stands in answers, statistics and metrics, and is the CSS class. ``label`` is in
    legends; ``drafter`` names in figures the source that drafted the tokens, empty if there is
    none. ``marks`` stand around the text in a pipe, ``style`` is rich's. ``light`` and ``dark``
    are colours of the page, ``line`` is the kind of its underline.
    """

    name: str
    label: str
    drafter: str = ""
    marks: str = ""
    style: str = ""
    light: str = ""
    dark: str = ""
    line: str = ""


DRAFT = "draft"  # by draft model or heads; others are named in the table alone

# Colours of the terminal after the palette of Okabe and Ito (2008), distinct with any colour
# vision, on dark and on light ground; the purple is stronger, or 16 colours would make it white.
_ROWS = (
    # Accepted tokens by their drafter: the draft model or heads, prompt lookup, an earlier
    # answer, a grammar that allows one token only.
    Origin(DRAFT, "drafted", "draft model", "[]", "#56b4e9", "#0a5c9e", "#7cc4f2", "dotted"),
    Origin(
        "lookup", "prompt lookup", "prompt lookup", "{}", "italic #c850b0",
        "#92278f", "#eb93de", "dashed",
    ),
    Origin(
        "history", "earlier answer", "earlier answers", "()", "italic #f0b43c",
        "#7a5200", "#f0b43c", "dashed",
    ),
    Origin("forced", "forced", "grammar", "||", "#2ca02c", "#00694d", "#3fd6a7", "dotted"),
    # The target's token if a drafted one was rejected, and if nothing was drafted.
    Origin(
        "corrected", "corrected", "", "<>", "underline #d55e00", "#a33c00", "#ff9f66", "solid 2px"
    ),
    Origin("plain", "plain"),
)  # fmt: skip
ORIGINS = {row.name: row for row in _ROWS}


def style_sheet() -> str:
    return "".join(
        f".{row.name} {{ color: light-dark({row.light}, {row.dark}); "
        f"text-decoration: underline {row.line}; text-underline-offset: 0.25em; }}\n"
        for row in _ROWS
        if row.line
    )


def legend_items() -> str:
    return "".join(f'<li class="{row.name}">{row.label}</li>\n' for row in _ROWS)
