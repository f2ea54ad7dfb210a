"""Rewrites a conversation so that its chat template takes it and writes each of its texts once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest

from localspec.chat.message import Message, assistant_turn

_NO_RESULT = "No result."
_EMPTY_QUESTION: Message = {"role": "user", "content": ""}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The forms that a template accepts: each False is a rule of `of`, in this order.

    A ``system`` message at the beginning, several ``systems`` anywhere; messages with ``calls``,
    ``several_calls`` in one, ``text_with_calls``; ``results`` of tools; ``users_in_row``,
    ``answers_in_row``, ``answer_first``, ``user_after_result``, a conversation ``without_user``; a
    ``call_last``, which has no result yet.
    """

    system: bool = False
    systems: bool = False
    calls: bool = False
    several_calls: bool = False
    text_with_calls: bool = False
    results: bool = False
    users_in_row: bool = False
    answers_in_row: bool = False
    answer_first: bool = False
    user_after_result: bool = False
    without_user: bool = False
    call_last: bool = False

    def of(self, messages: Sequence[Message], write: Callable[[Message], str]) -> list[Message]:
        """The messages as the template takes them; ``write`` gives the calls of one as text."""
        turns = paired(messages, closes_last=not self.call_last)
        if not self.systems:
            turns = self._with_one_system(turns)
        turns = [part for turn in turns for part in self._parts(turn, write)]
        if self.calls and not self.several_calls:
            turns = _one_call_each(turns)
        turns = list(self._in_rows(turns))
        if not turns or not (self.without_user or any(turn["role"] == "user" for turn in turns)):
            turns.insert(len(_leading_systems(turns)), _EMPTY_QUESTION)
        return turns

    def stricter(self) -> "tuple[Arrangement, ...]":
        """Arrangements for a conversation with which this one fails, the last for any."""
        kept = {"system": self.system, "several_calls": self.several_calls}
        return Arrangement(**kept, calls=self.calls, results=self.results), Arrangement()

    def _with_one_system(self, turns: Sequence[Message]) -> list[Message]:
        """Leading system messages joined, later ones as texts of the user."""
        leading = _leading_systems(turns)
        others = [_as_user(t) if t["role"] == "system" else t for t in turns[len(leading) :]]
        text = "\n".join([turn["content"] for turn in leading if turn["content"]])
        if not self.system and not text:
            return others
        begin: Message = {"role": "system" if self.system else "user", "content": text}
        return [begin, *others] if leading else others

    def _parts(self, turn: Message, write: Callable[[Message], str]) -> Iterator[Message]:
        """A message as one or two messages that the template takes."""
        if turn["role"] == "tool" and not self.results:
            yield {
                "role": "user",
                "content": f"<tool_response>\n{turn['content']}\n</tool_response>",
            }
        elif "tool_calls" not in turn:
            yield turn
        elif not self.calls:
            texts = [text for text in (turn["content"], write(turn)) if text]
            yield assistant_turn("\n".join(texts), turn.get("reasoning_content", ""))
        elif turn["content"] and not self.text_with_calls:
            yield assistant_turn(turn["content"])
            yield {**turn, "content": ""}
        else:
            yield turn

    def _in_rows(self, turns: Sequence[Message]) -> Iterator[Message]:
        """Joined texts of one speaker, and empty messages if a template wants one between."""
        last: Message | None = None
        for turn in turns:
            follows = ("" if last is None else last["role"], turn["role"])
            if last is not None and self._joins(last, turn):
                last = _joined(last, turn)
                continue
            if last is not None:
                yield last
            if follows == ("assistant", "assistant") and not self.answers_in_row:
                yield _EMPTY_QUESTION
            elif follows == ("tool", "user") and not self.user_after_result:
                yield assistant_turn("")
            elif follows in (("", "assistant"), ("system", "assistant")) and not self.answer_first:
                yield _EMPTY_QUESTION
            last = turn
        if last is not None:
            yield last

    def _joins(self, last: Message, turn: Message) -> bool:
        if last["role"] != turn["role"] or "tool_calls" in last or "tool_calls" in turn:
            return False
        in_row = {"user": self.users_in_row, "assistant": self.answers_in_row}
        return not in_row.get(turn["role"], True)


def paired(messages: Sequence[Message], closes_last: bool = True) -> list[Message]:
    """Each call followed by its result, both with an id and the tool's name.

    A call without a result gets a substitute, in the last message only if ``closes_last``. A
    result without a call becomes a text of the user; those without the id of a call belong to
    calls in their order.
    """
    turns: list[Message] = []
    taken: set[int] = set()
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            if i not in taken:
                turns.append(_as_user(message))
        elif "tool_calls" not in message:
            turns.append(message)
        else:
            calls = [call | {"id": call["id"] or f"call_{i}_{n}"}
                     for n, call in enumerate(message["tool_calls"])]  # fmt: skip
            turns.append(_shown(message) or {**message, "tool_calls": calls})
            found = _results_of([call["id"] for call in calls], i, messages)
            taken |= {at for at in found if at is not None}
            for call, at in zip(calls, found, strict=True):
                if at is not None or closes_last or i < len(messages) - 1:
                    result = None if at is None else messages[at]
                    turns.append(_result(call["id"], call["function"]["name"], result))
    return turns


def _shown(message: Message) -> Message | None:
    """The text that stands for an answer with calls; None where these are shown."""
    if "written" not in message:
        return None
    return assistant_turn(message["written"], message.get("reasoning_content", ""))


def _results_of(ids: Sequence[str], i: int, messages: Sequence[Message]) -> list[int | None]:
    """The index of each call's result, up to the next message with calls; None for none."""
    following = takewhile(lambda at: "tool_calls" not in messages[at], range(i + 1, len(messages)))
    free = [at for at in following if messages[at]["role"] == "tool"]
    found: list[int | None] = []
    for call_id in ids:
        at = next((at for at in free if messages[at].get("tool_call_id") == call_id), None)
        found.append(at)
        if at is not None:
            free.remove(at)
    return [at if at is not None or not free else free.pop(0) for at in found]


def _result(call_id: str, name: str, message: Message | None) -> Message:
    result: Message = {"role": "tool", "content": _NO_RESULT}
    found = result if message is None else message
    return {**found, "name": found.get("name", name), "tool_call_id": call_id}


def _one_call_each(turns: Sequence[Message]) -> list[Message]:
    """The `paired` messages with one call each, followed by its result."""
    single: list[Message] = []
    rest = list(turns)
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            single.append(message)
            continue
        results, rest = rest[: len(calls)], rest[len(calls) :]
        for n, (call, result) in enumerate(zip_longest(calls, results)):
            first = message if n == 0 else assistant_turn("")
            single += [{**first, "tool_calls": [call]}, *([result] if result else [])]
    return single


def _leading_systems(turns: Sequence[Message]) -> list[Message]:
    return list(takewhile(lambda turn: turn["role"] == "system", turns))


def _as_user(message: Message) -> Message:
    return {"role": "user", "content": message["content"]}


def _joined(first: Message, second: Message) -> Message:
    """Two texts of one speaker as one, with the reasoning of both."""
    texts = [turn["content"] for turn in (first, second) if turn["content"]]
    thoughts = [turn.get("reasoning_content", "") for turn in (first, second)]
    joined: Message = {"role": first["role"], "content": "\n".join(texts)}
    if reasoning := "\n".join([text for text in thoughts if text]):
        joined["reasoning_content"] = reasoning
    return joined


def measured(keeps: Callable[[str], bool], *, calls: bool, several_calls: bool) -> Arrangement:
    """The arrangement of a template that ``keeps`` conversations written as in `made_up`.

    ``calls`` is whether it writes calls and their results.
    """
    system = keeps("su") and keeps("sua") and (not calls or keeps("sucr"))
    with_calls = Arrangement(calls=calls, several_calls=several_calls)
    return replace(
        with_calls,
        system=system,
        systems=system and all(map(keeps, ("ssua", "suasu", "sus", "sucrs" if calls else "su"))),
        text_with_calls=calls and keeps("utrau") and keeps("uhr"),
        results=calls or keeps("uar"),
        users_in_row=keeps("uu") and keeps("uauu"),
        answers_in_row=keeps("uaau"),
        answer_first=keeps("au") and (not system or keeps("sau")),
        user_after_result=keeps("ucru" if calls else "uaru"),
        call_last=calls and keeps("uc") and (not system or keeps("suc")),
        without_user=all(map(keeps, ("s", "sa", "scr") if calls else ("s", "sa"))),
    )


def made_up(turns: str) -> list[Message]:
    """A conversation of unique texts: a letter for each message.

    System, user, answer, call, text with a call, thoughts and text with a call, result.
    """
    messages: list[Message] = []
    for i, letter in enumerate(turns):
        text = _unique(i)
        if letter in "su":
            messages.append({"role": "system" if letter == "s" else "user", "content": text})
        elif letter == "r":
            messages.append(_result("made00up0", "made_up_tool", {"role": "tool", "content": text}))
        elif letter == "a":
            messages.append(assistant_turn(text))
        else:
            turn = assistant_turn(text if letter in "th" else "", "Hm" if letter == "h" else "")
            function = {"name": "made_up_tool", "arguments": {"key": _unique(100 + i)}}
            call = {"id": "made00up0", "type": "function", "function": function}
            messages.append({**turn, "tool_calls": [call]})
    return messages


def skeleton(messages: Sequence[Message]) -> list[Message]:
    """The same conversation of unique texts; empty ones stay empty."""
    made: list[Message] = []
    numbers = iter(range(10**9))
    for message in messages:
        shape: Message = {**message}
        if message["content"].strip():
            shape["content"] = _unique(next(numbers))
        if "tool_calls" in message:
            shape["tool_calls"] = [
                call
                | {"function": call["function"] | {"arguments": {"key": _unique(next(numbers))}}}
                for call in message["tool_calls"]
            ]
        made.append(shape)
    return made


def texts_in(messages: Sequence[Message]) -> list[str]:
    """The unique texts of a conversation of `made_up` or `skeleton`."""
    shown = [message for message in messages if "written" not in message]
    texts = [message["written"] for message in messages if "written" in message]
    texts += [message["content"] for message in shown if message["content"].strip()]
    for message in shown:
        texts += [call["function"]["arguments"]["key"] for call in message.get("tool_calls", [])]
    return texts


def _unique(number: int) -> str:
    return f"Text{number:06d}x"
