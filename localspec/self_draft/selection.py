"""The selection of a self-draft for a target: searched, made, judged, and left as a file."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.core.config import LoadOptions
from localspec.core.errors import DraftNotMade, IncompatiblePair, LocalspecError, UsageError
from localspec.core.formatting import size
from localspec.engine.engine import Engine
from localspec.llama.influence import block_influence
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.candidates import COUNT_BUDGET, Budget, Candidates, Progress
from localspec.self_draft.questions import questions
from localspec.self_draft.recipe import KEEP
from localspec.self_draft.search import Findings, Space, search
from localspec.self_draft.trial import ANSWER_TOKENS, Text, Trial, Trials, record
from localspec.self_draft.verdict import Verdict, judge
from localspec.self_draft.writing.layers import Removable, removable, require_removable
from localspec.self_draft.writing.trim import require_trimmable
from localspec.speculative.control.valuation import LONGEST_AUTO
from localspec.speculative.loop import Clock

SEARCH_BUDGET, VERDICT_BUDGET = 240.0, 120.0  # seconds
_RECORD_SHARE = 1 / 6  # of the search, for the target's own answers
_PRECISE = ("F32", "F16", "BF16", "Q8_0")  # targets that a lower type makes much quicker
_LOWER = ("Q4_0", "Q2_K", "Q3_K_S")
_ROOM = ANSWER_TOKENS + LONGEST_AUTO + 1  # tokens behind a prompt: an answer, and a draft
_LOWER_BYTES = 3 / 4  # of a parameter in these, at most: some tensors stay more precise

# How a target, and perhaps a draft, is loaded from its file.
Load = Callable[[Path, Path | None], tuple[LoadOptions, LoadOptions | None]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SelfDraftOptions:
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
    wish: SelfDraftOptions,
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
    _announce(source, types, wish, say)
    with store.workplace() as folder:
        with Engine.load(load(target, None)[0], say=say) as engine:
            budget = Budget(clock, SEARCH_BUDGET, on_progress)
            space, trials = _prepared(engine, wish, types, load, budget)
            makers = Candidates(source, trials, folder, budget)
            if wish.draft is None:
                findings = search(space, makers.attempt, clock=clock, budget=budget.left)
            else:
                findings = Findings([makers.given()])
            if not findings.trials:
                raise next(iter(findings.failed.values()), _nothing(header, allowed.reason))
            if not findings.stopped:
                _trim(engine, makers, wish, findings, on_progress)
        verdict = None
        if not findings.stopped:
            options = load(target, makers.best_file)
            verdict = _judged(options, trials, makers.best, clock, on_progress)
        yield Selection(header, source, makers.best_file, makers.best, findings, verdict)


def _prepared(
    engine: Engine,
    wish: SelfDraftOptions,
    types: tuple[str, ...],
    load: Load,
    budget: Budget,
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


def _trim(
    engine: Engine,
    makers: Candidates,
    wish: SelfDraftOptions,
    findings: Findings,
    on_progress: Progress,
) -> None:
    """Let the best lose output rows, where that is wished for.

    What was searched for is not lost where that fails, or Ctrl-C comes.
    """
    if wish.vocab is None:
        return
    try:
        findings.trials.append(makers.trim(engine, wish.vocab, on_progress))
    except (KeyboardInterrupt, LocalspecError) as problem:
        if wish.draft is not None:  # nothing was searched for
            raise
        if isinstance(problem, LocalspecError):
            findings.failed[replace(makers.best.recipe, vocab=wish.vocab)] = problem
        else:
            findings.stopped = True


def _judged(
    options: tuple[LoadOptions, LoadOptions | None],
    trials: Trials,
    best: Trial,
    clock: Clock,
    on_progress: Progress,
) -> Verdict | None:
    """The verdict; None where Ctrl-C ended its measurement."""
    on_progress("measuring the best", 0, 1)
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


def _types(header: ModelHeader, wish: SelfDraftOptions) -> tuple[str, ...]:
    """Types of the weights that are tried, `KEEP` the last."""
    if wish.type is not None:
        return (wish.type,)
    lower = _LOWER if header.quantization in _PRECISE else ()
    return lower if lower and wish.layers is None else (*lower, KEEP)


def _require_possible(
    header: ModelHeader,
    source: ModelHeader,
    allowed: Removable,
    wish: SelfDraftOptions,
    types: tuple[str, ...],
) -> None:
    """Refuse, before anything is loaded, what leaves nothing to be made."""
    if wish.vocab is not None:
        # What is made of a split target is one file.
        whole = source if wish.draft is not None else replace(source, split_count=1)
        require_trimmable(whole, header, wish.vocab)
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
        "Look for a smaller model of its family: "
        + shlex.join(["localspec", "suggest", str(header.path)]),
    )


def _announce(
    source: ModelHeader, types: tuple[str, ...], wish: SelfDraftOptions, say: Say
) -> None:
    """Say what the search takes, of time, and of the disk meanwhile."""
    counted = f"counting the target's tokens for {COUNT_BUDGET:.0f} seconds, then "
    rest = f"then {counted if wish.vocab is not None else ''}measuring it for about "
    rest += f"{VERDICT_BUDGET / 60:.0f} minutes. Meanwhile {store.folder()} holds "
    if wish.draft is not None:
        say(f"Trying the draft, {rest}a copy of it, trimmed.")
        return
    largest = source.n_bytes
    if all(each in _LOWER for each in types):
        largest = min(largest, int(source.parameters * _LOWER_BYTES))
    rest += f"up to three files of {size(largest)} at most."
    if wish.layers is not None and wish.type is not None:
        say(f"Making the draft, {rest}")
        return
    say(
        f"Searching for a draft for {SEARCH_BUDGET / 60:.0f} minutes at most, {rest} Ctrl-C ends "
        "the search with the best so far."
    )


def _usable(allowed: Removable) -> Callable[[tuple[int, ...]], bool]:
    return lambda layers: allowed.problem(layers) is None


def _all_tokens(text: Text) -> list[int]:
    return [*text.prompt, *text.answer]
