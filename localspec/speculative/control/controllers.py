"""Draft length controllers: none, fixed, or adaptive (auto)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from localspec.core.errors import NotNumbers
from localspec.core.options.load_options import MAX_DRAFT_TOKENS, DraftTokens
from localspec.speculative.control.conversations import Conversation, Conversations
from localspec.speculative.control.pair_profile import (
    LONGEST_INTERVAL,
    GroupAcceptance,
    LossBudget,
    PairProfile,
)
from localspec.speculative.control.probing import FAR_BEHIND, TRIAL, TimedDraft
from localspec.speculative.control.valuation import LONGEST_AUTO, WIDEST, Valuation
from localspec.speculative.drafters import FORCED, MODEL, Candidate, Lookup
from localspec.speculative.loop import Clock, Controller, DraftStatus, Proposal, Round, TreeDecoder
from localspec.speculative.text_drafter import Drafter

_FEW = 6  # candidates judged: too few to draft far
_GUESSED = 0.25  # tokens: the largest gain assumed of candidates if few of them were judged
_TRIED = 0.15  # of a usual answer's time: more is not lost to try a new draft
_RENT = 0.5  # weight of rounds skipped in earlier answers (ski rental)


def longest(length: DraftTokens) -> int:
    """Most tokens that a round of this length drafts."""
    return WIDEST - 1 if length == "auto" else length


class NoDraft(Controller):
    """Proposes nothing: plain decoding."""


class UntilNotNumbers(Controller):
    """Drafts as one controller does until the draft's logits are not numbers, then as another."""

    def __init__(self, controller: Controller, otherwise: Callable[[], Controller]) -> None:
        self._controller = controller
        self._otherwise: Callable[[], Controller] | None = otherwise
        self.drafts_at_once = controller.drafts_at_once

    @property
    def length(self) -> int:  # type: ignore[override]
        """Of the controller that drafts now."""
        return self._controller.length

    @property
    def status(self) -> DraftStatus:  # type: ignore[override]
        """Why the model drafts nothing, whether lookups do or not."""
        failed = self._otherwise is None
        return DraftStatus.DRAFT_NOT_NUMBERS if failed else self._controller.status

    def begin_answer(self) -> None:
        self._controller.begin_answer()

    def propose(self, context: list[int], limit: int) -> Proposal:
        """The controller's tokens; none in the round in which the draft fails."""
        try:
            return self._controller.propose(context, limit)
        except NotNumbers:
            if self._otherwise is None:
                raise
            self._controller, self._otherwise = self._otherwise(), None
            return Proposal()

    def observe(self, outcome: Round) -> None:
        self._controller.observe(outcome)


class FixedLength(Controller):
    """A chain of the same number of drafted tokens in every round, after ``forced`` ones.

    If the target verifies trees, rivals are added up to its number of leaves, those of the first
    places first.
    """

    status = DraftStatus.DRAFTING

    def __init__(
        self,
        drafter: Drafter,
        length: int,
        clock: Clock,
        tree: TreeDecoder | None = None,
        forced: Lookup | None = None,
    ) -> None:
        self._drafter = drafter
        self._forced = forced
        self.length = length
        self._clock = clock
        self._tree = tree
        self._has_prompt = False
        self.drafts_at_once = drafter.follows_target

    def begin_answer(self) -> None:
        """The next answer's prompt is unread."""
        self._has_prompt = False

    def propose(self, context: list[int], limit: int) -> Proposal:
        """As many as allowed; the first time, with the seconds of reading the prompt."""
        began = self._clock()
        if not self._has_prompt:
            self._drafter.read(context)
            self._has_prompt = True
        reading = self._clock() - began
        limit = min(limit, MAX_DRAFT_TOKENS)
        chain = [] if self._forced is None else [*islice(self._forced.continuation(context), limit)]
        drafted = self._drafter.propose(context, [each.token for each in chain])
        chain += islice(drafted, min(limit - len(chain), self.length))
        rivals = self._rivals(chain, limit - len(chain))
        found = [*chain, *(rival for rival, _ in rivals)]
        return Proposal(
            tuple(each.token for each in found),
            tuple(each.source for each in found),
            reading,
            tuple(each.distribution for each in found),
            (*range(len(chain)), *(parent for _, parent in rivals)) if rivals else (),
        )

    def _rivals(self, chain: Sequence[Candidate], limit: int) -> list[tuple[Candidate, int]]:
        """The rivals to verify next to a chain, and the row that each follows."""
        if self._tree is None:
            return []
        most = self._tree.branches - 1
        rivals = ((each, row) for row, first in enumerate(chain) for each in first.rivals[:most])
        return list(islice(rivals, min(limit, self._tree.paths - 1)))


class Adaptive(Controller):
    """Drafts from each source as far as that pays, by measured costs and acceptance: auto.

    Lookups, which cost nothing, are asked in every round; the draft model if a `Valuation` finds
    it worth more, and else it is probed now and then. The measured figures are kept in ``profile``,
    which serves many answers; ``conversations`` and ``loss_budget`` are those of one slot.
    """

    def __init__(
        self,
        profile: PairProfile,
        clock: Clock,
        drafter: Drafter | None = None,
        *lookups: Lookup | None,
        sampling_kind: str = "greedy",
        conversations: Conversations | None = None,
        loss_budget: LossBudget | None = None,
    ) -> None:
        self._profile = profile
        self._lookups = [lookup for lookup in lookups if lookup is not None]
        self._conversations = conversations or Conversations()
        self._budget = loss_budget or LossBudget()
        self._conversation: Conversation | None = None
        self._acceptance = GroupAcceptance(profile, sampling_kind)
        self._value = Valuation(
            profile,
            self._acceptance,
            has_draft=drafter is not None,
            drafts_block=drafter is not None and drafter.drafts_block,
        )
        self._draft: TimedDraft | None = None
        if drafter is not None:
            acceptance, value = self._acceptance, self._value
            self._draft = TimedDraft(drafter, profile, acceptance, value, self._budget, clock)
        self._prompt = 0  # tokens
        self._plan = _RoundPlan()
        self.drafts_at_once = drafter is not None and drafter.follows_target
        self.status = DraftStatus.DRAFTING

    def begin_answer(self) -> None:
        """Keep the loss of earlier answers in the budget."""
        self._budget.begin_answer()

    def propose(self, context: list[int], limit: int) -> Proposal:
        """The candidates worth verifying, after as many draft steps as are worth taking."""
        self._prompt = self._prompt or len(context)
        self._value.refresh(len(context) - 1, drafting=self.length > 0)
        plan = self._plan = self._look_up(context, limit)
        if self._profile.since_plain < LONGEST_INTERVAL:  # the cost of a plain pass is known too
            self.status = self._choose(plan, context, limit)
        self.length = plan.verified
        filling = self._filling(plan.verified, context, limit)
        return replace(plan.proposal(), filling=max(filling, min(plan.tried, limit)))

    def _filling(self, verified: int, context: list[int], limit: int) -> int:
        """Tokens that fill up this verification to the width of the last pass, if that pays.

        Not if a plain pass is due, because drafting is compared with its time.
        """
        if not self._value.is_alone or self._profile.since_plain >= LONGEST_INTERVAL:
            return 0
        filling = self._profile.filling(1 + verified, len(context) - 1)
        return filling if verified + filling <= limit else 0

    def _choose(self, plan: "_RoundPlan", context: list[int], limit: int) -> DraftStatus:
        """Choose the candidates to verify; returns the status of the draft model."""
        value = self._value
        verified, worth = value.best(plan.candidates)
        gain = 0.0 if self._draft is None else self._trusted(value.gain, MODEL)
        if verified:
            group = plan.candidates[0].group
            gain = max(gain, self._trusted(worth - value.plain_worth, group))
        if not self._budget.may_spend(0.0, value.plain, max(0.0, gain)):
            slower = DraftStatus.RECENTLY_SLOWER
            return slower if verified else self._reason(slower)
        plan.verified = verified
        if self._draft is None:
            if verified:
                self._profile.tokens_since_draft = 0
            elif self._profile.take_trial():
                self._try_width(plan)
            return DraftStatus.DRAFTING
        return self._ask_model(self._draft, plan, context, limit, worth)

    def _is_known(self, group: str) -> bool:
        """Whether enough candidates of a group were judged to trust their acceptance."""
        return self._acceptance.of(group).pair.observations > _FEW

    def _trusted(self, gain: float, group: str) -> float:
        """The gain of candidates of a group, for the loss budget; bounded if it is a guess."""
        return gain if self._is_known(group) else min(gain, _GUESSED)

    def _ask_model(
        self, draft: TimedDraft, plan: "_RoundPlan", context: list[int], limit: int, worth: float
    ) -> DraftStatus:
        """Draft with the model if that is worth more than ``worth``; else perhaps probe it."""
        value, past = self._value, len(context) - 1
        unread = draft.unread(context)
        # The policy counts its first step as any other; tokens that it must read first cost more.
        extra = draft.extra_seconds(unread, past)
        if forced := plan.forced:  # the draft model continues after them
            worth -= value.best(forced)[1] - value.plain_worth
        better = worth - value.plain_worth + value.rate() * extra
        if value.gain > better:
            return self._use_model(draft, plan, context, limit, unread)
        if draft.is_due and draft.may_gain(past) > better:
            draft.score_past_tokens(context)
        elif self._profile.take_trial():
            self._try_width(plan)
            draft.time_step(context)
        wrong = DraftStatus.DRAFT_TOO_OFTEN_WRONG
        return self._reason(DraftStatus.DRAFTING if plan.verified else wrong)

    def _try_width(self, plan: "_RoundPlan") -> None:
        """Widen a plain pass to measure its cost again: it may date from a busy moment."""
        value = self._value
        if plan.verified or not value.is_alone:
            return
        if self._budget.may_spend(value.seconds_added(TRIAL), value.plain, 0.0):
            plan.tried = TRIAL

    def _reason(self, otherwise: DraftStatus) -> DraftStatus:
        """Why the draft model is not used: costs, unread or wrong tokens, or ``otherwise``."""
        if self._draft is None:
            return DraftStatus.DRAFTING
        if self._value.good_draft_gain <= 0:
            return DraftStatus.VERIFICATION_TOO_SLOW
        wrong = DraftStatus.DRAFT_TOO_OFTEN_WRONG
        status = otherwise if self._value.gain > 0 else wrong
        is_tried = self._acceptance.of(MODEL).pair.observations > 0
        return status if is_tried or status is not wrong else DraftStatus.ANSWER_TOO_SHORT

    def _use_model(
        self, draft: TimedDraft, plan: "_RoundPlan", context: list[int], limit: int, unread: int
    ) -> DraftStatus:
        """Draft, unless too much must be read first; not far while acceptance is unknown."""
        value = self._value
        if self._conversation is None:
            self._conversation = self._conversations.resume(context)
        before = self._conversation.missed_before
        gain = self._gain_after_reading(unread, len(context) - 1)
        if not self._worth_reading(gain, draft, unread, limit, before):
            # The draft may be better than it seems; not scored if even a good one would not pay.
            if draft.is_due and self._worth_reading(
                value.good_draft_gain, draft, unread, limit, before
            ):
                draft.score_past_tokens(context)
            self._conversation.missed += 1
            return DraftStatus.ANSWER_TOO_SHORT
        known = self._is_known(MODEL)
        if not known and draft.is_cheaper(context, unread):
            draft.score_past_tokens(context)
            return DraftStatus.DRAFTING
        draft.restart()
        self._conversation.draft_has_read()
        plan.reading_seconds = draft.read(context, unread)
        chain = plan.forced
        candidates = draft.candidates(context, unread, [each.token for each in chain])
        longest = min(LONGEST_AUTO, value.longest) if known else TRIAL
        chain += self._chain(candidates, min(limit - len(chain), longest))
        self._extend(context, chain, limit)
        self._prefer(plan, chain)
        return DraftStatus.DRAFTING

    def _gain_after_reading(self, unread: int, past: int) -> float:
        """The gain of a round; an optimistic one for a new draft, if it reads little.

        Else a pair with a small expected gain would never draft, however well its models agree.
        Others that share the passes would wait for the reading, and gain nothing by it.
        """
        usual = self._value.plain * self._profile.answer_length(self._prompt)
        is_cheap = self._profile.reading_seconds(unread) <= _TRIED * usual
        is_new = not self._acceptance.of(MODEL).pair.observations
        if is_new and is_cheap and self._value.sequences == 1:
            return self._value.optimistic_gain(past)
        return self._value.gain

    def _prefer(self, plan: "_RoundPlan", chain: list[Candidate]) -> None:
        """Verify the model's candidates, unless a lookup has better ones."""
        best = self._value.best
        (verified, worth), (kept, other) = best(chain), best(plan.candidates)
        if other > worth:
            plan.verified, unused = kept, chain
        else:
            plan.verified, plan.candidates, unused = verified, chain, plan.candidates
        plan.unused.insert(0, unused)

    def _worth_reading(
        self, gain: float, draft: TimedDraft, unread: int, limit: int, missed: int
    ) -> bool:
        """Whether drafting gains more than reading the prompt costs, and has gained so far.

        The answer is assumed to become as long as those to prompts of this length were, or twice
        as long as it is; ``missed`` plain rounds of earlier answers count half (ski rental).
        """
        if unread <= FAR_BEHIND:
            return True
        if not self._budget.may_read(self._value.plain, gain):
            return False
        usual = self._profile.answer_length(self._prompt) - draft.emitted
        tokens = min(limit, max(usual, draft.emitted)) + _RENT * missed
        rounds = tokens / max(2.0, 1.0 + gain)  # a round gives about two tokens, or the gain
        seconds = gain / self._value.rate() * rounds
        return seconds >= self._profile.reading_seconds(unread)

    def _look_up(self, context: list[int], limit: int) -> "_RoundPlan":
        """The most valuable candidates of the lookups; all others only update acceptance."""
        chains: list[list[Candidate]] = [[] for _ in self._lookups]
        for lookup, chain in zip(self._lookups, chains, strict=True):
            lookup.update(context)
            self._value.lengthen(chain, lookup.continuation(context), limit)
        chains.sort(key=lambda chain: self._value.best(chain)[1], reverse=True)
        return _RoundPlan(chains[0], unused=chains[1:]) if chains else _RoundPlan()

    def _chain(self, candidates: Iterator[Candidate], limit: int) -> list[Candidate]:
        """Candidates of the model, step by step while the next ones are worth it."""
        chain: list[Candidate] = []
        survival = 1.0
        for candidate in islice(candidates, limit):
            chain.append(candidate)
            survival *= self._acceptance.probability(candidate)
            if survival < self._value.thresholds[len(chain)]:
                break
        return chain

    def _extend(self, context: list[int], chain: list[Candidate], limit: int) -> None:
        """Let the first lookup that can continue the model's chain."""
        drafted = [each.token for each in chain]
        for lookup in self._lookups:
            if len(chain) == len(drafted) > 0:
                self._value.lengthen(chain, lookup.continuation(context, drafted), limit)

    def observe(self, outcome: Round) -> None:
        """Update the costs from the pass, and acceptance from the tokens that were right.

        A round without a pass only says with how many others the next one will be shared.
        """
        profile, value, tokens = self._profile, self._value, len(outcome.tokens)
        if not outcome.width:
            value.expect(outcome)
            return
        outcome = profile.observe_pass(outcome)
        value.prepare(outcome.past)
        value.expect(outcome)
        drafting = 0.0 if self._draft is None else self._draft.take_spent()
        reading = self._plan.reading_seconds / profile.pace
        counted = value.counted_seconds(outcome, drafting - reading)
        self._budget.add(counted, tokens, value.plain, reading)
        # A long copy does not show the speed after it, nor does a pass that reads another prompt.
        if tokens <= 1 + LONGEST_AUTO and not outcome.mixed:
            value.recent.add(tokens, outcome.seconds / outcome.sequences)
        if self._draft is not None:
            self._draft.count(tokens)
            if outcome.finish_reason is not None:
                cut = outcome.finish_reason != "stop"
                profile.observe_answer(self._prompt, self._draft.emitted, cut=cut)
        self._acceptance.observe_all(self._plan.candidates, outcome.tokens)
        for chain in self._plan.unused:
            self._acceptance.observe_all(chain, outcome.tokens)
        self._plan = _RoundPlan()


@dataclass(slots=True)
class _RoundPlan:
    """Candidates of one round, and how many of them are verified.

    ``unused`` ones only update acceptance.
    """

    candidates: list[Candidate] = field(default_factory=list)
    unused: list[list[Candidate]] = field(default_factory=list)
    verified: int = 0
    tried: int = 0  # tokens that only make the pass wider
    reading_seconds: float = 0.0

    @property
    def forced(self) -> list[Candidate]:
        """The leading candidates, which a grammar forces."""
        return list(takewhile(lambda each: each.group == FORCED, self.candidates))

    def proposal(self) -> Proposal:
        """What is to be verified."""
        kept = self.candidates[: self.verified]
        return Proposal(
            tuple(each.token for each in kept),
            tuple(each.source for each in kept),
            self.reading_seconds,
        )
