"""Conversations whose prompt the draft has not read, and rounds without it."""

from dataclasses import dataclass

from localspec.speculative.prefix import common_prefix

_MOST = 4  # conversations remembered: their texts are kept


@dataclass(slots=True, eq=False)
class Conversation:
    """One text that goes on from answer to answer.

    ``missed`` and ``missed_before`` are rounds without the draft, in this answer and in earlier
    ones, because reading the prompt with it was too slow. ``context`` is the text of the latest
    answer, ``length`` that of its prompt.
    """

    context: list[int]
    length: int
    missed_before: int = 0
    missed: int = 0

    def draft_has_read(self) -> None:
        """Forget the missed rounds, as the draft is used."""
        self.missed_before = self.missed = 0


class Conversations:
    """The latest conversations of one slot's draft cache."""

    def __init__(self) -> None:
        self._known: list[Conversation] = []

    def resume(self, context: list[int]) -> Conversation:
        """The conversation of a new answer: one that shares half of its prompt, or a new one."""
        best = max(self._known, key=lambda each: common_prefix(each.context, context), default=None)
        resumed = Conversation(context, len(context))
        if best is not None and 2 * common_prefix(best.context, context) >= best.length:
            self._known.remove(best)
            resumed.missed_before = best.missed_before + best.missed
        self._known = [*self._known[1 - _MOST :], resumed]
        return resumed

    def clear(self) -> None:
        """Forget all conversations."""
        self._known.clear()
