"""Draws docs/start/chat.svg: a chat with its meter, and where each token came from.

    python scripts/draw_chat.py [--question TEXT]

It answers with the bundled pair padded by `localspec demo`, so the figures are of this machine.
"""

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

import localspec
from localspec.bench.demo import padded_pair
from localspec.display.answer import meter
from localspec.display.pieces import AnswerStyle, ShownPieces, legend

PICTURE = Path(__file__).parents[1] / "docs" / "start" / "chat.svg"
QUESTION = "How is random.choice implemented?"
COLUMNS = 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--question", default=QUESTION)
    question = parser.parse_args().question
    target, draft = padded_pair("F16", lambda label, done, total: None)
    style = AnswerStyle(origins="colours")
    shown, answer = ShownPieces(style), Text()
    with localspec.load(target, draft, ctx_size=512, temperature=0) as model:
        model.generate(question, max_tokens=16)  # the first passes page the weights in
        for piece in model.stream(question, max_tokens=120):
            for text, colour in shown.styled(piece):
                answer.append(text, colour)
    out = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    out.print(Text("$ localspec chat --target target-F16.gguf --draft draft-F16.gguf --show-draft"))
    out.print(legend("colours"))
    out.print(Text.assemble((">>> ", "bold"), question))
    out.print(answer)
    out.print(Text(meter(piece.stats, COLUMNS, piece.status), style="dim"))
    picture = out.export_svg(title="localspec chat")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # fonts of a far host
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
