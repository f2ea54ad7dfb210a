"""Separates the model's reasoning from its answer, by the marks of its chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from localspec.core.files import read_toml

Part = Literal["answer", "reasoning", "dropped"]


@dataclass(frozen=True, slots=True)
class State:
    """The kind of text at a place of an answer, and the marks that lead to other states.

    White space before a mark is dropped; with ``strips``, also after the mark that led here.
    With ``otherwise``, marks count at the beginning only, and any other text leads to that state.
    With ``keeps``, the mark that led here is part of the text.
    """

    marks: Mapping[str, str]
    part: Part = "answer"
    strips: bool = False
    otherwise: str | None = None
    keeps: bool = False


Format = Mapping[str, State]  # begins with "start"


def marks_of(form: Format) -> set[str]:
    return {mark for state in form.values() for mark in state.marks}


def state_behind(form: Format, opening: str) -> str:
    """The state in which an answer begins, after the template's ``opening`` of the turn."""
    begins = [opening.find(mark) for mark in form["start"].marks if mark in opening]
    if not begins:
        return "start"
    splitter = Splitter(form)
    splitter.push(opening[min(begins) :])
    return "start" if form[splitter.state].part == "dropped" else splitter.state


def closing_mark(form: Format, state: str) -> str:
    """The mark that ends the reasoning with which an answer begins; "" without reasoning."""
    if state not in form or form[state].part != "reasoning":
        return ""
    marks = form[state].marks.items()
    return next((mark for mark, target in marks if form[target].part != "reasoning"), "")


@dataclass(slots=True)
class Splitter:
    """Separates one answer while it streams; text that may begin a mark is held back."""

    form: Format
    state: str = "start"
    held: str = field(default="", init=False)
    _began: bool = field(default=False, init=False)  # text of this state was returned

    def push(self, text: str, final: bool = False) -> list[tuple[str, bool]]:
        """Add text; return complete pieces, each with a flag for reasoning.

        ``final`` releases the held text.
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
        """Follow the mark at the beginning of the held text, if any; False while undecided."""
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
        """The held text up to its first mark, and the mark; else the text that begins no mark."""
        found = min(((self.held.find(mark), mark) for mark in state.marks if mark in self.held),
                    default=None)  # fmt: skip
        if found is not None:
            at, mark = found
            ready, self.held = self.held[:at].rstrip(), self.held[at + len(mark) :]
            return ready, mark
        sure = len(self.held)
        if state.marks and not final:
            sure -= max(overlap(self.held, mark) for mark in state.marks)
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


def tagged(opening: str, closing: str, begin: Sequence[str] = (), end: str = "") -> Format:
    """Reasoning between two tags before the answer, which may have tags as well.

    The opening tag counts only at the beginning, so that an answer may mention it.
    """
    answer = dict.fromkeys(begin, "after")
    return {
        "start": State({opening: "thoughts", closing: "after"} | answer, otherwise="answer"),
        "thoughts": State({closing: "after"}, "reasoning", strips=True),
        "after": State(answer, strips=True, otherwise="answer"),
        "answer": State({end: "answer"} if end else {}),
    }


def _harmony(call: str) -> Format:
    """The channels of gpt-oss: ``<|channel|>analysis<|message|>...<|end|>``, then the answer.

    As in llama.cpp's `common_chat_params_init_gpt_oss`, analysis is reasoning, final and commentary
    are the answer. A tool call (``to=``) leads to the state ``call``: its whole text, or reasoning
    if no tools are offered.
    """
    header = {"<|start|>": "header", "<|channel|>": "header"}
    headers = {"<|end|>": "start"} | header
    thinking = {"analysis": "thinking header", " to=": call}
    return {
        "start": State({"<|message|>": "answer", "to=": call} | header, otherwise="answer"),
        "header": State({"<|message|>": "answer"} | thinking, "dropped"),
        "thinking header": State({"<|message|>": "thoughts", "final": "header"}, "dropped"),
        "thoughts": State(headers, "reasoning", strips=True),
        "answer": State(headers),
        "call": State({"<|end|>": "start", "<|call|>": "start", "<|start|>": "header"}, keeps=True),
    }


def _gemma() -> Format:
    """Gemma 4, which may reason again after a part of its answer."""
    opening, closing = "<|channel>thought", "<channel|>"
    again = State({opening: "thoughts", closing: "answer"})
    return {**tagged(opening, closing), "answer": again}


_HARMONY = "<|channel|>"
_HARMONY_WITH_CALLS = _harmony("call")

# By a text that a template must contain; the first match counts.
_KNOWN: Mapping[str, Format] = {
    _HARMONY: _harmony("thinking header"),  # gpt-oss
    "<|channel>": _gemma(),
    **{
        mark: tagged(*known.pop("between"), **known)
        for mark, known in read_toml(Path(__file__).parent / "thoughts.toml").items()
    },
}
_TAG = r"[<\[][^\s<>\[\]]{1,38}[>\]]"


def known_format(template: str, calls: bool = False) -> Format | None:
    """The format of a known template; with ``calls``, tool calls are part of the answer."""
    if calls and _HARMONY in template:
        return _HARMONY_WITH_CALLS
    return next((known for mark, known in _KNOWN.items() if mark in template), None)


def format_between(rendered: str, thoughts: str, answer: str) -> Format | None:
    """The format with the tags that a rendering has on both sides of ``thoughts``.

    None if there are no tags, or the same tag also opens ``answer``.
    """
    before, _, after = rendered.partition(thoughts)
    opening, closing = re.search(rf"({_TAG})\s*$", before), re.match(rf"\s*({_TAG})", after)
    if opening is None or closing is None:
        return None
    if after.partition(answer)[0].rstrip().endswith(opening.group(1)):
        return None
    return tagged(opening.group(1), closing.group(1))
