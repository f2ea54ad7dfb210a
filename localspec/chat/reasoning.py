"""Parts an answer into the model's thoughts and what it says, by the marks its template uses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["answer", "reasoning", "dropped"]


@dataclass(frozen=True, slots=True)
class State:
    """What text means at some place of an answer, and which marks lead to another place.

    White space in front of a mark belongs to the mark; with ``strips``, so does what follows the
    mark that led here. With ``otherwise``, marks count at the beginning only: anything else leads
    there. With ``keeps``, the mark that led here begins its text.
    """

    marks: Mapping[str, str]
    part: Part = "answer"
    strips: bool = False
    otherwise: str | None = None
    keeps: bool = False


Format = Mapping[str, State]  # begins with "start"


def marks_of(form: Format) -> set[str]:
    """Every text that is no part of thoughts or answer."""
    return {mark for state in form.values() for mark in state.marks}


def state_behind(form: Format, opening: str) -> str:
    """Where an answer begins, behind what the template writes to open the assistant's turn."""
    begins = [opening.find(mark) for mark in form["start"].marks if mark in opening]
    if not begins:
        return "start"
    splitter = Splitter(form)
    splitter.push(opening[min(begins) :])
    return "start" if form[splitter.state].part == "dropped" else splitter.state


def closing_mark(form: Format, state: str) -> str:
    """The mark that ends the thoughts in which an answer begins; "" where it begins with none."""
    if state not in form or form[state].part != "reasoning":
        return ""
    marks = form[state].marks.items()
    return next((mark for mark, target in marks if form[target].part != "reasoning"), "")


@dataclass(slots=True)
class Splitter:
    """Parts one answer while it comes; what may be the beginning of a mark is held back."""

    form: Format
    state: str = "start"
    held: str = field(default="", init=False)
    _began: bool = field(default=False, init=False)  # something of this state was handed out

    def push(self, text: str, final: bool = False) -> list[tuple[str, bool]]:
        """The text that is decided by now, each piece with whether it is a thought.

        ``final`` releases what was held back.
        """
        self.held += text
        decided: list[tuple[str, bool]] = []
        while True:
            state = self.form[self.state]
            if state.strips and not self._began:
                self.held = self.held.lstrip()
            if not self.held:
                break
            if state.otherwise is not None:
                if not self._begin(state, state.otherwise, final):
                    break
                continue
            ready, mark = self._cut(state, final)
            if ready:
                self._began = True
                if state.part != "dropped":
                    decided.append((ready, state.part == "reasoning"))
            if mark is None:
                break
            self._enter(state.marks[mark], mark)
        return decided

    def _begin(self, state: State, otherwise: str, final: bool) -> bool:
        """Obey the mark at the beginning of the held text, if there is one; False: undecided."""
        text = self.held.lstrip()
        for mark, target in state.marks.items():
            if text.startswith(mark):
                self.held = text[len(mark) :]
                self._enter(target, mark)
                return True
        if not final and any(mark.startswith(text) for mark in state.marks):
            return False
        self._enter(otherwise)
        return True

    def _cut(self, state: State, final: bool) -> tuple[str, str | None]:
        """The held text up to its first mark, and the mark; without one, what cannot be of one."""
        found = min(((self.held.find(mark), mark) for mark in state.marks if mark in self.held),
                    default=None)  # fmt: skip
        if found is not None:
            at, mark = found
            ready, self.held = self.held[:at].rstrip(), self.held[at + len(mark) :]
            return ready, mark
        if final or not state.marks:
            ready, self.held = self.held, ""
            return ready, None
        sure = len(self.held) - max(overlap(self.held, mark) for mark in state.marks)
        sure = len(self.held[:sure].rstrip())
        ready, self.held = self.held[:sure], self.held[sure:]
        return ready, None

    def _enter(self, target: str, mark: str = "") -> None:
        self.state, self._began = target, False
        if self.form[target].keeps:
            self.held = mark + self.held


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that may begin ``mark``."""
    most = min(len(mark) - 1, len(text))
    return next((n for n in range(most, 0, -1) if mark.startswith(text[-n:])), 0)
