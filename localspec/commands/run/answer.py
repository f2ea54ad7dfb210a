"""One answer of ``run``: as text with its figures, as JSON, or as a page."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import __version__
from localspec.commands import session
from localspec.commands.flags.answer import AnswerFlags
from localspec.core import machine
from localspec.core.errors import UsageError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.display import answer as answers
from localspec.display.pieces import AnswerStyle, AnswerWriter, unseen_answer
from localspec.display.terminal import console
from localspec.display.trace import write_trace

if TYPE_CHECKING:
    from localspec.chat.answer import Answer, Piece
    from localspec.engine.engine import Engine
    from localspec.library.pairs.request import PairRequest


@dataclass(frozen=True, slots=True)
class Output:
    """How an answer is written: as text or JSON, and as a page if ``trace`` names its file.

    With ``compare`` the model answers again without drafting.
    """

    compare: bool
    trace: Path | None
    as_json: bool

    def given(self) -> list[str]:
        """The flags that were given."""
        found = {
            "--compare": self.compare,
            "--trace": self.trace is not None,
            "--json": self.as_json,
        }
        return [flag for flag, is_on in found.items() if is_on]

    def check(self, answering: AnswerFlags) -> None:
        """Raise UsageError for flags that do not go together, or a page's odd name."""
        if self.trace is not None and self.trace.suffix != ".html":
            raise UsageError(
                f"--trace writes HTML, and {self.trace} does not end in .html.",
                "Name a file that ends in .html.",
            )
        if self.as_json and answering.show_draft:
            raise UsageError(
                "--show-draft colours a text, and --json prints none.",
                "Leave one out; sources and accepted_at of the document count the drafted tokens.",
            )

    def say(self, answering: AnswerFlags) -> None:
        """Notes for one who waits."""
        if self.compare and not self.as_json:
            console.note_other_work()
            shorter = "" if answering.max_tokens else ", -n 100 is shorter"
            console.note(f"Answering twice, drafted and plain in turn; Ctrl-C stops{shorter}.")


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt as text and as token ids, ``raw`` or in the chat template, and options."""

    text: str
    ids: list[int]
    raw: bool
    options: GenerateOptions


def write_answer(
    engine: "Engine",
    request: "PairRequest",
    asked: Asked,
    answering: AnswerFlags,
    output: Output,
) -> bool:
    """Answer and write it; returns whether Ctrl-C stopped it."""
    from localspec.chat.answer import agreement, collect

    look = AnswerStyle.asked(answering.hide_reasoning, answering.show_draft, answering.stats)
    if output.trace is not None:
        asked = replace(asked, options=replace(asked.options, logprobs=0))
    traced: list[Piece] = []
    keep = (lambda piece: None) if output.trace is None else traced.append
    plain, measured = None, ""
    with (
        session.lookup_cache(engine, request, default=False),
        session.prompt_cache(engine, answering) as save_prompt,
        _streams(engine, asked, save_prompt, output) as (pieces, plain_pieces),
    ):
        answer = collect(pieces, keep) if output.as_json else _written(pieces, look, keep)
        if not output.as_json:
            _show_figures(answer, asked.options.sampling, look.stats, output)
        if output.compare and answer.finish_reason != "cancelled":
            with unseen_answer("plain", expected=len(answer.tokens)) as show:
                plain = collect(plain_pieces, show)
    if output.as_json:
        compared = {} if plain is None else _comparison(answer, plain)
        console.json_line(answer.as_json() | _settings(engine, asked) | compared)
    elif plain is not None and plain.finish_reason != "cancelled":
        agreed = agreement(engine.stream, asked.ids, asked.options, answer, plain)
        measured = answers.compared(answer, plain, agreed)
    if output.trace is not None:
        figures = _figures(answer, output), measured
        _write_page(output.trace, traced, figures, asked.text, engine)
    return "cancelled" in {answer.finish_reason, None if plain is None else plain.finish_reason}


def _streams(
    engine: "Engine",
    asked: Asked,
    on_prompt: "Callable[[], None] | None",
    output: Output,
) -> "AbstractContextManager[tuple[Iterator[Piece], Iterator[Piece]]]":
    """The pieces of the answer, and of a plain one to compare it with, if one is wanted."""
    progress = not output.as_json
    if output.compare:
        return engine.stream_with_plain(
            asked.ids, asked.options, console.note, on_prompt=on_prompt, reports_progress=progress
        )
    pieces = engine.stream(asked.ids, asked.options, on_prompt=on_prompt, reports_progress=progress)
    return nullcontext((pieces, iter(())))


def _written(
    pieces: "Iterator[Piece]", look: AnswerStyle, keep: "Callable[[Piece], object]"
) -> "Answer":
    from localspec.chat.answer import collect

    writer = AnswerWriter(look)

    def write(piece: "Piece") -> None:
        keep(piece)
        writer.write(piece)

    try:
        return collect(pieces, write)
    finally:
        writer.end(line=True)


def _show_figures(answer: "Answer", params: SamplingParams, full: bool, output: Output) -> None:
    from localspec.engine.advice import advise

    seed = None if params.greedy else params.seed
    console.note(_figures(answer, output, seed, full=full), asked=full)
    answers.only_thoughts(answer)
    if (advice := advise(answer.stats, params)) is not None and not machine.is_busy():
        console.note(advice)


def _figures(
    answer: "Answer", output: Output, seed: int | None = None, *, full: bool = True
) -> str:
    estimate = not output.compare  # which measures the gain
    return answers.figures_line(
        answer.stats, answer.finish_reason, seed, answer.status, full=full, estimate=estimate
    )


def _write_page(
    path: Path, pieces: "list[Piece]", figures: tuple[str, ...], question: str, engine: "Engine"
) -> None:
    loaded = (engine.target, engine.draft)
    models = " + ".join(each.header.path.name for each in loaded if each is not None)
    write_trace(path, pieces, " · ".join(filter(None, figures)), question, models)


def _comparison(answer: "Answer", plain: "Answer") -> dict[str, object]:
    gain = round(answers.gain_over(answer.stats, plain.stats), 3)
    same = answer.tokens == plain.tokens
    return {"plain": plain.as_json(), "measured_speedup": gain, "same_text": same}


def _settings(engine: "Engine", asked: Asked) -> dict[str, object]:
    """Seed and settings, so that the answer can be had again."""
    options = asked.options
    settings = {
        **engine.settings(),
        "draft_tokens": options.draft_tokens,
        "sampling": asdict(options.sampling),
        "grammar": options.grammar,
        "version": __version__,
        "template": None if asked.raw else engine.template.settings(),
    }
    return {"seed": options.sampling.seed, "settings": settings}
