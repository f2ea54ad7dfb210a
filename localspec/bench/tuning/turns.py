"""Trials measured in turn: what other programs slow, they slow for all alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localspec.bench.tuning.candidates import PairFiles, Values
from localspec.bench.tuning.prediction import OF_DRAFT, OF_TARGET, READINGS, Passes
from localspec.bench.tuning.trial import Answered, Pass, Trials
from localspec.chat.message import Message

TURNS = 5  # of each pass, with all settings one after another: a single one may be delayed
_READ_EVERY = 3  # turns: a prompt takes longer than all other passes together


@dataclass(frozen=True, slots=True)
class Turns:
    """Measures settings of a pair in turn, pass by pass and round by round.

    Where memory has no room for all of them, each is measured at once.
    """

    pair: PairFiles
    trials: Trials

    def passes(
        self,
        sides: Sequence[Values],
        turns: int = TURNS,
        kinds: Sequence[Pass] = (*OF_TARGET, *OF_DRAFT),
    ) -> list[Passes]:
        """Seconds of these passes, of each side in the same order.

        Without a draft, those of the target stand for its own: another draft is compared with them.
        """
        found: list[dict[Pass, list[float]]] = [{} for _ in sides]
        drafts = [self.pair.with_values(values)[1] is not None for values in sides]
        together = self.trials.together(sides)
        for side, kind in _order(len(sides), turns, kinds, in_turn=together is not None):
            trial = together[side] if together else self.trials.of(sides[side])
            computed = kind if drafts[side] else kind._replace(model="target")
            found[side].setdefault(kind, []).append(trial.seconds(computed))
        return [*found]

    def answers(
        self, sides: Sequence[Values], messages: Sequence[Message], tokens: int
    ) -> list[Answered]:
        """An answer of each side."""
        settings = [{**self.pair.answers, **values} for values in sides]
        trials = self.trials.together(settings)
        if trials is None:
            return [self.trials.of(each).answer(each, messages, tokens) for each in settings]
        for trial, each in zip(trials, settings, strict=True):
            trial.begin(each, messages, tokens)
        found: dict[int, Answered] = {}
        left = [*range(len(sides))]
        while left:
            for side in left:
                if (answer := trials[side].go_on(1)) is not None:
                    found[side] = answer
            left = [side for side in reversed(left) if side not in found]
        return [found[side] for side in range(len(sides))]


def _order(
    sides: int, n_turns: int, kinds: Sequence[Pass], *, in_turn: bool
) -> Iterator[tuple[int, Pass]]:
    """Sides with the passes to measure; in every other turn the last side comes first."""
    short = [kind for kind in kinds if kind not in READINGS]
    turns = [kinds if turn % _READ_EVERY == 0 else short for turn in range(n_turns)]
    if not in_turn:
        return ((side, kind) for side in range(sides) for turn in turns for kind in turn)
    orders = range(sides), range(sides)[::-1]
    return ((side, kind) for i, turn in enumerate(turns) for kind in turn for side in orders[i % 2])
