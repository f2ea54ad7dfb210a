"""Chat templates: render a conversation as the prompt that its model was trained on."""

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from localspec.chat.message import Message
from localspec.chat.reasoning import Format, format_between, known_format
from localspec.chat.templates.arrangement import Arrangement, made_up, measured, skeleton, texts_in
from localspec.chat.templates.continuation import Continues, continued, goes_on, opened
from localspec.chat.templates.renderer import SHARED
from localspec.chat.tools.capabilities import MADE_UP_TOOLS, ToolCapabilities
from localspec.chat.tools.tool import Tool
from localspec.core.errors import TemplateError, UsageError

_CHATML_END = "<|im_end|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_THINKING = {"enable_thinking", "thinking"}  # the names of the switch in templates
# Other variables that control reasoning in some templates.
_SWITCHES = (
    "reasoning_effort", "reasoning_strength", "thinking_budget", "thinking_effort", "thinking_mode",
    "thinking_option", "skip_thinking",
)  # fmt: skip

_TOOLS = ("tools", "available_tools")  # Granite reads the second

# A made-up conversation.
_ANSWER, _THOUGHTS = "Answer", "Thoughts of a model"
_USER: Message = {"role": "user", "content": "Question"}


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template with its variables.

    ``bos`` and ``eos`` are the texts of those tokens. ``thinking`` is passed as ``enable_thinking``
    and ``thinking``; None turns the first on and leaves the second to the template. ``variables``
    override all others.
    ``name`` begins the sentences of errors. Rendering takes bounded time and memory.
    """

    source: str
    bos: str = ""
    eos: str = ""
    thinking: bool | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    name: str = "The chat template"

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        generation: bool = True,
        now: datetime.datetime | None = None,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The conversation as text; with ``generation``, up to the assistant's next turn.

        ``thinking`` and ``variables`` override those of the template. Messages that it refuses or
        loses are rewritten; see `Arrangement`. Raises TemplateError when the template fails,
        TemplateLimitExceeded.
        """
        thinking = self.thinking if thinking is None else thinking
        prepared, shown = self._arranged(messages, tools)
        return self._fill(prepared, generation, now, thinking, shown, variables)

    def begin(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, object] | None = None,
        continues: Continues = None,
        generation: bool = True,
    ) -> tuple[str, str]:
        """The prompt, and the state of `format` in which the answer begins.

        An answer at the end goes on as ``continues`` says; see `continuation`. Otherwise the prompt
        ends with the opening of the assistant's turn, or without ``generation`` after the last
        message. As in llama.cpp's `common_chat_template_generation_prompt`, the opening is the text
        that ``add_generation_prompt`` adds: some templates open the reasoning, or close it at once.
        Raises UsageError for messages without an answer that can go on.
        """
        now = datetime.datetime.now()
        render = partial(self.render, thinking=thinking, tools=tools, variables=variables, now=now)
        if goes_on(messages, continues):
            return continued(messages, continues, self.format, render)
        if not generation:
            return render(messages, generation=False), "start"
        return opened(messages, self.format, render)

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end an answer: a model not trained on ChatML may spell its end mark out."""
        return (_CHATML_END,) if self.source == CHATML else ()

    @cached_property
    def format(self) -> Format | None:
        """The marks around the model's reasoning; None if the template has none."""
        return known_format(self.source) or self._shown_format()

    @cached_property
    def format_with_calls(self) -> Format | None:
        """`format` if tools are offered: tool calls are part of the answer."""
        return known_format(self.source, calls=True) or self.format

    @cached_property
    def tools(self) -> ToolCapabilities:
        """How the template handles tools and tool calls."""
        return ToolCapabilities(self.source, self._fill)

    @property
    def has_system_role(self) -> bool:
        """Whether the template writes a system message in every conversation."""
        return self._arrangement.system

    def settings(self) -> dict[str, object]:
        """The settings of a prompt besides the messages, as plain data."""
        return {
            "sha256": hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest(),
            "thinking": self.thinking,
            "variables": dict(self.variables),
        }

    def notes(self, system: str | None = None) -> list[str]:
        """Settings that this template ignores, in sentences."""
        notes = []
        if self.thinking is not None and not self._switches_thinking(system):
            notes.append(self._no_switch("--think" if self.thinking else "--no-think", system))
        if unread := [name for name in self.variables if name not in self._names]:
            notes.append(f"The chat template does not read {', '.join(unread)}.")
        if system is not None and not self.has_system_role:
            notes.append(
                "The chat template has no place for a system message: it goes in front of the "
                "first question."
            )
        return notes

    def _switches_thinking(self, system: str | None) -> bool:
        messages: list[Message] = [_USER]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        now = datetime.datetime.now()
        on, off = (self.render(messages, thinking=each, now=now) for each in (True, False))
        return on != off

    def _no_switch(self, flag: str, system: str | None) -> str:
        if system is not None and self._switches_thinking(None):
            return f"With a system message, this chat template ignores {flag}."
        if fixed := _THINKING & self.variables.keys():
            return f"--chat-template-kwargs sets {min(fixed)}: {flag} changes nothing."
        others = [name for name in _SWITCHES if name in self._names]
        flags = ["--reasoning-effort"] * ("reasoning_effort" in others)
        flags += ["--chat-template-kwargs"] * (len(others) > len(flags))
        more = f" It reads {', '.join(others)}: see {' and '.join(flags)}." if others else ""
        return f"The chat template has no switch for thinking: {flag} changes nothing.{more}"

    @cached_property
    def _names(self) -> frozenset[str]:
        return SHARED.names_read(self.source, self.name)

    @cached_property
    def _arrangement(self) -> Arrangement:
        """For conversations without tools."""
        return self._measured(())

    @cached_property
    def _arrangement_with_tools(self) -> Arrangement:
        """With tools, some templates treat other messages differently."""
        return self._measured(MADE_UP_TOOLS)

    def _measured(self, tools: Sequence[Tool]) -> Arrangement:
        taken = self.tools.calls_taken
        return measured(
            lambda turns: not self._lost(made_up(turns), texts_in(made_up(turns)), tools),
            calls=taken is not None,
            several_calls=taken is not None and taken.several,
        )

    def _arranged(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[list[dict[str, Any]], Sequence[Tool]]:
        """The messages as the template writes them whole, and the tools that it is to show.

        Tried on a `skeleton` of the conversation: a template that refuses even the strictest
        arrangement is given the first one.
        """
        shown = self.tools.shown(tools)
        if tools and not shown:
            messages = self.tools.with_description(messages, tools)
        first = self._arrangement_with_tools if shown else self._arrangement
        if not self._takes_written(messages, first, shown):
            messages = _without_written(messages)
        shape, write = skeleton(messages), self.tools.written
        texts = texts_in(shape)
        losses: dict[int, Arrangement] = {}
        for arrangement in (first, *first.stricter()):
            lost = self._lost(arrangement.of(shape, write), texts, shown)
            losses.setdefault(lost, arrangement)
            if not lost:
                break
        best = losses[min(losses)]
        return self._prepared_all(best.of(messages, write)), shown

    def _takes_written(
        self, messages: Sequence[Message], arrangement: Arrangement, tools: Sequence[Tool]
    ) -> bool:
        """Whether a text in place of calls changes nothing else that the template writes."""
        places = [message["written"] for message in messages if "written" in message]
        if not places:
            return True
        shape, now = skeleton(messages), datetime.datetime.now()
        try:
            rest, shown = (
                self._fill(self._prepared_all(arrangement.of(each, self.tools.written)), True, now,
                           tools=tools)
                for each in (shape, _without_written(shape))
            )  # fmt: skip
        except TemplateError:
            return False
        at = 0
        for i, place in enumerate(places):
            part, _, rest = rest.partition(place)
            found = shown.find(part, at)
            if found < 0 or (i == 0 and found > 0):
                return False
            at = found + len(part)
        return len(shown) - len(rest) >= at and shown.endswith(rest)

    def _lost(
        self, messages: Sequence[Message], texts: Sequence[str], tools: Sequence[Tool]
    ) -> int:
        """How many of the texts are not written just once; more than all if it fails."""
        try:
            prepared = self._prepared_all(messages)
            shown = self._fill(prepared, tools=tools)
        except TemplateError:
            return len(texts) + 1
        return sum(shown.count(text) != 1 for text in texts)

    def _prepared_all(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [self._prepared(message) for message in self.tools.placed(messages)]

    @cached_property
    def _takes_empty_answers(self) -> bool:
        try:
            self._fill([_USER, {"role": "assistant", "content": ""}, _USER])
        except TemplateError:
            return False
        return True

    def _prepared(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message with its reasoning under all three keys that templates read.

        Which reasoning is in the prompt, that of the last turn or none, is the template's choice.
        """
        prepared = dict(message)
        if reasoning := message.get("reasoning_content"):
            prepared |= {"thinking": reasoning, "reasoning": reasoning}
        is_empty = not message["content"] and "tool_calls" not in message  # cut off in reasoning
        if is_empty and message["role"] == "assistant":
            prepared["content"] = "" if self._takes_empty_answers else " "
        return prepared

    def _fill(
        self,
        messages: Sequence[Mapping[str, Any]],
        generation: bool = True,
        now: datetime.datetime | None = None,
        thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, object] | None = None,
    ) -> str:
        definitions = [dict(tool.definition) for tool in tools]
        on = {"enable_thinking": True}  # unless it is turned off, as in llama-server
        switch = on if thinking is None else dict.fromkeys(_THINKING, thinking)
        now = now or datetime.datetime.now()
        given = {
            "messages": messages,
            "add_generation_prompt": generation,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "date_string": now.strftime("%d %b %Y"),
            "datetime": now.strftime("%b %d %Y %H:%M:%S"),
            "functions": json.dumps(definitions, indent=2, ensure_ascii=False),
            **(dict.fromkeys(_TOOLS, definitions) if tools else {}),
            **switch,
            **self.variables,
            **(variables or {}),
        }
        return SHARED.fill(self.source, given, now, self.name)

    def _shown_format(self) -> Format | None:
        """The tags that the template writes around the reasoning of a made-up answer."""
        answer = {"role": "assistant", "content": _ANSWER}
        thoughts = dict.fromkeys(("reasoning_content", "thinking", "reasoning"), _THOUGHTS)
        try:
            shown = self._fill([_USER, answer | thoughts], generation=False)
        except TemplateError:
            return None
        return format_between(shown, _THOUGHTS, _ANSWER)


def _without_written(messages: Sequence[Message]) -> list[Message]:
    """The messages with their calls, which the template writes."""
    kept: list[Message] = [message.copy() for message in messages]
    for message in kept:
        message.pop("written", None)
    return kept


def is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text


def template_text(text: str) -> str:
    """A Jinja template, given itself or as "chatml"; raises UsageError."""
    if is_jinja(text):
        return text
    if text == "chatml":
        return CHATML
    raise UsageError(
        f"{text!r:.60} is not a chat template: it has no Jinja in it.",
        "Give one in Jinja, as in tokenizer_config.json of the model's repository, or chatml.",
    )
