"""Where a prompt ends: at the opening of a new answer, or within the last one, which goes on."""

from collections.abc import Sequence
from os.path import commonprefix
from typing import Literal, Protocol

from localspec.chat.message import Message, assistant_turn
from localspec.chat.reasoning import Format, Splitter, closing_mark, state_behind
from localspec.core.errors import TemplateError, UsageError

# Whether the last message goes on, or which part of it; None if it is an answer with a text.
Continues = bool | Literal["content", "reasoning_content"] | None

_NOTHING: Message = {"role": "user", "content": ""}
_PLACE = "Text999999x"  # of the text that goes on


class Render(Protocol):
    """`ChatTemplate.render`, the settings of one request given."""

    def __call__(self, messages: Sequence[Message], *, generation: bool = True) -> str: ...


def goes_on(messages: Sequence[Message], continues: Continues) -> bool:
    """Whether the last message goes on; raises UsageError if it must and cannot.

    As in llama-server, it does unless the request says otherwise; complete calls cannot go on.
    """
    last = messages[-1] if messages else _NOTHING
    is_text = last["role"] == "assistant" and "tool_calls" not in last
    if continues and not is_text:
        raise UsageError(
            "continue_final_message is set, but the last message is not a text of the assistant.",
            "Leave it out, or end the messages with the beginning of an answer.",
        )
    return is_text and continues is not False and any(parted(last, None))


def parted(message: Message, form: Format | None) -> tuple[str, str]:
    """Reasoning and text of an answer, also if the text begins with marked reasoning."""
    reasoning, text = message.get("reasoning_content", ""), message["content"]
    marks = {} if form is None else form["start"].marks
    opening = tuple(mark for mark, to in marks.items() if form and form[to].part == "reasoning")
    if form is None or reasoning or not text.lstrip().startswith(opening or "\0"):
        return reasoning, text
    pieces = Splitter(form).push(text, final=True)
    reasoning, text = (
        "".join([t for t, is_it in pieces if is_it is each]) for each in (True, False)
    )
    return reasoning, text


def opened(messages: Sequence[Message], form: Format | None, render: Render) -> tuple[str, str]:
    """The prompt up to a new answer, and the state of the format in which that begins."""
    text = render(messages)
    return text, _state(text, messages, form, render)


def continued(
    messages: Sequence[Message], continues: Continues, form: Format | None, render: Render
) -> tuple[str, str]:
    """The prompt up to the end of the last answer, and the state of the format there.

    The text before the answer's, such as empty reasoning or a channel, is the template's own.
    If the template does not write the answer's text, it is added after the opening of an answer.
    """
    *before, last = messages
    reasoning, text = parted(last, form)
    is_reasoning = continues == "reasoning_content" or not text
    made_up = assistant_turn("", _PLACE) if is_reasoning else assistant_turn(_PLACE, reasoning)
    begun = reasoning if is_reasoning else text
    try:
        prompt, found, _ = render([*before, made_up], generation=False).rpartition(_PLACE)
    except TemplateError:
        found = ""
    if found:
        state = _state(prompt, before, form, render)
    else:
        prompt, state = opened(before, form, render)
        prompt += _bridge(form, state, is_reasoning=is_reasoning)
    return prompt + begun, _state_after(form, state, begun, is_reasoning=is_reasoning)


def _state(text: str, before: Sequence[Message], form: Format | None, render: Render) -> str:
    """The state after the opening, by which a prompt differs from the same messages without it."""
    if form is None:
        return "start"
    try:
        without = render(before, generation=False)
    except TemplateError:
        return "start"
    return state_behind(form, text[len(commonprefix([text, without])) :])


def _bridge(form: Format | None, state: str, *, is_reasoning: bool) -> str:
    """The mark that leads from the opening of an answer to its text or its reasoning."""
    if form is None or (form[state].part == "reasoning") == is_reasoning:
        return ""
    if not is_reasoning:
        return closing_mark(form, state)
    marks = form[state].marks.items()
    return next((mark for mark, to in marks if form[to].part == "reasoning"), "")


def _state_after(form: Format | None, state: str, text: str, *, is_reasoning: bool) -> str:
    """The state after a text of the answer, or of its reasoning."""
    if form is None:
        return "start"
    if is_reasoning and form[state].part != "reasoning":
        state = next((name for name, each in form.items() if each.part == "reasoning"), state)
    elif not is_reasoning and form[state].part == "reasoning":
        state = form[state].marks.get(closing_mark(form, state), state)
    splitter = Splitter(form, state)
    splitter.push(text, final=True)
    return "start" if form[splitter.state].part == "dropped" else splitter.state
