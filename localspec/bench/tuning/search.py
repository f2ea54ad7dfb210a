"""The search for the fastest settings of a pair within a time."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from localspec.bench.figures import FEWEST_PROMPTS, Spent, speedup_interval
from localspec.bench.prompts import BenchPrompt
from localspec.bench.tuning.candidates import (
    NOW,
    OF_ANSWERS,
    Candidate,
    PairFiles,
    Values,
    combinations,
    merged,
    modes,
    shown,
)
from localspec.bench.tuning.prediction import (
    OF_DRAFT,
    OF_TARGET,
    Costs,
    Passes,
    costs,
    priced,
    ratio,
)
from localspec.bench.tuning.trial import Answered, Trials, added
from localspec.bench.tuning.turns import TURNS, Turns
from localspec.bench.tuning.types import TypeCosts
from localspec.chat.stats import Interval
from localspec.core.errors import LocalspecError

OnStep = Callable[[str, float, float], None]  # the step, seconds spent, seconds in all
_RECORDED = 0.3  # of the time, for answers with the current settings
_TRIED = 0.5  # of the time, at least, for candidates
_TRIED_IN_VAIN = 0.9  # while none has gained: no time is needed to prove it
_LATEST = 1.5  # times the time: fewer prompts than FEWEST_PROMPTS give no interval
LEAST_GAIN = 1.02  # times as fast: what gains less is noise, and not worth a setting
_EACH = 1.005  # times the seconds for each setting: of equals, those with fewer are taken
_FINALISTS = 3
LENGTHS = (4,)  # a fixed length, which has less to decide than auto
_SHORT, _LONG = 16, 64  # tokens of an answer
_A_TURN = 60  # seconds of the time; with five turns a ratio of costs is off by 5 to 8 %
_MOST_TURNS = 25
_A_TYPE = 45  # seconds of a type of a 1.5B, before one was measured
_ANSWERS = 30  # of the longest fit into the time, or none is left for candidates
_PLAIN = shown({"draft_tokens": "off"})
NOTHING_DRAFTED = "auto drafted nothing in these answers"
UNTRIED = "not tried for lack of time: give a longer --time"


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate and its predicted speed over now; None, with the ``reason``, if it has none."""

    candidate: Candidate
    speedup: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ratioed:
    """Times as fast, with the 90 % interval over the prompts; None for too few."""

    times: float = 1.0
    interval: Interval | None = None

    def is_above(self, least: float) -> bool:
        return self.interval is not None and self.interval[0] > least

    @property
    def is_clear(self) -> bool:
        """Whether it is faster by enough, or not."""
        return self.is_above(LEAST_GAIN) or (self.interval is not None and self.interval[1] < 1)


@dataclass(frozen=True, slots=True)
class Finalist:
    """Settings that answered in turn with the current ones; ``speedup`` is of whole answers."""

    values: Values
    predicted: float
    speedup: Ratioed
    answered: Answered
    memory: int
    rounds: bool

    @property
    def is_faster(self) -> bool:
        """Whether they are clearly faster."""
        return self.speedup.is_above(1.0)


@dataclass(frozen=True, slots=True)
class TriedType:
    """Another type of the target and its predicted speed over now, with the ``draft`` for it.

    The draft is in the words of its candidate. The speed is None where it could not be measured.
    """

    costs: TypeCosts
    speedup: float | None = None
    draft: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result: candidates by themselves, then the current settings and the finalists.

    ``types`` of the target are advice: they write another text. ``seconds`` leave their time out.
    ``stopped`` if Ctrl-C left some of them out.
    """

    tried: tuple[Tried, ...]
    finalists: tuple[Finalist, ...]
    seconds: float
    types: tuple[TriedType, ...] = ()
    stopped: bool = False

    @property
    def now(self) -> Finalist:
        """The current settings."""
        return self.finalists[0]

    @property
    def best(self) -> Finalist:
        """The fastest settings: the current ones unless others are clearly faster."""
        faster = [each for each in self.finalists if each.is_faster]
        return max(faster, key=lambda each: each.speedup.times, default=self.now)


@dataclass
class Search:
    """Tries ``candidates`` for a pair for about ``seconds``, in child processes.

    First the current settings answer ``recorded`` prompts in every mode. Then the passes of each
    candidate are measured in turn with the current ones, and what was recorded is taken at their
    costs. At last the best combination and the current settings answer ``held`` prompts in turn;
    the next best only if that one is not clearly faster. ``_ratios`` and ``_records`` are by the
    settings that they belong to, as `shown` names them; ``_passes`` are all that were measured with
    the current settings. Children run inside `trials`. At the very end ``types`` of the target are
    measured, whatever time that takes, or until Ctrl-C.
    """

    pair: PairFiles
    candidates: Sequence[Candidate]
    recorded: Sequence[BenchPrompt]
    held: Sequence[BenchPrompt]
    seconds: float
    room: int
    types: Mapping[str, Callable[[], TypeCosts]] = field(default_factory=dict)
    on_step: OnStep = lambda what, spent, total: None
    clock: Callable[[], float] = time.monotonic
    tried: list[Tried] = field(default_factory=list, init=False)
    _records: dict[str, Answered] = field(default_factory=dict, init=False)
    _ratios: dict[str, Costs] = field(default_factory=dict, init=False)
    _passes: list[Passes] = field(default_factory=list, init=False)
    _prompts: int = field(default=0, init=False)  # that were recorded
    _tokens: int = field(default=_LONG, init=False)  # of an answer at most
    _began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._trials = Trials(self.pair, self.room)
        self.turns = Turns(self.pair, self._trials)

    def run(self) -> Outcome:
        """Measure, predict, and prove; raises LocalspecError if the pair does not run as it is."""
        with self.trials():
            self.measure()
            finalists = self._prove(self.predictions())
        seconds, types = self._spent(), list[TriedType]()
        stopped = self._add_types(types)
        return Outcome(tuple(self.tried), tuple(finalists), seconds, tuple(types), stopped)

    @contextmanager
    def trials(self) -> Iterator[None]:
        """Let children run inside the block; an error kills them."""
        self._began = self.clock()
        try:
            yield
        except BaseException:
            self._trials.close(lambda trial: trial.kill())
            raise
        self._trials.close()

    def measure(self) -> None:
        """Record answers, and try each candidate by itself."""
        self._record()
        proof = 2 * FEWEST_PROMPTS * self._records[shown(NOW)].whole / self._prompts
        until = max(_TRIED * self.seconds, self.seconds - proof)
        for candidate in self.candidates:
            if self._spent() < (until if self.predictions() else _TRIED_IN_VAIN * self.seconds):
                self._try(candidate)
            else:
                self.tried.append(Tried(candidate, None, UNTRIED))

    def _spent(self) -> float:
        return self.clock() - self._began

    def _step(self, what: str, total: float | None = None) -> None:
        """Report a step; all takes ``total`` seconds, by default the time or `_LATEST` times it."""
        spent = self._spent()
        late = spent > self.seconds
        total = total or (max(spent, _LATEST * self.seconds) if late else self.seconds)
        best = max((each.speedup or 1.0 for each in self.tried), default=1.0)
        so_far = f", at best {best:.2f}x predicted" if best > 1 else ""
        self.on_step(what + so_far, spent, total)

    def answers(
        self, sides: Sequence[Values], prompt: BenchPrompt, most: int = 10**9
    ) -> list[Answered]:
        """Answers with these settings, in turn."""
        return self.turns.answers(sides, prompt.messages, min(most, self._tokens))

    def _record(self) -> None:
        """Answers with the current settings, in every mode, prompt by prompt as time allows."""
        self._step("loading")
        self.answers([NOW], self.recorded[0], 8)  # sets kernels up
        (brief,) = self.answers([NOW], self.recorded[0], 8)
        affordable = (self.seconds / _ANSWERS - brief.reading) * brief.per_second
        self._tokens = max(_SHORT, min(_LONG, round(affordable)))
        tried = modes(self.pair, LENGTHS)
        ways = [NOW, *(each.values for each in tried if each.shown != _PLAIN)]
        answers: dict[str, list[Answered]] = {shown(values): [] for values in ways}
        for prompt in self.recorded:
            if answers[shown(NOW)] and self._spent() > _RECORDED * self.seconds:
                break
            ways.reverse()  # a mode that came last each time would profit from a learnt profile
            for values in ways:
                self._step(f"answering, {shown(values)}")
                answers[shown(values)] += self.answers([values], prompt)
        self._records = {name: added(each) for name, each in answers.items()}
        now = self._records[shown(NOW)]
        self._records[_PLAIN] = replace(now, passes={1: now.timed}, steps=0)
        self._prompts = len(answers[shown(NOW)])
        self._passes += self.turns.passes([NOW])
        for each in tried:
            self._note(each)

    def _try(self, candidate: Candidate) -> None:
        """Measure a candidate's passes in turn with the current ones; another draft answers too."""
        self._step(candidate.shown)
        try:
            turns = max(TURNS, min(_MOST_TURNS, round(self.seconds / _A_TURN)))
            kinds = OF_DRAFT if candidate.is_of_draft else (*OF_TARGET, *OF_DRAFT)
            now, other = self.turns.passes([NOW, candidate.values], turns, kinds)
            self._passes.append(now)
            self._ratios[candidate.shown] = ratio(now, other)
            if candidate.knob == "draft":  # it proposes other tokens
                values = {**candidate.values, **self._fixed}
                prompts = self.recorded[: self._prompts]
                answers = [self.answers([values], prompt)[0] for prompt in prompts]
                self._records[candidate.shown] = added(answers)
            self._note(candidate)
        except LocalspecError as problem:
            self.tried.append(Tried(candidate, None, problem.message))
        with suppress(LocalspecError):
            self._trials.end(candidate.values)

    @property
    def _fixed(self) -> Values:
        """Settings with which another draft is compared with the current one.

        Automatic lengths are still learnt in its first answers, and no two answers are alike.
        """
        adapts = self.pair.draft is not None and self.pair.answers["draft_tokens"] == "auto"
        return {"draft_tokens": str(LENGTHS[0])} if adapts else NOW

    def _note(self, candidate: Candidate) -> None:
        now = self._records[shown(NOW)]
        is_same = candidate.shown == _PLAIN and now.steps == 0 and {*now.passes} <= {1}
        reason = NOTHING_DRAFTED if is_same else ""
        self.tried.append(Tried(candidate, self._speedup([candidate]), reason))

    def _add_types(self, found: list[TriedType]) -> bool:
        """Add each type to ``found``; returns whether Ctrl-C ended it, which keeps settings."""
        try:
            before = self._spent()
            for name, measure in self.types.items():
                a_type = (self._spent() - before) / len(found) if found else _A_TYPE
                total = self._spent() + (len(self.types) - len(found)) * a_type
                self._step(f"type {name}, {len(found) + 1} of {len(self.types)}", total)
                found.append(self._type(measure()))
        except KeyboardInterrupt:
            return True
        return False

    def _type(self, found: TypeCosts) -> TriedType:
        """A type with the draft with which it is predicted to be the fastest."""
        if (ratio := found.ratio) is None:
            return TriedType(found)
        drafts = [each.candidate for each in self.tried if each.candidate.knob == "draft"]
        chosen = [[], *([each] for each in drafts if each.shown in self._ratios)]
        speedup, best = max((self._speedup(each, ratio), shown(merged(each))) for each in chosen)
        return TriedType(found, speedup, best)

    def _speedup(self, chosen: Sequence[Candidate], *also: Costs) -> float:
        """The predicted speed of several candidates together over the current one."""
        draft = next((each.shown for each in chosen if each.knob == "draft"), None)
        settings, now = _of_answers(chosen), self._records[shown(NOW)]
        record, plain = self._records[draft or shown(settings)], self._records[_PLAIN]
        usual, ratios = costs(self._passes), [*self._ratios_of(chosen), *also]
        before = priced(now, usual) / now.tokens
        after = priced(record, usual, ratios) / record.tokens
        if draft is not None:
            base = self._records[shown(self._fixed)]
            after *= before / (priced(base, usual) / base.tokens)
        if {**self.pair.answers, **settings}["draft_tokens"] == "auto":
            # Lengths adapt: where drafting costs more than before, it ends.
            loses = max(1.0, before / (priced(plain, usual) / plain.tokens))
            after = min(after, loses * priced(plain, usual, ratios) / plain.tokens)
        return before / after

    def predictions(self, least: float = LEAST_GAIN) -> list[tuple[tuple[Candidate, ...], float]]:
        """Combinations of what gained by itself, with their predicted speed, best first."""
        gaining = [each.candidate for each in self.tried if (each.speedup or 0.0) > least]
        found = [
            (chosen, self._speedup(chosen))
            for chosen in combinations(gaining)
            if chosen and _is_recorded(chosen, self._records)
        ]
        return sorted(found, key=lambda each: _EACH ** len(each[0]) / each[1])

    def _prove(self, predicted: Sequence[tuple[tuple[Candidate, ...], float]]) -> list[Finalist]:
        """The current settings, and the best others until one of them is clearly faster."""
        now, found = self._records[shown(NOW)], list[Finalist]()
        for chosen, expected in predicted[:_FINALISTS]:
            if found and (found[-1].is_faster or self._spent() > self.seconds):
                break
            answers = self._against_now(merged(chosen))
            now, memory = (
                added([each for each, _ in answers]),
                self._trials.of(merged(chosen)).memory,
            )
            others = added([each for _, each in answers])
            rounds = any(each.rounds for each in chosen)
            found.append(
                Finalist(merged(chosen), expected, _speedup_of(answers), others, memory, rounds)
            )
        return [Finalist(NOW, 1.0, Ratioed(), now, self._trials.of(NOW).memory, False), *found]

    def _against_now(self, values: Values) -> list[tuple[Answered, Answered]]:
        """Answers in turn with the current settings, until the interval says which are faster."""
        sides, answers = (NOW, values), list[tuple[Answered, Answered]]()
        self._step(f"answering in turn, {shown(values)}")
        self.answers(sides, self.held[0], 8)
        for prompt in self.held:
            self._step(f"answering in turn, {shown(values)}")
            now, other = self.answers(sides, prompt)
            answers.append((now, other))
            late = 1.0 if len(answers) >= FEWEST_PROMPTS else _LATEST
            if _speedup_of(answers).is_clear or self._spent() > late * self.seconds:
                break
        return answers

    def _ratios_of(self, chosen: Sequence[Candidate]) -> list[Costs]:
        return [self._ratios[each.shown] for each in chosen if each.shown in self._ratios]


def _speedup_of(answers: Sequence[tuple[Answered, Answered]]) -> Ratioed:
    """The speed of the second of each pair over the first, from the seconds of whole answers."""

    def spent(side: int) -> Spent:
        found = [pair[side] for pair in answers]
        tokens = [float(max(1, each.tokens)) for each in found]
        return Spent(np.array([[each.whole for each in found]]), np.array([tokens]))

    slow, quick = spent(0), spent(1)
    return Ratioed(slow.pace / quick.pace, speedup_interval(slow, quick))


def _of_answers(chosen: Sequence[Candidate]) -> Values:
    return merged(each for each in chosen if each.values.keys() & {*OF_ANSWERS})


def _is_recorded(chosen: Sequence[Candidate], records: dict[str, Answered]) -> bool:
    """Whether answers were recorded with the draft, the length and the lookups of these."""
    of_answers = _of_answers(chosen)
    has_draft = any(each.knob == "draft" for each in chosen)
    return shown(of_answers) in records and not (has_draft and of_answers)
