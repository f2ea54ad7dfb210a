"""Statistics of answers: tokens per second, acceptance, time to the first token."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from operator import add, attrgetter
from typing import Literal, NamedTuple, TypeVar

from localspec.core.origins import DRAFT
from localspec.speculative.loop import DraftStatus, Prefill, Round

Drafter = Literal["", "draft model", "prediction heads"]
Interval = tuple[float, float]  # of a speedup, between which it lies by 90 %
# Whether drafted and plain texts agree: up to rounding, not at all, or as rejection draws.
SameText = Literal["same", "rounding", "different", "redrawn"]
STATUS_WORDS = {
    DraftStatus.DRAFTING: "",
    DraftStatus.OFF: "",  # as requested: nothing to explain
    DraftStatus.RECENTLY_SLOWER: "recently slower than plain",
    DraftStatus.VERIFICATION_TOO_SLOW: "costs more than it can gain here",
    DraftStatus.DRAFT_TOO_OFTEN_WRONG: "expected to be right too seldom for its cost",
    DraftStatus.DRAFT_NOT_NUMBERS: "its logits are not numbers",
    DraftStatus.ANSWER_TOO_SHORT: "reading the prompt costs more than it would gain",
}
ESTIMATED_FROM = 32  # tokens: one pause weighs more in fewer
K = TypeVar("K", int, str)
V = TypeVar("V", "PassStats", "SourceStats")


class SourceStats(NamedTuple):
    """The contribution of one source of drafts, and in how many rounds."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class PassStats(NamedTuple):
    """The target's passes of one width (drafted tokens + 1) and their seconds."""

    passes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class GenerationStats:
    """Sums over one answer, or over several added together.

    ``read_tokens`` of the prompt were read, ``cached_tokens`` were in the cache.
    ``seconds`` is the time from the end of the prompt to the last token, with drafting, verifying
    and all else, but without the consumer's time between two pieces and without reading the prompt
    by target and prompt lookup (``prompt_seconds``) and draft (``draft_prompt_seconds``).
    ``draft_seconds`` and ``verify_seconds`` are parts of it, and so are ``others_prompts_seconds``,
    in which shared passes read the prompts of other answers. ``branched`` counts accepted tokens
    that were not the first candidate of their place in a tree. ``first_tokens`` counts tokens from
    the last pass over a prompt: that time is in ``prompt_seconds``, so tokens per second leave them
    out. Each has its own round. ``own_passes`` are the target's passes, a shared one divided by its
    sequences. ``plain_seconds`` is the estimated time of plain decoding, see `PlainTime`, 0 if
    costs are not known. ``slowest_round`` is in seconds. ``outcomes`` counts rounds that drafted
    something, by how many tokens they drafted and accepted. ``drafter`` is the kind of draft that
    was loaded, empty for none.
    """

    answers: int = 0
    read_tokens: int = 0
    cached_tokens: int = 0
    prompt_seconds: float = 0.0
    draft_prompt_seconds: float = 0.0
    tokens: int = 0
    first_tokens: int = 0
    own_passes: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    branched: int = 0
    seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    others_prompts_seconds: float = 0.0
    plain_seconds: float = 0.0
    slowest_round: float = 0.0
    ttft_s: float | None = None
    outcomes: dict[tuple[int, int], int] = field(default_factory=dict)
    sources: dict[str, SourceStats] = field(default_factory=dict)
    passes: dict[int, PassStats] = field(default_factory=dict)
    drafter: Drafter = ""

    def start(self, prefill: Prefill) -> None:
        """Count the prefill of a prompt."""
        self.answers += 1
        self.read_tokens += prefill.tokens + 1
        self.cached_tokens += prefill.cached
        self.prompt_seconds += prefill.seconds

    def add(self, outcome: Round, seconds: float) -> None:
        """Count one round, which took ``seconds`` in all."""
        self.rounds += 1
        self.tokens += len(outcome.tokens)
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        self.branched += outcome.branched
        self.seconds += seconds
        self.draft_seconds += outcome.draft_seconds
        self.verify_seconds += outcome.verify_seconds
        self.draft_prompt_seconds += outcome.draft_prompt_seconds
        self.slowest_round = max(self.slowest_round, seconds)
        if self.ttft_s is None:
            self.ttft_s = self.prompt_seconds + seconds
        if outcome.drafted:
            found = outcome.drafted, outcome.accepted
            self.outcomes[found] = self.outcomes.get(found, 0) + 1
        if outcome.width:
            _add(self.passes, {outcome.width: PassStats(1, outcome.verify_seconds)})
            self.own_passes += 1 / outcome.sequences
        else:
            self.first_tokens += len(outcome.tokens)
        for source in set(outcome.sources):
            drafted = outcome.sources.count(source)
            accepted = outcome.sources[: outcome.accepted].count(source)
            _add(self.sources, {source: SourceStats(1, drafted, accepted)})

    def snapshot(self) -> "GenerationStats":
        """A copy that later rounds do not change; made in each, faster than by `replace`."""
        copy = GenerationStats(*_values(self))
        copy.outcomes = copy.outcomes.copy()
        copy.sources = copy.sources.copy()
        copy.passes = copy.passes.copy()
        return copy

    def merge(self, other: "GenerationStats") -> None:
        """Add the sums of another answer; the time to the first token stays that of the first.

        ``plain_seconds`` becomes 0 if it is unknown in one of them.
        """
        known = all(side.plain_seconds or not side.tokens for side in (self, other))
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if not known:
            self.plain_seconds = 0.0
        self.slowest_round = max(self.slowest_round, other.slowest_round)
        self.drafter = self.drafter or other.drafter
        if self.ttft_s is None:
            self.ttft_s = other.ttft_s
        for outcome, rounds in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + rounds
        _add(self.sources, other.sources)
        _add(self.passes, other.passes)

    @property
    def timed_tokens(self) -> int:
        """Generated tokens that ``seconds`` covers."""
        return self.tokens - self.first_tokens

    @property
    def generation_tps(self) -> float | None:
        """Generated tokens per second; None before the first round."""
        return self.timed_tokens / self.seconds if self.timed_tokens and self.seconds > 0 else None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return self.read_tokens + self.cached_tokens

    @property
    def prompt_tps(self) -> float | None:
        """Prompt tokens per second, without the last of each prompt; None without any."""
        decoded = self.read_tokens - self.answers
        return decoded / self.prompt_seconds if decoded > 0 and self.prompt_seconds > 0 else None

    @property
    def estimated_speedup(self) -> float | None:
        """The speedup over plain decoding by the cost model.

        None if nothing was drafted or costs are not known, and for a short answer, whose time
        is too uncertain.
        """
        if not self.drafted or self.tokens < ESTIMATED_FROM:
            return None
        seconds = self.spent_seconds
        return self.plain_seconds / seconds if self.plain_seconds and seconds else None

    @property
    def spent_seconds(self) -> float:
        """Seconds to compare with plain decoding: of all rounds and of the draft's reading."""
        return self.seconds + self.draft_prompt_seconds

    @property
    def plain_or_own_seconds(self) -> float:
        """Estimated seconds of plain decoding; those of the answer if its gain is not known."""
        return self.plain_seconds if self.estimated_speedup is not None else self.spent_seconds

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None, not 0, when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def drafts(self) -> int:
        """Rounds that drafted something."""
        return sum(self.outcomes.values())

    @property
    def accepted_at(self) -> list[int]:
        """Rounds that drafted something and accepted 0, 1, 2, ... tokens."""
        counts = [0] * (1 + max((accepted for _, accepted in self.outcomes), default=-1))
        for (_, accepted), rounds in self.outcomes.items():
            counts[accepted] += rounds
        return counts

    @property
    def accepted_by_position(self) -> list[int]:
        """Rounds that accepted the first, second, ... drafted token."""
        return [sum(self.accepted_at[i:]) for i in range(1, len(self.accepted_at))]

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the first, second, ... drafted tokens that were accepted.

        In trees a position is that among all candidates of the round.
        """
        accepted, longest = self.accepted_by_position, max(self.outcomes, default=(0, 0))[0]
        drafted = [
            sum(rounds for (length, _), rounds in self.outcomes.items() if length > i)
            for i in range(longest)
        ]
        return [yes / all_ for yes, all_ in zip_longest(accepted, drafted, fillvalue=0)]

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per round, the bonus token included; None before the first."""
        return self.tokens / self.rounds if self.rounds else None


def why_unused(stats: GenerationStats, status: DraftStatus) -> str:
    """Why a loaded draft proposed nothing in an answer that has ended; empty if it need not say."""
    if not (stats.drafter and stats.rounds) or DRAFT in stats.sources or status is DraftStatus.OFF:
        return ""
    otherwise = "other drafts promised more" if stats.drafted else "the answer ended first"
    return STATUS_WORDS[status] or otherwise


def _add(sums: dict[K, V], more: Mapping[K, V]) -> None:
    """Add figures to those of the same key."""
    for key, each in more.items():
        sums[key] = type(each)(*map(add, sums.get(key, type(each)()), each))


# Fields that are sums over answers.
_SUMS = {each.name for each in fields(GenerationStats) if each.default == 0} - {"slowest_round"}


_values = attrgetter(*(field.name for field in fields(GenerationStats)))
