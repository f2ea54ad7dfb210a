"""The verdict on a self-draft: measured against plain decoding and against prompt lookup alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, get_args

from localspec.bench.comparison import Comparison
from localspec.bench.figures import SameText, Side, side_figures
from localspec.bench.plan import BenchPlan, PromptIds, Variant
from localspec.bench.run import compare_variants
from localspec.bench.spent import FEWEST_PROMPTS, Interval, speedup_interval
from localspec.chat.stats import SourceStats
from localspec.engine.engine import Engine
from localspec.self_draft.trial import ANSWER_TOKENS, GREEDY
from localspec.speculative.limits import ceiling

_MOST_REPEATS = 3
_CLEARLY = 1.1  # times as fast, where there are too few prompts for an interval
_HARDLY = 1.05  # times plain speed: a ceiling below it leaves nothing to win


@dataclass(frozen=True, slots=True)
class DraftVerdict:
    """What was measured with ``auto``: the self-draft and prompt lookup together.

    Speedups are over plain decoding, ``over_lookup`` is over prompt lookup alone; intervals are of
    90 % (None: too few prompts). ``acceptance_rate`` is that of the draft's own tokens, None where
    auto drafted none. ``draft_memory`` is in bytes. ``ceiling`` is the speedup with every token
    accepted. ``prompts`` were measured; ``looping`` of them, whose answers repeat themselves, are
    left out unless all are.
    """

    speedup: float
    speedup_interval: Interval | None
    lookup_speedup: float
    over_lookup: float
    over_lookup_interval: Interval | None
    acceptance_rate: float | None
    mean_accepted_length: float
    draft_memory: int
    text: SameText
    ceiling: float
    prompts: int
    looping: int

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain and than prompt lookup alone, by more than the noise."""
        return _is_above(self.speedup, self.speedup_interval) and _is_above(
            self.over_lookup, self.over_lookup_interval
        )

    @property
    def reason(self) -> str:
        """Why it does not pay, in a sentence; empty where it does."""
        if self.pays:
            return ""
        if self.ceiling < _HARDLY:
            return (
                "The target is too fast for this draft to help: with every token accepted, at most "
                f"{self.ceiling:.2f}x plain."
            )
        if not _is_above(self.speedup, self.speedup_interval):
            if self.acceptance_rate is None:
                return "At what passes cost here, auto drafted nothing with it."
            return (
                "It is not faster than plain decoding by more than the noise; with every token "
                f"accepted it would be at most {self.ceiling:.2f}x."
            )
        return (
            "Prompt lookup alone, which takes no memory, is as fast within the noise: "
            f"{self.lookup_speedup:.2f}x."
        )

    def as_json(self) -> dict[str, object]:
        """Plain data, memory in bytes."""
        return {"pays": self.pays, **asdict(self), "reason": self.reason}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "DraftVerdict":
        """Parse what `as_json` gave; raises ValueError, LookupError or TypeError for others."""
        given = {each.name: document[each.name] for each in fields(cls)}
        for name, value in given.items():
            if name.endswith("_interval"):
                given[name] = None if value is None else (float(value[0]), float(value[1]))
            elif name in ("draft_memory", "prompts", "looping"):
                given[name] = int(value)
            elif name != "text" and (name, value) != ("acceptance_rate", None):
                given[name] = float(value)
        if given["text"] not in get_args(SameText):
            raise ValueError(f"unknown text {given['text']!r}")
        return cls(**given)


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
            if "draft" in stats.sources:
                total = total.plus(*stats.sources["draft"])
    return total.accepted / total.drafted if total.drafted else None


def _is_above(ratio: float, interval: Interval | None) -> bool:
    return ratio >= _CLEARLY if interval is None else interval[0] > 1
