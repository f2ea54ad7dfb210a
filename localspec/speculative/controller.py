"""How far to draft, and from which source: always the same length, or as far as it pays.

This room owns the decisions. What passes cost is learnt in `costs`, how likely candidates are in
`acceptance`; candidates come from `drafters` and `suffix`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from localspec.core.config import DraftTokens
from localspec.speculative.acceptance import Acceptance
from localspec.speculative.costs import PassCosts
from localspec.speculative.drafters import MODEL, Candidate, Drafter
from localspec.speculative.limits import usual_gain
from localspec.speculative.loop import Clock, Proposal, Round
from localspec.speculative.policy import Policy, solve
from localspec.speculative.status import DraftStatus
from localspec.speculative.suffix import SuffixIndex

LONGEST_AUTO = 16  # most tokens that auto drafts from the model
WIDEST = 33  # tokens of the widest pass that auto makes
_REFRESH = 8  # rounds between two looks at costs and policy
_CALM = 4  # times as many while drafting does not pay: a look costs a quarter of a small pass
_HOPE = 1.0  # standard deviations
_FADE = 0.9  # of what other answers taught, at the start of one
_LITTLE = 5  # tokens said, candidates seen: too few to know a draft
_GOOD = 0.9  # the chance of a candidate of a good draft on an easy text
_RECENT = 1 - 1 / 64
_SHARE = 0.01  # of the time elapsed that drafting may lose
_HELD_UP = 3.0  # times what a pass costs usually
_FIRST_PROBE, _LAST_PROBE = 12, 256  # tokens between two looks at a draft that is not used
_SHORT_ANSWER = 64  # tokens: what an answer is expected to have at least
_TRIAL = 3  # tokens drafted only to see what that costs
_ENOUGH_SEEN = 50.0  # candidates from which a usual acceptance may be told
_FAR_BEHIND = 8  # unread tokens from which reading them is an investment, not part of a step


def longest(length: DraftTokens) -> int:
    """Most tokens that a round of this length drafts."""
    return WIDEST - 1 if length == "auto" else length


class NoDraft:
    """Proposes nothing: plain decoding."""

    length = 0
    status = DraftStatus.OFF
    plain_seconds = 0.0

    def propose(self, context: list[int], limit: int) -> Proposal:
        """No tokens."""
        return Proposal()

    def observe(self, outcome: Round) -> None:
        """Plain decoding learns nothing."""


class FixedLength:
    """The same number of drafted tokens in every round."""

    status = DraftStatus.DRAFTING
    plain_seconds = 0.0

    def __init__(self, drafter: Drafter, length: int, clock: Clock) -> None:
        self._drafter = drafter
        self.length = length
        self._clock = clock
        self._has_prompt = False

    def propose(self, context: list[int], limit: int) -> Proposal:
        """As many as there may be; the first time, the draft's reading of the prompt is told."""
        began = self._clock()
        if not self._has_prompt:
            self._drafter.read(context)
            self._has_prompt = True
        reading = self._clock() - began
        count = min(limit, self.length)
        found = list(islice(self._drafter.propose(context), count))
        return Proposal(
            tuple(each.token for each in found),
            ("draft",) * len(found),
            reading,
            tuple(each.distribution for each in found),
        )

    def observe(self, outcome: Round) -> None:
        """A fixed length learns nothing."""


class LossBudget:
    """What drafting has cost more than plain decoding would have, against what it may.

    The allowance is one per cent of the time elapsed and one plain token, up to four where a round
    is expected to gain much: a streak of bad luck soon comes back there. Gains are credit, but not
    without end, so that a text that turns hard is noticed soon. What the draft's reading of a
    prompt cost is not counted: drafting less would not bring it back. What an answer lost, the next
    one still owes: many short answers must not lose the tokens of many beginnings.
    """

    def __init__(self) -> None:
        self._debt = 0.0
        self._elapsed = 0.0

    def begin(self) -> None:
        """Go on with another answer: a debt stays, a credit does not."""
        self._debt = max(0.0, self._debt - _SHARE * self._elapsed)
        self._elapsed = 0.0

    def add(self, seconds: float, tokens: int, plain: float) -> None:
        """Count a round against the plain time of its tokens."""
        self._elapsed += seconds
        self._debt = max(self._debt + seconds - tokens * plain, -16 * plain)

    def may_spend(self, seconds: float, plain: float, gain: float) -> bool:
        """Whether a loss of this size is allowed, where a round is to gain so many tokens."""
        allowed = (1 + min(3.0, 6 * gain)) * plain + _SHARE * self._elapsed
        return self._debt + seconds <= allowed


@dataclass(slots=True)
class Knowledge:
    """What was learnt about a pair on a machine: costs of passes, and who is how often right."""

    verify: PassCosts = field(default_factory=PassCosts)
    draft: PassCosts = field(default_factory=PassCosts)
    reading: float = 0.0  # seconds of the draft for each token of a prompt
    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    unproven: int = 0  # tokens said since a pass was wider than one
    drafted_on: int = 0  # tokens said since a pass was as wide as one
    ledger: LossBudget = field(default_factory=LossBudget)

    def observe_reading(self, tokens: int, seconds: float) -> None:
        """Learn from a reading: a short one says little, a disturbed one is bounded."""
        found = seconds / tokens
        if self.reading:
            found = min(found, 3 * self.reading)
        self.reading += (found - self.reading) * (min(1.0, tokens / 32) if self.reading else 1.0)

    def of(self, group: str) -> Acceptance:
        """What is known of a group of candidates."""
        if group not in self.acceptance:
            self.acceptance[group] = Acceptance()
        return self.acceptance[group]

    def usual_gain(self, longest: int) -> tuple[float, float] | None:
        """Times plain speed that the draft model usually gives, and its acceptance; None if new.

        Of the texts sampled like those it was used for most.
        """
        groups = [each for group, each in self.acceptance.items() if group.startswith(MODEL)]
        best = max(groups, key=lambda each: each.observations, default=None)
        if best is None or best.observations < _ENOUGH_SEEN or not self.draft.knows(1):
            return None
        chances = best.chances()
        chance = sum(p * weight for p, weight in chances) / sum(weight for _, weight in chances)
        verify = [self.verify.seconds(1 + k, 0) for k in range(longest + 1)]
        return usual_gain(verify, self.draft.seconds(1, 0), chance), chance


class Adaptive:
    """Drafts from each source exactly as far as that pays, by what passes cost and texts accept.

    Value is counted in tokens: the tokens that a round is expected to give, less what its seconds
    would give at the present rate. Renewal-reward: the policy that maximises this at the best
    attainable rate maximises tokens per second.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        clock: Clock,
        drafter: Drafter | None = None,
        index: SuffixIndex | None = None,
        *,
        bucket: str = "greedy",
    ) -> None:
        self._known = knowledge
        for acceptance in knowledge.acceptance.values():
            acceptance.fade(_FADE)  # another answer may be another kind of text
        self._bucket = bucket
        self._clock = clock
        self._drafter = drafter
        self._index = index
        self._ledger = knowledge.ledger
        self._ledger.begin()
        self._recent = [0.0, 0.0]  # tokens and seconds, decayed over about 64 rounds
        self._table: list[float] = []  # seconds by width, for contexts of about this length
        self._age = self._refreshes = 0
        self._policy = Policy((), 0.0)
        self._ideal = 0.0
        self._hopeful: float | None = None  # the gain that may well be; solved for when asked
        self._since_probe = 0
        self._probe_every = _FIRST_PROBE
        self._emitted = 0
        self._length = 0
        self._round = _RoundPlan()
        self.plain_seconds = 0.0
        self.status = DraftStatus.DRAFTING

    @property
    def length(self) -> int:
        """Tokens proposed last."""
        return self._length

    # -- the round -------------------------------------------------------------------------

    def propose(self, context: list[int], limit: int) -> Proposal:
        """The candidates worth verifying, after as many draft steps as are worth taking."""
        self._refresh(len(context) - 1)
        guessed = self._guess(context, min(limit, WIDEST - 1))
        plan = self._round = _RoundPlan(guessed)
        if self._known.drafted_on >= _LAST_PROBE:  # what plain decoding costs must be known too
            self._length = 0
            return Proposal()
        self.status = DraftStatus.RECENTLY_SLOWER
        if self._ledger.may_spend(0.0, self._table[0], max(0.0, self._policy.gain)):
            plan.verified, value = self._best(guessed)
            if self._drafter is not None:
                self._ask_model(context, limit, max(value, self._value(0.0, 0)))
            elif self._known.unproven >= _LAST_PROBE:
                plan.verified = max(plan.verified, min(_TRIAL, len(guessed)))
        self._length = plan.verified
        if plan.verified or self._drafter is None:
            self.status = DraftStatus.DRAFTING
        kept = plan.candidates[: plan.verified]
        return Proposal(
            tuple(each.token for each in kept),
            tuple(each.source for each in kept),
            plan.reading_seconds,
        )

    def _ask_model(self, context: list[int], limit: int, value: float) -> None:
        """Draft with the model where that is worth more than ``value``; else perhaps watch it."""
        assert self._drafter is not None
        plan, past = self._round, len(context) - 1
        unread = self._drafter.unread(context)
        # The policy counts its first step as any other; what it must read besides costs more.
        first = self._first_step(unread, past) - self._first_step(1, past)
        better = value - self._value(0.0, 0) + self._rate() * first
        self.status = (
            DraftStatus.VERIFICATION_TOO_SLOW
            if self._ideal <= 0
            else DraftStatus.DRAFT_TOO_OFTEN_WRONG
        )
        if self._policy.gain > better:
            self.status = DraftStatus.DRAFTING
            if not self._worth_reading(unread, limit):
                self.status = DraftStatus.ANSWER_TOO_SHORT
                if self._since_probe >= self._probe_every:
                    self._watch(context)
                return
            if self._of(MODEL).observations < _LITTLE - 1:  # older ones count less
                if self._emitted >= _LITTLE:  # a look at what was said is cheaper than a bet
                    self._review(context)
                return
            self._since_probe, self._probe_every = 0, _FIRST_PROBE
            plan.reading_seconds = self._read(context, unread)
            self._use_model(context, limit, past)
        elif self._since_probe >= self._probe_every and self._may_gain(past) > better:
            self._watch(context)
        elif self._known.unproven >= _LAST_PROBE:
            self._doubt_costs(context, limit, unread)

    def _use_model(self, context: list[int], limit: int, past: int) -> None:
        """Draft, and verify the model's candidates unless the index had the better ones."""
        plan, guessed = self._round, self._round.candidates
        chain = self._draft(context, min(limit, LONGEST_AUTO), past)
        self._extend(context, chain, min(limit, WIDEST - 1))
        (verified, value), (kept, other) = self._best(chain), self._best(guessed)
        if other > value:
            plan.verified, plan.candidates, plan.other = kept, guessed, chain
        else:
            plan.verified, plan.candidates, plan.other = verified, chain, guessed

    def observe(self, outcome: Round) -> None:
        """Learn what the passes cost and who was right."""
        self._known.verify.observe(outcome.width, outcome.past, outcome.verify_seconds)
        known, tokens = self._known, len(outcome.tokens)
        known.unproven = 0 if outcome.width > 1 else known.unproven + tokens
        known.drafted_on = 0 if outcome.width == 1 else known.drafted_on + tokens
        if not self._table:
            self._refresh(outcome.past)
        self._ledger.add(self._cost(outcome), len(outcome.tokens), self._table[0])
        self.plain_seconds += len(outcome.tokens) * self._table[0]
        self._recent[0] = self._recent[0] * _RECENT + len(outcome.tokens)
        self._recent[1] = self._recent[1] * _RECENT + outcome.seconds
        self._emitted += len(outcome.tokens)
        self._since_probe += len(outcome.tokens)
        plan = self._round
        self._learn(plan.candidates, outcome.tokens)
        self._learn(plan.other, outcome.tokens)
        self._round = _RoundPlan()

    def _cost(self, outcome: Round) -> float:
        """Seconds of a round for the ledger: what delays plain decoding as well is no loss.

        A plain pass counts as what it costs usually, be it quick or slow: a quick one is no gain of
        drafting. A wide one that took far longer than usual was held up by something else.
        """
        usual = self._table[min(outcome.width, WIDEST) - 1]
        verify = usual if outcome.width == 1 else min(outcome.verify_seconds, _HELD_UP * usual)
        return outcome.seconds - outcome.verify_seconds + verify

    def _learn(self, candidates: Sequence[Candidate], tokens: Sequence[int]) -> None:
        """Each candidate up to the first wrong one teaches; the one that was refused does too."""
        for candidate, token in zip(candidates, tokens, strict=False):
            right = candidate.token == token
            self._of(candidate.group).observe(candidate.confidence, right)
            if not right:
                return

    def _of(self, group: str) -> Acceptance:
        """What is known of a group at this temperature: how texts are sampled decides much."""
        return self._known.of(f"{group}, {self._bucket}")

    # -- values ----------------------------------------------------------------------------

    def _refresh(self, past: int) -> None:
        """Bring costs and policy up to date, every few rounds."""
        self._age -= 1
        if self._age > 0:
            return
        self._table = [self._known.verify.seconds(n, past) for n in range(1, WIDEST + 1)]
        if self._drafter is not None:
            self._policy, self._hopeful = self._solve(self._of(MODEL).chances(), past), None
            if self._refreshes % _REFRESH == 0:  # costs alone decide it, and they change slowly
                self._ideal = self._solve([(_GOOD, 1.0)], past).gain
        calm = self._policy.gain <= 0 and self._length == 0
        self._refreshes += 1
        self._age = min(_REFRESH, self._refreshes) * (_CALM if calm else 1)

    def _solve(self, chances: Sequence[tuple[float, float]], past: int) -> Policy:
        """The best policy at present costs, for candidates with these chances."""
        return solve(self._table, self._first_step(1, past), self._rate(), chances, LONGEST_AUTO)

    def _rate(self) -> float:
        """Tokens per second that a second is worth at present: at least those of plain decoding."""
        tokens, seconds = self._recent
        plain = 1.0 / self._table[0]
        return max(tokens / seconds, plain) if seconds > 0 else plain

    def _value(self, survivals: float, drafted: int) -> float:
        """Of verifying ``drafted`` candidates of which ``survivals`` are expected to pass."""
        return 1.0 + survivals - self._rate() * self._table[drafted]

    def _best(self, candidates: Sequence[Candidate]) -> tuple[int, float]:
        """How many of the candidates to verify, and the value of that; none is an answer."""
        best, survival, survivals = (0, self._value(0.0, 0)), 1.0, 0.0
        for i, candidate in enumerate(candidates):
            survival *= self._of(candidate.group).probability(candidate.confidence)
            survivals += survival
            value = self._value(survivals, i + 1)
            if value > best[1]:
                best = (i + 1, value)
        return best

    def _first_step(self, unread: int, past: int) -> float:
        """Seconds of a draft step that reads so many tokens; far behind, of the step alone."""
        return self._known.draft.seconds(unread if unread <= _FAR_BEHIND else 1, past)

    # -- sources ---------------------------------------------------------------------------

    def _guess(self, context: list[int], limit: int) -> list[Candidate]:
        if self._index is None:
            return []
        self._index.update(context)
        return list(islice(self._index.continuation(context), limit))

    def _draft(
        self, context: list[int], limit: int, past: int, *, always: bool = False
    ) -> list[Candidate]:
        """Candidates of the model, one step at a time while the next ones are worth it."""
        assert self._drafter is not None
        chain: list[Candidate] = []
        survival, thresholds = 1.0, self._policy.thresholds
        proposals = self._drafter.propose(context)
        width = self._drafter.unread(context)
        while len(chain) < limit and (always or not chain or survival >= thresholds[len(chain)]):
            began = self._clock()
            candidate = next(proposals, None)
            if candidate is None:
                break
            self._known.draft.observe(width, past, self._clock() - began)
            width = 1
            chain.append(candidate)
            survival *= self._of(MODEL).probability(candidate.confidence)
        return chain

    def _extend(self, context: list[int], chain: list[Candidate], limit: int) -> None:
        """Let the index continue where the model ended."""
        if self._index is not None and chain:
            text = [*context, *(each.token for each in chain)]
            chain += islice(self._index.continuation(text), limit - len(chain))

    # -- reading and probing ---------------------------------------------------------------

    def _reading_cost(self, unread: int) -> float:
        """Seconds to read so many tokens: many at once are cheaper than one after the other."""
        return self._known.reading * unread

    def _worth_reading(self, unread: int, limit: int) -> bool:
        """Whether what drafting may gain is well above what reading the prompt costs.

        How long the answer will be is unknown: as long again as it is, and 64 tokens at least.
        """
        if unread <= _FAR_BEHIND:
            return True
        rounds = min(limit, max(_SHORT_ANSWER, self._emitted)) / 2  # a round gives about two tokens
        return self._policy.gain / self._rate() * rounds >= 1.5 * self._reading_cost(unread)

    def _read(self, context: list[int], unread: int) -> float:
        """Bring the draft up to the context; the seconds it took."""
        assert self._drafter is not None
        if unread <= _FAR_BEHIND:
            return 0.0
        began = self._clock()
        self._drafter.read(context)
        seconds = self._clock() - began
        if self._drafter.unread(context) < unread:  # else it lacks a token, and read nothing
            self._known.observe_reading(unread, seconds)
        return seconds

    def _may_gain(self, past: int) -> float:
        """What the draft may well gain; what a good one would, once the last look is long ago."""
        overdue = self._since_probe >= _LAST_PROBE
        if self._hopeful is None:
            self._hopeful = self._solve(self._of(MODEL).chances(_HOPE), past).gain
        return max(self._hopeful, self._ideal if overdue else 0.0)

    def _review(self, context: list[int]) -> None:
        """Learn from what the draft would have said, had it been asked; and what reading costs."""
        assert self._drafter is not None
        rows = min(self._emitted, WIDEST)
        count = self._drafter.to_review(context, rows)
        gain = max(0.0, self._policy.gain)
        if not self._ledger.may_spend(self._reading_cost(count), self._table[0], gain):
            return
        self._since_probe, began = 0, self._clock()
        reviewed = self._drafter.review(context, rows)
        if not reviewed:
            return
        for candidate, token in reviewed:
            self._of(candidate.group).observe(candidate.confidence, candidate.token == token)
        self._known.observe_reading(count, self._clock() - began)
        self._age = 0

    def _watch(self, context: list[int]) -> None:
        """See whether the draft would have been right, while it is not used: no target pays."""
        self._review(context)
        if self._since_probe == 0:
            self._probe_every = min(2 * self._probe_every, _LAST_PROBE)

    def _doubt_costs(self, context: list[int], limit: int, unread: int) -> None:
        """Draft a little though costs forbid it: they may come from a moment of another's work."""
        step, past = self._known.draft, len(context) - 1
        cost = self._table[_TRIAL] - self._table[0] + _TRIAL * step.seconds(1, past)
        if not self._ledger.may_spend(cost + self._reading_cost(unread), self._table[0], 0.0):
            return
        plan = self._round
        plan.reading_seconds = self._read(context, unread)
        self._ledger.add(plan.reading_seconds, 0, self._table[0])
        plan.candidates = self._draft(context, min(limit, _TRIAL), past, always=True)
        plan.verified = len(plan.candidates)


@dataclass(slots=True)
class _RoundPlan:
    """What was considered for one round."""

    candidates: list[Candidate] = field(default_factory=list)
    other: list[Candidate] = field(default_factory=list)
    verified: int = 0
    reading_seconds: float = 0.0
