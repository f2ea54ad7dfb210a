"""Judging a self-draft: measured against plain decoding and against prompt lookup alone."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from localspec.bench.comparison import Comparison
from localspec.bench.figures import Side, side_figures
from localspec.bench.plan import BenchPlan, PromptIds, Variant
from localspec.bench.run import compare_variants
from localspec.bench.spent import FEWEST_PROMPTS, speedup_interval
from localspec.chat.stats import SourceStats
from localspec.core.origins import DRAFT
from localspec.engine.engine import Engine
from localspec.self_draft.trial import ANSWER_TOKENS, GREEDY
from localspec.self_draft.verdict import DraftVerdict
from localspec.speculative.limits import ceiling

_MOST_REPEATS = 3


def judge(
    pair: Engine,
    asked: Mapping[str, PromptIds],
    verify: Sequence[float],
    step: float,
    *,
    budget: float,
    on_answer: Callable[[int, int], None] = lambda done, total: None,
) -> DraftVerdict:
    """Measure plain, prompt lookup alone, and auto with the draft, in turn, on as many prompts.

    As many as the seconds of ``budget`` allow by the costs of passes, ``verify`` (of 1, 2, ...
    tokens) and ``step``, but no fewer than an interval needs.
    """
    assert pair.draft is not None
    prompts, repeats = _affordable(asked, verify, budget)
    plan = BenchPlan(GREEDY, (0, "auto"), repeats, ANSWER_TOKENS)
    alone = Engine(pair.target, None)  # of the same target: its memory is needed once
    variants = (
        Variant("plain", alone, plan, 0),
        Variant("lookup", alone, plan, "auto"),
        Variant("self-draft", pair, plan, "auto"),
    )
    lookup, drafted = compare_variants(variants, prompts, on_answer)
    alone.profile.save()
    most, _ = ceiling(verify, step)
    return _verdict(lookup, drafted, pair.draft.memory.total, most)


def _affordable(
    asked: Mapping[str, PromptIds], verify: Sequence[float], budget: float
) -> tuple[dict[str, PromptIds], int]:
    """The first of the prompts, and how often each is answered, as the time allows."""
    row = verify[-1] / len(verify)
    each = [3 * (len(prompt) * row + ANSWER_TOKENS * verify[0]) for prompt in asked.values()]
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
    text = drafted.figures(drafted.names)[1].text
    figures = side_figures(ours, plain, used, text)
    spent, spent_alone = ours.spent(used), theirs.spent(used)
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
    total = SourceStats()
    for row in side.stats(prompts):
        for stats in row:
            if DRAFT in stats.sources:
                total = total.plus(*stats.sources[DRAFT])
    return total.accepted / total.drafted if total.drafted else None
