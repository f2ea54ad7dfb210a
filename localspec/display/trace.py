"""The trace of an answer: a page of its tokens by origin, with the facts of each round."""

from collections.abc import Iterator, Sequence
from html import escape
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.core.errors import FileProblem
from localspec.core.files import appearing_when_complete
from localspec.core.formatting import one_line
from localspec.core.origins import ORIGINS, legend_items, style_sheet

if TYPE_CHECKING:
    from localspec.chat.answer import Piece

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Trace of an answer</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 52rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.6 system-ui; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; padding: 0; list-style: none; }}
.answer {{ font: 0.95rem/1.9 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }}
.round {{ position: relative; border-inline-start: 1px solid light-dark(#bbb, #555); }}
.round:is(:hover, :focus) {{ background: light-dark(#eee, #2a2a2a); outline: 1px solid; }}
.facts {{ display: none; position: absolute; inset-block-start: 1.8em; inset-inline-start: 0;
  z-index: 1; width: max-content; max-width: min(24rem, 80vw); padding: 0.4rem 0.6rem;
  border: 1px solid; border-radius: 0.3rem; background: Canvas; color: CanvasText;
  font: 0.85rem/1.5 system-ui; }}
.round:is(:hover, :focus) > .facts {{ display: block; }}
table {{ border-collapse: collapse; font-size: 0.85rem; }}
:is(td, th) {{ padding: 0.1rem 0.6rem; text-align: start;
  border-block-end: 1px solid light-dark(#ddd, #444); }}
td:first-of-type {{ white-space: pre-wrap; font-family: ui-monospace, monospace; }}
@media print {{ .facts {{ display: none !important; }} }}
{colours}</style>
<h1>Trace of an answer</h1>
<p>{totals}</p>
<ul class="legend">
{legend}</ul>
<p>Each stretch between thin lines is one round: hover it, or reach it by Tab, for its facts.</p>
<div class="answer">{text}</div>
<details><summary>All rounds as a table</summary>
<table><thead><tr><th>round<th>text<th>drafted, accepted<th>least probability
<th>the draft proposed</thead>
<tbody>
{rows}</tbody></table></details>
"""


def write_trace(path: Path, pieces: Sequence["Piece"], totals: str) -> None:
    """Write the page; raises FileProblem if that fails."""
    try:
        with appearing_when_complete(path) as partial:
            partial.write_text(page(pieces, totals), encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileProblem(
            f"The trace {one_line(str(path))} cannot be written: {reason}.", "Name another file."
        ) from error


def page(pieces: Sequence["Piece"], totals: str) -> str:
    """The page of an answer; ``totals`` is a line of its figures.

    Tokens have probabilities if ``logprobs`` were requested.
    """
    rounds = [piece for piece in pieces if piece.parts or piece.tokens]
    return _PAGE.format(
        colours=style_sheet(),
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
