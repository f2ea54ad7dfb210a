"""Separates an answer into text and tool calls while it streams."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from localspec.chat.reasoning import overlap
from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.readers import NO_CALL, Span
from localspec.chat.tools.tool import Tool, ToolCall, ToolCallDelta

MAX_CALL = 2**18  # characters
MAX_MISSES = 100  # opening marks without a call, after which the search stops

Found = str | ToolCallDelta | ToolCall


@dataclass(slots=True)
class CallFinder:
    """Finds the calls in one answer; text that may begin a call is held back.

    A complete call is returned behind its deltas. Broken JSON, a tool that is not offered and a
    call that is cut off are text. White space before and between calls is dropped.
    """

    form: CallForm
    tools: Sequence[Tool]
    held: str = field(default="", init=False)
    _began: bool = field(default=False, init=False)  # more than white space was returned
    _behind: bool = field(default=False, init=False)  # the last thing returned is a call
    _calls: int = field(default=0, init=False)  # those that have begun
    _misses: int = field(default=0, init=False)
    _waits: bool = field(default=False, init=False)  # a call has begun and is incomplete

    def push(self, text: str, final: bool = False) -> list[Found]:
        """Add text; return complete pieces in order. ``final`` also returns all held text."""
        self.held += text
        if self._waits and not final and len(self.held) < MAX_CALL:
            if not any(end in text for end in "}]>"):
                return []
        self._waits = False
        found: list[Found] = []
        while self.held and self._step(found, final):
            pass
        return found

    def given_up(self) -> "CallFinder":
        """A copy that treats all held text as text."""
        other = replace(self, form=replace(self.form, openings=(), first=(), closings=()))
        other.held = self.held
        return other

    def _step(self, found: list[Found], final: bool) -> bool:
        """Decide about the next part of the held text; False if that needs more text."""
        if self._behind and not self._closed(final):
            return False
        at, opening = self._opening()
        if at < 0:
            self._say(found, len(self.held) if final else self._sure())
            return False
        span = self._read(at)
        if span is None and not final:
            self._say(found, len(self.held[:at].rstrip()))
            self._waits = True
            return False
        if span is None or not span.calls:
            self._misses += 1
            self._say(found, at + len(opening))
            return True
        self._say(found, len(self.held[:at].rstrip()))
        for call in span.calls:
            found += [ToolCallDelta(self._calls, call.id, call.name, call.arguments), call]
            self._calls += 1
        self.held = self.held.lstrip()[span.length :]
        self._behind = True
        return True

    def _closed(self, final: bool) -> bool:
        """Drop closing marks behind a call; False while undecided, or where nothing is left."""
        text = self.held.lstrip()
        marks = self.form.closings
        while closing := next((mark for mark in marks if text.startswith(mark)), None):
            self.held = text[len(closing) :]
            text = self.held.lstrip()
        if final:
            self.held = self.held if text else ""
            return bool(text)
        starts = (*marks, *self.form.openings, *self.form.first)
        return bool(text) and not any(mark.startswith(text) and mark != text for mark in starts)

    def _opening(self) -> tuple[int, str]:
        """Index and mark of the next possible call; -1 for none."""
        if self._misses >= MAX_MISSES:
            return -1, ""
        text = self.held.lstrip()
        if not self._began:
            for mark in self.form.first:
                if text.startswith(mark):
                    return len(self.held) - len(text), mark
        places = [(self.held.find(mark), mark) for mark in self.form.openings]
        return min((place for place in places if place[0] >= 0), default=(-1, ""))

    def _read(self, at: int) -> Span | None:
        """The calls at an opening; no call where one names a tool that is not offered."""
        text = self.held[at : at + MAX_CALL]
        span = self.form.read(text, self.tools)
        if span is None:
            return NO_CALL if len(text) == MAX_CALL else None
        names = {tool.name for tool in self.tools}
        return span if all(call.name in names for call in span.calls) else NO_CALL

    def _say(self, found: list[Found], length: int) -> None:
        """Take this number of characters as plain text."""
        if length:
            found.append(self.held[:length])
            self._began = self._began or not self.held[:length].isspace()
            self.held = self.held[length:]
            self._behind = False

    def _sure(self) -> int:
        """How many of the held characters cannot begin a call."""
        marks = (*self.form.openings, *(() if self._began else self.form.first))
        keep = max((overlap(self.held, mark) for mark in marks), default=0)
        return len(self.held[: len(self.held) - keep].rstrip())
