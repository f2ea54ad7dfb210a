"""The trace of an answer: a page of its tokens by origin, with the facts of each round."""

import time
from collections.abc import Iterator, Sequence
from html import escape
from math import exp
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from localspec.bench import report
from localspec.core.files import appearing_when_complete, file_problem
from localspec.core.formatting import one_line
from localspec.core.machine import cpu_name
from localspec.core.origins import ORIGINS, legend_items, style_sheet

if TYPE_CHECKING:
    from localspec.chat.answer import Piece

_PAGE = Path(__file__).with_name("trace.html")
_STYLE = Path(report.__file__).with_name("page.css")  # one look of all reports


def write_trace(
    path: Path, pieces: Sequence["Piece"], totals: str, question: str = "", models: str = ""
) -> None:
    """Write the page, with models, date and machine; raises FileProblem if that fails."""
    where = f"{models}, {time.strftime('%Y-%m-%d %H:%M')}, {cpu_name()}".removeprefix(", ")
    what = f"The trace {one_line(str(path))} cannot be written"
    with file_problem(what, "Name another file.", ValueError):
        with appearing_when_complete(path) as partial:
            partial.write_text(
                page(pieces, totals, question, where), encoding="utf-8", errors="replace"
            )


def page(pieces: Sequence["Piece"], totals: str, question: str = "", where: str = "") -> str:
    """The page of an answer with a line of its figures; probabilities if they were requested."""
    rounds = [piece for piece in pieces if piece.parts or piece.tokens]
    return Template(_PAGE.read_text("utf-8")).substitute(
        style=_STYLE.read_text("utf-8"),
        colours=style_sheet(),
        question=escape(question),
        where=escape(where),
        totals=escape(totals),
        legend=legend_items(),
        text="".join(_round(number, piece) for number, piece in enumerate(_counted(rounds), 1)),
        rows="".join(_row(number, piece) for number, piece in enumerate(_counted(rounds), 1)),
    )


def _counted(pieces: Sequence["Piece"]) -> Iterator[tuple["Piece", int, int]]:
    """Each piece with the tokens that its round drafted, and accepted."""
    drafted = accepted = 0
    for piece in pieces:
        stats = piece.stats
        yield piece, stats.drafted - drafted, stats.accepted - accepted
        drafted, accepted = stats.drafted, stats.accepted


def _round(number: int, counted: tuple["Piece", int, int]) -> str:
    """The tokens of a round, and its facts in a box that hovering or focus shows."""
    piece, drafted, accepted = counted
    tokens = "".join(
        f'<span class="{part.origin}">{escape(part.text)}</span>' for part in piece.parts
    )
    facts = [f"Round {number}: {_judged(drafted, accepted)}"]
    facts += [
        f"{escape(repr(part.text))}: {ORIGINS[part.origin].label}{_sure(piece, part.place)}"
        for part in piece.parts
    ]
    if piece.rejected:
        facts.append(f"The draft proposed {escape(repr(piece.rejected))} in the last place.")
    box = "<br>".join(facts)
    return f'<span class="round" tabindex="0">{tokens}<span class="facts">{box}</span></span>'


def _row(number: int, counted: tuple["Piece", int, int]) -> str:
    piece, drafted, accepted = counted
    text = escape("".join(part.text for part in piece.parts))
    least = min((exp(each.logprob) for each in piece.logprobs), default=None)
    cells = [text, _judged(drafted, accepted), "" if least is None else f"{least:.1%}"]
    cells.append(escape(repr(piece.rejected)) if piece.rejected else "")
    return f'<tr><th scope="row">{number}{"".join(f"<td>{cell}" for cell in cells)}\n'


def _judged(drafted: int, accepted: int) -> str:
    return f"{accepted} of {drafted} drafted tokens accepted" if drafted else "nothing drafted"


def _sure(piece: "Piece", place: int) -> str:
    """The target's probability of a token, if known."""
    if place >= len(piece.logprobs):
        return ""
    return f", {exp(piece.logprobs[place].logprob):.1%} by the target"
