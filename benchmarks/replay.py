"""Compares controllers on recorded traces, with a table of costs in place of a clock.

    python benchmarks/replay.py TRACES.jsonl...

`benchmarks/traces.py` records the traces. The loop is the real one; target and draft answer from
the trace, and the clock moves by what the table says a pass costs, so that every figure is exactly
repeatable. Sessions are played turn by turn: caches, prompt lookup and what was learnt stay.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from common import GREEDY, printed
from cost_tables import COST_TABLES, UNIT, CostTable
from hindsight import Chain, Guess, best_seconds, causal_seconds
from traces import WRONG, Trace, chosen_traces, traces_parser

from localspec.speculative.control.controllers import Adaptive, FixedLength, NoDraft
from localspec.speculative.control.pair_profile import LossBudget, PairProfile
from localspec.speculative.drafters import MODEL, TAIL, Candidate, Lookup, ModelDrafter
from localspec.speculative.history import KEY, AnswerHistory
from localspec.speculative.loop import ALONE, Controller, Logits, generate_rounds, prefill
from localspec.speculative.prefix import common_prefix
from localspec.speculative.prompt_lookup import PromptLookup
from localspec.speculative.sampling.sampler import Sampler

LENGTHS = (1, 2, 3, 4, 6, 8)
DEEPEST = 16  # tokens that the oracle may draft
_WRONG_TOKEN = 0  # of a place where the draft has departed from the text
SHORT = 64  # tokens: shorter answers are too short to lose much, and are never the worst


class Clock:
    """Moves when something costs time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TraceTarget:
    """A TokenModel that says what the trace says."""

    tree = None

    def __init__(self, trace: Trace, costs: CostTable, clock: Clock) -> None:
        self.n_ctx = 10**6
        self.tokens = trace.text[: len(trace.prompt) - 1]
        self._text = trace.text
        self.n_vocab = 1 + max(self._text)
        drafted = (token for draft in trace.drafts for token, _ in draft)
        self.n_vocab = max(self.n_vocab, 1 + max(drafted, default=0))
        self._costs, self._clock = costs, clock
        self._width = 0  # of the last pass

    def decode(self, tokens: Sequence[int], rows: int) -> Logits:
        first = len(self.tokens) + len(tokens) - rows
        self.tokens = [*self.tokens, *tokens]
        changed, self._width = len(tokens) != self._width, len(tokens)
        self._clock.now += self._costs.verify(len(tokens)) + UNIT * self._costs.change * changed
        out = np.zeros((rows, self.n_vocab), np.float32)
        for position, row in enumerate(out, start=first):
            if position + 1 < len(self._text):
                row[self._text[position + 1]] = 1.0
        return out

    pending = 0

    @property
    def reusable(self) -> int:
        return len(self.tokens)

    block_size: int | None = None
    confidences = None
    follows_target = False
    gives_prompt_row = False
    batch_share = ALONE

    def checkpoint(self) -> None:
        """A trace is never read again."""

    def truncate(self, length: int) -> None:
        del self.tokens[length:]


class TraceDrafter(ModelDrafter):
    """A drafter that proposes what the trace recorded."""

    def __init__(self, trace: Trace, costs: CostTable, clock: Clock) -> None:
        self._trace, self._costs, self._clock = trace, costs, clock
        self.held: list[int] = []

    drafts_block = False
    confidences = None
    follows_target = False
    batch_share = ALONE

    def unread(self, context: list[int]) -> int:
        return len(context) - min(common_prefix(self.held, context), len(context) - 1)

    def read(self, context: list[int]) -> None:
        self._clock.now += self._costs.read(self.unread(context) - 1)
        self.held = context[:-1]

    def propose(self, context: list[int], ahead: Sequence[int] = ()) -> Iterator[Candidate]:
        width, held = self.unread(context), list(context)
        place = len(context) - len(self._trace.prompt)
        for depth in range(self._depth(place)):
            self._clock.now += self._costs.draft(width)
            self.held = list(held)
            width = 1
            candidate = self._recorded(place, depth)
            held.append(candidate.token)
            yield candidate

    def _depth(self, place: int) -> int:
        """Candidates behind a place; a chain recorded past its first wrong token has no end."""
        draft = self._trace.drafts[place]
        return DEEPEST if len(draft) >= WRONG and not self._is_right(place) else len(draft)

    def _is_right(self, place: int) -> bool:
        truth = self._trace.tokens[place:]
        draft = self._trace.drafts[place]
        return all(token == true for (token, _), true in zip(draft, truth, strict=False))

    def _recorded(self, place: int, depth: int) -> Candidate:
        draft = self._trace.drafts[place]
        if depth >= len(draft):  # leads as those of the last wrong ones
            _, lead = draft[len(draft) - 1 - (depth - len(draft)) % (WRONG - 1)]
            return Candidate(_WRONG_TOKEN, lead, MODEL)
        token, lead = draft[depth]
        return Candidate(token, lead, MODEL)

    def step(self, context: list[int]) -> int:
        self._clock.now += self._costs.draft(1)
        return len(self.held)

    def to_review(self, context: list[int], longest: int) -> int:
        unread = self.unread(context)
        few = unread <= TAIL + longest or 2 * unread <= len(context)
        return unread if few else TAIL + longest

    def score_past_tokens(self, context: list[int], longest: int) -> list[tuple[Candidate, int]]:
        count = self.to_review(context, longest)
        unread = self.unread(context) - 1
        self._clock.now += self._costs.read(count - 1)
        if count > unread:
            self.held = context[:-1]
        start = len(self._trace.prompt)
        found = []
        for i in range(max(start, len(context) - min(unread, longest)), len(context)):
            found.append((self._recorded(i - start, 0), context[i]))
        return found


Make = Callable[[TraceDrafter, Clock], Controller]


def play(trace: Trace, costs: CostTable, make: Make, history: AnswerHistory | None = None) -> float:
    """Seconds of one answer, which the history holds from then on."""
    clock = Clock()
    target = TraceTarget(trace, costs, clock)
    controller = make(TraceDrafter(trace, costs, clock), clock)
    answer(trace, target, controller, clock)
    remember(history, trace)
    return clock.now


def remember(history: AnswerHistory | None, trace: Trace) -> None:
    """Hold an answer as `stream_generate` does."""
    if history is not None:
        history.add([*trace.prompt[-KEY:], *trace.tokens])


def play_session(
    turns: Sequence[Trace], costs: CostTable, make: Make, history: AnswerHistory | None = None
) -> float:
    """Seconds of all answers, the target's reading of their prompts left out.

    Both caches hold from turn to turn what the texts have in common.
    """
    clock, spent = Clock(), 0.0
    read: list[int] = []
    drafted: list[int] = []
    for trace in turns:
        target, drafter = TraceTarget(trace, costs, clock), TraceDrafter(trace, costs, clock)
        target.tokens, drafter.held = read, drafted
        controller = make(drafter, clock)
        spent -= prefill(target, trace.prompt, clock).seconds
        answer(trace, target, controller, clock)
        remember(history, trace)
        read, drafted = target.tokens, drafter.held
    return spent + clock.now


def answer(trace: Trace, target: TraceTarget, controller: Controller, clock: Clock) -> None:
    """Generate the recorded answer."""
    controller.begin_answer()
    rounds = generate_rounds(
        target,
        controller,
        Sampler(GREEDY),
        trace.prompt,
        max_tokens=len(trace.tokens),
        is_stop=lambda token: False,
        clock=clock,
    )
    assert [token for each in rounds for token in each.tokens] == trace.tokens


def plain(drafter: TraceDrafter, clock: Clock) -> Controller:
    """The controller that never drafts."""
    return NoDraft()


def fixed(length: int) -> Make:
    """The controller that always drafts so many tokens."""
    return lambda drafter, clock: FixedLength(drafter, length, clock)


def auto(known: PairProfile, *lookups: Lookup, budget: LossBudget | None = None) -> Make:
    """The controller of automatic draft lengths, perhaps with lookups.

    Its answers share a loss budget, as those of a slot do.
    """
    budget = budget or LossBudget()
    return lambda drafter, clock: Adaptive(known, clock, drafter, *lookups, loss_budget=budget)


def lookup(known: PairProfile) -> Make:
    """The same without a draft model."""
    index, budget = PromptLookup(), LossBudget()
    return lambda drafter, clock: Adaptive(known, clock, None, index, loss_budget=budget)


def oracle(trace: Trace, costs: CostTable) -> float:
    """Seconds with the best length in every round, known beforehand."""
    agreed = [
        drafted[0][0] == token for drafted, token in zip(trace.drafts, trace.tokens, strict=True)
    ]
    return best_seconds(agreed, verify(costs), costs.draft(1))


def causal(traces: Sequence[Trace], costs: CostTable) -> float:
    """Seconds of all answers by the best policy that sees of a draft only its leads."""
    return causal_seconds([chains(trace) for trace in traces], verify(costs), costs.draft(1))


def chains(trace: Trace) -> list[Chain]:
    """The drafts of a trace, each token beside whether it is the target's; none past the end."""
    return [
        [
            Guess(token == true, lead)
            for (token, lead), true in zip(draft, trace.tokens[i:], strict=False)
        ]
        for i, draft in enumerate(trace.drafts)
    ]


def verify(costs: CostTable) -> list[float]:
    """Seconds of the passes that verify 0, 1, ... drafted tokens."""
    return [costs.verify(1 + length) for length in range(1 + DEEPEST)]


@dataclass
class Row:
    """Speedups over plain with one table of costs.

    ``cold`` is auto after a calibration, ``warm`` auto that learns from answer to answer,
    ``lookup`` the same with prompt lookup, ``history`` with earlier answers too, ``worst`` the
    least of all answers, cold and with prompt lookup. ``oracle`` and ``causal`` know the draft,
    not the index.
    """

    name: str
    fixed: list[float]
    cold: float
    warm: float
    lookup: float
    history: float
    worst: tuple[float, float]
    oracle: float
    causal: float

    @property
    def best(self) -> float:
        """The best of plain and the fixed lengths."""
        return max(1.0, *self.fixed)

    def line(self) -> str:
        """This row of the table."""
        return (
            f"{self.name:16}"
            + "".join(f"{speedup:7.2f}" for speedup in self.fixed)
            + f"{self.best:7.2f}{self.cold:8.2f}{self.warm:7.2f}"
            + f"{self.lookup:8.3f}{self.history:9.3f}"
            + f"{self.worst[0]:12.3f}{self.worst[1]:8.3f}{self.oracle:9.2f}"
            + f"{self.warm / self.oracle:6.0%}{self.causal:9.2f}{self.warm / self.causal:6.0%}"
        )


def measure(costs: CostTable, traces: Sequence[Trace]) -> Row:
    """Every controller on all traces."""

    def seconds(make: Make) -> list[float]:
        return [play(trace, costs, make) for trace in traces]

    def speedup(spent: Iterable[float]) -> float:
        return total / sum(spent)

    def worst(spent: Iterable[float]) -> float:
        sides = zip(usual, spent, traces, strict=True)
        return min(before / now for before, now, trace in sides if len(trace.tokens) >= SHORT)

    usual = seconds(plain)
    total = sum(usual)
    both, budget = costs.calibrated(), LossBudget()
    cold = [play(trace, costs, auto(costs.calibrated())) for trace in traces]
    lookup = [play(trace, costs, auto(both, PromptLookup(), budget=budget)) for trace in traces]
    held, whole, budget = AnswerHistory(), costs.calibrated(), LossBudget()
    history = [
        play(trace, costs, auto(whole, PromptLookup(), held, budget=budget), history=held)
        for trace in traces
    ]
    return Row(
        name=costs.name,
        fixed=[speedup(seconds(fixed(length))) for length in LENGTHS],
        cold=speedup(cold),
        warm=speedup(seconds(auto(costs.calibrated()))),
        lookup=speedup(lookup),
        history=speedup(history),
        worst=(worst(cold), worst(lookup)),
        oracle=speedup(oracle(trace, costs) for trace in traces),
        causal=total / causal(traces, costs),
    )


@dataclass
class SessionRow:
    """Speedups over plain in the sessions of a kind, with one table of costs."""

    kind: str
    name: str
    fixed: float
    lookup: float
    draft: float
    both: float
    history: float

    def line(self) -> str:
        """This row of the table."""
        return (
            f"{self.kind:10}{self.name:16}{self.fixed:7.2f}{self.lookup:9.2f}{self.draft:8.2f}"
            f"{self.both:8.2f}{self.history:9.2f}{self.history / max(1.0, self.fixed):10.2f}"
        )


def measure_session(kind: str, costs: CostTable, turns: Sequence[Trace]) -> SessionRow:
    """The best fixed length, and auto with prompt lookup, the draft model, both, and history."""
    usual, held = play_session(turns, costs, plain), AnswerHistory()

    def speedup(make: Make) -> float:
        return usual / play_session(turns, costs, make)

    return SessionRow(
        kind,
        costs.name,
        max(speedup(fixed(length)) for length in LENGTHS),
        speedup(lookup(costs.calibrated())),
        speedup(auto(costs.calibrated())),
        speedup(auto(costs.calibrated(), PromptLookup())),
        usual / play_session(turns, costs, auto(costs.calibrated(), PromptLookup(), held), held),
    )


def show_sessions(traces: Sequence[Trace]) -> None:
    """Print a table of the sessions, by kind and machine."""
    print("kind      machine           fixed   lookup   draft    both +history  over best fixed")
    for kind in dict.fromkeys(trace.task for trace in traces):
        turns = [trace for trace in traces if trace.task == kind]
        printed(measure_session(kind, costs, turns) for costs in COST_TABLES)


def main() -> None:
    """Print tables in which plain is 1: of single answers by machine, and of sessions."""
    chosen = chosen_traces(traces_parser(__doc__).parse_args())
    if turns := [trace for trace in chosen if trace.session]:
        show_sessions(turns)
    if traces := [trace for trace in chosen if not trace.session]:
        show_answers(traces)


def show_answers(traces: Sequence[Trace]) -> None:
    """Print a table of single answers, by machine."""
    print(f"{len(traces)} traces, {sum(len(trace.tokens) for trace in traces)} tokens")
    print(
        f"{'machine':16}"
        + "".join(f"{length:>7}" for length in LENGTHS)
        + "   best    cold   warm  +lookup +history"
        + "  worst(cold) (lookup)  oracle     %   causal     %"
    )
    rows = printed(measure(costs, traces) for costs in COST_TABLES)
    mean = statistics.geometric_mean(row.warm / row.best for row in rows)
    print(f"warm over best of plain and fixed: {mean:.3f}")


if __name__ == "__main__":
    main()
