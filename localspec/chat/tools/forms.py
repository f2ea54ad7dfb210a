"""How families of models write tool calls, recognized by their chat templates."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.tools.readers import (
    Reader,
    first_of,
    gemma_object,
    json_calls,
    named_calls,
    python_calls,
    tagged_calls,
)
from localspec.chat.tools.tool import as_json

NAME = r"(?P<name>[\w.:/-]{1,128})"


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts with which a family's models write a call.

    A call may begin at one of ``openings``, and at the beginning of an answer at one of ``first``;
    ``read`` parses it there. ``closings`` may follow a call, ``inner`` stand inside; no mark begins
    another's text. To force a call, the grammar writes ``begin`` with the tool's name for NAME, the
    arguments, and ``end``; without ``begin`` none can be forced. The arguments are a JSON object,
    or one ``parameter`` (opening and closing text) each, with KEY for the key and IS_TEXT for
    whether the value is text.
    """

    family: str
    read: Reader
    openings: tuple[str, ...]
    begin: str
    end: str
    closings: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    parameter: tuple[str, str] | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, which may be control tokens."""
        return (*self.openings, *self.closings, *self.inner)


HERMES = CallForm(
    "Hermes",
    json_calls("<tool_call>", "</tool_call>"),
    ("<tool_call>",),
    '<tool_call>\n{"name": "NAME", "arguments": ',
    "}\n</tool_call>",
    ("</tool_call>",),
)
QWEN_XML = CallForm(
    "Qwen3-Coder",
    tagged_calls(
        rf"(?:<(?:seed:)?tool_call>\s*)?<function={NAME}>",
        "<parameter=",
        r"(?P<key>[^>\n]+)>\n?",
        "\n</parameter>",
        "</function>",
        "</tool_call>",
        "</seed:tool_call>",
    ),
    ("<tool_call>", "<function=", "<seed:tool_call>"),
    "<tool_call>\n<function=NAME>\n",
    "</function>\n</tool_call>",
    ("</tool_call>", "</seed:tool_call>"),
    parameter=("<parameter=KEY>\n", "\n</parameter>\n"),
)
GLM = CallForm(
    "GLM",
    tagged_calls(
        rf"<tool_call>\s*{NAME}\s*(?=<arg_key>|</tool_call>)",
        "<arg_key>",
        r"(?P<key>[^<]+)</arg_key>\s*<arg_value>",
        "</arg_value>",
        "</tool_call>",
    ),
    ("<tool_call>",),
    "<tool_call>NAME\n",
    "</tool_call>",
    inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"),
    parameter=("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
)


def _invokes(family: str, wrapper: str, mark: str = "", attribute: str = "") -> CallForm:
    """Calls inside of the tag ``wrapper``; all tags begin with the ``mark`` of a family."""
    opening, invoke = f"<{mark}{wrapper}>", f"<{mark}invoke name="
    return CallForm(
        family,
        tagged_calls(
            rf'(?:{opening}\s*)?{invoke}"{NAME}">',
            f'<{mark}parameter name="',
            r'(?P<key>[^"\n]+)"[^>\n]{0,40}>',
            f"</{mark}parameter>",
            f"</{mark}invoke>",
            f"</{mark}{wrapper}>",
        ),
        (opening, invoke),
        f'{opening}\n{invoke}"NAME">\n',
        f"</{mark}invoke>\n</{mark}{wrapper}>",
        (f"</{mark}{wrapper}>",),
        (mark,) if mark else (),
        parameter=(f'<{mark}parameter name="KEY"{attribute}>', f"</{mark}parameter>\n"),
    )


MINIMAX = _invokes("MiniMax", "minimax:tool_call")
_mistral = first_of(
    json_calls(r"\[TOOL_CALLS\]"),
    named_calls(rf"\[TOOL_CALLS\]\s*{NAME}(?:\[CALL_ID\](?P<id>[\w-]{{1,64}}))?(?:\[ARGS\])?"),
)


def _mistral_form(begin: str, end: str) -> CallForm:
    return CallForm(
        "Mistral", _mistral, ("[TOOL_CALLS]",), begin, end, inner=("[ARGS]", "[CALL_ID]")
    )


MISTRAL_LIST = _mistral_form('[TOOL_CALLS][{"name": "NAME", "arguments": ', "}]")
MISTRAL_NAMED = _mistral_form("[TOOL_CALLS]NAME[ARGS]", "")
LLAMA = CallForm(
    "Llama 3",
    # Bare JSON may be the answer itself: a call must begin with one of these keys.
    json_calls(r'<\|python_tag\|>|(?=\{\s*"(?:name|type|function|parameters)"\s*:)'),
    ("<|python_tag|>",),
    '{"name": "NAME", "parameters": ',
    "}",
    closings=(";",),
    first=("{",),
)
HARMONY = CallForm(
    "gpt-oss",
    named_calls(rf"to=functions\.{NAME}(?:[^\w.:/-][^{{]*?)?<\|message\|>"),
    ("to=functions.",),
    " to=functions.NAME<|channel|>commentary json<|message|>",
    "",
    inner=("<|channel|>", "<|message|>"),
)
_deepseek = named_calls(
    r"(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?"
    rf"{NAME}(?:<｜tool▁sep｜>|\s*```(?:json)?)",
    closing="<｜tool▁call▁end｜>",
)


def _deepseek_form(call: str, end: str) -> CallForm:
    return CallForm(
        "DeepSeek",
        _deepseek,
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}",
        f"{end}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ("<｜tool▁sep｜>",),
    )


DEEPSEEK = _deepseek_form("function<｜tool▁sep｜>NAME\n```json\n", "\n```")
DEEPSEEK_V31 = _deepseek_form("NAME<｜tool▁sep｜>", "")
KIMI = CallForm(
    "Kimi K2",
    named_calls(
        r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*"
        r"(?P<id>(?:functions\.)?(?P<name>[\w./-]{1,128})(?::\d{1,6})?)\s*"
        r"<\|tool_call_argument_begin\|>",
        closing="<|tool_call_end|>",
    ),
    ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
    "<|tool_call_end|><|tool_calls_section_end|>",
    ("<|tool_call_end|>", "<|tool_calls_section_end|>"),
    ("<|tool_call_argument_begin|>",),
)
FUNCTIONARY = CallForm(
    "Functionary",
    named_calls(rf"<function={NAME}>", closing="</function>"),
    ("<function=",),
    "<function=NAME>",
    "</function>",
    ("</function>",),
)


GEMMA = CallForm(
    "Gemma 4",
    named_calls(rf"<\|tool_call>\s*call:{NAME}", gemma_object),
    ("<|tool_call>",),
    "",
    "",
    ("<tool_call|>",),
    inner=('<|"|>',),
)


def _dsml(wrapper: str) -> CallForm:
    """DeepSeek's markup language."""
    return _invokes("DeepSeek DSML", wrapper, "｜DSML｜", ' string="IS_TEXT"')


def _listed(family: str, opening: str, closing: str, keys: tuple[str, str]) -> CallForm:
    """A list of objects between two marks."""
    begin = f'{opening}[{{"{keys[0]}": "NAME", "{keys[1]}": '
    header = "".join(f"\\{c}" if c in "|[]" else c for c in opening)
    closings = (closing,) if closing else ()
    return CallForm(
        family, json_calls(header, closing), (opening,), begin, "}]" + closing, closings
    )


_lfm = _listed("LFM2", "<|tool_call_start|>", "<|tool_call_end|>", ("name", "arguments"))
_lfm_python = python_calls(r"<\|tool_call_start\|>", "<|tool_call_end|>")
LFM = replace(_lfm, read=first_of(_lfm.read, _lfm_python))
GRANITE = _listed("Granite 3", "<|tool_call|>", "", ("name", "arguments"))
NEMOTRON = _listed("Nemotron Nano 2", "<TOOLCALL>", "</TOOLCALL>", ("name", "arguments"))
COMMAND = _listed("Command R7B", "<|START_ACTION|>", "<|END_ACTION|>", ("tool_name", "parameters"))
APRIEL = _listed("Apriel", "<tool_calls>", "</tool_calls>", ("name", "arguments"))

# For templates that write no calls: their models are asked to write Hermes' form.
GENERIC = replace(HERMES, family="generic")


def written(form: CallForm, name: str, arguments: Mapping[str, Any]) -> str:
    """A call as a model of this form writes it; in `GENERIC` if no grammar can write it."""
    form = form if form.begin else GENERIC
    inner = as_json(arguments)
    if form.parameter is not None:
        inner = "".join([_parameter(form.parameter, *each) for each in arguments.items()])
    return f"{form.begin.replace('NAME', name)}{inner}{form.end}"


def _parameter(around: tuple[str, str], key: str, value: Any) -> str:
    opening, closing = (part.replace("KEY", key) for part in around)
    opening = opening.replace("IS_TEXT", str(isinstance(value, str)).lower())
    return f"{opening}{value if isinstance(value, str) else as_json(value)}{closing}"


# By texts that a template must contain, all of them; the first match counts.
_KNOWN: Mapping[tuple[str, ...], CallForm] = {
    ("｜DSML｜", "function_calls>"): _dsml("function_calls"),  # V3.2
    ("｜DSML｜", "tool_calls>"): _dsml("tool_calls"),  # V4
    ("<|tool_call>", '<|"|>'): GEMMA,
    ("<|channel|>",): HARMONY,
    ("[TOOL_CALLS]", "[ARGS]"): MISTRAL_NAMED,
    ("[TOOL_CALLS]",): MISTRAL_LIST,
    ("<｜tool▁calls▁begin｜>", "```json"): DEEPSEEK,
    ("<｜tool▁calls▁begin｜>",): DEEPSEEK_V31,
    ("<|tool_call_argument_begin|>",): KIMI,
    ("<|START_ACTION|>", "tool_name"): COMMAND,
    ("minimax:tool_call", "<invoke name="): MINIMAX,
    ("<function=", "<parameter="): QWEN_XML,
    ("<arg_key>", "<tool_call>"): GLM,
    ("<|tool_list_start|>",): LFM,
    ("<|tool_call_start|>",): LFM,
    ("List of tools: [", "<|im_start|>"): LFM,
    ("<tool_calls>[",): APRIEL,
    ("<TOOLCALL>[",): NEMOTRON,
    ("<tool_call>", '"arguments"'): HERMES,
    ("<|tool_call|>",): GRANITE,
    ("<function=",): FUNCTIONARY,
    ("<|start_header_id|>", '{"name": ', '"parameters": '): LLAMA,
}
FORMS = tuple(_KNOWN.values())


def call_form(template: str) -> CallForm | None:
    """The form of calls in a template's source; None if it is not known."""
    found = (form for marks, form in _KNOWN.items() if all(mark in template for mark in marks))
    return next(found, None)
