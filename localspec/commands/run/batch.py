"""``run --batch``: a file of prompts, a file of answers."""

import math
import os
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from localspec.commands.flags.answer import PANEL, AnswerFlags
from localspec.commands.flags.rows import given_flags
from localspec.commands.flags.serving import ServingFlags
from localspec.commands.flags.template import TemplateFlags
from localspec.commands.serve.serve import make_service, require_extra
from localspec.commands.session import lookup_cache, open_engine, use_template
from localspec.core.compute import COMPUTE
from localspec.core.errors import FileProblem, UsageError
from localspec.core.files import file_problem, lock, or_stream
from localspec.core.options.load_options import PARALLEL
from localspec.core.options.option import option
from localspec.display import answer as answers
from localspec.display.terminal import console
from localspec.display.terminal.progress import progress

if TYPE_CHECKING:
    from localspec.library.pairs.request import PairRequest

_batch = partial(option, panel=PANEL)


@dataclass(frozen=True, slots=True)
class BatchFlags:
    """A file of prompts, a file for their answers, and how many are answered at once."""

    batch: Path | None = _batch(None, "--batch", "Answer each line of a file, or -.", everyday=True)
    output: Path | None = _batch(
        None,
        "--output -o",
        "File for the answers of --batch; run the command again to continue. -: stdout.",
    )
    parallel: int = _batch(
        1,
        "--parallel -np",
        "Number of lines answered at the same time, each with a context of --ctx-size.",
        bounds=PARALLEL,
    )
    kv_unified: bool = option(
        False,
        "--kv-unified/--no-kv-unified -kvu/-no-kvu",
        "Let lines of --batch share one context of --ctx-size: each takes as much as it needs.",
        panel="Loading",
    )

    def check(self, unused: list[str]) -> None:
        """Raise UsageError for flags without --batch, or one of ``unused`` flags with it."""
        if self.batch is None:
            if given := given_flags(self):
                raise UsageError(f"{given[0]} belongs to --batch.", "Add --batch FILE.jsonl.")
            return
        if self.output is None:
            raise UsageError("--batch has no file for the answers.", "Add -o ANSWERS.jsonl.")
        if unused:
            raise UsageError(f"{unused[0]} has no effect with --batch.", "Leave it out.")


def run_batch(
    batching: BatchFlags,
    answering: AnswerFlags,
    templating: TemplateFlags,
    grammar: str | None,
    request: "PairRequest",
) -> None:
    """Answer the lines that have no answer yet; Ctrl-C keeps the results so far."""
    assert batching.batch is not None and batching.output is not None
    require_extra()
    from localspec.server.batch import BatchRun, read_done, read_lines

    lines = read_lines(or_stream(batching.batch, "stdin"))
    path = or_stream(batching.output, "stdout")
    with _appending(path) as output, ExitStack() as reopened:
        done = read_done(path, lines)
        opened = os.fstat(output.fileno())
        if path.is_file() and not os.path.samestat(opened, path.stat()):
            output = reopened.enter_context(_appending(path))
        left = [line for line in lines if line.custom_id not in done]
        if not left:
            console.note(f"All {len(lines)} lines have a result in {path}.")
            return
        fields = {"stop": list(answering.stop) or None, "grammar": grammar}
        COMPUTE.release()  # the main thread runs the event loop
        serving = ServingFlags(
            parallel=batching.parallel,
            max_tokens=answering.max_tokens,
            queue_timeout=math.inf,
            prompt_share=1.0,  # no answer is shown before its end
        )
        with (
            open_engine(request, batching.parallel, batching.kv_unified) as engine,
            lookup_cache(engine, request, default=True),
            progress() as report,
        ):
            use_template(engine, templating, answering.system)
            service = make_service(engine, request, request.draft_tokens, serving, templating)
            batch = BatchRun(
                service,
                output,
                parallel=batching.parallel,
                fields={name: each for name, each in fields.items() if each is not None},
                system=answering.system,
                on_result=lambda: report("Answering", len(done) + batch.results, len(lines)),
            )
            try:
                with closing(service.session):
                    batch.run(left)
            finally:
                written = len(done) + batch.results
                console.note(f"{written} of {len(lines)} lines have a result in {path}.")
                if batch.errors:
                    console.note(f"Errors among them: {batch.errors}; see status_code.")
                    console.note("The same command asks these lines again.")
                if batch.stats.tokens:
                    full = not console.is_quiet()
                    line = answers.figures_line(batch.stats, "stop", None, full=full)
                    console.note(line, asked=full)
            if batch.errors:
                raise typer.Exit(1)


def _appending(path: Path) -> TextIO:
    """The file of results, locked; raises FileProblem if another run writes it."""
    with file_problem(f"{path} cannot be written", "Name another file with -o."):
        output = path.open("a", encoding="utf-8")
    if path.is_file() and not lock(output):
        output.close()
        raise FileProblem(
            f"Another run writes its results to {path}.", "Wait for its end, or give another -o."
        )
    return output
