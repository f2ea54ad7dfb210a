"""Making a draft out of a target, and keeping it for ``--draft self``."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from localspec.core.files import appearing_when_complete, file_problem
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.metadata.checks.heads import n_tokens
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.make import chosen_recipe, make_draft
from localspec.self_draft.recipe import Recipe, SelfDraftOptions
from localspec.self_draft.trim import trim_vocabulary
from localspec.self_draft.trim_heads import trim_heads
from localspec.self_draft.vocabulary import (
    Conversation,
    count_file,
    count_tokens,
    coverage,
    enough_rows,
    ranked,
)

COUNT_BUDGET = 60.0  # seconds

Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]  # label, done, in all
ProgressBar = Callable[[], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """A draft of ``n_bytes``, made of ``source``: the target itself, or the draft that was given.

    ``stored`` is its place in the store, None for one that was given.
    """

    target: ModelHeader
    source: ModelHeader
    recipe: Recipe
    n_bytes: int
    stored: Path | None


def make_and_store(
    target: LoadOptions,
    options: SelfDraftOptions,
    output: Path | None,
    prompts: Sequence[Conversation],
    say: Say,
    progress: ProgressBar,
) -> MadeDraft:
    """Make a draft of a target, and store it for ``--draft self``, unless a draft was given.

    It is also copied to ``output``. Tokens are counted in the target's answers to ``prompts``.
    Raises the errors of `chosen_recipe`, `make_draft`, `trim_vocabulary` and `count_file`,
    FileProblem if nothing can be written.
    """
    header = read_header(target.path)
    source = header if options.source is None else read_header(options.source)
    recipe = chosen_recipe(options, header, source)
    say(_announcement(recipe, n_layers(source)))
    with progress() as on_progress, store.work_folder() as folder:
        file = source.path
        if options.source is None and not recipe.heads:
            file = folder / "draft.gguf"
            on_progress("making the draft", 0, 1)
            make_draft(header, replace(recipe, vocab=None), file)
        if recipe.heads or recipe.vocab is not None:
            whole = source if recipe.heads else read_header(file)
            on_progress("counting the tokens that the target uses", 0, 1)
            ids = _kept_ids(whole, target, recipe.vocab, options.counts, prompts)
            recipe = replace(recipe, vocab=len(ids))
            file = folder / "trimmed.gguf"
            on_progress("trimming", 0, 1)
            (trim_heads if recipe.heads else trim_vocabulary)(whole, header, ids, file)
        size = file.stat().st_size
        try:
            if output is not None:
                _copy(file, output)
        finally:  # so that it is not lost if the output cannot be written
            stored = None if options.source is not None else store.store_draft(header, file)
    return MadeDraft(header, source, recipe, size, stored)


def _announcement(recipe: Recipe, layers: int) -> str:
    trims = recipe.heads or recipe.vocab is not None
    counted = f", counting the target's tokens for {COUNT_BUDGET:.0f} seconds" if trims else ""
    return f"Making a draft of {recipe.describe(layers)}{counted}."


def _kept_ids(
    draft: ModelHeader,
    target: LoadOptions,
    n_ids: int | None,
    counts: Path | None,
    prompts: Sequence[Conversation],
) -> list[int]:
    """The ids of the output rows that are kept; by default as many as cover enough text."""
    size, end = n_tokens(draft), perf_counter() + COUNT_BUDGET
    with Engine.load(target) as engine:
        texts: Sequence[Counter[int]]
        if counts is not None:
            texts = count_file(engine, counts)
        else:
            texts = count_tokens(engine, prompts, lambda: perf_counter() > end)
        n_ids = n_ids or enough_rows(coverage(engine, texts, size))
        return sorted(ranked(engine, texts, size)[:n_ids])


def _copy(draft: Path, output: Path) -> None:
    what = f"The draft cannot be written to {output}"
    hint = "Give --output a file in a folder with room."
    with file_problem(what, hint), appearing_when_complete(output) as partial:
        shutil.copyfile(draft, partial)
