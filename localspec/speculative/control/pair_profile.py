"""Figures learnt about a pair: costs of passes, acceptance of candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from localspec.speculative.control.acceptance import Acceptance, AnswerAcceptance
from localspec.speculative.control.costs import PassCosts, followed
from localspec.speculative.drafters import MODEL, Candidate
from localspec.speculative.limits import usual_best
from localspec.speculative.loop import Round

LONGEST_INTERVAL = 256  # tokens between two trials of a draft that seems not to pay
FIRST_TRIAL = 16  # tokens: costs of a calibration may have been measured at a busy moment
_RECENT = 1 - 1 / 64  # of earlier rounds, at each new one
_NEWEST = 0.1  # weight of the latest in a mean: a single one may be unusual
_USUAL_ANSWER = 64.0  # tokens, before any answer
_LONG_READING = 256  # tokens
_USUAL_COMPANY = 0.5  # before any step: 1 would read prompts for a step that none shares
_MOST_COUNTED = 8  # tokens of a round, so that a long copy does not make a plain one due
_MOST_GROUPS = 256  # about 300 KB in the saved profile
_ENOUGH_SEEN = 50.0  # candidates needed before a typical acceptance rate is reported
_SHARE = 0.01  # of the time elapsed that drafting may lose
_MOST_CREDIT = 16  # plain tokens; of debt too, reading included
_MOST_DEBT = 4.5  # plain tokens
_SLOPE = 12.0  # plain tokens that may be lost, for each token that a round is to gain


@dataclass(slots=True)
class RecentRate:
    """Tokens and seconds of about the last 64 rounds of an answer."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a round."""
        self.tokens = self.tokens * _RECENT + tokens
        self.seconds = self.seconds * _RECENT + seconds

    def per_second(self) -> float:
        """Tokens per second; 0 before the first round."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class LossBudget:
    """Time that one slot lost by drafting against plain decoding, and whether more may be risked.

    Allowed are one per cent of the time and one plain token, and more if a round is expected to
    gain much. Credit is bounded, so that a text that turns hard is noticed soon, and debt too, so
    that a large expected gain is never forbidden. A debt is carried to the next
    answer, so that many short answers cannot lose many times. Reading a prompt with the draft does
    not count in it: drafting less would not bring it back. `may_read` counts it over all answers.
    """

    def __init__(self) -> None:
        self._debt = 0.0
        self._with_reading = 0.0

    def begin_answer(self) -> None:
        """Start an answer: keep a loss, drop a gain."""
        self._debt = max(0.0, self._debt)

    def add(self, seconds: float, tokens: int, plain: float, reading: float = 0.0) -> None:
        """Count a round against the plain time of its tokens.

        ``plain`` is seconds of one token, ``reading`` those of the prompt in the draft.
        """
        lost = (1 - _SHARE) * seconds - tokens * plain
        lost = min(lost, _MOST_DEBT * plain)
        self._debt = min(max(self._debt + lost, -_MOST_CREDIT * plain), _MOST_DEBT * plain)
        most = _MOST_CREDIT * plain
        self._with_reading = min(max(self._with_reading + lost + reading, -most), most)

    def may_read(self, plain: float, gain: float) -> bool:
        """Whether drafting has paid enough to read a prompt, if a round is to gain this much."""
        return self._with_reading <= (1 + _SLOPE * gain) * plain

    def may_spend(self, seconds: float, plain: float, gain: float) -> bool:
        """Whether a loss of this size is allowed, if a round is to gain this many tokens."""
        return self._debt + seconds <= (1 + _SLOPE * gain) * plain


@dataclass(slots=True)
class PairProfile:
    """Costs of passes and acceptance by group of candidates, learnt from the answers of all slots.

    ``checked`` is when the costs were last found to hold, in seconds since 1970; 0 for never. With
    ``fills``, verifications may be filled up; see `filling`.
    """

    verify: PassCosts = field(default_factory=PassCosts)
    draft: PassCosts = field(default_factory=PassCosts)
    reading: float = 0.0  # seconds of the draft for each token of a short prompt
    longer_reading: float = 0.0  # and more for each token before it; 0 before a long one was read
    replay: float = 0.0  # seconds by which a draft makes the next pass longer: tokens read again
    acceptance: dict[str, Acceptance] = field(default_factory=dict)
    tokens_since_draft: int = 0  # since the model drafted; without one, since a round drafted
    trial_interval: int = LONGEST_INTERVAL  # of these, until a draft is tried against its costs
    since_plain: int = 0  # tokens since a pass without any draft
    checked: float = 0.0
    company: float = _USUAL_COMPANY  # share of the other sequences that draft when one does
    answers: dict[int, float] = field(default_factory=dict)  # see `answer_length`
    fills: bool = False
    pace: float = 1.0  # times slower than when the costs were learnt
    change: float = 0.0  # seconds by which a pass of another width than the last takes longer
    _after_draft: bool = False
    _last_width: int = 0
    _spent_filling: float = 0.0  # seconds since passes of the last width were last wanted

    def observe_pass(self, outcome: Round) -> Round:
        """Update the costs from the target's pass; returns the round at the pace of the costs.

        Other programs, heat and turbo clocks slow all passes alike, but only those that are made
        could correct their own costs: those of a draft that is not used would stay as they were on
        a busy machine, and it would never be used. So a pass first moves ``pace``, then, by less,
        its own cost.

        A plain pass after a wider one takes longer, as llama.cpp prepares another graph for it.
        Plain decoding, with which drafting is compared, never pays for that: such a pass is ignored
        unless it was quicker than expected.
        """
        width, past = outcome.width, outcome.past
        all_plain, is_kept = width == outcome.sequences, self._last_width in (0, width)
        follows = is_kept or not all_plain
        if follows and not outcome.mixed and self.verify.knows(width):
            usual = self.verify.seconds(width, past) * self.pace
            self.pace *= followed(outcome.verify_seconds / usual)
        outcome = _paced(outcome, self.pace)
        seconds = outcome.verify_seconds
        is_usual = is_kept or not all_plain or self._is_quick(width, past, seconds)
        if all_plain and not is_kept and not outcome.mixed and self.verify.widest:
            self._observe_change(seconds, self.verify.seconds(width, past))
        if is_usual and not outcome.mixed:
            self.verify.observe(width, past, seconds, forgives=not is_kept)
        self._last_width = width
        self._observe_replay(outcome)
        tokens = len(outcome.tokens)
        self.tokens_since_draft += tokens
        if all_plain and is_usual:
            self.since_plain = 0
        else:
            self.since_plain += min(tokens, _MOST_COUNTED)
        return outcome

    def observe_step(self, past: int, seconds: float) -> None:
        """Learn from a step that was taken to see its cost: it shows that of all the draft does.

        If it was quicker, other work delayed those before; it may have been delayed itself.
        """
        ratio = seconds / self.draft_seconds(1, past)
        factor = max(ratio, 0.1) if ratio < 1 else followed(ratio)  # a coarse clock sees no time
        self.draft.rescale(factor)
        self.reading *= factor
        self.longer_reading *= factor

    def take_trial(self) -> bool:
        """Whether a draft is due to be tried despite its costs; the next one then comes later."""
        if self.tokens_since_draft < self.trial_interval:
            return False
        self.tokens_since_draft = 0
        self.trial_interval = min(4 * self.trial_interval, LONGEST_INTERVAL)
        return True

    def _observe_change(self, seconds: float, usual: float) -> None:
        """Learn the cost of a change of width, from a plain pass after a pass of another width."""
        longer = min(max(0.0, seconds - usual), usual)  # any excess has other causes
        self.change += (longer - self.change) * (_NEWEST if self.change else 1.0)

    def filling(self, width: int, past: int) -> int:
        """How many tokens make a pass of this width as wide as the last one; 0 if that costs more.

        Filling up pass after pass may together cost no more than one change (ski rental): a text
        that is decoded plainly from here on pays for one change at most twice.
        """
        added = self._last_width - width
        if not self.fills or added <= 0:
            self._spent_filling = 0.0
            return 0
        wider = self.verify.seconds(self._last_width, past) - self.verify.seconds(width, past)
        self._spent_filling += max(0.0, wider)
        if self._spent_filling <= self.change:
            return added
        self._spent_filling = 0.0
        return 0

    def observe_company(self, drafting: int, sequences: int) -> None:
        """Learn how many of the sequences that share passes take a draft step together."""
        if sequences > 1:
            company = min(1.0, (drafting - 1) / (sequences - 1))
            self.company += _NEWEST * (company - self.company)

    def _is_quick(self, width: int, past: int, seconds: float) -> bool:
        """Whether a pass took no longer than expected; True if nothing is known."""
        return not self.verify.widest or seconds <= self.verify.seconds(width, past)

    def _observe_replay(self, outcome: Round) -> None:
        """Learn the cost of decoding tokens again after a pass with a draft."""
        if self._after_draft:
            width, past = outcome.width, outcome.past
            alone = self.verify.seconds(width - outcome.replayed, past + outcome.replayed)
            extra = self.verify.seconds(width, past) - alone if outcome.replayed else 0.0
            self.replay += (max(0.0, extra) - self.replay) * _NEWEST
        self._after_draft = not outcome.is_plain

    def observe_reading(self, tokens: int, seconds: float) -> None:
        """Learn from a prefill; a short one weighs little, a delayed one is capped."""
        found = seconds / tokens
        if self.reading and tokens >= _LONG_READING:
            more = max(0.0, found - self.reading) * 2 / tokens
            weight = 0.5 if self.longer_reading else 1.0
            self.longer_reading += (more - self.longer_reading) * weight
            return
        if self.reading:
            found = min(found, 3 * self.reading)
        self.reading += (found - self.reading) * (min(1.0, tokens / 32) if self.reading else 1.0)

    def answer_length(self, prompt: int) -> float:
        """Usual length of answers to prompts of about this many tokens; kept by powers of two."""
        return self.answers.get(prompt.bit_length(), _USUAL_ANSWER)

    def observe_answer(self, prompt: int, tokens: int, *, cut: bool = False) -> None:
        """Record the length of an answer; one that was ``cut`` would have become longer."""
        before = self.answer_length(prompt)
        if cut and tokens < before:
            return
        self.answers[prompt.bit_length()] = before + (tokens - before) * _NEWEST

    def reading_seconds(self, tokens: int) -> float:
        """Seconds of the draft to read this many tokens at once."""
        if self.longer_reading:
            return (self.reading + self.longer_reading * tokens / 2) * tokens
        return self.reading * tokens * self._growth(tokens // 2)

    def draft_seconds(self, width: int, past: int) -> float:
        """Seconds of the draft's pass; until its slopes are known, they grow as the target's."""
        seconds = self.draft.seconds(width, past)
        return seconds if self.draft.knows_slopes else seconds * self._growth(past)

    def _growth(self, past: int) -> float:
        """Seconds of a plain pass of the target over those on an empty cache."""
        return self.verify.seconds(1, past) / self.verify.seconds(1, 0) if self.verify.widest else 1

    def of(self, group: str) -> Acceptance:
        """Acceptance of a group of candidates; a new group may displace the one seen least."""
        if group not in self.acceptance:
            self.prune(_MOST_GROUPS - 1)
            self.acceptance[group] = Acceptance()
        return self.acceptance[group]

    def prune(self, most: int = _MOST_GROUPS) -> None:
        """Forget the groups with the fewest observations, until at most ``most`` are left."""
        while len(self.acceptance) > most:
            fewest = min(self.acceptance.items(), key=lambda each: each[1].observations)
            del self.acceptance[fewest[0]]

    def usual_best(self, longest: int, *, drafts_block: bool = False) -> tuple[float, int] | None:
        """Times plain speed that the draft model usually gives, and by which length; None if new.

        See `limits.usual_best`.
        """
        chance = self._usual_chance()
        if chance is None:
            return None
        verify = [self.verify.seconds(1 + k, 0) for k in range(longest + 1)]
        return usual_best(verify, self.draft.seconds(1, 0), chance, drafts_block=drafts_block)

    def _usual_chance(self) -> float | None:
        """The chance of a drafted token, in the group of candidates that was seen most."""
        groups = [each for group, each in self.acceptance.items() if group.startswith(MODEL)]
        best = max(groups, key=lambda each: each.observations, default=None)
        if best is None or best.observations < _ENOUGH_SEEN or not self.draft.knows(1):
            return None
        chances = best.chances()
        return sum(p * weight for p, weight in chances) / sum(weight for _, weight in chances)


def _paced(outcome: Round, pace: float) -> Round:
    """A round with its times divided by the pace."""
    return replace(
        outcome,
        seconds=outcome.seconds / pace,
        draft_seconds=outcome.draft_seconds / pace,
        verify_seconds=outcome.verify_seconds / pace,
    )


class GroupAcceptance:
    """Acceptance by group of candidates in one answer.

    ``sampling_kind`` names the kind of sampling: greedy, or a rule and a temperature.
    """

    def __init__(self, profile: PairProfile, sampling_kind: str) -> None:
        self._profile = profile
        self._sampling_kind = sampling_kind
        self._met: dict[str, AnswerAcceptance] = {}

    def of(self, group: str) -> AnswerAcceptance:
        """Acceptance of a group with this kind of sampling."""
        found = self._met.get(group)
        if found is None:
            pair = self._profile.of(f"{group}, {self._sampling_kind}")
            found = self._met[group] = AnswerAcceptance(pair)
        return found

    def probability(self, candidate: Candidate) -> float:
        """The chance that a candidate is right, given that those before it were."""
        return self.of(candidate.group).probability(candidate.confidence)

    def observe(self, candidate: Candidate, token: int) -> bool:
        """Learn from the actual token in a candidate's place; True if the candidate is right."""
        right = candidate.token == token
        self.of(candidate.group).observe(candidate.confidence, right)
        return right

    def observe_all(self, candidates: Sequence[Candidate], tokens: Sequence[int]) -> None:
        """Learn from each candidate up to and including the first wrong one."""
        for candidate, token in zip(candidates, tokens, strict=False):
            if not self.observe(candidate, token):
                return
