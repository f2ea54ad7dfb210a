"""Template: known shapes render as their models expect; a stranger's program cannot do harm."""

from __future__ import annotations

import datetime

import pytest

from localspec.core.errors import TemplateError
from localspec.engine.chat import template as template_module
from localspec.engine.chat.template import Message, render

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>\u00e9</b>"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]

CHATML = """\
{% for message in messages %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

# Reads names that are not given (tools, enable_thinking), keeps state in a namespace, breaks.
QWEN = """\
{%- if tools %}
    {{- raise_exception('no tools here') }}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not message.content.startswith('<tool') %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

CHATML_TALK = (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\nHi <b>\u00e9</b><|im_end|>\n"
    "<|im_start|>assistant\nHello.<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize("template", [CHATML, QWEN])
def test_chatml(template: str) -> None:
    assert render(template, TALK) == CHATML_TALK


def test_llama_3() -> None:
    assert render(LLAMA3, TALK[:2], bos="<|begin_of_text|>", eos="<|eot_id|>") == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b>\u00e9</b><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_no_template_gives_a_transcript() -> None:
    assert render(None, TALK) == (
        "System: Be brief.\nUser: Hi <b>\u00e9</b>\nAssistant: Hello.\nUser: Bye\nAssistant:"
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "Hi <b>\u00e9</b>"}'),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ nothing }}{{ nothing is defined }}", "False"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", "xxx"),
        ("", ""),
    ],
)
def test_names_that_templates_rely_on(template: str, text: str) -> None:
    now = datetime.datetime(2024, 7, 26)
    assert render(template, TALK, bos="<s>", eos="</s>", now=now) == text


def test_a_template_may_refuse() -> None:
    with pytest.raises(TemplateError, match="roles must alternate") as raised:
        render("{{ raise_exception('roles must alternate') }}", TALK)
    assert "--raw" in raised.value.hint


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ messages[9].content }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ 'text' | dictsort }}",
        "{{ messages | nosuchfilter }}",
        "{{ '%s' | format }}",
        "{% include '/etc/hostname' %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'forged'}) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% for m in messages %}" * 25 + "{% endfor %}" * 25,
        "{{ range(10 ** 9) }}",
    ],
    ids=lambda template: template[:24],
)
def test_a_broken_template_is_an_error_of_ours(template: str) -> None:
    with pytest.raises(TemplateError):
        render(template, TALK)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '%s' % ''.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__self__ }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{% set x = messages.__init__ %}{{ x.__globals__ }}",
    ],
)
def test_the_sandbox_holds(template: str) -> None:
    try:
        text = render(template, TALK)
    except TemplateError:
        return
    assert text == ""


@pytest.mark.parametrize(
    ("template", "bounded"),
    [
        ("{% for i in range(1000) %}{{ 'a' * 100 }}{% endfor %}", False),
        ("{% for i in range(10) %}{{ 'a' * 100 }}{% endfor %}", True),
        ("{{ 'a' * 1000 }}", True),
        ("{{ 'a' * 1001 }}", False),
    ],
)
def test_output_is_bounded(template: str, bounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_module, "MAX_CHARACTERS", 1000)
    if bounded:
        assert render(template, TALK) == "a" * 1000
    else:
        with pytest.raises(TemplateError, match="more than 1000 characters"):
            render(template, TALK)


def test_an_endless_output_is_stopped_early() -> None:
    pieces = "{% for i in range(99999) %}{% for j in range(99999) %}{{ x }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="characters"):
        render("{% set x = 'a' * 1000000 %}" + pieces, TALK)


def test_messages_are_not_changed() -> None:
    before = [dict(message) for message in TALK]
    render(QWEN, TALK)
    assert [dict(message) for message in TALK] == before


def test_the_training_mark_shows_its_body() -> None:
    template = "{% generation %}{{ messages[0].content }}{% endgeneration %}"
    assert render(template, [{"role": "user", "content": "hi"}]) == "hi"


@pytest.mark.parametrize("text", ["{{ 'a' * 10**9 }}", "{{ [0] * 10**9 }}", "{{ 10 ** 10**9 }}"])
def test_repetition_is_bounded(text: str) -> None:
    with pytest.raises(TemplateError):
        render(text, [{"role": "user", "content": "hi"}])


def test_ordinary_repetition_works() -> None:
    assert render("{{ '-' * 3 }}{{ 3 * 4 }}", [{"role": "user", "content": "hi"}]) == "---12"


THINKING = (
    "{% if enable_thinking is not defined %}undecided"
    "{% elif enable_thinking %}thinks{% else %}thinks not{% endif %}"
)


@pytest.mark.parametrize(
    ("thinking", "expected"), [(None, "undecided"), (True, "thinks"), (False, "thinks not")]
)
def test_thinking_is_the_templates_own_unless_told(thinking: bool | None, expected: str) -> None:
    assert render(THINKING, TALK, thinking=thinking) == expected
    assert render(CHATML, TALK, thinking=thinking) == render(CHATML, TALK)
    assert render(None, TALK, thinking=thinking) == render(None, TALK)


def test_thinking_is_undecided_by_default() -> None:
    assert render(THINKING, TALK) == "undecided"
