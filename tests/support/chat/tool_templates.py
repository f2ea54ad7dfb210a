"""Short chat templates that tell tools and write calls as families of models do."""

_SKELETON = """\
{%- if tools -%}
    {{- "<|tools|>" -}}
    {%- for tool in tools -%}{{- tool | tojson -}}{%- endfor -%}
    {{- "<|turn_end|>" -}}
{%- endif -%}
{%- for message in messages -%}
    {{- "<|" + message.role + "|>" + message.content -}}
    {%- if message.tool_calls -%}
        CALLS
    {%- endif -%}
    {{- "<|turn_end|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
_EACH = "{%- for call in message.tool_calls -%}{%- set call = call.function -%}ONE{%- endfor -%}"


def _family(calls: str) -> str:
    return _SKELETON.replace("CALLS", calls)


def _each(one: str) -> str:
    return _family(_EACH.replace("ONE", one))


def _listed(opening: str, closing: str, name: str, arguments: str) -> str:
    """A list of objects between marks."""
    one = (
        f'{{{{- \'{{"{name}": "\' + call.name + \'", "{arguments}": \' -}}}}'
        '{{- call.arguments | tojson + "}" -}}{{- ", " if not loop.last -}}'
    )
    return _family(f'{{{{- "{opening}[" -}}}}{_EACH.replace("ONE", one)}{{{{- "]{closing}" -}}}}')


HERMES = _each(
    '{{- \'\\n<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' -}}'
    "{{- call.arguments | tojson + '}\\n</tool_call>' -}}"
)
QWEN_XML = _each(
    "{{- '\\n<tool_call>\\n<function=' + call.name + '>\\n' -}}"
    "{%- for key, value in call.arguments | items -%}"
    "{{- '<parameter=' + key + '>\\n' -}}"
    "{{- value if value is string else value | tojson -}}"
    "{{- '\\n</parameter>\\n' -}}{%- endfor -%}"
    "{{- '</function>\\n</tool_call>' -}}"
)
GLM = _each(
    "{{- '\\n<tool_call>' + call.name + '\\n' -}}"
    "{%- for key, value in call.arguments.items() -%}"
    "{{- '<arg_key>' + key + '</arg_key>\\n<arg_value>' -}}"
    "{{- value if value is string else value | tojson -}}"
    "{{- '</arg_value>\\n' -}}{%- endfor -%}"
    "{{- '</tool_call>' -}}"
)
MINIMAX = _family(
    "{{- '\\n<minimax:tool_call>\\n' -}}"
    + _EACH.replace(
        "ONE",
        "{{- '<invoke name=\"' + call.name + '\">\\n' -}}"
        "{%- for key, value in call.arguments.items() -%}"
        "{{- '<parameter name=\"' + key + '\">' -}}"
        "{{- value if value is string else value | tojson -}}"
        "{{- '</parameter>\\n' -}}{%- endfor -%}"
        "{{- '</invoke>\\n' -}}",
    )
    + "{{- '</minimax:tool_call>' -}}"
)
MISTRAL_LIST = _listed("[TOOL_CALLS]", "", "name", "arguments")
MISTRAL_NAMED = _family(
    "{%- for call in message.tool_calls -%}"
    "{%- if call.id | length != 9 -%}"
    "{{- raise_exception('An id of a call needs nine characters.') -}}{%- endif -%}"
    "{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' -}}"
    "{{- call.function.arguments | tojson -}}"
    "{%- endfor -%}"
)
DEEPSEEK = _family(
    "{{- '<｜tool▁calls▁begin｜>' -}}"
    + _EACH.replace(
        "ONE",
        "{{- '\\n' if not loop.first -}}"
        "{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.name + '\\n```json\\n' -}}"
        "{{- call.arguments | tojson + '\\n```<｜tool▁call▁end｜>' -}}",
    )
    + "{{- '<｜tool▁calls▁end｜>' -}}"
)
DEEPSEEK_V31 = _family(
    "{{- '<｜tool▁calls▁begin｜>' -}}"
    + _EACH.replace(
        "ONE",
        "{{- '<｜tool▁call▁begin｜>' + call.name + '<｜tool▁sep｜>' -}}"
        "{{- call.arguments | tojson + '<｜tool▁call▁end｜>' -}}",
    )
    + "{{- '<｜tool▁calls▁end｜>' -}}"
)
KIMI = _family(
    "{{- '<|tool_calls_section_begin|>' -}}"
    + _EACH.replace(
        "ONE",
        "{{- '<|tool_call_begin|>functions.' + call.name + ':' + loop.index0 | string -}}"
        "{{- '<|tool_call_argument_begin|>' + call.arguments | tojson + '<|tool_call_end|>' -}}",
    )
    + "{{- '<|tool_calls_section_end|>' -}}"
)
LFM = _family(
    "{{- '<|tool_call_start|>[' -}}"
    + _EACH.replace(
        "ONE",
        '{{- \'{"name": "\' + call.name + \'", "arguments": \' + call.arguments | tojson + "}" -}}'
        '{{- ", " if not loop.last -}}',
    )
    + "{{- ']<|tool_call_end|>' -}}"
)
GRANITE = _listed("<|tool_call|>", "", "name", "arguments")
NEMOTRON = _listed("<TOOLCALL>", "</TOOLCALL>", "name", "arguments")
COMMAND = _listed("<|START_ACTION|>", "<|END_ACTION|>", "tool_name", "parameters")
APRIEL = _listed("\\n<tool_calls>", "</tool_calls>", "name", "arguments")
FUNCTIONARY = _each(
    "{{- '<function=' + call.name + '>' + call.arguments | tojson + '</function>' -}}"
)

DSML = _family(
    "{{- '\\n\\n<｜DSML｜function_calls>\\n' -}}"
    + _EACH.replace(
        "ONE",
        "{{- '<｜DSML｜invoke name=\"' + call.name + '\">\\n' -}}"
        "{%- for key, value in call.arguments.items() -%}"
        "{{- '<｜DSML｜parameter name=\"' + key + '\" string=\"' -}}"
        "{{- 'true\">' + value if value is string else 'false\">' + value | tojson -}}"
        "{{- '</｜DSML｜parameter>\\n' -}}{%- endfor -%}"
        "{{- '</｜DSML｜invoke>\\n' -}}",
    )
    + "{{- '</｜DSML｜function_calls>' -}}"
)
DSML_V4 = DSML.replace("function_calls", "tool_calls")
GEMMA = (
    "{%- macro plain(value, quote='') -%}"
    "{%- if value is string -%}{{- '<|\"|>' + value + '<|\"|>' -}}"
    "{%- elif value is mapping -%}"
    "{{- '{' -}}{%- for key, each in value | items -%}"
    "{{- quote + key + quote + ':' + plain(each, '<|\"|>') -}}{{- ',' if not loop.last -}}"
    "{%- endfor -%}{{- '}' -}}"
    "{%- elif value is sequence -%}"
    "{{- '[' -}}{%- for each in value -%}"
    "{{- plain(each, '<|\"|>') -}}{{- ',' if not loop.last -}}{%- endfor -%}{{- ']' -}}"
    "{%- else -%}{{- value | tojson -}}{%- endif -%}{%- endmacro -%}"
) + _each("{{- '<|tool_call>call:' + call.name + plain(call.arguments) + '<tool_call|>' -}}")

# Takes the arguments as text, as some older templates do.
HERMES_TEXT = _each(
    '{{- \'\\n<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' -}}'
    "{{- call.arguments + '}\\n</tool_call>' -}}"
)

# One call in one message, and thoughts or text before it.
LLAMA = """\
{%- macro header(role) -%}{{- "<|start_header_id|>" + role + "<|end_header_id|>" -}}{%- endmacro -%}
{%- if tools is defined -%}
    {{- header("system") + 'Call with {"name": ..., "parameters": ...}.' -}}
    {%- for tool in tools -%}{{- tool | tojson -}}{%- endfor -%}
    {{- "<|eot_id|>" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if "tool_calls" in message -%}
        {%- if message.tool_calls | length != 1 -%}
            {{- raise_exception("One call at a time.") -}}
        {%- endif -%}
        {%- set call = message.tool_calls[0].function -%}
        {{- header("assistant") + '{"name": "' + call.name + '", "parameters": ' -}}
        {{- call.arguments | tojson + "}" -}}
    {%- else -%}
        {{- header("ipython" if message.role == "tool" else message.role) + message.content -}}
    {%- endif -%}
    {{- "<|eot_id|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- header("assistant") -}}{%- endif -%}
"""
HARMONY = """\
{%- if tools -%}
    {{- "<|start|>developer<|message|># Tools" -}}
    {%- for tool in tools -%}{{- tool.function | tojson -}}{%- endfor -%}
    {{- "<|end|>" -}}
{%- endif -%}
{%- set last = namespace(name="") -%}
{%- for message in messages -%}
    {%- if message.tool_calls -%}
        {%- if message.content and message.thinking -%}
            {{- raise_exception("Thoughts or text, not both.") -}}
        {%- endif -%}
        {%- set call = message.tool_calls[0].function -%}
        {%- set last.name = call.name -%}
        {%- if message.thinking -%}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking -}}
            {{- "<|end|>" -}}
        {%- endif -%}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json" -}}
        {{- "<|message|>" + call.arguments | tojson + "<|call|>" -}}
    {%- elif message.role == "tool" -%}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" -}}
        {{- message.content | tojson + "<|end|>" -}}
    {%- elif message.role == "assistant" -%}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

SEVERAL = {  # calls in one answer
    "Hermes": HERMES,
    "Hermes, arguments as text": HERMES_TEXT,
    "Qwen3-Coder": QWEN_XML,
    "GLM": GLM,
    "MiniMax": MINIMAX,
    "Mistral": MISTRAL_LIST,
    "Mistral, named": MISTRAL_NAMED,
    "DeepSeek": DEEPSEEK,
    "DeepSeek V3.1": DEEPSEEK_V31,
    "Kimi K2": KIMI,
    "LFM2": LFM,
    "Granite 3": GRANITE,
    "Nemotron Nano 2": NEMOTRON,
    "Command R7B": COMMAND,
    "Apriel": APRIEL,
    "Functionary": FUNCTIONARY,
    "DeepSeek DSML": DSML,
    "DeepSeek DSML of V4": DSML_V4,
    "Gemma 4": GEMMA,
}
ONE_CALL = {"Llama 3": LLAMA, "gpt-oss": HARMONY}
ALL = SEVERAL | ONE_CALL
