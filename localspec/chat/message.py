"""Messages of a conversation, read from a saved file or from a request in OpenAI's form."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, NotRequired, TypedDict

from localspec.chat.tools.tool import MAX_DEPTH, arguments_of, is_shallow, require_objects
from localspec.core.errors import UsageError

ROLES = ("system", "user", "assistant")
MAX_CALLS = 128  # in one message


class Message(TypedDict):
    """One turn of a conversation; ``role`` is system, user, assistant or tool.

    ``reasoning_content`` precedes an answer; ``tool_calls`` are in OpenAI's form, but with an
    object for ``arguments``. A tool's result names its call in ``tool_call_id``.
    """

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def parse_message(entry: object) -> Message:
    """A message of a JSON file; raises ValueError for anything else."""
    if (
        not isinstance(entry, dict)
        or entry.get("role") not in ROLES
        or not isinstance(entry.get("content"), str)
        or not isinstance(entry.get("reasoning_content", ""), str)
    ):
        raise ValueError(f"a message needs a role ({', '.join(ROLES)}) and a content, a text.")
    return _message(entry["role"], entry["content"], entry.get("reasoning_content", ""))


def assistant_turn(text: str, reasoning: str = "") -> Message:
    """An answer as a message."""
    return _message("assistant", text, reasoning)


def _message(role: str, content: str, reasoning: str) -> Message:
    message: Message = {"role": role, "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def read_messages(entries: Sequence[Mapping[str, object]]) -> list[Message]:
    """Messages in OpenAI's form; raises UsageError for invalid ones.

    As in llama.cpp, the role developer means system (all models but gpt-oss, whose template makes
    no difference), and content parts are joined by line breaks.
    """
    require_objects(entries, "messages", '{"role": "user", "content": …}')
    return [_read(entry, f"messages[{i}]") for i, entry in enumerate(entries)]


def _read(entry: Mapping[str, object], place: str) -> Message:
    role = "system" if entry.get("role") == "developer" else entry.get("role")
    if not isinstance(role, str) or role not in (*ROLES, "tool"):
        _refuse(f"{place} has no known role.", "system, user, assistant or tool")
    reasoning = _require_text(entry.get("reasoning_content") or "", f"{place}.reasoning_content")
    message = _message(role, _text(entry.get("content"), role, place), reasoning)
    if role == "tool":
        call_id = entry.get("tool_call_id") or ""
        message["tool_call_id"] = _require_text(call_id, f"{place}.tool_call_id")
    if name := entry.get("name"):
        message["name"] = _require_text(name, f"{place}.name")
    if calls := entry.get("tool_calls"):
        if role != "assistant" or not isinstance(calls, list) or len(calls) > MAX_CALLS:
            _refuse(
                f"{place}.tool_calls is not a list of calls.",
                f"at most {MAX_CALLS}, in answers",
            )
        message["tool_calls"] = [
            _read_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return message


def _text(content: object, role: str, place: str) -> str:
    """The text of a message, which only an answer may lack."""
    if content is None and role == "assistant":
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(f"{place} has no content.", "a text, or a list of parts of type text")
    return "\n".join(_part(part, f"{place}.content[{i}]") for i, part in enumerate(content))


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        what = f"of type {kind[:40]}" if isinstance(kind, str) and kind != "text" else "not a text"
        _refuse(f"{place} is {what}, and only text is supported.", "parts of type text")
    return text


def _read_call(call: object, place: str) -> dict[str, Any]:
    """A call with its arguments as an object: requests hold the text of one.

    Broken text is taken, as agents send back what the model wrote.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        _refuse(f"{place} is not a function call.", '{"id": …, "function": {…}}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = arguments_of(arguments)
    if not isinstance(arguments, dict) or not is_shallow(arguments):
        _refuse(
            f"{place}.function.arguments is no JSON object.",
            f'one such as "{{}}", of up to {MAX_DEPTH} levels',
        )
    name = _require_text(function.get("name"), f"{place}.function.name")
    call_id = _require_text(call.get("id") or "", f"{place}.id")
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _require_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        _refuse(f"{place} is not a string.", "one")
    return value


def _refuse(message: str, expected: str) -> NoReturn:
    raise UsageError(message, f"Expected {expected}.")
