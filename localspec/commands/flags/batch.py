"""Flags for answering a file of prompts."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.commands.flags.answer import PANEL
from localspec.core.errors import UsageError
from localspec.core.options.load_options import PARALLEL
from localspec.core.options.option import option

_batch = partial(option, panel=PANEL)


@dataclass(frozen=True, slots=True)
class BatchFlags:
    """A file of prompts, a file for their answers, and how many are answered at once."""

    batch: Path | None = _batch(
        None,
        "--batch",
        "Answer each line of a file.",
        everyday=True,
    )
    output: Path | None = _batch(
        None,
        "--output -o",
        "File for the answers of --batch; the same command again answers what is left.",
    )
    parallel: int = _batch(
        1,
        "--parallel -np",
        "Answer so many lines at the same time, each with a context of --ctx-size.",
        bounds=PARALLEL,
    )

    def check(self, unused: list[str]) -> None:
        """Raise UsageError for flags without --batch, or one of ``unused`` flags with it."""
        if self.batch is None:
            if self.output is not None or self.parallel != 1:
                flag = "--parallel" if self.output is None else "--output"
                raise UsageError(f"{flag} belongs to --batch.", "Add --batch FILE.jsonl.")
            return
        if self.output is None:
            raise UsageError("--batch has no file for the answers.", "Add -o ANSWERS.jsonl.")
        if unused:
            raise UsageError(f"{unused[0]} has no effect with --batch.", "Leave it out.")
