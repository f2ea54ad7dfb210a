"""Trials: child processes that hold a pair with some settings, measure its passes, and answer."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from localspec.bench.tuning.candidates import PairFiles, Values, load_key, shown
from localspec.chat.message import Message
from localspec.core.errors import EngineError, LocalspecError
from localspec.core.options.model_options import parse_draft_tokens
from localspec.core.worker import Worker, WorkerEnded, WorkerLimits

_CHILD = "localspec.bench.tuning.child"
_MOST_REPLY = 2**22  # bytes; a profile of many groups takes 300 KB
# A question of an hour is a hang. Memory is planned by the child, as in any command.
_LIMITS = WorkerLimits(seconds=3600, memory=2**62, polled=True)
READING = 0  # as the width of a pass: a prompt is read
ALL = 2**31  # rounds


class Pass(NamedTuple):
    """A pass whose seconds are measured; with the width `READING`, those of a prompt's token."""

    model: Literal["target", "draft"]
    width: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer or several added up: counts of passes, and seconds.

    ``passes`` counts those of the target by width, ``steps`` those of the draft, ``read`` the
    tokens of prompts. ``seconds`` are those of all rounds with the draft's reading, ``reading``
    those of the target; ``timed`` tokens came in them.
    """

    tokens: int
    timed: int
    seconds: float
    reading: float
    ttft: float
    passes: dict[int, int]
    steps: int
    read: int

    @property
    def whole(self) -> float:
        """All seconds, from the prompt to the last token."""
        return self.seconds + self.reading

    @property
    def per_second(self) -> float:
        """Tokens a second while they come."""
        return self.timed / max(1e-9, self.seconds)


class Trial:
    """A running child with one pair loaded; ``memory`` in bytes is that of both models.

    Raises the child's LocalspecError, and EngineError if it crashes.
    """

    def __init__(self, pair: PairFiles, values: Values) -> None:
        self._shown = shown(values)
        models = [asdict(each) for each in pair.with_values(values) if each is not None]
        self._worker = Worker(_CHILD, _LIMITS, _MOST_REPLY)
        loaded = self._ask(kind="load", models=[_plain(each) for each in models])
        self.memory = int(loaded["memory"])

    def seconds(self, kind: Pass) -> float:
        """Of a pass on an empty cache."""
        return float(self._ask(kind="pass", model=kind.model, width=kind.width)["seconds"])

    def begin(self, values: Values, messages: Sequence[Message], tokens: int) -> None:
        """Begin a greedy answer with the settings of answers among ``values``."""
        (length,) = parse_draft_tokens(values["draft_tokens"]) or ("auto",)
        self._ask(
            kind="begin",
            messages=list(messages),
            draft_tokens=length,
            prompt_lookup=values["prompt_lookup"],
            max_tokens=tokens,
        )

    def go_on(self, rounds: int) -> Answered | None:
        """Compute the next ``rounds``; returns the figures when the answer has ended, else None."""
        if not (found := self._ask(kind="go on", rounds=rounds)):
            return None
        passes = {int(width): count for width, count in found.pop("passes").items()}
        return Answered(passes=passes, **found)

    def answer(self, values: Values, messages: Sequence[Message], tokens: int) -> Answered:
        """A whole answer."""
        self.begin(values, messages, tokens)
        found = self.go_on(ALL)
        assert found is not None
        return found

    def close(self) -> None:
        """End the child, which saves the pair's profile."""
        if not self._worker.ended:
            self._ask(kind="end")
        self._worker.close()

    def kill(self) -> None:
        """End the child at once."""
        self._worker.close()

    def _ask(self, **question: object) -> Any:
        try:
            reply = self._worker.ask(question)
        except WorkerEnded as problem:
            raise EngineError(
                f"The process of this trial ({self._shown}) ended. {problem.ended.sentence}",
                "The settings stay as they are.",
            ) from None
        if "error" in reply:
            self._worker.close()
            raise LocalspecError(*reply["error"])
        return reply


class Trials:
    """Running trials, at most ``room`` at a time: the one that was used longest ago ends first."""

    def __init__(self, pair: PairFiles, room: int) -> None:
        self._pair, self._room = pair, room
        self._open: dict[object, Trial] = {}

    def of(self, values: Values, copy: int = 0) -> Trial:
        """The trial with these settings of loading, or another such one, started if need be."""
        key = load_key(values), copy
        if key not in self._open:
            while len(self._open) >= self._room:
                self._open.pop(next(iter(self._open))).close()
            self._open[key] = Trial(self._pair, values)
        self._open[key] = trial = self._open.pop(key)  # the latest use is the last
        return trial

    def together(self, sides: Sequence[Values]) -> list[Trial] | None:
        """One running trial for each side; None if memory has no room for all."""
        if len(sides) > self._room:
            return None
        keys = [load_key(values) for values in sides]
        return [self.of(values, keys[:i].count(keys[i])) for i, values in enumerate(sides)]

    def end(self, values: Values) -> None:
        """End a trial that is not needed any more."""
        found = self._open.pop((load_key(values), 0), None)
        if found is not None:
            found.close()

    def close(self, end: Callable[[Trial], None] = Trial.close) -> None:
        """End all."""
        while self._open:
            end(self._open.popitem()[1])


def added(answers: Sequence[Answered]) -> Answered:
    """The sums of several answers; ``ttft`` is their mean."""
    passes = Counter[int]()
    for each in answers:
        passes.update(each.passes)
    sums = {
        name: sum(getattr(each, name) for each in answers)
        for name in ("tokens", "timed", "seconds", "reading", "steps", "read")
    }
    return Answered(
        passes=dict(passes), ttft=sum(each.ttft for each in answers) / len(answers), **sums
    )


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON can hold them."""
    return options | {
        "path": str(options["path"]),
        "loras": [[str(path), scale] for path, scale in options["loras"]],
    }
