"""Answers that go on: what a template writes before them stays, what is behind is left out."""

import pytest

from localspec.chat.message import Message, assistant_turn
from localspec.chat.reasoning import Splitter
from localspec.chat.templates.arrangement import made_up
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.core.errors import UsageError
from tests.support.chat import strict_templates, templates, tool_templates

QUESTION: Message = {"role": "user", "content": "Question"}
ASKED = [QUESTION]
BEGUN = "Once upon  "
EVERY = {
    "ChatML": CHATML,
    **{f"thinking {i}": source for i, source in enumerate(templates.ALL)},
    **tool_templates.ALL,
    **strict_templates.STRICT,
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("before", ["", "u", "su", "uau", "uaa", "ucr", "a"])
def test_an_answer_goes_on_where_its_text_ends(name: str, before: str) -> None:
    made = template(EVERY[name])
    messages = [*made_up(before), assistant_turn(BEGUN)]
    prompt, state = made.begin(messages)
    assert prompt.endswith(BEGUN) and prompt.count(BEGUN) == 1
    closed = made.render([*made_up(before), assistant_turn("MARK")], generation=False)
    assert prompt.removesuffix(BEGUN) == closed[: closed.rindex("MARK")]
    if made.format is not None:
        pieces = Splitter(made.format, state).push("a time", final=True)
        assert pieces == [("a time", False)]


@pytest.mark.parametrize("source", templates.SPOKEN)
@pytest.mark.parametrize("continues", [None, True, "content", "reasoning_content"])
def test_reasoning_stands_before_the_text_or_goes_on(source: str, continues: object) -> None:
    made, goes_on = template(source), {"continues": continues}
    assert made.format is not None
    text, thoughts = ("Yes", "Hm") if continues != "reasoning_content" else ("", "Hm")
    messages = [QUESTION, assistant_turn(text, thoughts)]
    prompt, state = made.begin(messages, **goes_on)  # type: ignore[arg-type]
    assert prompt.endswith(text or thoughts)
    pieces = Splitter(made.format, state).push(" so", final=True)
    assert "".join(part for part, _ in pieces).strip() == "so"
    assert {is_reasoning for _, is_reasoning in pieces} == {not text}
    unclosed, same = made.begin([QUESTION, assistant_turn("", "Hm")])
    assert unclosed.endswith("Hm") and made.format[same].part == "reasoning"


def test_marked_reasoning_in_the_text_is_reasoning() -> None:
    made = template(templates.QWEN3)
    begun, state = made.begin([QUESTION, assistant_turn("<think>\nHm")])
    assert begun == made.begin([QUESTION, assistant_turn("", "Hm")])[0]
    assert made.format is not None and made.format[state].part == "reasoning"
    whole, state = made.begin([QUESTION, assistant_turn("<think>\nHm\n</think>\n\nYes")])
    assert whole == made.begin([QUESTION, assistant_turn("Yes", "Hm")])[0]
    assert state == "answer"


def test_a_template_that_loses_the_text_gets_it_behind_the_opening() -> None:
    source = (
        "{% for message in messages if message.role == 'user' %}<u>{{ message.content }}"
        "{% endfor %}{% if add_generation_prompt %}<a><think>\n{% endif %}"
        "{# </think> #}"
    )
    made = template(source)
    text, state = made.begin([QUESTION, assistant_turn("Yes")])
    assert (text, state) == ("<u>Question<a><think>\n</think>Yes", "answer")
    text, state = made.begin([QUESTION, assistant_turn("", "Hm")])
    assert (text, state) == ("<u>Question<a><think>\nHm", "thoughts")


def test_requests_say_what_goes_on() -> None:
    made = template(templates.QWEN3)
    messages = [QUESTION, assistant_turn("Yes")]
    for answered in (messages, [*messages, QUESTION], ASKED):
        fresh, closed = made.render(answered), made.render(answered, generation=False)
        assert made.begin(answered, continues=False)[0] == fresh
        assert made.begin(answered, continues=False, generation=False)[0] == closed
    assert made.begin([QUESTION, assistant_turn("")])[0] == made.render(
        [QUESTION, assistant_turn("")]
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
    called: Message = {**assistant_turn("Yes"), "tool_calls": [call]}
    assert made.begin([QUESTION, called])[0] == made.render([QUESTION, called])
    for refused in (ASKED, [QUESTION, called], []):
        with pytest.raises(UsageError, match="not a text of the assistant"):
            made.begin(refused, continues=True)
