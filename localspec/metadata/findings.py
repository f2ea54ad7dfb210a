"""Rules for a model file and for a pair, with level and hint, and findings that break them.

They are checked in `checks` and `localspec.pairing`.
"""

from dataclasses import dataclass
from typing import Literal

from localspec.core.formatting import one_line

Level = Literal["error", "warning", "info"]

SHOWN_CHARACTERS = 40  # of a token's text

# Names that llama.cpp gives the same pre-tokenizer (`llama_vocab::impl::load`), one set a line.
_PRE_ALIASES = """
llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano
gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en \
jina-v2-code roberta-bpe exaone4
qwen2 deepseek-r1-qwen kormo f2llmv2 megrez
gemma4 granite-embed-multi-311m
chatglm-bpe glm4 glm5
gpt-4o llama4 kanana2 talkie
tiny_aya cohere2moe
bailingmoe bailingmoe2 llada-moe
"""
_PRE_ALONE = """
default minicpm5 deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder jais-2
sarvam-moe whitespace refact command-r qwen35 stablelm2 olmo dbrx smaug-bpe poro-chat viking jais
tekken smollm codeshell bloom gpt3-finnish exaone exaone-moe chameleon minerva-7b
granite-embed-multi-97m superbpe trillion granite-docling seed-coder hunyuan hunyuan-dense hy_v4
joyai-llm kimi-k2 ufakzeka grok-2 afmoe laguna minimax-m2 solar-open mellum2
"""
PRE_GROUPS: dict[str, str] = {name: name for name in _PRE_ALONE.split()} | {
    name: line.split()[0] for line in _PRE_ALIASES.strip().splitlines() for name in line.split()
}

_CONVERT = "Convert the model again."
_CRASH = "This file would crash llama.cpp: download it again."
_FIRST_PROMPT = "The first prompt would crash llama.cpp: convert the model again."
_TUNED_ALIKE = "A re-quantized file may fix this; else use a draft tuned the same way."
_OTHER_TOKENIZER = "A different tokenizer: choose a draft of the same family."
_HEADS_OF_TARGET = "Get the heads that were made for this target."
_OLD_BUILDS = "Builds of llama.cpp before April 2026 refuse this."

# Hints of the errors that llama.cpp raises too, by loading the file or by its own comparison.
REFUSED_BY_LLAMA_CPP: dict[str, str] = {
    "unknown-architecture": (
        "Get the model from its repository on the Hub, as Ollama has formats of its own; or "
        "upgrade llama-cpp-python."
    ),
    "unknown-tensor": (
        "llama.cpp loads no such file: get the model from its repository on the Hub, as Ollama "
        "stores vision in the same file."
    ),
    "sidecar": "Give the model itself.",
    "vocabulary-only": "Give the complete model to generate text.",
    "no-tokenizer": _CONVERT,
    "no-vocabulary": "This file would crash llama.cpp: give a text model.",
    "unknown-tokenizer": "Upgrade llama-cpp-python.",
    "no-merges": _CONVERT,
    "unknown-pre": "Upgrade llama-cpp-python, or convert the model again.",
    "duplicate-tokens": "This file would crash llama.cpp: convert the model again.",
    "byte-number": "llama.cpp cannot load this: convert the model again.",
    "token-length": _CRASH,
    "embedding-size": "Weights and tokenizer differ: convert the model again.",
    "no-bos-id": _FIRST_PROMPT,
    "no-eos-id": _FIRST_PROMPT,
    "vocab-type": "Choose a draft of the target's family.",
    "add-bos": _TUNED_ALIKE,
    "bos-id": _TUNED_ALIKE,
    "add-eos": _TUNED_ALIKE,
    "eos-id": _TUNED_ALIKE,
    "vocab-size": "Choose a draft of the target's family and generation.",
    "token-text-normal": _OTHER_TOKENIZER,
    "token-text-byte": _OTHER_TOKENIZER,
    "token-text-user-defined": "Other words were added: use a draft tuned the same way.",
    "token-text-control": (
        "The same base but another generation or fine-tune: use a draft tuned the same way."
    ),
    "token-text-unused": "One side does not use these ids, but llama.cpp refuses the pair.",
    "token-text-padding": (
        "One side is of a newer generation: use a draft of the target's generation."
    ),
    # Of heads, by an exception or an assertion.
    "heads-header": "This file would crash llama.cpp: get another conversion of it.",
    "heads-missing": "Get a conversion of the model that has its heads, or a sidecar.",
    "heads-architecture": _HEADS_OF_TARGET,
    "heads-width": _HEADS_OF_TARGET,
    "heads-layers": _HEADS_OF_TARGET,
    "heads-vocabulary": _HEADS_OF_TARGET,
    "heads-unsupported": "Choose an ordinary draft model.",
}
_ERRORS = REFUSED_BY_LLAMA_CPP | {
    "does-not-run": "Get the file again, or convert it again.",
    "no-byte-tokens": "Some prompts would crash llama.cpp: convert the model again.",
    "not-autoregressive": "Only models that continue a text token by token can be used.",
    "trimmed-for-another": "Trim one for this target with `localspec draft make`.",
}
_WARNINGS = {
    "no-chat-template": (
        "A base model only continues text: ask it with --raw, or by /v1/completions of a server. "
        "Other prompts are ChatML, as in llama.cpp."
    ),
    "split-marks": (
        "Prompts spell them in pieces, so answers are worse and may begin with such marks: get "
        "another file of this model, or convert it again with a newer converter."
    ),
    "draft-vocab-larger": (
        "localspec cuts a draft at the first id the target lacks; llama.cpp's own tools fail."
    ),
    "pre-differs": "The draft learned another split of text: expect less acceptance.",
    "draft-not-smaller": "Choose a smaller draft.",
    "other-vocabulary": (
        "It drafts by text: fewer of its tokens are accepted, and each round takes one or two "
        "more steps of it. --acceptance rejection, --branches and `draft make --vocab` need a "
        "draft of the target's vocabulary."
    ),
    "small-ratio": "This draft is too large to help much; use a smaller one.",
}
_INFOS = {
    "sliding-window": "Rejected tokens are rolled back; a longer rollback reads tokens again.",
    "heads-left-out": "Only --draft mtp would need them.",
    "trimmed-vocabulary": "Only localspec can use such a file; the target verifies all tokens.",
    "draft-context": "Of a longer text the draft sees the most recent part.",
    "target-vocab-larger": (
        "Drafting rests while such a token is in the draft's context; llama.cpp's own tools fail."
    ),
    "vocab-size-old-limit": "Builds of llama.cpp of 2024 refuse this.",
    "bos-id-unused": _OLD_BUILDS,
    "eos-id-unused": _OLD_BUILDS,
    "end-tokens": "Generation ends on the target's tokens.",
    "first-ids": "llama.cpp does not compare these.",
    "mixture-of-experts": "Expect little gain, or a loss, on a GPU.",
    "chat-template": "The target's is used.",
    "license": "Check that they suit your use.",
    "tied-embedding": "Its type decides much of what a step of a small draft costs.",
    "draft-quantization": "In Q4_0 it may be right more often: compare with `localspec bench`.",
    "quantization-width": "Some tensors have more bits instead: Q4_0 is smaller and faster.",
}
_BY_LEVEL: dict[Level, dict[str, str]] = {"error": _ERRORS, "warning": _WARNINGS, "info": _INFOS}
# Every rule with its usual level, and the hint with the next step.
RULES = {rule: (level, hint) for level, hints in _BY_LEVEL.items() for rule, hint in hints.items()}
# Refused by llama.cpp, and harmless: the target verifies by id, so no text can be corrupted. That
# holds if ordinary words differ, too, but hardly a token would be accepted.
LENIENT = frozenset(
    "add-bos bos-id add-eos eos-id vocab-size token-text-control token-text-unused "
    "token-text-padding".split()
)

# About the ids of both. A model that differs in more than LENIENT drafts by text.
VOCABULARY = LENIENT | {
    "vocab-type", "token-text-normal", "token-text-byte", "token-text-user-defined",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One fact about a file or a pair: `rule` is a stable slug, `message` has the values."""

    level: Level
    rule: str
    message: str
    hint: str

    def as_json(self) -> dict[str, str]:
        return dict(vars(self))


def make_finding(rule: str, message: str, hint: str = "", level: Level | None = None) -> Finding:
    """A finding with the rule's own hint and level, unless others are given."""
    usual_level, usual_hint = RULES[rule]
    return Finding(level or usual_level, rule, message, hint or usual_hint)


def show_text(text: bytes) -> str:
    """A token's text in quotes on one line, with unprintable characters escaped."""
    start = text[: 4 * SHOWN_CHARACTERS].replace(b"\\", b"\\\\")
    shown = one_line(start.decode("utf-8", errors="backslashreplace"))
    cut = len(shown) > SHOWN_CHARACTERS or len(text) > 4 * SHOWN_CHARACTERS
    return f"'{shown[:SHOWN_CHARACTERS]}{'…' if cut else ''}'"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
