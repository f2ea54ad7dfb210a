"""Separates an answer into text and tool calls while it streams."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from localspec.chat.reasoning import overlap
from localspec.chat.tools.forms import CallForm
from localspec.chat.tools.readers import NO_CALL, UNDECIDED, Span, bare_calls, begins_call
from localspec.chat.tools.tool import Tool, ToolCall, ToolCallDelta

MAX_CALL = 2**18  # characters
MAX_MISSES = 100  # opening marks without a call, after which the search stops
_SURE_MARK = 4  # characters of an opening mark with which hardly a text ends: "a <" does

Found = str | ToolCallDelta | ToolCall


@dataclass(slots=True)
class CallFinder:
    """Finds the calls in one answer; text that may begin a call is held back.

    A call comes in parts from the moment at which its name is known and its arguments have begun,
    then complete; one that is cut off is complete at the end of the answer. A call that breaks off
    before is text, unless the answer was ``cut`` at a limit: then it is dropped. A tool that is not
    offered is text. White space before and between calls is dropped. Unless ``parallel``, nothing
    follows the first call. An answer that is nothing but a call as JSON,
    without the marks of its form, is a call too (Qwen2.5-Coder fences them).
    """

    form: CallForm
    tools: Sequence[Tool]
    parallel: bool = True
    held: str = field(default="", init=False)
    _began: bool = field(default=False, init=False)  # more than white space was returned
    _behind: bool = field(default=False, init=False)  # the last thing returned is a call
    _calls: int = field(default=0, init=False)  # those that have begun
    _misses: int = field(default=0, init=False)
    _read_to: int = field(default=0, init=False)  # held characters when a call was last read
    _open: ToolCall | None = field(default=None, init=False)  # the returned part of the last call
    _complete: int = field(default=0, init=False)  # calls at the opening that were returned whole
    _maybe_bare: bool = field(default=True, init=False)  # the answer may be nothing but JSON calls

    def push(self, text: str, final: bool = False, cut: bool = False) -> list[Found]:
        """Add text; return complete pieces in order. ``final`` also returns all held text, with
        ``cut`` all but the beginning of a call.
        """
        self.held += text
        if cut:
            self._drop_begun()
        if not (final or self._is_due(text)):
            return []
        self._read_to = 0
        found: list[Found] = []
        if not (self._maybe_bare and self._waits(found, final)):
            while self.held and not self.done and self._step(found, final):
                pass
        return [self._as_given(each) for each in found]

    def _is_due(self, text: str) -> bool:
        """Whether to read an incomplete call again: soon if the new ``text`` may complete it.

        Each reading begins at its opening: a file of 30,000 characters as an argument would take a
        minute, were it read at every brace.
        """
        share = 128 if any(end in text for end in "}]>") else 64
        return len(self.held) >= self._read_to + self._read_to // share

    def _as_given(self, found: Found) -> Found:
        """The same, with the name that the client gave the tool."""
        if isinstance(found, str) or found.name is None:
            return found
        name = next((tool.given for tool in self.tools if tool.name == found.name), "")
        return replace(found, name=name) if name else found

    @property
    def done(self) -> bool:
        """Whether the only call that may come is complete."""
        return self._calls > 0 and not self.parallel

    def given_up(self) -> "CallFinder":
        """A copy that treats all held text as text."""
        other = replace(self, form=replace(self.form, openings=(), first=()))
        other._maybe_bare, other._behind = False, self._behind
        other.held = "" if self._open or self._complete else self.held
        return other

    def _drop_begun(self) -> None:
        """Drop held text that begins a call which has not named its tool, or named no more."""
        at, opening = self._opening()
        if at >= 0 and opening in self.form.openings:
            if self.form.read(self.held[at : at + MAX_CALL], self.tools) == UNDECIDED:
                self.held = self.held[:at].rstrip()
            return
        rest = self.held.strip()
        if (not self._began or self._behind) and begins_call(rest, self.tools):
            self.held = ""
            return
        part = max((overlap(self.held, mark) for mark in self.form.openings), default=0)
        if part >= _SURE_MARK or (rest and part == len(rest) and not self._began):
            self.held = self.held[: len(self.held) - part].rstrip()

    def _waits(self, found: list[Found], final: bool) -> bool:
        """Take the calls of an answer that is nothing but them; True while that is undecided."""
        text = self.held.lstrip()
        marks = (*self.form.first, *self.form.openings)
        self._maybe_bare = not text or not text.startswith(marks)
        span = bare_calls(text, self.tools) if text and self._maybe_bare else UNDECIDED
        if final and span.calls:
            for call in span.calls if self.parallel else span.calls[:1]:
                found += [ToolCallDelta(self._calls, call.id, call.name, call.arguments), call]
                self._calls += 1
            self.held = ""
        self._maybe_bare = self._maybe_bare and not span.decided and not final
        self._read_to = len(self.held)
        return self._maybe_bare and bool(text)

    def _step(self, found: list[Found], final: bool) -> bool:
        """Decide about the next part of the held text; False if that needs more text."""
        if self._behind and not self._closed(final):
            return False
        at, opening = self._opening()
        if at < 0:
            self._say(found, len(self.held) if final else self._sure())
            return False
        span = self._read(at, final)
        if span == NO_CALL:
            self._misses += 1
            self._say(found, at + len(opening))
            return True
        self._say(found, len(self.held[:at].rstrip()))
        for call in span.calls[self._complete :]:
            found.append(self._part(found, call))
            self._open = None
            self._calls += 1
            if self.done:
                return False
        if not span.decided:
            if span.partial:
                self._open = self._part(found, span.partial)
            self._complete = len(span.calls)
            self._read_to = len(self.held)
            return False
        self.held = self.held.lstrip()[span.length :]
        self._behind, self._complete = True, 0
        return True

    def _part(self, found: list[Found], call: ToolCall) -> ToolCall:
        """Take the new part of a call; the call with the id of its first part."""
        if self._open is None:
            found.append(ToolCallDelta(self._calls, call.id, call.name, call.arguments))
            return call
        if new := call.arguments[len(self._open.arguments) :]:
            found.append(ToolCallDelta(self._calls, None, None, new))
        return replace(call, id=self._open.id)

    def _closed(self, final: bool) -> bool:
        """Drop closing marks after a call; False while undecided, or if nothing is left."""
        text = self.held.lstrip()
        marks = self.form.closings
        while closing := next((mark for mark in marks if text.startswith(mark)), None):
            self.held = text[len(closing) :]
            text = self.held.lstrip()
        if final:  # a limit may cut a mark off
            if not text or any(mark.startswith(text) for mark in marks):
                self.held = ""
            return bool(self.held)
        starts = (*marks, *self.form.openings, *self.form.first)
        return bool(text) and not any(mark.startswith(text) and mark != text for mark in starts)

    def _opening(self) -> tuple[int, str]:
        """Index and mark of the next possible call; -1 for none."""
        if self._misses >= MAX_MISSES:
            return -1, ""
        text = self.held.lstrip()
        if not self._began or self._behind:
            for mark in self.form.first:
                if text.startswith(mark):
                    return len(self.held) - len(text), mark
        places = [(self.held.find(mark), mark) for mark in self.form.openings]
        return min((place for place in places if place[0] >= 0), default=(-1, ""))

    def _read(self, at: int, final: bool) -> Span:
        """The calls at an opening; a partial one is complete if nothing can follow."""
        text = self.held[at : at + MAX_CALL]
        span = self.form.read(text, self.tools)
        if span.decided or not (final or len(text) == MAX_CALL):
            return span
        if span.partial:
            return Span(span.stop or len(text), (*span.calls, span.final or span.partial))
        return replace(span, decided=True)

    def _say(self, found: list[Found], length: int) -> None:
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
