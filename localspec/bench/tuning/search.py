"""The search for the fastest settings of a pair within a time."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

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
from localspec.bench.tuning.prediction import Ratio, least, priced, ratio
from localspec.bench.tuning.trial import Answered, Costs, Trials, added
from localspec.chat.stats import Interval
from localspec.core.errors import LocalspecError

OnStep = Callable[[str, float], None]  # the step under way, seconds spent
_RECORDED = 0.3  # of the time, for answers with the current settings
_TRIED = 0.6  # of the time, until when candidates are measured
_TRIED_IN_VAIN = 0.9  # while none has gained: no time is needed to prove it
_LATEST = 1.2  # times the time, for the prompts without which there is no interval
_TURNS = 3  # of passes, in turn with the current ones: other programs delay some of them
_PASSES_SECONDS = 0.8  # of one turn
_SLOWED = 1.3  # times the least cost of the current settings: another program ran in this turn
LEAST_GAIN = 1.02  # times as fast: what gains less is noise, and not worth a setting
_EACH = 1.005  # times the seconds for each setting: of equals, those with fewer are taken
_FINALISTS = 3
LENGTHS = (4,)  # a fixed length, which has less to decide than auto
_SHORT, _LONG = 16, 64  # tokens of an answer
_ANSWERS = 30  # of the longest fit into the time, or none is left for candidates
_PLAIN = shown({"draft_tokens": "off"})
_UNTRIED = "not tried for lack of time: give a longer --time"


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
    """Settings that answered in turn with the current ones.

    ``speedup`` is by the clock, of whole answers, ``by_costs`` that of what the same answers
    computed, at the least costs measured; each with its 90 % interval, None for current settings.
    """

    values: Values
    predicted: float
    speedup: Ratioed
    by_costs: Ratioed
    answered: Answered
    memory: int
    rounds: bool

    @property
    def is_faster(self) -> bool:
        """Whether they are clearly faster by the clock, or by costs and not slower by the clock.

        Other programs make the clock uncertain, but neither what is computed nor its least costs.
        """
        by_costs = self.by_costs.is_above(LEAST_GAIN) and self.speedup.times > 1
        return self.speedup.is_above(1.0) or by_costs


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result: candidates by themselves, then the current settings and the finalists."""

    tried: tuple[Tried, ...]
    finalists: tuple[Finalist, ...]
    seconds: float

    @property
    def now(self) -> Finalist:
        """The current settings."""
        return self.finalists[0]

    @property
    def best(self) -> Finalist:
        """The fastest settings: the current ones unless others are clearly faster."""
        faster = [each for each in self.finalists if each.is_faster]
        return max(faster, key=lambda each: each.by_costs.times, default=self.now)


@dataclass
class Search:
    """Tries ``candidates`` for a pair for about ``seconds``, in child processes.

    First the current settings answer ``recorded`` prompts in every mode. Then the passes of each
    candidate are measured in turn with the current ones, and what was recorded is taken at their
    costs. At last the best combinations and the current settings answer ``held`` prompts in turn.
    ``_ratios`` and ``_records`` are by the settings that they belong to, as `shown` names them;
    ``_costs`` are all that were measured with the current settings. Children run inside `trials`.
    """

    pair: PairFiles
    candidates: Sequence[Candidate]
    recorded: Sequence[BenchPrompt]
    held: Sequence[BenchPrompt]
    seconds: float
    room: int
    on_step: OnStep = lambda what, spent: None
    clock: Callable[[], float] = time.monotonic
    tried: list[Tried] = field(default_factory=list, init=False)
    _records: dict[str, Answered] = field(default_factory=dict, init=False)
    _ratios: dict[str, Ratio] = field(default_factory=dict, init=False)
    _costs: list[Costs] = field(default_factory=list, init=False)
    _prompts: int = field(default=0, init=False)  # that were recorded
    _tokens: int = field(default=_LONG, init=False)  # of an answer at most
    _began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._trials = Trials(self.pair, self.room)

    def run(self) -> Outcome:
        """Measure, predict, and prove; raises LocalspecError if the pair does not run as it is."""
        with self.trials():
            self.measure()
            finalists = self._prove(self.predictions())
        return Outcome(tuple(self.tried), tuple(finalists), self._spent())

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
        for candidate in self.candidates:
            share = _TRIED if self.predictions() else _TRIED_IN_VAIN
            if self._spent() < share * self.seconds:
                self._try(candidate)
            else:
                self.tried.append(Tried(candidate, None, _UNTRIED))

    def _spent(self) -> float:
        return self.clock() - self._began

    def _step(self, what: str) -> None:
        best = max((each.speedup or 1.0 for each in self.tried), default=1.0)
        so_far = f", best so far {best:.2f}x" if best > 1 else ""
        self.on_step(what + so_far, self._spent())

    def answer(self, values: Values, prompt: BenchPrompt, most: int = 10**9) -> Answered:
        """An answer of a trial with these settings."""
        loaded, settings = self._trials.of(values), {**self.pair.answers, **values}
        return loaded.answer(settings, prompt.messages, min(most, self._tokens))

    def _record(self) -> None:
        """Answers with the current settings, in every mode, prompt by prompt as time allows."""
        self._step("loading")
        ways = [NOW, *(each.values for each in modes(self.pair, LENGTHS))]
        self.answer(NOW, self.recorded[0], 8)  # the first answer reads weights in
        brief = self.answer(NOW, self.recorded[0], 8)
        affordable = (self.seconds / _ANSWERS - brief.reading) * brief.per_second
        self._tokens = max(_SHORT, min(_LONG, round(affordable)))
        answers: dict[str, list[Answered]] = {shown(values): [] for values in ways}
        for prompt in self.recorded:
            if answers[shown(NOW)] and self._spent() > _RECORDED * self.seconds:
                break
            ways.reverse()  # a mode that came last each time would profit from a learnt profile
            for values in ways:
                self._step(f"answering, {shown(values)}")
                answers[shown(values)].append(self.answer(values, prompt))
        self._records = {name: added(each) for name, each in answers.items()}
        self._prompts = len(answers[shown(NOW)])
        self._costs.append(self._trials.of(NOW).costs(_PASSES_SECONDS))
        for each in modes(self.pair, LENGTHS):
            self._note(each)

    def _try(self, candidate: Candidate) -> None:
        """Measure a candidate's passes in turn with the current ones; another draft answers too."""
        self._step(candidate.shown)
        try:
            self._ratios[candidate.shown] = self._ratio(candidate)
            if candidate.knob == "draft":  # it proposes other tokens
                prompts = self.recorded[: self._prompts]
                answers = [self.answer(candidate.values, prompt) for prompt in prompts]
                self._records[candidate.shown] = added(answers)
            self._note(candidate)
        except LocalspecError as problem:
            self.tried.append(Tried(candidate, None, problem.message))
        with suppress(LocalspecError):
            self._trials.end(candidate.values)

    def _ratio(self, candidate: Candidate) -> Ratio:
        """Its costs over the current ones, in turn; turns that were slowed are repeated."""
        turns, slowed = list[tuple[Costs, Costs]](), list[tuple[Costs, Costs]]()
        while len(turns) < _TURNS and len(slowed) <= _TURNS:
            other = self._trials.of(candidate.values).costs(_PASSES_SECONDS)
            self._costs.append(self._trials.of(NOW).costs(_PASSES_SECONDS))
            is_slowed = self._costs[-1].passes[0] > _SLOWED * least(self._costs).passes[0]
            (slowed if is_slowed else turns).append((self._costs[-1], other))
        now, others = zip(*(turns or slowed), strict=True)
        return ratio(least(now), least(others))

    def _note(self, candidate: Candidate) -> None:
        self.tried.append(Tried(candidate, self._speedup([candidate])))

    def _speedup(self, chosen: Sequence[Candidate]) -> float:
        """The predicted speed of several candidates together over the current one."""
        draft = next((each.shown for each in chosen if each.knob == "draft"), None)
        settings, now = _of_answers(chosen), self._records[shown(NOW)]
        record, plain = self._records[draft or shown(settings)], self._records.get(_PLAIN)
        costs, ratios = least(self._costs), self._ratios_of(chosen)
        before = priced(now, costs) / now.tokens
        after = priced(record, costs, ratios) / record.tokens
        if plain is not None and {**self.pair.answers, **settings}["draft_tokens"] == "auto":
            # Lengths adapt: where drafting costs more than before, it ends.
            loses = max(1.0, before / (priced(plain, costs) / plain.tokens))
            after = min(after, loses * priced(plain, costs, ratios) / plain.tokens)
        return before / after

    def predictions(self, least: float = LEAST_GAIN) -> list[tuple[tuple[Candidate, ...], float]]:
        """Combinations of what gained by itself, with their predicted speed, best first."""
        gaining = [
            each.candidate
            for each in self.tried
            if (each.speedup or 0.0) > least and not each.candidate.is_advice
        ]
        found = [
            (chosen, self._speedup(chosen))
            for chosen in combinations(gaining)
            if chosen and _is_recorded(chosen, self._records)
        ]
        return sorted(found, key=lambda each: _EACH ** len(each[0]) / each[1])

    def _prove(self, predicted: Sequence[tuple[tuple[Candidate, ...], float]]) -> list[Finalist]:
        """The best and the current settings answer in turn, until the interval says which is."""
        answer = priced(self._records[shown(NOW)], least(self._costs)) / max(1, self._prompts)
        affordable = (self.seconds - self._spent()) / (FEWEST_PROMPTS * max(0.1, answer)) - 1
        most = min(_FINALISTS, max(1, math.floor(affordable)))
        chosen: list[tuple[tuple[Candidate, ...], float]] = [((), 1.0), *predicted[:most]]
        sides = [merged(each) for each, _ in chosen]
        answers: list[list[Answered]] = [[] for _ in sides]
        memory, found = [0] * len(sides), list[Finalist]()
        for i, prompt in enumerate(self.held):
            for side in range(len(sides))[:: 1 if i % 2 == 0 else -1]:
                self._step(f"answering in turn, {shown(sides[side])}")
                if not i:
                    self.answer(sides[side], prompt, 8)
                memory[side] = self._trials.of(sides[side]).memory
                answers[side].append(self.answer(sides[side], prompt))
            found = [
                self._finalist(each, speedup, answers[0], answers[side], memory[side])
                for side, (each, speedup) in enumerate(chosen)
            ]
            if self._is_enough(found[1:], i + 1):
                break
        return found

    def _is_enough(self, found: Sequence[Finalist], prompts: int) -> bool:
        """Whether the time is over, or each is clearly faster than now or clearly not."""
        spent = self._spent()
        if prompts < FEWEST_PROMPTS:
            return spent > _LATEST * self.seconds
        clear = all(each.speedup.is_clear or each.by_costs.is_clear for each in found)
        return clear or spent > self.seconds

    def _finalist(
        self,
        chosen: Sequence[Candidate],
        predicted: float,
        now: Sequence[Answered],
        answers: Sequence[Answered],
        memory: int,
    ) -> Finalist:
        costs, ratios = least(self._costs), self._ratios_of(chosen)
        usual, ours = (
            [priced(each, costs) for each in now],
            [priced(each, costs, ratios) for each in answers],
        )
        return Finalist(
            merged(chosen),
            predicted,
            _compared(now, [each.whole for each in now], answers, [x.whole for x in answers]),
            _compared(now, usual, answers, ours),
            added(answers),
            memory,
            any(each.rounds for each in chosen),
        )

    def _ratios_of(self, chosen: Sequence[Candidate]) -> list[Ratio]:
        return [self._ratios[each.shown] for each in chosen if each.shown in self._ratios]


def _compared(
    now: Sequence[Answered],
    usual: Sequence[float],
    other: Sequence[Answered],
    seconds: Sequence[float],
) -> Ratioed:
    """The speed of answers over the current ones, from the seconds of each."""

    def spent(answers: Sequence[Answered], seconds: Sequence[float]) -> Spent:
        tokens = [float(max(1, each.tokens)) for each in answers]
        return Spent(np.array([seconds]), np.array([tokens]))

    slow, quick = spent(now, usual), spent(other, seconds)
    return Ratioed(slow.pace / quick.pace, None if now is other else speedup_interval(slow, quick))


def _of_answers(chosen: Sequence[Candidate]) -> Values:
    return merged(each for each in chosen if each.values.keys() & {*OF_ANSWERS})


def _is_recorded(chosen: Sequence[Candidate], records: dict[str, Answered]) -> bool:
    """Whether answers were recorded with the draft, the length and the lookups of these."""
    of_answers = _of_answers(chosen)
    has_draft = any(each.knob == "draft" for each in chosen)
    return shown(of_answers) in records and not (has_draft and of_answers)
