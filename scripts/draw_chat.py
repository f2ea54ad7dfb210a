"""Draws docs/start/chat.svg: the same answer, plain beside drafted, after the same time.

    python scripts/draw_chat.py TARGET.gguf DRAFT.gguf [--question TEXT]

Both are answered one after the other on one thread, and times are of the processor, so that other
work on the machine changes little. The plain side shows the text that was there when the drafted
side was complete.
"""

import argparse
import io
import re
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import localspec
from localspec.display.pieces import AnswerStyle, ShownPieces, legend

PICTURE = Path(__file__).parents[1] / "docs" / "start" / "chat.svg"
WARM_UP = "What is a lock?"  # another question: an earlier answer would be drafted from
QUESTION = "Write a Python function that merges two sorted lists. Code only."
COLUMNS = 112


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--max-tokens", type=int, default=120)
    given = parser.parse_args()
    options: dict[str, Any] = {"temperature": 0, "max_tokens": given.max_tokens}
    with localspec.load(given.target, given.draft, ctx_size=1024, threads=1) as model:
        model.generate(WARM_UP, **{**options, "max_tokens": 16})
        drafted = timed(model, given.question, options)
        plain = timed(model, given.question, {**options, "draft_tokens": 0})
    limit = drafted[-1][0]
    sides = Table(box=None, padding=(0, 2), expand=True)
    for name, pieces in (("plain", plain), ("drafted", drafted)):
        shown = [piece for at, piece in pieces if at <= limit]
        tokens = sum(len(piece.tokens) for piece in shown)
        sides.add_column(f"{name}: {tokens} tokens after {limit:.0f} s of one core", ratio=1)
    sides.add_row(*(text_of(pieces, limit) for pieces in (plain, drafted)))
    out = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    out.print(Text.assemble((">>> ", "bold"), given.question))
    out.print(legend("colours"), "")
    out.print(sides)
    picture = out.export_svg(title=f"{given.target.stem} with {given.draft.stem}")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # fonts of a far host
    PICTURE.write_text(picture, encoding="utf-8")


def timed(
    model: localspec.Model, question: str, options: dict[str, Any]
) -> list[tuple[float, localspec.Piece]]:
    """Each piece of an answer with the processor seconds since its first token."""
    pieces: list[tuple[float, localspec.Piece]] = []
    began = None
    for piece in model.stream(question, **options):
        if piece.tokens:
            began = began or time.process_time()
            pieces.append((time.process_time() - began, piece))
    return pieces


def text_of(pieces: list[tuple[float, localspec.Piece]], limit: float) -> Text:
    """The text that was there after ``limit`` seconds, coloured by origin."""
    shown, text = ShownPieces(AnswerStyle(origins="colours")), Text()
    for at, piece in pieces:
        if at <= limit:
            for part, colour in shown.styled(piece):
                text.append(part, colour)
    return text


if __name__ == "__main__":
    main()
