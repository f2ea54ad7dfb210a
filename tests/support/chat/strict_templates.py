"""Short chat templates of our own, each with a rule by which a family refuses or loses messages."""

from tests.support.chat.tool_templates import HERMES, MISTRAL_NAMED

_PLAIN = """\
{%- for message in messages -%}
    {{- "<|" + message.role + "|>" + message.content + "<|end|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
_ALTERNATING = """\
{%- set seen = namespace(index=0) -%}
{%- for message in messages if message.role in ("user", "assistant") and not message.tool_calls -%}
    {%- if (message.role == "user") != (seen.index % 2 == 0) -%}
        {{- raise_exception("Roles must alternate.") -}}
    {%- endif -%}
    {%- set seen.index = seen.index + 1 -%}
{%- endfor -%}
"""

STRICT = {
    "system first": "{%- for message in messages -%}"
    '{%- if message.role == "system" and not loop.first -%}'
    '{{- raise_exception("A system message must be the first.") -}}'
    "{%- endif -%}{%- endfor -%}" + HERMES,
    "a question": '{%- if messages | selectattr("role", "equalto", "user") | list | length == 0 -%}'
    '{{- raise_exception("No question.") -}}{%- endif -%}' + HERMES,
    "alternating": _ALTERNATING + MISTRAL_NAMED,
    "alternating, no system": '{%- if messages[0].role == "system" -%}'
    '{{- raise_exception("No system.") -}}{%- endif -%}' + _ALTERNATING + _PLAIN,
    "last system wins": '{%- set ns = namespace(system="") -%}'
    '{%- for message in messages if message.role == "system" -%}'
    "{%- set ns.system = message.content -%}{%- endfor -%}{{- ns.system -}}"
    + HERMES.replace(
        "for message in messages", 'for message in messages if message.role != "system"'
    ),
    "system before a question": '{%- if messages[-1].role == "user" and '
    'messages[0].role == "system" -%}{{- messages[0].content -}}{%- endif -%}'
    + HERMES.replace(
        "for message in messages", 'for message in messages if message.role != "system"'
    ),
    "text or calls": HERMES.replace(
        "message.content -}}", "('' if message.tool_calls else message.content) -}}"
    ),
    "result behind a call": "{%- set ns = namespace(called=false) -%}"
    "{%- for message in messages -%}"
    '{%- if message.role == "tool" and not ns.called -%}'
    '{{- raise_exception("No call.") -}}{%- endif -%}'
    "{%- set ns.called = ns.called or message.tool_calls | length > 0 -%}{%- endfor -%}" + HERMES,
    "results lost": _PLAIN.replace("in messages", 'in messages if message.role != "tool"'),
    "calls lost": _PLAIN,
    "list of its own": "{%- set ns = namespace(ids=[]) -%}{%- set _ = ns.ids.append(1) -%}"
    "{{- ns.ids.pop() -}}" + HERMES,
}
