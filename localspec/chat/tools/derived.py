"""Finds out how models write tool calls by rendering their chat template with and without one."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from localspec.chat.message import Message
from localspec.chat.tools.forms import NAME, CallForm
from localspec.chat.tools.readers import Reader, json_calls, named_calls, tagged_calls
from localspec.core.errors import TemplateError

# The rendering of a made-up conversation with an answer of these fields and the messages after
# it; None for the prompt of that answer.
Render = Callable[[Mapping[str, Any] | None, Sequence[Message]], str]

_NAMES = ("made_up_first", "made_up_second")
_IDS = ("abcde1234", "fghij5678")
_KEYS = ("made_up_key", "made_up_more")
_VALUES = ("A made up value", "Another made up value")
_ARGUMENTS = dict(zip(_KEYS, _VALUES, strict=True))
_TEXT = "A made up answer"
_RESULT = "A made up result"
_NEXT: Message = {"role": "user", "content": "Go on"}
_ID = r"(?P<id>[\w.:-]{1,64})"
_MOST = 400  # characters that a template writes for a call
_FAMILY = "its chat template"


def derived_form(render: Render) -> CallForm | None:
    """The form of calls in a template; None if its renderings do not show it."""
    text = _call_text(render, 1)
    if not 0 < len(text) <= _MOST or any(text.count(value) != 1 for value in _VALUES):
        return None
    written = _Written(text, _between(_call_text(render, 2)))
    return written.with_object() or written.with_tags()


def _call_text(render: Render, count: int) -> str:
    """The text that a template writes for an answer of calls, "" if it fails."""
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": _ARGUMENTS}}
        for name, call_id in list(zip(_NAMES, _IDS, strict=True))[:count]
    ]
    results: list[Message] = [
        {"role": "tool", "content": _RESULT, "tool_call_id": call_id, "name": name}
        for call_id, name in list(zip(_IDS, _NAMES, strict=True))[:count]
    ]
    for after in ([_NEXT], results, []):
        try:
            called, plain = (
                render(answer, after) for answer in ({"tool_calls": calls}, {"content": _TEXT})
            )
        except TemplateError:
            continue
        prompt = render(None, [])
        begin = len(commonprefix([called, plain]))
        begin = max(called.rfind(mark, 0, begin) + 1 for mark in ">] \n")
        begin = len(prompt) if called.startswith(prompt) else begin
        end = len(called) - len(commonprefix([called[begin:][::-1], plain[::-1]]))
        while end < len(called) and called[end - 1] not in ">]} \n":
            end += 1  # up to the end of a mark
        return called[begin:end].partition(_RESULT)[0]
    return ""


def _between(text: str) -> str:
    """The text between the last argument of a first call and the name of a second one."""
    _, _, second = text.partition(_VALUES[1])
    name = second.rfind(_NAMES[1], 0, max(second.find(_KEYS[0]), 0))
    return second[: max(name, 0)].replace(_IDS[1], _IDS[0])


@dataclass(frozen=True, slots=True)
class _Written:
    """A call as a template writes it, and its separator ``between`` two calls."""

    text: str
    between: str

    def with_object(self) -> CallForm | None:
        """A call with its arguments as a JSON object, alone or in another with the name."""
        at, end, value = self._object()
        head, tail = self.text[:at], self.text[end:]
        if value == _ARGUMENTS:
            return self._named(head, tail)
        keys = [key for key, each in value.items() if each in (_NAMES[0], _ARGUMENTS)]
        mark = head.rstrip().removesuffix("[")
        if len(keys) != 2 or '"' in mark:
            return None
        listed = "[" if mark != head.rstrip() else ""
        closing = tail.strip().removeprefix("]").strip() if listed else tail.strip()
        begin = f'{mark}{listed}{{"{keys[0]}": "NAME", "{keys[1]}": '
        # A mark before each call, or one before all of them.
        header = _flexible(mark) if mark.strip() else r"(?=[\[{])"
        reader = json_calls(header if listed else f"(?:{header})?", _first_tag(closing))
        end_text = "}" + ("]" if listed else "") + tail.removeprefix("]" if listed else "")
        return _form(reader, (mark,), () if listed else ("{",), begin, end_text, (closing,))

    def _object(self) -> tuple[int, int, dict[str, Any]]:
        """The JSON object with name and arguments, or that of the arguments: begin, end, value."""
        inside = self.text.find(_KEYS[0])
        found: tuple[int, int, dict[str, Any]] = 0, 0, {}
        for brace in re.finditer(r"\{", self.text[: max(inside, 0)]):
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, brace.start())
            except ValueError:
                continue
            if end > inside:
                found = brace.start(), end, value
                if _NAMES[0] in value.values():
                    break
        return found

    def _named(self, head: str, tail: str) -> CallForm | None:
        """A call with its arguments as an object after the name."""
        lead, name, after = head.rpartition(_NAMES[0])
        if not name:
            return None
        section, opening = self._opening(lead)
        if not opening:
            return None
        header = f"(?:{_flexible(section)})?{_flexible(opening)}{NAME}{_flexible(after)}"
        between = self.between[self.between.find("}") + 1 :].removesuffix(opening)
        ends = (between, tail.strip().removeprefix(between.strip()), tail)
        reader = named_calls(header, closing=_first_tag(tail))
        begin = f"{lead}NAME{after}"
        return _form(reader, (section, opening), (), begin, tail, ends, inner=(after,))

    def with_tags(self) -> CallForm | None:
        """A call with its arguments between tags."""
        lead, name, rest = self.text.partition(_KEYS[0])[0].rpartition(_NAMES[0])
        values = [self.text.find(value) for value in _VALUES]
        keys = [self.text.find(key) for key in _KEYS]
        if not name or not keys[0] < values[0] < keys[1] < values[1]:
            return None
        into = self.text[keys[0] + len(_KEYS[0]) : values[0]]
        gap = self.text[values[0] + len(_VALUES[0]) : keys[1]].replace(_KEYS[0], "KEY")
        tail = self.text[values[1] + len(_VALUES[1]) :].replace(_KEYS[1], "KEY")
        opened = _common_end(rest, gap)
        closing = gap.removesuffix(opened)
        if not closing.strip() or not tail.startswith(closing) or not opened.strip():
            return None
        after, tail = rest.removesuffix(opened), tail.removeprefix(closing)
        section, opening = self._opening(lead)
        ends = self._ends(tail, closing.replace("KEY", _KEYS[1]), opening)
        if not ends:
            return None
        reader = tagged_calls(
            f"(?:{_flexible(section)})?{_flexible(opening)}{NAME}{_loose(after)}"
            rf"(?=\s*(?:{re.escape(opened.strip())}|{re.escape(ends[0])}))",
            opened.lstrip(),
            rf"(?P<key>[^\n<>\"/][^\n<>\"]{{0,127}}){_loose(into.rstrip())}\n?",
            closing.rstrip(),
            *ends,
        )
        inner = (after, opened, into, closing.replace("KEY", ""))
        closings = (*ends, tail, self.between.removesuffix(opening))
        return _form(reader, (section, opening), (), f"{lead}NAME{after}", tail, closings,
                     inner=inner, parameter=(f"{opened}KEY{into}", closing))  # fmt: skip

    def _ends(self, tail: str, closing: str, opening: str) -> list[str]:
        """The marks after the last parameter: the end of each call, then that of all calls."""
        following = self.between.removeprefix(closing).removesuffix(opening).rstrip()
        end = commonprefix([tail, following]) if following else tail
        if end not in (tail, following):
            end = end[: max(end.rfind(mark) + 1 for mark in ">] \n")]
        return [tag for tag in (*end.split(), tail.removeprefix(end).strip()) if tag]

    def _opening(self, lead: str) -> tuple[str, str]:
        """The opening of all calls of an answer, and that of each of them."""
        opening = _common_end(lead, self.between).lstrip()
        opening = opening if len(opening) > 1 else lead.lstrip()
        return lead.removesuffix(opening), opening


def _form(
    reader: Reader,
    leads: tuple[str, ...],
    first: tuple[str, ...],
    begin: str,
    end: str,
    closings: tuple[str, ...],
    inner: tuple[str, ...] = (),
    parameter: tuple[str, str] | None = None,
) -> CallForm | None:
    """A form whose calls begin at ``leads`` that are marks, or at ``first``."""
    starts = [re.split(f"{_NAMES[0]}|{_IDS[0]}", lead)[0].strip() for lead in leads]
    openings = tuple(start for start in starts if re.search(r"[^\s{}\[\]\",:]{3}", start))
    others = tuple(start for start in starts if start and start not in openings)
    ends = [tag for text in closings for tag in (text.strip(), *text.split()) if tag]
    return CallForm(
        _FAMILY,
        reader,
        openings,
        begin.replace(_NAMES[0], "NAME"),
        end,
        tuple(dict.fromkeys(ends)),
        tuple(part.strip() for part in inner if part.strip()),
        (*others, *first),
        parameter,
    )


def _flexible(text: str) -> str:
    """A pattern of a text with any white space, ids, numbers and names."""
    parts = re.split(rf"(\s+|{_NAMES[0]}|{_IDS[0]}|\d+)", text)
    special = {_NAMES[0]: r"[\w.:/-]{1,128}", _IDS[0]: _ID}
    return "".join(
        r"\s*"
        if part.isspace()
        else r"\d{1,6}"
        if part.isdigit()
        else special.get(part, re.escape(part))
        for part in parts
    )


def _loose(text: str) -> str:
    """`_flexible` with any value between quotes, such as the type of a parameter."""
    return re.sub(r'="[^"]*"', '="[^"\\n]{0,40}"', _flexible(text))


def _common_end(text: str, other: str) -> str:
    """The longest end of both texts that begins with a whole mark in both."""
    length = len(commonprefix([text[::-1], other[::-1]]))
    while length and not all(
        length == len(each) or each[-length - 1] in ">][, \n" for each in (text, other)
    ):
        length -= 1
    return text[len(text) - length :]


def _first_tag(text: str) -> str:
    """The first part of a text that is a mark rather than a bracket."""
    return next((tag for tag in text.split() if re.search(r"[^\s{}\[\]\",:]{3}", tag)), "")
