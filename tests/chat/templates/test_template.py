"""Template: known shapes render as their models expect; a stranger's program cannot do harm."""

import datetime

import pytest

from localspec.chat.message import Message, assistant_turn, parse_message
from localspec.chat.reasoning import Splitter
from localspec.chat.templates.sandbox import MAX_CHARACTERS
from localspec.chat.templates.template import CHATML, ChatTemplate
from localspec.core.errors import TemplateError
from tests.support.chat import templates

TALK: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>\u00e9</b>"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Bye"},
]

CHATML_AS_SHIPPED = """\
{% for message in messages %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

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


def render(
    source: str,
    messages: list[Message],
    *,
    bos: str = "",
    eos: str = "",
    now: datetime.datetime | None = None,
) -> str:
    return ChatTemplate(source, bos, eos).render(messages, now=now)


CHATML_TALK = (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\nHi <b>\u00e9</b><|im_end|>\n"
    "<|im_start|>assistant\nHello.<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize("template", [CHATML, CHATML_AS_SHIPPED, QWEN])
def test_chatml(template: str) -> None:
    assert render(template, TALK) == CHATML_TALK


def test_llama_3() -> None:
    assert render(templates.LLAMA3, TALK[:2], bos="<|begin_of_text|>", eos="<|eot_id|>") == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi <b>\u00e9</b><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "Hi <b>\u00e9</b>"}'),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ '\u00e9' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ nothing }}{{ nothing is defined }}", "False"),
        ("{{ '-' * 3 }}{{ 3 * 4 }}", "---12"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "Hello."),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", "xx"),
        ("", ""),
    ],
)
def test_names_that_templates_rely_on(template: str, text: str) -> None:
    now = datetime.datetime(2024, 7, 26)
    assert render(template, TALK[1:], bos="<s>", eos="</s>", now=now) == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ x", "of print statement'"),
        ("{{ raise_exception('') }}", "Error"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ],
)
def test_the_reason_of_a_failure_is_a_sentence(source: str, reason: str) -> None:
    with pytest.raises(TemplateError) as raised:
        render(source, TALK)
    assert raised.value.message.endswith(f"{reason}.") and "--raw" in raised.value.hint


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
        ("{% for i in range(1025) %}{{ 'a' * 2**14 }}{% endfor %}", False),
        ("{% for i in range(1024) %}{{ 'a' * 2**14 }}{% endfor %}", True),
        ("{{ 'a' * 2**24 }}", True),
        ("{{ 'a' * (2**24 + 1) }}", False),
    ],
)
def test_output_is_bounded(template: str, bounded: bool) -> None:
    if bounded:
        assert render(template, TALK) == "a" * MAX_CHARACTERS
    else:
        with pytest.raises(TemplateError, match="more than 16777216 characters"):
            render(template, TALK)


def test_an_endless_output_is_stopped_early() -> None:
    pieces = "{% for i in range(99999) %}{% for j in range(99999) %}{{ x }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="characters"):
        render("{% set x = 'a' * 1000000 %}" + pieces, TALK)


def test_messages_are_not_changed() -> None:
    before = [dict(message) for message in TALK]
    render(QWEN, TALK)
    assert [dict(message) for message in TALK] == before


THINKING = (
    "{% if thinking is not defined %}{{ 'on' if enable_thinking else 'off' }}"
    "{% elif enable_thinking and thinking %}thinks{% else %}thinks not{% endif %}"
)


@pytest.mark.parametrize(
    ("thinking", "expected"), [(None, "on"), (True, "thinks"), (False, "thinks not")]
)
def test_thinking_is_on_unless_told(thinking: bool | None, expected: str) -> None:
    assert ChatTemplate(THINKING, thinking=thinking).render(TALK) == expected
    assert ChatTemplate(THINKING).render(TALK, thinking=thinking) == expected
    assert ChatTemplate(CHATML, thinking=thinking).render(TALK) == render(CHATML, TALK)


def test_variables_have_the_last_word() -> None:
    told = ChatTemplate(
        "{{ effort }} {{ enable_thinking }}", "", "", True, {"effort": 7, "enable_thinking": "no"}
    )
    assert told.render(TALK) == "7 no"


# -- templates that behave as known ones ---------------------------------------------------


@pytest.mark.parametrize("source", templates.ALL)
@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_two_turns_render(source: str, thinking: bool | None, system: str | None) -> None:
    talk: list[Message] = [
        {"role": "user", "content": "First."},
        assistant_turn("Yes.", "I think."),
        {"role": "user", "content": "Second."},
    ]
    if system is not None:
        talk.insert(0, {"role": "system", "content": system})
    text = ChatTemplate(source, "<s>", "</s>", thinking).render(talk)
    places = [text.index(part) for part in ("First.", "Yes.", "Second.")]
    assert places == sorted(places) and text.count("Yes.") == 1
    assert (system or "") in text
    # Old thoughts are written down again by none of those that are known.
    assert ("I think." in text) == (source == templates.NEW_MODEL)


@pytest.mark.parametrize(("source", "spoken"), templates.SPOKEN.items())
def test_what_a_model_says_is_split_and_its_template_takes_it_again(
    source: str, spoken: str
) -> None:
    template = ChatTemplate(source, "<s>", "</s>")
    talk: list[Message] = [{"role": "user", "content": "<think> or <|channel|>?"}]
    _, state = template.begin(talk)
    assert template.format is not None
    pieces = Splitter(template.format, state).push(spoken, final=True)
    assert pieces == [("I think.", True), ("Yes.", False)]
    again = [*talk, assistant_turn("Yes.", "I think."), talk[0]]
    assert template.begin(again)[1] == state


@pytest.mark.parametrize("source", [*templates.SILENT, CHATML])
def test_models_that_do_not_think(source: str) -> None:
    template = ChatTemplate(source)
    assert template.format is None
    assert template.begin(TALK[1:2])[1] == "start"


def test_thoughts_that_the_template_opens_or_closes() -> None:
    talk = TALK[1:2]
    qwen = ChatTemplate(templates.QWEN3)
    assert [qwen.begin(talk, thinking=each)[1] for each in (None, True)] == ["start", "start"]
    text, state = qwen.begin(talk, thinking=False)
    assert text.endswith("</think>\n\n") and state in ("after", "answer")
    assert ChatTemplate(templates.DEEPSEEK_R1).begin(talk)[1] == "thoughts"


def test_a_template_that_fails_without_the_assistants_turn() -> None:
    source = templates.QWEN3 + "{% if not add_generation_prompt %}{{ 1 / 0 }}{% endif %}"
    assert ChatTemplate(source).begin(TALK[1:2])[1] == "start"


@pytest.mark.parametrize("source", templates.ALL)
def test_an_answer_cut_inside_its_thoughts_does_not_end_the_conversation(source: str) -> None:
    cut = [TALK[1], assistant_turn("", "I th"), TALK[3]]
    text = ChatTemplate(source, "<s>", "</s>").render(cut)
    assert TALK[1]["content"] in text and TALK[3]["content"] in text


# -- the system message --------------------------------------------------------------------


def test_a_system_message_without_a_place_goes_in_front_of_the_next() -> None:
    gemma = ChatTemplate(templates.GEMMA2, "<bos>")
    assert not gemma.has_system_role
    assert gemma.render(TALK[:2]) == (
        "<bos><start_of_turn>user\nBe brief.\nHi <b>\u00e9</b><end_of_turn>\n<start_of_turn>model\n"
    )
    assert gemma.render(TALK) == gemma.render(TALK[:2]).removesuffix("<start_of_turn>model\n") + (
        "<start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n"
        "<start_of_turn>model\n"
    )


@pytest.mark.parametrize(
    ("source", "has"),
    [
        (CHATML, True),
        (templates.LLAMA3, True),
        (templates.HARMONY, True),
        (templates.GEMMA2, False),
        ("{{ messages[-1].content }}", False),
        ("{{ raise_exception('never') }}", False),
    ],
)
def test_which_templates_have_a_system_role(source: str, has: bool) -> None:
    assert ChatTemplate(source).has_system_role == has


# -- what is noted -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "thinking", "system", "words"),
    [
        (templates.QWEN3, False, None, None),
        (templates.QWEN3, True, None, None),  # its own default, but it knows the switch
        (templates.GRANITE, True, None, None),
        (templates.GRANITE, True, "Be brief.", "With a system message"),
        (templates.LLAMA3, True, None, "no switch for thinking: --think changes nothing."),
        (templates.HARMONY, False, None, "--no-think changes nothing. It reads reasoning_effort"),
        (templates.HARMONY, None, "Be brief.", None),
        (templates.GEMMA2, None, "Be brief.", "in front of the first question"),
    ],
)
def test_what_a_template_makes_nothing_of(
    source: str, thinking: bool | None, system: str | None, words: str | None
) -> None:
    notes = ChatTemplate(source, thinking=thinking).notes(system)
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


@pytest.mark.parametrize(
    ("source", "variables", "words"),
    [
        (
            templates.QWEN3,
            {"enable_thinking": False},
            "--chat-template-kwargs sets enable_thinking",
        ),
        (templates.HARMONY, {}, "It reads reasoning_effort: see --reasoning-effort."),
        (
            "{{ thinking_budget }}{{ reasoning_effort }}",
            {},
            "reasoning_effort, thinking_budget: see --reasoning-effort and --chat-template-kwargs.",
        ),
        ("{{ thinking_budget }}", {}, "thinking_budget: see --chat-template-kwargs."),
    ],
)
def test_where_else_thinking_is_decided(
    source: str, variables: dict[str, object], words: str
) -> None:
    (note,) = ChatTemplate(source, thinking=True, variables=variables).notes()
    assert words in note and "--think changes nothing" in note


def test_variables_that_a_template_does_not_read() -> None:
    told = {"reasoning_effort": "low", "other": 1}
    assert ChatTemplate(templates.HARMONY, variables={"reasoning_effort": "low"}).notes() == []
    assert ChatTemplate(templates.HARMONY, variables=told).notes() == [
        "The chat template does not read other."
    ]
    assert "Reasoning: low" in ChatTemplate(templates.HARMONY, variables=told).render(TALK)


# -- messages, names -----------------------------------------------------------------------


def test_chatml_ends_at_its_own_mark() -> None:
    assert ChatTemplate(CHATML).stop == ("<|im_end|>",)
    assert ChatTemplate(templates.LLAMA3).stop == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        (
            {"role": "assistant", "content": "", "reasoning_content": "so", "more": 1},
            {"role": "assistant", "content": "", "reasoning_content": "so"},
        ),
        ({"role": "user", "content": "hi", "reasoning_content": 7}, None),
        ({"role": "user", "content": ["hi"]}, None),
        ({"role": "tool", "content": "hi"}, None),
        ("hi", None),
    ],
)
def test_messages_from_a_file(entry: object, message: Message | None) -> None:
    if message is None:
        with pytest.raises(ValueError, match="role"):
            parse_message(entry)
    else:
        assert parse_message(entry) == message
