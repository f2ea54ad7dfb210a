"""The verdict on a self-draft: its measurements, and whether it pays."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from localspec.chat.stats import Interval, SameText

_CLEARLY = 1.1  # times as fast, if there are too few prompts for an interval
_HARDLY = 1.05  # times plain speed: a ceiling below it leaves nothing to gain


@dataclass(frozen=True, slots=True)
class DraftVerdict:
    """The measurements with ``auto``: the self-draft and prompt lookup together.

    Speedups are over plain decoding, ``over_lookup`` is over prompt lookup alone; intervals are of
    90 % (None: too few prompts). ``acceptance_rate`` is that of the draft's own tokens, None if
    auto drafted none. ``draft_memory`` is in bytes. ``ceiling`` is the speedup with every token
    accepted. ``prompts`` were measured; ``looping`` of them, whose answers repeat themselves, are
    left out unless all are. ``whole_heads`` is the speedup with the heads that were trimmed, None
    if none were trimmed.
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
    whole_heads: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it is faster than plain, lookup alone and whole heads by more than the noise."""
        return (
            _is_above(self.speedup, self.speedup_interval)
            and _is_above(self.over_lookup, self.over_lookup_interval)
            and self.speedup > (self.whole_heads or 0)
        )

    @property
    def reason(self) -> str:
        """Why it does not pay, in a sentence; empty if it does."""
        if self.pays:
            return ""
        if self.ceiling < _HARDLY:
            return (
                "The target is too fast for this draft to help: with every token accepted, at most "
                f"{self.ceiling:.2f}x plain."
            )
        if not _is_above(self.speedup, self.speedup_interval):
            if self.acceptance_rate is None:
                return "At the costs of passes here, auto drafted nothing with it."
            return (
                "It is not faster than plain decoding by more than the noise; with every token "
                f"accepted it would be at most {self.ceiling:.2f}x."
            )
        if _is_above(self.over_lookup, self.over_lookup_interval):
            return f"The whole heads are as fast: {self.whole_heads:.2f}x plain."
        return (
            "Prompt lookup alone, which takes no memory, is as fast within the noise: "
            f"{self.lookup_speedup:.2f}x."
        )

    def as_json(self) -> dict[str, object]:
        return {"pays": self.pays, **asdict(self), "reason": self.reason}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "DraftVerdict":
        """Parse the data of `as_json`; raises ValueError for others."""
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(document)


def _is_above(ratio: float, interval: Interval | None) -> bool:
    return ratio >= _CLEARLY if interval is None else interval[0] > 1
