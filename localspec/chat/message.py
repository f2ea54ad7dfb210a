"""Messages of a conversation, read from a saved file or from a request in OpenAI's form."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, NotRequired, TypedDict

from localspec.chat.content import media_in, text_of, without_surrogates
from localspec.chat.tools.tool import MAX_DEPTH, ToolCall, arguments_of, is_shallow, require_objects
from localspec.core.errors import UsageError

ROLES = ("system", "user", "assistant")
_ROLES_OF_OTHERS = {"developer": "system", "function": "tool"}
MAX_CALLS = 1024  # in one message
_CALLED = ("function", "custom")  # the field with the name of a call


class Message(TypedDict):
    """One turn of a conversation; ``role`` is system, user, assistant or tool.

    ``reasoning_content`` precedes an answer; ``tool_calls`` are in OpenAI's form, but with an
    object for ``arguments``. A tool's result names its call in ``tool_call_id``. ``written`` stands
    in a prompt for the text and the calls of a message, to be replaced by the model's own tokens.
    """

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    written: NotRequired[str]


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
    return _message("assistant", text, reasoning)


def _message(role: str, content: str, reasoning: str) -> Message:
    message: Message = {"role": role, "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def read_messages(entries: Sequence[Mapping[str, object]]) -> list[Message]:
    """Messages in OpenAI's form; raises UsageError for an entry that is not a message.

    Forms that agents keep in their histories are accepted: content as `text_of` gives it, calls
    of functions in the form before ``tool_calls``, broken arguments, calls and results without
    ids. The role developer means system, as in llama.cpp (all models but gpt-oss, whose template
    makes no difference), function means tool.
    """
    require_objects(entries, "messages", '{"role": "user", "content": …}')
    return [_read(entry, f"messages[{i}]") for i, entry in enumerate(entries)]


def media_left_out(entries: Sequence[Mapping[str, object]]) -> list[str]:
    """A sentence for each kind of medium in messages of OpenAI's form, which is left out."""
    kinds = set().union(*(media_in(entry.get("content")) for entry in entries))
    return [
        f"Content of the kind {kind} was left out: texts only are read." for kind in sorted(kinds)
    ]


def _read(entry: Mapping[str, object], place: str) -> Message:
    given = entry.get("role")
    role = _ROLES_OF_OTHERS.get(given, given) if isinstance(given, str) else given
    if not isinstance(role, str) or role not in (*ROLES, "tool"):
        _refuse(f"{place} has no known role.", "system, user, assistant or tool")
    reasoning = text_of(entry.get("reasoning_content") or entry.get("reasoning"))
    texts = (text_of(entry.get("content")), text_of(entry.get("refusal")))
    message = _message(role, "\n".join([text for text in texts if text]), reasoning)
    if role == "tool":
        message["tool_call_id"] = _id(entry.get("tool_call_id"))
    if name := entry.get("name"):
        message["name"] = text_of(name)
    if role == "assistant" and (calls := _calls(entry, place)):
        message["tool_calls"] = calls
    return message


def _calls(entry: Mapping[str, object], place: str) -> list[dict[str, Any]]:
    """The calls of an answer, with their arguments as objects."""
    calls = entry.get("tool_calls") or []
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        _refuse(f"{place}.tool_calls is not a list of calls.", f"at most {MAX_CALLS}, in answers")
    if (former := entry.get("function_call")) and not calls:
        calls = [{"function": former}]
    calls = [each.as_json() if isinstance(each, ToolCall) else each for each in calls]
    # One of an answer that was interrupted may have nothing yet.
    calls = [each for each in calls if not isinstance(each, Mapping) or any(map(each.get, _CALLED))]
    return [_read_call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)]


def _read_call(call: object, place: str) -> dict[str, Any]:
    """A call with its arguments as an object: requests hold the text of one.

    Other arguments are passed on as text: agents send back the model's own text.
    """
    function = _function(call)
    if not isinstance(call, Mapping) or function is None:
        _refuse(f"{place} is not a function call.", '{"id": …, "function": {…}}')
    arguments = function.get("arguments", function.get("input")) or {}
    if isinstance(arguments, str):
        arguments = arguments_of(arguments)
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    if not is_shallow(arguments):
        _refuse(
            f"{place}.function.arguments is not a JSON object.",
            f'one such as "{{}}", of up to {MAX_DEPTH} levels',
        )
    shown = {"name": text_of(function.get("name")), "arguments": without_surrogates(arguments)}
    return {"id": _id(call.get("id")), "type": "function", "function": shown}


def _function(call: object) -> Mapping[str, Any] | None:
    """Name and arguments of a call, or of one to a custom tool."""
    inner = (call.get("function") or call.get("custom")) if isinstance(call, Mapping) else None
    return (
        inner if isinstance(inner, Mapping) and isinstance(inner.get("name") or "", str) else None
    )


def _id(value: object) -> str:
    """The id of a call; "" if there is none."""
    return "" if value is None else text_of(value) if isinstance(value, str) else str(value)


def _refuse(message: str, expected: str) -> NoReturn:
    raise UsageError(message, f"Expected {expected}.")
