"""The marks that models put around their thoughts, found by what their templates say."""

import re
from collections.abc import Mapping

from localspec.chat.reasoning import Format, State


def tagged(opening: str, closing: str, begin: tuple[str, ...] = (), end: str = "") -> Format:
    """Thoughts between two tags in front of the answer, which some models enclose as well.

    Tags count where a model writes them for their purpose: the opening one before all else, so
    that an answer may speak of them.
    """
    answer = dict.fromkeys(begin, "behind")
    return {
        "start": State({opening: "thoughts", closing: "behind"} | answer, otherwise="answer"),
        "thoughts": State({closing: "behind"}, "reasoning", strips=True),
        "behind": State(answer, strips=True, otherwise="answer"),
        "answer": State({end: "answer"} if end else {}),
    }


def _harmony(call: str) -> Format:
    """The channels of gpt-oss: ``<|channel|>analysis<|message|>...<|end|>``, then the answer.

    The same as in llama.cpp's `common_chat_params_init_gpt_oss`: analysis is thought, final and
    commentary are said. A call of a tool (``to=``) leads to the state ``call``: its whole text, or
    a thought where nobody offered tools.
    """
    header = {"<|start|>": "header", "<|channel|>": "header"}
    headers = {"<|end|>": "start"} | header
    thinking = {"analysis": "thinking header", " to=": call}
    return {
        "start": State({"<|message|>": "answer", "to=": call} | header, otherwise="answer"),
        "header": State({"<|message|>": "answer"} | thinking, "dropped"),
        "thinking header": State({"<|message|>": "thoughts", "final": "header"}, "dropped"),
        "thoughts": State(headers, "reasoning", strips=True),
        "answer": State(headers),
        "call": State({"<|end|>": "start", "<|call|>": "start", "<|start|>": "header"}, keeps=True),
    }


def _gemma() -> Format:
    """Gemma 4, which may think again behind a part of its answer."""
    opening, closing = "<|channel>thought", "<channel|>"
    again = State({opening: "thoughts", closing: "answer"})
    return {**tagged(opening, closing), "answer": again}


_HARMONY = "<|channel|>"
_HARMONY_WITH_CALLS = _harmony("call")

# By what a template must mention; the first that fits counts.
_KNOWN: Mapping[str, Format] = {
    _HARMONY: _harmony("thinking header"),  # gpt-oss
    "<|channel>": _gemma(),
    "<response></response>": tagged(  # Granite 3.3
        "<think>", "</think>", ("<response>",), "</response>"
    ),
    "[THINK]": tagged("[THINK]", "[/THINK]"),  # Magistral, Ministral
    "<seed:think>": tagged("<seed:think>", "</seed:think>"),  # Seed-OSS
    "<mm:think>": tagged("<mm:think>", "</mm:think>"),  # MiniMax-M3
    "<|inner_prefix|>": tagged("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    "<|START_TEXT|>": tagged(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_TEXT|>",), "<|END_TEXT|>"
    ),  # Cohere2
    "<|START_RESPONSE|>": tagged(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>",), "<|END_RESPONSE|>"
    ),  # Command R7B
    "<|begin|>assistant<|think|>": tagged(
        "<|think|>", "<|end|>", ("<|content|>", "<|begin|>assistant<|content|>"), "<|end|>"
    ),  # Solar Open
    "<|end_of_msg|>": tagged(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>",),
        "<|close|>response<|sep|>",
    ),  # Kimi K3
    "[BEGIN FINAL RESPONSE]": tagged(
        "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", end="[END FINAL RESPONSE]"
    ),  # Apriel
    "</think>": tagged("<think>", "</think>"),  # Qwen3, DeepSeek R1 and many more
    "<think>": tagged("<think>", "</think>"),
}
_TAG = r"[<\[][^\s<>\[\]]{1,38}[>\]]"


def known_format(template: str, calls: bool = False) -> Format | None:
    """The format that a template's text tells of; None where it tells of none.

    With ``calls``, those of tools are in the answer.
    """
    if calls and _HARMONY in template:
        return _HARMONY_WITH_CALLS
    return next((known for mark, known in _KNOWN.items() if mark in template), None)


def format_between(rendered: str, thoughts: str, answer: str) -> Format | None:
    """The format that a rendering shows: the tags on both sides of ``thoughts``.

    None where there are none, or where the same tag also opens ``answer``.
    """
    before, _, after = rendered.partition(thoughts)
    opening, closing = re.search(rf"({_TAG})\s*$", before), re.match(rf"\s*({_TAG})", after)
    if opening is None or closing is None:
        return None
    if after.partition(answer)[0].rstrip().endswith(opening.group(1)):
        return None
    return tagged(opening.group(1), closing.group(1))
