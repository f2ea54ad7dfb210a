"""Benchmark report: a document with results, settings and the machine, as JSON and as a page."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from localspec import __version__
from localspec.bench.comparison import Comparison, together
from localspec.bench.plan import BenchPlan
from localspec.bench.prompts import BenchPrompt
from localspec.bench.report.page import render
from localspec.core import machine
from localspec.core.files import appearing_when_complete, file_problem
from localspec.engine.engine import Engine
from localspec.llama import llama_library
from localspec.llama.memory.use import MemoryUse

FORMAT = 4  # raise it when a key changes its name or meaning


@dataclass(eq=False, slots=True)
class Report:
    """The document of one run, written to ``path`` as JSON and to ``page`` as HTML (None: nowhere).

    ``prompts`` are by task. Speeds are in tokens per second, seconds end in ``_s``, memory is in
    bytes; ``overall`` is None before the first result. ``command`` gave it, and ``other_work`` is a
    sentence on other programs at its start. It is written after each task; files are always
    complete or untouched.
    """

    engine: Engine
    plan: BenchPlan
    prompts: Mapping[str, Sequence[BenchPrompt]]
    path: Path | None = None
    page: Path | None = None
    command: str = ""
    other_work: str | None = None
    document: dict[str, object] = field(default_factory=dict, init=False)

    def save(self, comparisons: Sequence[Comparison], *, complete: bool) -> None:
        """Rebuild the document from the results so far, then write it; raises FileProblem."""
        engine, plan = self.engine, self.plan
        self.document = {
            "format": FORMAT,
            "version": __version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "complete": complete,
            "command": self.command,
            "other_work": self.other_work,
            **engine.settings(),
            "text_equality": engine.text_equality,
            "memory": {name: use and use.as_json() for name, use in memory_use(engine).items()},
            "settings": {
                "draft_tokens": list(plan.lengths),
                "repeats": plan.repeats,
                "max_tokens": plan.max_tokens,
                "sampling": asdict(plan.params),
            },
            "machine": _machine(),
            "prompts": [
                {"name": f"{group} {i + 1}", "task": prompt.task, "messages": list(prompt.messages)}
                for group, prompts in self.prompts.items()
                for i, prompt in enumerate(prompts)
            ],
            "tasks": [comparison.as_json() for comparison in comparisons],
            "overall": together(comparisons).as_json() if comparisons else None,
            "answers": [row for comparison in comparisons for row in comparison.answers_as_json()],
        }
        if self.path is not None:
            write_report(self.path, json.dumps(self.document, indent=1, ensure_ascii=False) + "\n")
        if self.page is not None:
            write_report(self.page, render(self.document))


def memory_use(engine: Engine) -> dict[str, MemoryUse | None]:
    """Memory of the target, of the draft (None without one), and of both."""
    target, draft = engine.target.memory, None if engine.draft is None else engine.draft.memory
    return {"target": target, "draft": draft, "pair": target + draft if draft else target}


def _machine() -> dict[str, object]:
    return {
        "cpu": machine.cpu_name(),
        "physical_cores": machine.physical_cores(),
        "devices": [
            {"name": d.name, "description": d.description} for d in llama_library.devices()
        ],
        "llama_cpp": llama_library.build().llama_cpp,
    }


def require_writable(path: Path) -> None:
    """Raise FileProblem before a long measurement if ``path`` cannot be written."""
    with suppress(_Enough), _writing(path):
        if os.path.isdir(path):
            raise IsADirectoryError(f"{path} is a folder")
        with appearing_when_complete(path) as partial, partial.open("ab"):
            raise _Enough


def write_report(path: Path, text: str) -> None:
    with _writing(path), appearing_when_complete(path) as partial:
        # Half a surrogate pair, as in a name that is not UTF-8, becomes the escape of JSON.
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


class _Enough(Exception):
    """Leaves a file that was opened only to see that it can be written."""


def _writing(path: Path) -> AbstractContextManager[None]:
    return file_problem(
        f"The results cannot be written to {path}",
        "Give a file in a folder with room, that you may write to.",
    )
