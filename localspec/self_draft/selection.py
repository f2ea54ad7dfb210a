"""The selection of a self-draft for a target: searched, made, judged, and left as a file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.core.config import LoadOptions
from localspec.core.errors import DraftNotMade, IncompatiblePair, UsageError
from localspec.core.formatting import size
from localspec.engine.engine import Engine
from localspec.engine.llama.influence import block_influence
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.layers import Removable, removable, require_removable
from localspec.self_draft.make import make_draft
from localspec.self_draft.questions import questions
from localspec.self_draft.recipe import KEEP, Recipe
from localspec.self_draft.search import Findings, Space, search
from localspec.self_draft.trial import ANSWER_TOKENS, Text, Trial, Trials, record
from localspec.self_draft.trim import require_trimmable, trim_vocabulary
from localspec.self_draft.verdict import Verdict, judge
from localspec.self_draft.vocabulary import frequent_ids
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.loop import Clock

SEARCH_BUDGET, VERDICT_BUDGET, COUNT_BUDGET = 240.0, 120.0, 60.0  # seconds
_RECORD_SHARE = 1 / 6  # of the search, for the target's own answers
_PRECISE = ("F32", "F16", "BF16", "Q8_0")  # targets that a lower type makes much quicker
_LOWER = ("Q4_0", "Q2_K", "Q3_K_S")
_ROOM = ANSWER_TOKENS + LONGEST_AUTO + 1  # tokens behind a prompt: an answer, and a draft
_LOWER_BYTES = 3 / 4  # of a parameter in these, at most: some tensors stay more precise

# How a target, and perhaps a draft, is loaded from its file.
Load = Callable[[Path, Path | None], tuple[LoadOptions, LoadOptions | None]]
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]  # label, done, in all


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for: so many first layers, the type of the weights; None is searched.

    ``vocab`` is how many tokens shall have an output row, None for all. With ``draft``, a model
    that drafts for the target already, nothing is searched: it loses output rows.
    """

    layers: int | None = None
    type: str | None = None
    vocab: int | None = None
    draft: Path | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """A draft as a file, what the search found, and the verdict, None where Ctrl-C came.

    It was made of ``source``, the target itself or the draft that was given.
    """

    target: ModelHeader
    source: ModelHeader
    file: Path
    best: Trial
    findings: Findings
    verdict: Verdict | None


@contextmanager
def selected(
    target: Path,
    wish: Wish,
    load: Load,
    say: Say,
    on_progress: Progress,
    clock: Clock = time.perf_counter,
) -> Iterator[Selection]:
    """The best draft that can be made of a target; its file is removed at the end of the block.

    ``say`` hears sentences, ``on_progress`` seconds of the budget, and answers of the verdict.
    Ctrl-C ends the search with the best found so far. Raises DraftNotMade where none can be made,
    UsageError for a wish that is no draft, IncompatiblePair for a target that cannot verify drafts,
    FileProblem where nothing can be written.
    """
    header = read_header(target)
    source = header if wish.draft is None else read_header(wish.draft)
    allowed = removable(header)
    types = _types(header, wish)
    _require_possible(header, source, allowed, wish, types)
    say(_announcement(source, wish, types))
    with store.workplace() as folder:
        with Engine.load(load(target, None)[0], say=say) as engine:
            budget = _Budget(clock, SEARCH_BUDGET, on_progress)
            space, trials = _prepared(engine, wish, types, load, budget)
            makers = _Candidates(source, trials, folder, budget)
            if wish.draft is None:
                findings = search(space, makers.attempt, clock=clock, budget=budget.left)
            else:
                findings = Findings([makers.given()])
            if not findings.trials:
                raise next(iter(findings.failed.values()), _nothing(header, allowed.reason))
            if wish.vocab is not None and not findings.stopped:
                _trim_best(makers, engine, wish, findings, on_progress)
        verdict = None
        if not findings.stopped:
            options = load(target, makers.best_file)
            verdict = _judged(options, trials, makers.best, clock, on_progress)
        yield Selection(header, source, makers.best_file, makers.best, findings, verdict)


class _Budget:
    """The seconds of the search, and the bar that shows how many are left."""

    def __init__(self, clock: Clock, seconds: float, on_progress: Progress) -> None:
        self.clock = clock
        self._began, self._seconds = clock(), seconds
        self._on_progress = on_progress

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.0, self._began + self._seconds - self.clock())

    def show(self, what: str) -> None:
        """Tell what is done now, and how long the search still takes at most."""
        left = self.left
        label = f"{what}, at most {left:.0f} s left"
        self._on_progress(label, int(self._seconds - left), int(self._seconds) + 1)


class _Candidates:
    """Files of drafts, made one at a time and removed; only the best so far stays."""

    best: Trial  # from the first one on

    def __init__(self, header: ModelHeader, trials: Trials, folder: Path, budget: _Budget) -> None:
        self.best_file = folder / "best.gguf"
        self._header = header
        self._trials = trials
        self._file = folder / "candidate.gguf"
        self._budget = budget

    def attempt(self, recipe: Recipe) -> Trial:
        """Make the draft and try it; see `make_draft` and `Trials.attempt` for what is raised."""
        what = recipe.describe(removable(self._header).n_layers)
        try:
            self._budget.show(f"making {what}")
            make_draft(
                self._header,
                recipe,
                self._file,
                lambda done, total: self._budget.show(f"making {what}"),
            )
            self._budget.show(f"trying {what}")
            trial = self._trials.attempt(recipe, self._file)
            if not self.best_file.exists() or trial.predicted_speedup > self.best.predicted_speedup:
                self._file.replace(self.best_file)
                self.best = trial
            return trial
        finally:
            self._file.unlink(missing_ok=True)

    def given(self) -> Trial:
        """Try the draft as it is."""
        self._budget.show(f"trying {self._header.path.name}")
        whole = Recipe(tuple(range(removable(self._header).n_layers)))
        self.best_file, self.best = (
            self._header.path,
            self._trials.attempt(whole, self._header.path),
        )
        return self.best

    def trim(self, engine: Engine, vocab: int, on_progress: Progress) -> Trial:
        """Try the best with so many output rows; it is the best from then on.

        The tokens of the target are counted for `COUNT_BUDGET` seconds at most.
        """
        draft = read_header(self.best_file)
        assert draft.vocab is not None
        count = _Budget(self._budget.clock, COUNT_BUDGET, on_progress)

        def is_over() -> bool:
            count.show("counting the tokens that the target says")
            return not count.left

        ids = frequent_ids(engine, vocab, limit=len(draft.vocab), is_over=is_over)
        trimmed = self._file.with_name("trimmed.gguf")
        trim_vocabulary(draft, engine.target.header, ids, trimmed)
        recipe = replace(self.best.recipe, vocab=len(ids))
        self.best_file, self.best = trimmed, self._trials.attempt(recipe, trimmed)
        return self.best


def _prepared(
    engine: Engine,
    wish: Wish,
    types: tuple[str, ...],
    load: Load,
    budget: _Budget,
) -> tuple[Space, Trials]:
    """What is to be searched, and what drafts are tried against."""
    header = engine.target.header
    if not engine.can_roll_back:
        raise IncompatiblePair(
            f"llama.cpp cannot take rejected tokens back from {header.path.name}, so nothing can "
            "draft for it.",
            "Run it plain: --draft off.",
        )
    budget.show("recording answers of the target")
    quick, _ = questions(engine, _ROOM)
    texts = record(engine, quick, budget.clock, _RECORD_SHARE * budget.left)
    if not texts:
        raise DraftNotMade(
            f"{header.path.name} answers the built-in prompts with nothing.",
            "Use a model that was trained to answer.",
        )
    allowed = removable(header)
    influence = {}
    if wish.draft is None and wish.layers is None and allowed.may_go == "any":
        budget.show("measuring the influence of layers")
        influence = block_influence(engine.target, [_all_tokens(text) for text in texts])

    def load_draft(path: Path) -> LoadOptions:
        draft = load(header.path, path)[1]
        assert draft is not None
        return draft

    trials = Trials(engine, texts, load_draft, budget.clock)
    usable = _usable(allowed)
    space = Space(allowed.n_layers, types, wish.layers, allowed.group, influence, usable)
    return space, trials


def _trim_best(
    makers: _Candidates, engine: Engine, wish: Wish, findings: Findings, on_progress: Progress
) -> None:
    """Try the best with fewer output rows; after Ctrl-C the whole one stays the best."""
    assert wish.vocab is not None
    try:
        findings.trials.append(makers.trim(engine, wish.vocab, on_progress))
    except KeyboardInterrupt:
        if wish.draft is not None:
            raise  # nothing was found that the user does not have
        findings.stopped = True


def _judged(
    options: tuple[LoadOptions, LoadOptions | None],
    trials: Trials,
    best: Trial,
    clock: Clock,
    on_progress: Progress,
) -> Verdict | None:
    """The verdict; None where Ctrl-C ended its measurement."""
    try:
        with Engine.load(*options) as pair:
            return judge(
                pair,
                questions(pair, _ROOM)[1],
                trials.verify,
                best.step_s,
                clock=clock,
                budget=VERDICT_BUDGET,
                on_answer=lambda done, total: on_progress("measuring the best", done, total),
            )
    except KeyboardInterrupt:
        return None


def _types(header: ModelHeader, wish: Wish) -> tuple[str, ...]:
    """Types of the weights that are tried, `KEEP` the last."""
    if wish.type is not None:
        return (wish.type,)
    lower = _LOWER if header.quantization in _PRECISE else ()
    return lower if lower and wish.layers is None else (*lower, KEEP)


def _require_possible(
    header: ModelHeader,
    source: ModelHeader,
    allowed: Removable,
    wish: Wish,
    types: tuple[str, ...],
) -> None:
    """Refuse, before anything is loaded, what leaves nothing to be made."""
    if wish.vocab is not None:
        require_trimmable(source, header, wish.vocab)
    if wish.draft is not None:
        return
    if wish.layers is not None:
        if not 1 <= wish.layers <= allowed.n_layers:
            raise UsageError(
                f"--layers is {wish.layers}, but {header.path.name} has {allowed.n_layers} layers.",
                "Give a number below that, or auto.",
            )
        require_removable(header, range(wish.layers))
    if types == (KEEP,):
        if wish.layers == allowed.n_layers:
            raise UsageError(
                f"All {allowed.n_layers} layers as they are would be the target itself.",
                "Give fewer --layers, or a lower --type such as Q4_0.",
            )
        if allowed.may_go == "none" or allowed.n_layers == 1:
            raise _nothing(header, allowed.reason)


def _nothing(header: ModelHeader, reason: str) -> DraftNotMade:
    why = reason or "no layer of it can be left out"
    return DraftNotMade(
        f"No draft can be made out of {header.path.name}, which is {header.quantization}: {why}.",
        "Look for a smaller model of its family: localspec suggest TARGET",
    )


def _announcement(source: ModelHeader, wish: Wish, types: tuple[str, ...]) -> str:
    """What the search takes, of time, and of the disk meanwhile."""
    search, count, verdict = (
        f"{seconds / 60:.0f}" for seconds in (SEARCH_BUDGET, COUNT_BUDGET, VERDICT_BUDGET)
    )
    if wish.draft is not None:
        return (
            f"Counting the target's tokens for {count} minute at most, then measuring for about "
            f"{verdict}. Meanwhile {store.folder()} holds a file of about {size(source.n_bytes)}."
        )
    largest = source.n_bytes
    if all(each in _LOWER for each in types):
        largest = min(largest, int(source.parameters * _LOWER_BYTES))
    more = "" if wish.vocab is None else f"counting its tokens for {count}, "
    return (
        f"Searching for a draft for {search} minutes at most, {more}then measuring it for about "
        f"{verdict}. Meanwhile {store.folder()} holds up to three files of {size(largest)} at "
        "most. Ctrl-C ends the search with the best so far."
    )


def _usable(allowed: Removable) -> Callable[[tuple[int, ...]], bool]:
    return lambda layers: allowed.problem(layers) is None


def _all_tokens(text: Text) -> list[int]:
    return [*text.prompt, *text.answer]
