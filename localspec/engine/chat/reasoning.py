"""Parts an answer into the model's thoughts and what it says, by the marks its template uses."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["answer", "reasoning", "dropped"]


@dataclass(frozen=True, slots=True)
class State:
    """What text means at some place of an answer, and which marks lead to another place.

    White space in front of a mark belongs to the mark; with ``strips``, so does what follows the
    mark that led here. With ``otherwise``, marks count at the beginning only: anything else leads
    there.
    """

    marks: Mapping[str, str]
    part: Part = "answer"
    strips: bool = False
    otherwise: str | None = None


Format = Mapping[str, State]  # begins with "start"


def tagged(opening: str, closing: str, begin: tuple[str, ...] = (), end: str = "") -> Format:
    """Thoughts between two tags in front of the answer, which some models enclose as well.

    Tags count where a model writes them for their purpose: the opening one before all else, so
    that an answer may speak of them.
    """
    answer = dict.fromkeys(begin, "behind")
    return {
        "start": State({opening: "thoughts", closing: "behind"} | answer, otherwise="answer"),
        "thoughts": State({closing: "behind"}, "reasoning", strips=True),
        "behind": State(answer, strips=True, otherwise="answer"),
        "answer": State({end: "answer"} if end else {}),
    }


def _harmony() -> Format:
    """The channels of gpt-oss: ``<|channel|>analysis<|message|>...<|end|>``, then the answer.

    The same as in llama.cpp's `common_chat_params_init_gpt_oss`: analysis is thought, final and
    commentary are said. A call of a tool that nobody offered (``to=``) counts as a thought.
    """
    header = {"<|start|>": "header", "<|channel|>": "header"}
    headers = {"<|end|>": "start"} | header
    thinking = {"analysis": "thinking header", " to=": "thinking header"}
    return {
        "start": State(
            {"<|message|>": "answer", "to=": "thinking header"} | header, otherwise="answer"
        ),
        "header": State({"<|message|>": "answer"} | thinking, "dropped"),
        "thinking header": State({"<|message|>": "thoughts", "final": "header"}, "dropped"),
        "thoughts": State(headers, "reasoning", strips=True),
        "answer": State(headers),
    }


# By what a template must mention; the first that fits counts.
_KNOWN: Mapping[str, Format] = {
    "<|channel|>": _harmony(),  # gpt-oss
    "<|channel>": tagged("<|channel>thought", "<channel|>"),  # Gemma 4
    "<response></response>": tagged(  # Granite 3.3
        "<think>", "</think>", ("<response>",), "</response>"
    ),
    "[THINK]": tagged("[THINK]", "[/THINK]"),  # Magistral, Ministral
    "<seed:think>": tagged("<seed:think>", "</seed:think>"),  # Seed-OSS
    "<mm:think>": tagged("<mm:think>", "</mm:think>"),  # MiniMax-M3
    "<|inner_prefix|>": tagged("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    "<|START_TEXT|>": tagged(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>",), "<|END_TEXT|>"
    ),  # Cohere2
    "<|START_RESPONSE|>": tagged(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>",), "<|END_RESPONSE|>"
    ),  # Command R7B
    "<|begin|>assistant<|think|>": tagged(
        "<|think|>", "<|end|>", ("<|content|>", "<|begin|>assistant<|content|>"), "<|end|>"
    ),  # Solar Open
    "<|end_of_msg|>": tagged(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>",),
        "<|close|>response<|sep|>",
    ),  # Kimi K3
    "[BEGIN FINAL RESPONSE]": tagged(
        "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", end="[END FINAL RESPONSE]"
    ),  # Apriel
    "</think>": tagged("<think>", "</think>"),  # Qwen3, DeepSeek R1 and many more
    "<think>": tagged("<think>", "</think>"),
}
_TAG = r"[<\[][^\s<>\[\]]{1,38}[>\]]"


def known_format(template: str) -> Format | None:
    """The format that a template's text tells of; None where it tells of none."""
    return next((known for mark, known in _KNOWN.items() if mark in template), None)


def format_between(rendered: str, thoughts: str, answer: str) -> Format | None:
    """The format that a rendering shows: the tags on both sides of ``thoughts``.

    None where there are none, or where the same tag also opens ``answer``.
    """
    before, _, after = rendered.partition(thoughts)
    opening, closing = re.search(rf"({_TAG})\s*$", before), re.match(rf"\s*({_TAG})", after)
    if opening is None or closing is None:
        return None
    if after.partition(answer)[0].rstrip().endswith(opening.group(1)):
        return None
    return tagged(opening.group(1), closing.group(1))


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


@dataclass(slots=True)
class Splitter:
    """Parts one answer while it comes; what may be the beginning of a mark is held back."""

    form: Format
    state: str = "start"
    _held: str = field(default="", init=False)
    _began: bool = field(default=False, init=False)  # something of this state was handed out

    def push(self, text: str, final: bool = False) -> list[tuple[str, bool]]:
        """The text that is decided by now, each piece with whether it is a thought.

        ``final`` releases what was held back.
        """
        self._held += text
        decided: list[tuple[str, bool]] = []
        while True:
            state = self.form[self.state]
            if state.strips and not self._began:
                self._held = self._held.lstrip()
            if not self._held:
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
            self._enter(state.marks[mark])
        return decided

    def _begin(self, state: State, otherwise: str, final: bool) -> bool:
        """Obey the mark at the beginning of the held text, if there is one; False: undecided."""
        text = self._held.lstrip()
        for mark, target in state.marks.items():
            if text.startswith(mark):
                self._held = text[len(mark) :]
                self._enter(target)
                return True
        if not final and any(mark.startswith(text) for mark in state.marks):
            return False
        self._enter(otherwise)
        return True

    def _cut(self, state: State, final: bool) -> tuple[str, str | None]:
        """The held text up to its first mark, and the mark; without one, what cannot be of one."""
        found = min(((self._held.find(mark), mark) for mark in state.marks if mark in self._held),
                    default=None)  # fmt: skip
        if found is not None:
            at, mark = found
            ready, self._held = self._held[:at].rstrip(), self._held[at + len(mark) :]
            return ready, mark
        if final or not state.marks:
            ready, self._held = self._held, ""
            return ready, None
        sure = len(self._held) - max(overlap(self._held, mark) for mark in state.marks)
        sure = len(self._held[:sure].rstrip())
        ready, self._held = self._held[:sure], self._held[sure:]
        return ready, None

    def _enter(self, target: str) -> None:
        self.state, self._began = target, False


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of ``text`` that may begin ``mark``."""
    most = min(len(mark) - 1, len(text))
    return next((n for n in range(most, 0, -1) if mark.startswith(text[-n:])), 0)
