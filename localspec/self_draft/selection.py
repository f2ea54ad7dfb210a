"""Selection of a self-draft for a target: search, trimmed vocabulary, verdict."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from localspec.core.errors import DraftNotMade, IncompatiblePair, LocalspecError, UsageError
from localspec.core.formatting import size
from localspec.core.options.load_options import LoadOptions
from localspec.engine.engine import Engine
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.judge import judge
from localspec.self_draft.make import KEEP, Recipe, require_model
from localspec.self_draft.search import COUNT_BUDGET, Progress, Search, proposals
from localspec.self_draft.trial import Trials, questions, record
from localspec.self_draft.trim import require_trimmable
from localspec.self_draft.verdict import DraftVerdict

SEARCH_BUDGET, VERDICT_BUDGET = 240.0, 120.0  # seconds
_RECORD_SHARE = 1 / 6  # of the search, for the target's own answers
_PRECISE = ("F32", "F16", "BF16", "Q8_0")  # targets that a lower type makes much quicker
_LOWER = ("Q4_0", "Q2_K", "Q3_K_S")
_LOWER_BYTES = 3 / 4  # of a parameter in these, at most: some tensors stay more precise

# Load options of a target, and of a draft if there is one, by their files.
Load = Callable[[Path, Path | None], tuple[LoadOptions, LoadOptions | None]]
Say = Callable[[str], None]
ProgressBar = Callable[[], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True)
class SelfDraftOptions:
    """What was asked for: the number of first layers and the type of weights; None is searched.

    ``vocab`` is the number of tokens with an output row, None for all. With ``draft``, a draft of
    the target, nothing is searched: only its output rows are reduced.
    """

    layers: int | None = None
    type: str | None = None
    vocab: int | None = None
    draft: Path | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The best draft that a search found, and its verdict, None after Ctrl-C.

    It was made of ``source``: the target itself, or the draft that was given.
    """

    target: ModelHeader
    source: ModelHeader
    search: Search
    verdict: DraftVerdict | None

    @property
    def recipe(self) -> Recipe:
        """Of the best draft."""
        return self.search.best.trial.recipe

    @property
    def file(self) -> Path:
        """The best draft."""
        return self.search.best.file


def stored_or_made(
    target: Path, load: Load, say: Say, progress: ProgressBar, agree: Callable[[str], bool]
) -> Path | None:
    """The file of the target's self-draft; None where it does not pay.

    If none is stored, it is made now where the user agrees, else UsageError is raised. A note says
    which draft it is, and what it was measured to give.
    """
    stored = store.find(read_header(target))
    if stored is None:
        say("No draft was made of this target here yet, or it is out of date.")
        minutes = (SEARCH_BUDGET + VERDICT_BUDGET) / 60
        if not agree(f"Search for one now, for about {minutes:.0f} minutes?"):
            raise UsageError(
                f"There is no draft made of {target.name} to use.",
                f"Add --yes, or make it first: localspec draft make {shlex.quote(str(target))}",
            )
        stored = make_and_store(target, SelfDraftOptions(), load, say, progress)[1]
        assert stored is not None
    say(_note(stored))
    return stored.path


def make_and_store(
    target: Path,
    options: SelfDraftOptions,
    load: Load,
    say: Say,
    progress: ProgressBar,
    use: Callable[[Selection], None] = lambda selection: None,
) -> tuple[Selection, store.StoredDraft | None]:
    """Select a draft of a target and store it for ``--draft self``; ``use`` gets its file first.

    Also returns what was stored, None where `_replaces` is false.
    """
    with progress() as on_progress, selected(target, options, load, say, on_progress) as found:
        stored = None
        try:
            use(found)
        finally:  # so that it is not lost if --output cannot be written
            if _replaces(found, options, store.find(found.target)):
                stored = store.store_draft(found.target, found.recipe, found.file, found.verdict)
    return found, stored


def _replaces(
    found: Selection, options: SelfDraftOptions, before: store.StoredDraft | None
) -> bool:
    """Whether ``--draft self`` shall use what was found instead of what was stored before.

    That no draft pays only follows from a search without options, or from measuring the stored
    draft again. What was not measured replaces nothing, nor does a draft that was given.
    """
    if options.draft is not None:
        return False
    if found.verdict is None:
        return before is None
    again = before is not None and before.recipe == found.recipe
    return found.verdict.pays or options == SelfDraftOptions() or again


def _note(stored: store.StoredDraft) -> str:
    """One line on a stored draft, with its figure."""
    verdict = stored.verdict
    if verdict is None:
        return f"Draft: {stored.path}, made of the target; whether it pays was not measured."
    figure = f"{verdict.speedup:.2f}x plain, prompt lookup alone {verdict.lookup_speedup:.2f}x"
    if stored.path is None:
        return (
            f"A draft made of this target does not pay here ({figure}): it is not used. With other "
            "flags it may: localspec draft make measures again."
        )
    return f"Draft: {stored.path}, made of the target ({figure})."


@contextmanager
def selected(
    target: Path, options: SelfDraftOptions, load: Load, say: Say, on_progress: Progress
) -> Iterator[Selection]:
    """The best draft that can be made of a target; its file is removed at the end of the block.

    Notes go to ``say``. Ctrl-C ends the search with the best found so far. Raises DraftNotMade
    where none can be made, UsageError for options that give no draft, IncompatiblePair for a target
    that cannot verify drafts, FileProblem where nothing can be written.
    """
    header = read_header(target)
    source = header if options.draft is None else read_header(options.draft)
    types = _types(header, options)
    _require_possible(source, header, options, types)
    say(_announcement(source, options, types))
    end = perf_counter() + SEARCH_BUDGET
    with store.work_folder() as folder:
        with Engine.load(load(target, None)[0], say=say) as engine:
            on_progress("recording answers of the target", 0, 1)
            trials = _trials(engine, load)
            search = Search(source, trials, folder, on_progress)
            if options.draft is not None:
                search.try_source()
            else:
                search.run(_recipes(header, options, types, search), end - perf_counter())
            if not search.trials:
                raise next(iter(search.failed.values()))
            if not search.stopped and options.vocab is not None:
                _trim(engine, search, options, options.vocab)
        verdict = None
        if not search.stopped:
            verdict = _judged(load(target, search.best.file), trials, search, on_progress)
        yield Selection(header, source, search, verdict)


def _recipes(
    header: ModelHeader, options: SelfDraftOptions, types: Sequence[str], search: Search
) -> Iterator[Recipe]:
    """What is tried."""
    if options.layers is not None:
        return (Recipe(options.layers, each) for each in types)
    return proposals(n_layers(header), types, search.trials)


def _trials(engine: Engine, load: Load) -> Trials:
    """Record the target's answers, to try drafts against."""
    header = engine.target.header
    if not engine.can_roll_back:
        raise IncompatiblePair(
            f"llama.cpp cannot take rejected tokens back from {header.path.name}, so nothing can "
            "draft for it.",
            "Run it plain: --draft off.",
        )
    texts = record(engine, questions(engine)[0], _RECORD_SHARE * SEARCH_BUDGET)
    if not texts:
        raise DraftNotMade(
            f"{header.path.name} answers the built-in prompts with nothing.",
            "Use a model that was trained to answer.",
        )

    def load_draft(path: Path) -> LoadOptions:
        draft = load(header.path, path)[1]
        assert draft is not None
        return draft

    return Trials(engine, texts, load_draft)


def _trim(engine: Engine, search: Search, options: SelfDraftOptions, vocab: int) -> None:
    """Reduce the best draft to ``vocab`` output rows; where that fails, it stays as it is."""
    try:
        search.trim(engine, vocab)
    except (KeyboardInterrupt, LocalspecError) as problem:
        if options.draft is not None:  # there is no search to save
            raise
        if isinstance(problem, LocalspecError):
            search.failed[replace(search.best.trial.recipe, vocab=vocab)] = problem
        else:
            search.stopped = True


def _judged(
    options: tuple[LoadOptions, LoadOptions | None],
    trials: Trials,
    search: Search,
    on_progress: Progress,
) -> DraftVerdict | None:
    """The verdict; None where Ctrl-C ended its measurement."""
    label = "measuring the best"
    on_progress(label, 0, 1)
    try:
        with Engine.load(*options) as pair:
            return judge(
                pair,
                questions(pair)[1],
                trials.verify,
                search.best.trial.step_s,
                budget=VERDICT_BUDGET,
                on_answer=lambda done, total: on_progress(label, done, total),
            )
    except KeyboardInterrupt:
        return None


def _types(header: ModelHeader, options: SelfDraftOptions) -> tuple[str, ...]:
    """Types of the weights to try; what is given is not searched."""
    if options.type is not None:
        return (options.type,)
    lower = _LOWER if header.quantization in _PRECISE else ()
    fewer = options.layers is not None and options.layers < n_layers(header)
    return (*lower, KEEP) if fewer or not lower else lower


def _require_possible(
    source: ModelHeader, target: ModelHeader, options: SelfDraftOptions, types: Sequence[str]
) -> None:
    """Refuse, before anything is loaded, what leaves nothing to be made."""
    require_model(target)
    if options.vocab is not None:
        # What is made of a split target is one file.
        whole = source if options.draft is not None else replace(source, split_count=1)
        require_trimmable(whole, target, options.vocab)
    if options.draft is not None:
        return
    count = n_layers(target)
    if options.layers is not None and not 1 <= options.layers <= count:
        raise UsageError(
            f"--layers is {options.layers}, but {target.path.name} has {count} layers.",
            "Give a number below that, or auto.",
        )
    if list(types) == [KEEP] and options.layers == count:
        raise UsageError(
            f"All {count} layers as they are would be the target itself.",
            "Give fewer --layers, or a lower --type such as Q4_0.",
        )
    if list(types) == [KEEP] and count == 1:
        raise DraftNotMade(
            f"No draft can be made out of {target.path.name}, which is {target.quantization}: "
            "its only layer cannot be left out.",
            "Look for a smaller model of its family: "
            + shlex.join(["localspec", "suggest", str(target.path)]),
        )


def _announcement(source: ModelHeader, options: SelfDraftOptions, types: Sequence[str]) -> str:
    """How long it will take, and how much of the disk."""
    first = f"Searching for a draft for {SEARCH_BUDGET / 60:.0f} minutes at most"
    files = source.n_bytes
    if options.draft is not None:
        first = "Trying the draft"
    elif options.layers is not None and options.type is not None:
        first = "Making the draft"
    if all(each in _LOWER for each in types):
        files = min(files, int(source.parameters * _LOWER_BYTES))
    counted = f", then counting the target's tokens for {COUNT_BUDGET:.0f} seconds"
    return (
        f"{first}{counted if options.vocab is not None else ''}, then measuring it for about "
        f"{VERDICT_BUDGET / 60:.0f} minutes. Meanwhile {store.folder()} holds up to three files of "
        f"at most {size(files)}. Ctrl-C ends the search with the best so far."
    )
