"""Flags of an answer: system message, limits, display, prompt cache."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import DraftTokens
from localspec.core.options.option import Bounds, option

PANEL = "Prompt and answer"  # of the help
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
HeaderFlag = Annotated[
    bool, typer.Option("--header/--no-header", help="Name the columns.", show_default=False)
]
_answer = partial(option, panel=PANEL)


@dataclass(frozen=True, slots=True)
class AnswerFlags:
    """System message, limits, display and prompt cache of an answer."""

    system: str | None = _answer(None, "--system -sys", "System message.", everyday=True)
    max_tokens: int | None = _answer(
        None,
        "--max-tokens -n",
        "Longest answer in tokens. Default: until the context is full.",
        bounds=Bounds(-2, 2**63 - 1),
        everyday=True,
    )
    stop: tuple[str, ...] = _answer((), "--stop", "End before this text; may be repeated.")
    hide_reasoning: bool = _answer(False, "--hide-reasoning", "Show no reasoning.")
    stats: bool = _answer(False, "--stats", "Show all figures of an answer.", everyday=True)
    quiet: bool = _answer(
        False, "--quiet -q", "Show nothing but the answer and errors.", everyday=True
    )
    show_draft: bool = _answer(
        False,
        "--show-draft",
        "Colour each token by its source: the draft, prompt lookup, an earlier answer, a grammar's "
        "only choice, the target's correction. Marks where there is no colour.",
    )
    prompt_cache: Path | None = _answer(
        None, "--prompt-cache", "Store the KV cache in this file, so that a prompt is read once."
    )
    prompt_cache_ro: bool = _answer(
        False, "--prompt-cache-ro", "Read that file, but never write it."
    )

    def options(self, length: DraftTokens, grammar: str | None) -> GenerateOptions:
        return GenerateOptions(
            draft_tokens=length, max_tokens=self.max_tokens, stop=tuple(self.stop), grammar=grammar
        )
