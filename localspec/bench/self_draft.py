"""Making a draft out of a target, and measuring whether it pays."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter

from localspec.bench.comparison import Comparison
from localspec.bench.figures import FEWEST_PROMPTS, Side, side_figures, speedup_interval
from localspec.bench.plan import BenchPlan, PromptIds, Variant
from localspec.bench.prompts import by_task, read_prompts
from localspec.bench.run import compare_variants
from localspec.core.errors import IncompatiblePair, PromptTooLong
from localspec.core.files import appearing_when_complete, file_problem
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.core.origins import DRAFT
from localspec.engine.engine import Engine
from localspec.engine.profile_store import best_gain
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel
from localspec.metadata.checks.heads import n_tokens
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import ModelHeader, read_header
from localspec.self_draft import store
from localspec.self_draft.make import chosen_recipe, make_draft
from localspec.self_draft.recipe import Recipe, SelfDraftOptions
from localspec.self_draft.trim import trim_vocabulary
from localspec.self_draft.trim_heads import trim_heads
from localspec.self_draft.verdict import DraftVerdict
from localspec.self_draft.vocabulary import (
    count_file,
    count_tokens,
    coverage,
    enough_rows,
    ranked,
)
from localspec.speculative.control.costs import PassCosts
from localspec.speculative.control.valuation import LONGEST_AUTO

COUNT_BUDGET, VERDICT_BUDGET = 60.0, 120.0  # seconds
ANSWER_TOKENS = 48
_ROOM = ANSWER_TOKENS + LONGEST_AUTO + 1  # tokens after a prompt: an answer, and a draft
_MOST_REPEATS = 3
_GREEDY = SamplingParams(temperature=0)
_COUNTING = "counting the tokens that the target uses"

# Load options of a target, and of a draft if there is one, by their files.
Load = Callable[[Path, Path | None], tuple[LoadOptions, LoadOptions | None]]
Say = Callable[[str], None]
Progress = Callable[[str, int, int], None]  # label, done, in all
ProgressBar = Callable[[], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """A draft of ``n_bytes``, made of ``source``: the target itself, or the draft that was given.

    ``verdict`` is None after Ctrl-C, ``stored`` if another draft stays stored instead.
    """

    target: ModelHeader
    source: ModelHeader
    recipe: Recipe
    n_bytes: int
    verdict: DraftVerdict | None
    stored: store.StoredDraft | None

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C ended the measurement."""
        return self.verdict is None and self.n_bytes > 0


def make_and_store(
    target: Path,
    options: SelfDraftOptions,
    output: Path | None,
    load: Load,
    say: Say,
    progress: ProgressBar,
) -> MadeDraft:
    """Make a draft of a target, measure it, and store it for ``--draft self``.

    It is also copied to ``output``. Trimmed heads are measured against the whole ones. Ctrl-C ends
    the measurement and keeps the draft. Raises the errors of `chosen_recipe`,
    `make_draft`, `trim_vocabulary` and `count_file`, IncompatiblePair for a target that cannot
    verify drafts, FileProblem if nothing can be written.
    """
    header = read_header(target)
    source = header if options.source is None else read_header(options.source)
    recipe = chosen_recipe(options, header, source)
    say(_announcement(recipe, n_layers(source)))
    with progress() as on_progress, store.work_folder() as folder:
        file, stored = source.path, None
        if options.source is None and not recipe.heads:
            file = folder / "draft.gguf"
            on_progress("making the draft", 0, 1)
            make_draft(header, replace(recipe, vocab=None), file)
        if recipe.heads or recipe.vocab is not None:
            whole = source if recipe.heads else read_header(file)
            ids = _kept_ids(whole, load(target, None)[0], recipe.vocab, options.counts, on_progress)
            recipe = replace(recipe, vocab=len(ids))
            file = folder / "trimmed.gguf"
            on_progress("trimming", 0, 1)
            (trim_heads if recipe.heads else trim_vocabulary)(whole, header, ids, file)
        verdict = _measured(_pair(load, target, file), on_progress)
        if recipe.heads and verdict is not None:
            untrimmed = _measured(_pair(load, target, source.path), on_progress)
            verdict = untrimmed and replace(verdict, whole_heads=untrimmed.speedup)
        size = file.stat().st_size
        try:
            if output is not None:
                _copy(file, output)
        finally:  # so that it is not lost if the output cannot be written
            if _replaces(recipe, verdict, options, store.find(header)):
                stored = store.store_draft(header, recipe, file, verdict)
    return MadeDraft(header, source, recipe, size, verdict, stored)


def _announcement(recipe: Recipe, layers: int) -> str:
    trims = recipe.heads or recipe.vocab is not None
    counted = f", counting the target's tokens for {COUNT_BUDGET:.0f} seconds" if trims else ""
    return (
        f"Making a draft of {recipe.describe(layers)}{counted}, then measuring it for "
        f"about {VERDICT_BUDGET / 60:.0f} minutes. Ctrl-C ends the measurement and keeps the draft."
    )


def _kept_ids(
    draft: ModelHeader,
    target: LoadOptions,
    n_ids: int | None,
    counts: Path | None,
    on_progress: Progress,
) -> list[int]:
    """The ids of the output rows that are kept; by default as many as cover enough text."""
    on_progress(_COUNTING, 0, 1)
    size = n_tokens(draft)
    with Engine.load(target) as engine:
        texts = _said(engine) if counts is None else count_file(engine, counts)
        n_ids = n_ids or enough_rows(coverage(engine, texts, size))
        return sorted(ranked(engine, texts, size)[:n_ids])


def _said(engine: Engine) -> list[Counter[int]]:
    """The target's answers to the built-in prompts while the time lasts."""
    end = perf_counter() + COUNT_BUDGET
    prompts = [prompt.messages for prompt in read_prompts()]
    return count_tokens(engine, prompts, lambda: perf_counter() > end)


def _pair(load: Load, target: Path, draft: Path) -> tuple[LoadOptions, LoadOptions]:
    options, drafts = load(target, draft)
    assert drafts is not None
    return options, replace(drafts, load_heads=True) if drafts.path == options.path else drafts


def _copy(draft: Path, output: Path) -> None:
    what = f"The draft cannot be written to {output}"
    hint = "Give --output a file in a folder with room."
    with file_problem(what, hint), appearing_when_complete(output) as partial:
        shutil.copyfile(draft, partial)


def _replaces(
    recipe: Recipe,
    verdict: DraftVerdict | None,
    options: SelfDraftOptions,
    before: store.StoredDraft | None,
) -> bool:
    """Whether this draft replaces the stored one, which ``--draft self`` uses.

    Only the default draft, or a new measurement of the stored one, can show that no draft pays. A
    draft that was not measured or that was given replaces none.
    """
    if options.source is not None:
        return False
    if verdict is None:
        return before is None
    again = before is not None and before.recipe == recipe
    return verdict.pays or options == SelfDraftOptions() or again


def _measured(
    options: tuple[LoadOptions, LoadOptions], on_progress: Progress
) -> DraftVerdict | None:
    label = "measuring the draft"
    on_progress(label, 0, 1)
    target, _ = options
    try:
        with ExitStack() as stack:
            pair = stack.enter_context(Engine.load(*options))
            draft = _require_draft(pair)
            alone = Engine(pair.target, None)  # of the same target: its memory is needed once
            if isinstance(draft, Head):  # which reads all tokens of its target
                alone = stack.enter_context(Engine.load(target))
            return judge(
                pair,
                alone,
                questions(pair),
                budget=VERDICT_BUDGET,
                on_answer=lambda done, total: on_progress(label, done, total),
            )
    except KeyboardInterrupt:
        return None


def _require_draft(pair: Engine) -> LlamaModel | Head:
    """The draft of a pair; raises IncompatiblePair if the target cannot verify any."""
    if pair.draft is None:
        raise IncompatiblePair(" ".join(pair.notes), "Run it plain: --draft off.")
    return pair.draft


def questions(engine: Engine) -> dict[str, PromptIds]:
    """Built-in prompts that fit: the shortest of each task, then others; raises PromptTooLong."""
    first, others = dict[str, PromptIds](), dict[str, PromptIds]()
    n_ctx = engine.target.n_ctx
    for task, prompts in by_task(read_prompts()).items():
        ids = {f"{task} {i}": engine.encode_chat(one.messages) for i, one in enumerate(prompts, 1)}
        fitting = _by_length({n: p for n, p in ids.items() if len(p) + _ROOM <= n_ctx})
        first |= dict(list(fitting.items())[:1])
        others |= dict(list(fitting.items())[1:])
    if not first:
        raise PromptTooLong(
            f"No built-in prompt fits into a context of {n_ctx} tokens.",
            "Give a larger --ctx-size.",
        )
    return _by_length(first) | _by_length(others)


def _by_length(prompts: Mapping[str, PromptIds]) -> dict[str, PromptIds]:
    return dict(sorted(prompts.items(), key=lambda item: len(item[1])))


def judge(
    pair: Engine,
    alone: Engine,
    asked: Mapping[str, PromptIds],
    *,
    budget: float,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> DraftVerdict:
    """Measure plain, prompt lookup alone, and auto with the draft, in turn, on as many prompts.

    The first two with ``alone``, which has no draft. As many as the seconds of ``budget`` allow by
    the costs of passes, but no fewer than an interval needs.
    """
    assert pair.draft is not None
    known = pair.profile.learnt(perf_counter)
    prompts, repeats = _affordable(asked, known.verify, budget)
    plan = BenchPlan(_GREEDY, (0, "auto"), repeats, ANSWER_TOKENS)
    variants = (
        Variant("plain", alone, plan, 0),
        Variant("lookup", alone, plan, "auto"),
        Variant("self-draft", pair, plan, "auto"),
    )
    lookup, drafted = compare_variants(variants, prompts, on_answer)
    alone.profile.save()
    return _verdict(lookup, drafted, pair.draft.memory.total, best_gain(known)[0])


def _affordable(
    asked: Mapping[str, PromptIds], costs: PassCosts, budget: float
) -> tuple[dict[str, PromptIds], int]:
    """The first of the prompts, and how often each is answered, as the time allows."""
    plain, row = costs.seconds(1, 0), costs.seconds(LONGEST_AUTO + 1, 0) / (LONGEST_AUTO + 1)
    each = [3 * (len(prompt) * row + ANSWER_TOKENS * plain) for prompt in asked.values()]
    most = len(each)
    while most > FEWEST_PROMPTS and sum(each[:most]) > budget:
        most -= 1
    repeats = max(1, min(_MOST_REPEATS, int(budget / max(1e-9, sum(each[:most])))))
    return dict(islice(asked.items(), most)), repeats


def _verdict(lookup: Comparison, drafted: Comparison, memory: int, most: float) -> DraftVerdict:
    looping = {*lookup.looping(), *drafted.looping()}
    used = [i for i, name in enumerate(drafted.names) if name not in looping]
    used = used or list(range(len(drafted.names)))  # better than nothing
    (plain, ours), theirs = drafted.sides, lookup.sides[1]
    spent, spent_alone = ours.spent(used), theirs.spent(used)
    text = drafted.figures(drafted.names)[1].text
    figures = side_figures(ours, plain, used, text)
    return DraftVerdict(
        speedup=figures.speedup,
        speedup_interval=figures.speedup_interval,
        lookup_speedup=side_figures(theirs, plain, used, text).speedup,
        over_lookup=spent_alone.pace / spent.pace,
        over_lookup_interval=speedup_interval(spent_alone, spent),
        acceptance_rate=_accepted(ours, used),
        mean_accepted_length=figures.mean_accepted_length,
        draft_memory=memory,
        text=text,
        ceiling=most,
        prompts=len(drafted.names),
        looping=len(looping),
    )


def _accepted(side: Side, prompts: Sequence[int]) -> float | None:
    """The share of the draft model's tokens that were accepted; prompt lookup's do not count."""
    every = (stats.sources for row in side.stats(prompts) for stats in row)
    found = [sources[DRAFT] for sources in every if DRAFT in sources]
    drafted = sum(each.drafted for each in found)
    return sum(each.accepted for each in found) / drafted if drafted else None
