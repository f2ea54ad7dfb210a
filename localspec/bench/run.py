"""Fixed prompts with and without draft, through one and the same function.

This room owns the comparison: interleaved repeats, speedup from sums with its spread, whether the
text is the same, and if not whether that is rounding. It measures and does not draw; which prompts
and pairs is its callers' choice.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol

from localspec.core.config import DraftTokens, SamplingParams
from localspec.core.errors import LocalspecError, PromptTooLong
from localspec.core.formatting import repeated_share
from localspec.engine import generate
from localspec.engine.generate import Answer, collect, model_drafter, stream_generate
from localspec.engine.stats import GenerationStats
from localspec.speculative import limits as oracle
from localspec.speculative.controller import LONGEST_AUTO, longest
from localspec.speculative.costs import PassCosts
from localspec.speculative.loop import Clock, TokenModel, catch_up, common_prefix
from localspec.speculative.sampler import Sampler

REPEATED_TOO_MUCH = 0.30  # share of repeated 8-grams from which a text counts as a loop
_WARM_UP_TOKENS = 16
_AT_ONCE = 32  # tokens of an answer that the draft is asked about in one pass
_PLACES = 8  # of a draft, for which its share of right tokens is told

Prompt = Sequence[int]
SameText = Literal["same", "rounding", "different", "redrawn"]


class Target(TokenModel, Protocol):
    """A target that says how wide its passes are at least."""

    @property
    def min_width(self) -> int:
        """Tokens of the narrowest pass."""
        ...


class Engine(generate.Engine, Protocol):
    """An engine whose passes can be widened, to tell rounding from a mistake."""

    @property
    def target(self) -> Target: ...

    def widened(self, width: int) -> AbstractContextManager[None]:
        """Let no pass of the target be narrower than ``width`` tokens inside the block."""
        ...


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How to measure. ``lengths`` are the sides; the first is 0, plain, which all are held to.

    ``clock`` tells seconds, to the measurement and to auto alike.
    """

    params: SamplingParams
    lengths: tuple[DraftTokens, ...]
    repeats: int
    max_tokens: int
    suffix: bool = True
    audit: bool = False
    clock: Clock = time.perf_counter

    @property
    def width(self) -> int:
        """Tokens in the widest pass of any side, at least two."""
        return max(map(_width, self.lengths))

    def answers(self, prompts: int) -> int:
        """Measured answers to this many prompts."""
        return prompts * self.repeats * len(self.lengths)


def _width(length: DraftTokens) -> int:
    """Tokens in the widest pass of a side, at least two."""
    return 1 + max(1, longest(length))


@dataclass(frozen=True, slots=True)
class Side:
    """All answers with one draft length (0: plain): ``answers[repeat][prompt]``."""

    draft_tokens: DraftTokens
    answers: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer leaves the plain one: after ``position`` equal tokens.

    ``margin`` is the lead of the plain pick over the runner-up there, in logits (None: there was
    none). ``repeatable`` says whether both sides (of auto: plain) gave their texts again. If so,
    ``proven_at`` is the width of pass at which they give one text, so that only the kernels'
    rounding told them apart. None means that no such width was found: the difference is a mistake
    until somebody shows otherwise.
    """

    prompt: str
    draft_tokens: DraftTokens
    position: int
    margin: float | None
    repeatable: bool
    proven_at: int | None


@dataclass(frozen=True, slots=True)
class Audit:
    """A drafted answer read again by plain decoding, token by token.

    ``misses`` holds, for each token that is not what plain decoding picks behind the same text, its
    position in the answer and by how many logits, noise included, it falls short of that pick;
    None where plain decoding would never pick it.
    """

    prompt: str
    draft_tokens: DraftTokens
    tokens: int
    identical: bool
    misses: tuple[tuple[int, float | None], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Prompts of one kind, by name, answered by every side; the first side is plain.

    ``agreed`` says for each prompt, if there is a draft, at which tokens of the first plain answer
    the draft agrees, given the text before. ``seed_decides`` is that of the sampling parameters:
    if not, other texts are no difference to be explained.
    """

    task: str
    names: tuple[str, ...]
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...] = ()
    agreed: tuple[tuple[bool, ...], ...] = ()
    seed_decides: bool = True
    audits: tuple[Audit, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Plain data: seconds end in ``_s``, tokens per second in ``_tps``."""
        return {
            "task": self.task,
            "prompts": list(self.names),
            "left_out": self.looping(),
            "sides": [asdict(row) for row in self.figures()],
            "limits": None if (limits := self.limits()) is None else asdict(limits),
            "differences": [asdict(each) for each in self.differences],
            "audits": [asdict(each) for each in self.audits],
        }

    def answers_as_json(self) -> list[dict[str, object]]:
        """Every measured answer as plain data, without its text."""
        return [
            {
                "prompt": name,
                "draft_tokens": side.draft_tokens,
                "repeat": repeat,
                "tokens": one.stats.tokens,
                "rounds": one.stats.rounds,
                "drafted": one.stats.drafted,
                "accepted": one.stats.accepted,
                "accepted_at": one.stats.accepted_at,
                "generation_s": one.stats.seconds,
                "draft_s": one.stats.draft_seconds,
                "verify_s": one.stats.verify_seconds,
                "draft_prompt_s": one.stats.draft_prompt_seconds,
                "ttft_s": one.stats.ttft_s,
            }
            for side in self.sides
            for repeat, row in enumerate(side.answers)
            for name, one in zip(self.names, row, strict=True)
        ]

    def looping(self) -> list[str]:
        """The prompts with an answer, on any side, that repeats itself too much to be measured."""
        return [
            name
            for i, name in enumerate(self.names)
            if any(
                repeated_share(row[i].tokens) > REPEATED_TOO_MUCH
                for side in self.sides
                for row in side.answers
            )
        ]

    def figures(self, *, loops: bool = False) -> list["Figures"]:
        """One for each side, over the prompts whose text does not loop; empty when all do.

        ``loops`` counts those that do as well.
        """
        used = list(range(len(self.names))) if loops else self._used()
        if not used:
            return []
        plain = _stats(self.sides[0], used)
        return [
            _figures(side.draft_tokens, _stats(side, used), plain, self._text(side))
            for side in self.sides
        ]

    def limits(self) -> "Limits | None":
        """What drafting could reach here, from measured costs; None where nothing was drafted."""
        used = self._used()
        if not (used and self.agreed):
            return None
        # auto's draft seconds are not all those of steps, so a fixed length tells more of them.
        fixed = [side for side in self.sides if side.draft_tokens not in (0, "auto")]
        steps = _together(fixed or self.sides, used)
        if "draft" not in steps.sources:
            return None
        step = steps.draft_seconds / steps.sources["draft"].drafted
        return _limits([self.agreed[i] for i in used], _costs(self.sides, used), step)

    def _used(self) -> list[int]:
        left_out = set(self.looping())
        return [i for i, name in enumerate(self.names) if name not in left_out]

    def _text(self, side: Side) -> SameText:
        if not self.seed_decides and side.draft_tokens != 0:
            return "redrawn"
        ours = [d for d in self.differences if d.draft_tokens == side.draft_tokens]
        if not ours:
            return "same"
        return "different" if any(d.proven_at is None for d in ours) else "rounding"


@dataclass(frozen=True, slots=True)
class Figures:
    """One side against the plain one.

    Time is that of all rounds, and of the draft's reading of the prompt, which plain decoding does
    not pay; ``draft_prompt_s`` is the mean of the latter. ``speedup`` is the ratio of seconds per
    token, from sums over all repeats; ``speedup_by_repeat`` holds one such ratio per repeat.
    ``round_cost`` is the time of a round in plain tokens: drafting pays when
    ``mean_accepted_length`` is larger.
    """

    draft_tokens: DraftTokens
    tokens: int
    generation_tps: float
    speedup: float
    speedup_by_repeat: tuple[float, ...]
    round_cost: float
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float
    draft_prompt_s: float
    ttft_s: float
    text: SameText


@dataclass(frozen=True, slots=True)
class Limits:
    """Speedups over plain that could be had, by what passes and draft steps cost in this run.

    ``ceiling`` if every drafted token were right, with ``ceiling_length`` of them a round;
    ``oracle`` with this draft and the best length in every round, known beforehand; ``fixed``
    with its best single length, ``fixed_length``. ``shares`` are those of the places where the
    draft gets 1, 2, ... tokens right in a row. No draft longer than the longest that was verified
    is considered, no other source, and not the reading of prompts.
    """

    ceiling: float
    ceiling_length: int
    oracle: float
    fixed: float
    fixed_length: int
    shares: tuple[float, ...]


def _together(sides: Sequence[Side], prompts: Sequence[int]) -> GenerationStats:
    total = GenerationStats()
    for side in sides:
        for row in _stats(side, prompts):
            for one in row:
                total.merge(one)
    return total


def _costs(sides: Sequence[Side], prompts: Sequence[int]) -> list[float]:
    """The mean seconds of the target's passes of 1, 2, ... tokens, up to the widest there was.

    What was not seen in between is interpolated.
    """
    passes = _together(sides, prompts).passes
    costs = PassCosts()
    for width, each in passes.items():
        costs.observe(width, 0, each.seconds / each.count)
    return [costs.seconds(width, 0) for width in range(1, min(max(passes), LONGEST_AUTO + 1) + 1)]


def _limits(agreed: Sequence[Sequence[bool]], verify: list[float], step: float) -> Limits:
    plain = sum(len(one) for one in agreed) * verify[0]
    fixed, length = max(
        (plain / sum(oracle.fixed_seconds(one, verify, step, k) for one in agreed), k)
        for k in range(1, len(verify))
    )
    most, best = oracle.ceiling(verify, step)
    return Limits(
        ceiling=most,
        ceiling_length=best,
        oracle=plain / sum(oracle.best_seconds(one, verify, step) for one in agreed),
        fixed=fixed,
        fixed_length=length,
        shares=tuple(oracle.shares(agreed, _PLACES)),
    )


def require_room(engine: Engine, tasks: Mapping[str, Sequence[Prompt]], plan: BenchPlan) -> None:
    """Raise PromptTooLong when a prompt, its answer and a widened pass exceed the context."""
    longest_prompt = max(len(prompt) for group in tasks.values() for prompt in group)
    # The last token of an answer is never decoded; the pass before it may be filled up.
    needed = longest_prompt + plan.max_tokens - 2 + plan.width
    if needed > engine.target.n_ctx:
        raise PromptTooLong(
            f"The longest prompt has {longest_prompt} tokens; with an answer of {plan.max_tokens} "
            f"it needs a context of {needed} tokens, and there are {engine.target.n_ctx}.",
            "Give a smaller --max-tokens, a larger --ctx-size, or shorter --prompts.",
        )


def run_bench(
    engine: Engine,
    tasks: Mapping[str, Sequence[Prompt]],
    plan: BenchPlan,
    on_answer: Callable[[str], None] = lambda task: None,
) -> Iterator[Comparison]:
    """Compare all sides task by task, after a warm-up of each side.

    ``on_answer`` hears the task of each measured answer. Ctrl-C or a LocalspecError ends the
    measurement: what is complete of its task by then is yielded first, and then it is raised.
    """
    require_room(engine, tasks, plan)
    warm_up(engine, next(iter(tasks.values()))[0], plan)
    for task, prompts in tasks.items():
        done: list[_Measured] = []
        problem: BaseException | None = None
        try:
            for i, prompt in enumerate(prompts):
                done.append(_measure(engine, f"{task} {i + 1}", prompt, plan, task, on_answer))
        except (KeyboardInterrupt, LocalspecError) as error:
            problem = error
        if done:
            yield _comparison(task, plan, done)
        if problem is not None:
            raise problem


def warm_up(engine: Engine, prompt: Prompt, plan: BenchPlan) -> None:
    """Let every side answer once, unmeasured: first passes page weights in and set up kernels."""
    short = replace(plan, max_tokens=min(plan.max_tokens, _WARM_UP_TOKENS))
    for length in plan.lengths:
        answer(engine, prompt, short, length)


def answer(engine: Engine, prompt: Prompt, plan: BenchPlan, length: DraftTokens) -> Answer:
    """Generate once from empty caches; Ctrl-C ends the whole measurement."""
    engine.target.keep(0)
    if engine.draft is not None:
        engine.draft.keep(0)
    result = collect(
        stream_generate(
            engine,
            prompt,
            plan.params,
            length,
            suffix=plan.suffix,
            max_tokens=plan.max_tokens,
            clock=plan.clock,
        )
    )
    if result.finish_reason == "cancelled":
        raise KeyboardInterrupt
    return result


def together(comparisons: Sequence[Comparison], task: str = "all") -> Comparison:
    """Several comparisons with the same sides and repeats as one over all their prompts."""
    sides = tuple(
        Side(
            group[0].draft_tokens,
            tuple(
                tuple(one for row in rows for one in row)
                for rows in zip(*(side.answers for side in group), strict=True)
            ),
        )
        for group in zip(*(comparison.sides for comparison in comparisons), strict=True)
    )
    return Comparison(
        task,
        tuple(name for comparison in comparisons for name in comparison.names),
        sides,
        tuple(each for comparison in comparisons for each in comparison.differences),
        tuple(one for comparison in comparisons for one in comparison.agreed),
        all(comparison.seed_decides for comparison in comparisons),
        tuple(each for comparison in comparisons for each in comparison.audits),
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """One prompt's answers, ``answers[side][repeat]``, and what explains their differences."""

    name: str
    answers: list[list[Answer]]
    differences: list[Difference]
    agreed: tuple[bool, ...]
    audits: list[Audit]


def _comparison(task: str, plan: BenchPlan, measured: Sequence[_Measured]) -> Comparison:
    sides = tuple(
        Side(length, tuple(zip(*(one.answers[i] for one in measured), strict=True)))
        for i, length in enumerate(plan.lengths)
    )
    differences = tuple(each for one in measured for each in one.differences)
    agreed = tuple(one.agreed for one in measured) if measured[0].agreed else ()
    names = tuple(one.name for one in measured)
    audits = tuple(each for one in measured for each in one.audits)
    return Comparison(task, names, sides, differences, agreed, plan.params.seed_decides, audits)


def _measure(
    engine: Engine,
    name: str,
    prompt: Prompt,
    plan: BenchPlan,
    task: str,
    on_answer: Callable[[str], None],
) -> _Measured:
    """Answer one prompt with every side, interleaved, then explain where the texts differ.

    Interleaving lets noise from other processes fall on all sides alike; the order of the sides
    alternates between repeats.
    """
    answers: dict[DraftTokens, list[Answer]] = {length: [] for length in plan.lengths}
    for repeat in range(plan.repeats):
        for length in plan.lengths if repeat % 2 == 0 else plan.lengths[::-1]:
            answers[length].append(answer(engine, prompt, plan, length))
            on_answer(task)
    rows = list(answers.values())
    differences = list(_Differences(engine, name, prompt, plan).among(rows))
    plain = rows[0][0].tokens
    return _Measured(
        name,
        rows,
        differences,
        _agreement(engine, prompt, plan, plain),
        list(_audits(engine, name, prompt, plan, rows)) if plan.audit else [],
    )


def _audits(
    engine: Engine, name: str, prompt: Prompt, plan: BenchPlan, rows: Sequence[Sequence[Answer]]
) -> Iterator[Audit]:
    """One for every drafted answer; equal texts are read once."""
    known: dict[tuple[int, ...], tuple[tuple[int, float | None], ...]] = {}
    plain = rows[0][0].tokens
    for length, answers in zip(plan.lengths[1:], rows[1:], strict=True):
        for one in answers:
            text = tuple(one.tokens)
            if text not in known:
                known[text] = tuple(_misses(engine, prompt, plan, text))
            yield Audit(name, length, len(text), one.tokens == plain, known[text])


def _misses(
    engine: Engine, prompt: Prompt, plan: BenchPlan, text: Sequence[int]
) -> Iterator[tuple[int, float | None]]:
    """Where plain decoding, given the text so far, would have said another token."""
    context, sampler = list(prompt), Sampler(plan.params)
    engine.target.keep(0)
    catch_up(engine.target, context)
    for i, token in enumerate(text):
        row = engine.target.decode(context[-1:], 1)[0]
        short = sampler.shortfall(row, len(context), context, token)
        if short > 0:
            yield i, short if math.isfinite(short) else None
        context.append(token)


def _agreement(
    engine: Engine, prompt: Prompt, plan: BenchPlan, tokens: Sequence[int]
) -> tuple[bool, ...]:
    """At which of these tokens the draft's pick, given the text before, is the same.

    Not told where the rule of acceptance asks for more than that.
    """
    drafter = None if not plan.params.seed_decides else model_drafter(engine, plan.params)
    if drafter is None:
        return ()
    context, agreed = list(prompt), list[bool]()
    drafter.read(context)
    for i in range(0, len(tokens), _AT_ONCE):
        piece = tokens[i : i + _AT_ONCE]
        context += piece
        reviewed = drafter.review(context, len(piece))
        # A draft that lacks a token of the text says nothing.
        found = [candidate.token == came for candidate, came in reviewed]
        agreed += [*[False] * (len(piece) - len(found)), *found]
    return tuple(agreed)


class _Differences:
    """Finds where the answers to one prompt leave the plain one, and why."""

    def __init__(self, engine: Engine, name: str, prompt: Prompt, plan: BenchPlan) -> None:
        self._engine = engine
        self._name = name
        self._prompt = prompt
        self._plan = plan
        self._replayed: dict[tuple[DraftTokens, int], list[int]] = {}

    def among(self, rows: Sequence[Sequence[Answer]]) -> Iterator[Difference]:
        """One for each text of a side that is not the first plain one."""
        plain = rows[0][0].tokens
        if not self._plan.params.seed_decides:
            return
        for length, answers in zip(self._plan.lengths, rows, strict=True):
            others = {tuple(one.tokens) for one in answers} - {tuple(plain)}
            for other in sorted(others):
                yield self._explain(length, plain, list(other))

    def _explain(self, length: DraftTokens, plain: list[int], other: list[int]) -> Difference:
        position = common_prefix(plain, other)
        width = self._engine.target.min_width
        # How wide auto's passes are depends on the clock: where rounding decides, so does its text.
        again = other if length == "auto" else self._replay(length, width)
        repeatable = self._replay(0, width) == plain and again == other
        return Difference(
            prompt=self._name,
            draft_tokens=length,
            position=position,
            margin=self._margin(plain[:position]),
            repeatable=repeatable,
            proven_at=self._proven_at(length) if repeatable else None,
        )

    def _proven_at(self, length: DraftTokens) -> int | None:
        """The width of pass at which plain and drafted text are one: two, or the side's widest.

        Two suffices on a CPU, where all wider passes round alike; GPU kernels change again at
        larger widths, so there both sides are brought to the same one.
        """
        for width in sorted({2, _width(length)}):
            if width > self._engine.target.min_width:
                if self._replay(0, width) == self._replay(length, width):
                    return width
        return None

    def _replay(self, length: DraftTokens, width: int) -> list[int]:
        """The tokens of a side with passes of at least this width."""
        key = (length, width)
        if key not in self._replayed:
            with self._engine.widened(width):
                again = answer(self._engine, self._prompt, self._plan, length)
            self._replayed[key] = again.tokens
        return self._replayed[key]

    def _margin(self, tokens: list[int]) -> float | None:
        """The lead of the plain pick behind these tokens, on logits computed as plain does."""
        context, target = list(self._prompt), self._engine.target
        target.keep(0)
        catch_up(target, context)
        row = target.decode(context[-1:], 1)[0]
        for token in tokens:
            context.append(token)
            row = target.decode([token], 1)[0]
        return Sampler(self._plan.params).margin(row, len(context), context)


def _stats(side: Side, prompts: Sequence[int]) -> list[list[GenerationStats]]:
    return [[row[i].stats for i in prompts] for row in side.answers]


def _figures(
    length: DraftTokens,
    ours: list[list[GenerationStats]],
    plain: list[list[GenerationStats]],
    text: SameText,
) -> Figures:
    flat = [stats for row in ours for stats in row]
    base = _pace([stats for row in plain for stats in row])
    tokens, rounds = sum(s.tokens for s in flat), sum(s.rounds for s in flat)
    drafted, accepted = sum(s.drafted for s in flat), sum(s.accepted for s in flat)
    return Figures(
        draft_tokens=length,
        tokens=tokens,
        generation_tps=1 / _pace(flat),
        speedup=base / _pace(flat),
        speedup_by_repeat=tuple(_pace(p) / _pace(o) for o, p in zip(ours, plain, strict=True)),
        round_cost=_pace(flat) * tokens / rounds / base,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=tokens / rounds,
        draft_prompt_s=sum(s.draft_prompt_seconds for s in flat) / len(flat),
        ttft_s=sum(s.ttft_s or 0 for s in flat) / len(flat),
        text=text,
    )


def _pace(stats: Sequence[GenerationStats]) -> float:
    """Seconds per generated token."""
    return sum(s.seconds + s.draft_prompt_seconds for s in stats) / sum(s.tokens for s in stats)
