"""Short chat templates that behave as known ones do: the same variables, tags and errors."""

HARMONY = """\
{%- set effort = reasoning_effort if reasoning_effort is defined else "medium" -%}
{{- "<|start|>system<|message|>Today is " + strftime_now("%Y-%m-%d") -}}
{{- ". Reasoning: " + effort + "<|end|>" -}}
{%- if messages[0].role == "system" -%}
    {{- "<|start|>developer<|message|># Instructions\\n\\n" + messages[0].content + "<|end|>" -}}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}
        {%- if "<|channel|>analysis<|message|>" in message.content -%}
            {{- raise_exception("You have passed a message containing <|channel|> tags.") -}}
        {%- endif -%}
        {%- if loop.last and not add_generation_prompt and "thinking" in message -%}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking -}}
            {{- "<|end|>" -}}
        {%- endif -%}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
    {%- else -%}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""

QWEN3 = """\
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
    {%- if message.role == "user" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set content, thoughts = message.content, "" -%}
    {%- if message.role == "assistant" -%}
        {%- if message.reasoning_content is string -%}
            {%- set thoughts = message.reasoning_content -%}
        {%- elif "</think>" in content -%}
            {%- set thoughts = content.split("</think>")[0].split("<think>")[-1] -%}
            {%- set content = content.split("</think>")[-1].lstrip("\\n") -%}
        {%- endif -%}
        {%- if thoughts and loop.index0 > ns.last -%}
            {%- set content = "<think>\\n" + thoughts + "\\n</think>\\n\\n" + content -%}
        {%- endif -%}
    {%- endif -%}
    {{- "<|im_start|>" + message.role + "\\n" + content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
    {%- if enable_thinking is defined and enable_thinking is false -%}
        {{- "<think>\\n\\n</think>\\n\\n" -}}
    {%- endif -%}
{%- endif -%}
"""

# Opens the thoughts itself, as DeepSeek R1 and QwQ do.
DEEPSEEK_R1 = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == "assistant" -%}
        {{- "<|Assistant|>" + message.content.split("</think>")[-1] + eos_token -}}
    {%- else -%}
        {{- "<|User|>" + message.content -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|Assistant|><think>\\n" -}}{%- endif -%}
"""

GRANITE = """\
{%- if messages[0].role == "system" -%}
    {%- set system, messages = messages[0].content, messages[1:] -%}
{%- elif thinking -%}
    {%- set system = "Write your thoughts between <think></think> and your response between "
        + "<response></response>." -%}
{%- else -%}
    {%- set system = "You are helpful." -%}
{%- endif -%}
{{- "<|start_of_role|>system<|end_of_role|>" + system + "<|end_of_text|>\\n" -}}
{%- for message in messages -%}
    {{- "<|start_of_role|>" + message.role + "<|end_of_role|>" + message.content -}}
    {{- "<|end_of_text|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start_of_role|>assistant<|end_of_role|>" -}}{%- endif -%}
"""

MINISTRAL = """\
{{- bos_token -}}
{%- set start = 0 -%}
{%- if messages[0].role == "system" -%}
    {{- "[SYSTEM_PROMPT]" + messages[0].content + "[/SYSTEM_PROMPT]" -}}
    {%- set messages = messages[1:] -%}
{%- else -%}
    {{- "[SYSTEM_PROMPT]First think: [THINK]thoughts[/THINK], then answer.[/SYSTEM_PROMPT]" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}
        {{- raise_exception("Conversation roles must alternate.") -}}
    {%- endif -%}
    {%- if message.role == "user" -%}
        {{- "[INST]" + message.content + "[/INST]" -}}
    {%- elif message.content == "" -%}
        {{- raise_exception("Assistant message must have a string or a list of chunks.") -}}
    {%- elif message.content is string -%}
        {{- message.content + eos_token -}}
    {%- else -%}
        {%- for block in message.content -%}
            {{- block.text if block.type == "text" else "[THINK]" + block.thinking + "[/THINK]" -}}
        {%- endfor -%}
        {{- eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""

GEMMA2 = """\
{{- bos_token -}}
{%- if messages[0].role == "system" -%}
    {{- raise_exception("System role not supported") -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) -%}
        {{- raise_exception("Conversation roles must alternate user/assistant.") -}}
    {%- endif -%}
    {%- set role = "model" if message.role == "assistant" else message.role -%}
    {{- "<start_of_turn>" + role + "\\n" + message.content | trim + "<end_of_turn>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<start_of_turn>model\\n" -}}{%- endif -%}
"""

LLAMA3 = """\
{%- for message in messages -%}
    {%- if loop.first -%}{{- bos_token -}}{%- endif -%}
    {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\\n\\n" -}}
    {{- message.content | trim + "<|eot_id|>" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" -}}
{%- endif -%}
"""

# Of a model that nobody has heard of: its tags show only where it writes thoughts down.
NEW_MODEL = """\
{%- for message in messages -%}
    {{- "[" + message.role + "]" -}}
    {%- if message.reasoning -%}
        {{- "<muse>\\n" + message.reasoning + "\\n</muse>\\n" -}}
    {%- endif -%}
    {{- message.content -}}
{%- endfor -%}
{%- if add_generation_prompt -%}[assistant]{%- endif -%}
"""

# What a model says behind each of them, its thoughts ("I think.") and its answer ("Yes.").
SPOKEN = {
    HARMONY: "<|channel|>analysis<|message|>I think.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Yes.",
    QWEN3: "<think>\nI think.\n</think>\n\nYes.",
    DEEPSEEK_R1: "I think.\n</think>\n\nYes.",
    GRANITE: "<think>I think.</think>\n<response>Yes.</response>",
    MINISTRAL: "[THINK]I think.[/THINK]Yes.",
    NEW_MODEL: "<muse>\nI think.\n</muse>\nYes.",
}
SILENT = (GEMMA2, LLAMA3)  # whose models do not think
ALL = (*SPOKEN, *SILENT)
