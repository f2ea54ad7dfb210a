"""Rules for a model file and for a pair, each with its level and hint, and findings made of them.

Which file or pair breaks a rule is decided in `model_checks` and `localspec.pairing`.
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

# Every rule with its level and the user's next step. The first block holds the errors that
# llama.cpp raises too, by loading the file or by its own comparison.
REFUSED_BY_LLAMA_CPP: dict[str, tuple[Level, str]] = {
    "absurd-header": ("error", "This file would crash llama.cpp: download it again."),
    "sidecar": ("error", "Give the model itself."),
    "vocabulary-only": ("error", "Give the complete model to generate text."),
    "no-tokenizer": ("error", "Convert the model again."),
    "no-vocabulary": ("error", "This file would crash llama.cpp: give a text model."),
    "unknown-tokenizer": ("error", "Upgrade llama-cpp-python."),
    "no-merges": ("error", "Convert the model again."),
    "unknown-pre": ("error", "Upgrade llama-cpp-python, or convert the model again."),
    "duplicate-tokens": ("error", "This file would crash llama.cpp: convert the model again."),
    "byte-number": ("error", "llama.cpp cannot load this: convert the model again."),
    "embedding-size": ("error", "Weights and tokenizer differ: convert the model again."),
    "no-bos-id": ("error", "The first prompt would crash llama.cpp: convert the model again."),
    "no-eos-id": ("error", "The first prompt would crash llama.cpp: convert the model again."),
    "vocab-type": ("error", "Choose a draft of the target's family."),
    "add-bos": ("error", "A re-quantized file may fix this; else use a draft tuned the same way."),
    "bos-id": ("error", "A re-quantized file may fix this; else use a draft tuned the same way."),
    "add-eos": ("error", "A re-quantized file may fix this; else use a draft tuned the same way."),
    "eos-id": ("error", "A re-quantized file may fix this; else use a draft tuned the same way."),
    "vocab-size": ("error", "Choose a draft of the target's family and generation."),
    "token-text-normal": ("error", "A different tokenizer: choose a draft of the same family."),
    "token-text-byte": ("error", "A different tokenizer: choose a draft of the same family."),
    "token-text-user-defined": ("error", "Other words were added: use a draft tuned the same way."),
    "token-text-control": (
        "error",
        "The same base but another generation or fine-tune: use a draft tuned the same way.",
    ),
    "token-text-unused": (
        "error",
        "One side does not use these ids, but llama.cpp refuses the pair all the same.",
    ),
    "token-text-padding": (
        "error",
        "One side is of a newer generation: use a draft of the target's generation.",
    ),
}
REFUSED_BY_LLAMA_CPP |= {  # heads, which llama.cpp refuses by an exception or an assertion
    "heads-header": ("error", "This file would crash llama.cpp: get another conversion of it."),
    "heads-missing": ("error", "Get a conversion of the model that has its heads, or a sidecar."),
    "heads-architecture": ("error", "Get the heads that were made for this target."),
    "heads-width": ("error", "Get the heads that were made for this target."),
    "heads-layers": (
        "error",
        "Get the heads that were made for this target.",
    ),
    "heads-vocabulary": ("error", "Get the heads that were made for this target."),
    "heads-unsupported": ("error", "Choose an ordinary draft model."),
}
RULES: dict[str, tuple[Level, str]] = REFUSED_BY_LLAMA_CPP | {
    "not-autoregressive": ("error", "Only models that continue a text token by token can be used."),
    "no-chat-template": (
        "warning",
        "It may be a base model; without --raw its prompts are ChatML, as in llama.cpp.",
    ),
    "draft-vocab-larger": (
        "warning",
        "localspec cuts a draft at the first id the target lacks; llama.cpp's own tools fail.",
    ),
    "pre-differs": ("warning", "The draft learned another split of text: expect less acceptance."),
    "draft-not-smaller": ("warning", "Choose a smaller draft."),
    "small-ratio": ("warning", "Expect little gain; choose a smaller draft."),
    "sliding-window": (
        "info",
        "Rejected tokens can be dropped; what a longer step back misses is read again.",
    ),
    "heads-left-out": ("info", "Only --draft mtp would need them."),
    "trimmed-for-another": (
        "error",
        "Trim one for this target with `localspec draft make`.",
    ),
    "trimmed-vocabulary": (
        "info",
        "localspec alone can use such a file; the target verifies all tokens as ever.",
    ),
    "draft-context": ("info", "Of a longer text the draft sees the most recent part."),
    "target-vocab-larger": (
        "info",
        "Drafting rests while such a token is in the draft's context; llama.cpp's own tools fail.",
    ),
    "vocab-size-old-limit": ("info", "Builds of llama.cpp of 2024 refuse this."),
    "bos-id-unused": ("info", "Builds of llama.cpp before April 2026 refuse this."),
    "eos-id-unused": ("info", "Builds of llama.cpp before April 2026 refuse this."),
    "end-tokens": ("info", "Generation ends on the target's tokens."),
    "first-ids": ("info", "llama.cpp does not compare these."),
    "mixture-of-experts": ("info", "Expect little gain, or a loss, on a GPU."),
    "chat-template": ("info", "The target's is used."),
    "license": ("info", "Check that they suit your use."),
    "tied-embedding": ("info", "Small drafts are mostly embedding: a fine quantization pays."),
    "draft-quantization": (
        "info",
        "Up to 1B, Q8_0 keeps more agreement with the target for little memory.",
    ),
    "quantization-width": ("info", "Q8_0 or Q4_0 costs about the same here."),
}
# Refused by llama.cpp, and harmless: the target verifies by id, so no text can be corrupted. Where
# ordinary words differ that holds as well, but hardly a token would be accepted.
LENIENT = frozenset(
    "add-bos bos-id add-eos eos-id vocab-size token-text-control token-text-unused "
    "token-text-padding".split()
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a file or a pair: `rule` is a stable slug, `message` carries the values."""

    level: Level
    rule: str
    message: str
    hint: str

    def as_json(self) -> dict[str, str]:
        """Plain data."""
        return {
            "level": self.level,
            "rule": self.rule,
            "message": self.message,
            "hint": self.hint,
        }


def make_finding(rule: str, message: str, hint: str = "", level: Level | None = None) -> Finding:
    """A finding with the rule's own hint and level, unless others are given."""
    usual_level, usual_hint = RULES[rule]
    return Finding(level or usual_level, rule, message, hint or usual_hint)


def show_text(text: bytes) -> str:
    """A token's text in quotes on one line, with whatever a terminal cannot show escaped."""
    start = text[: 4 * SHOWN_CHARACTERS].replace(b"\\", b"\\\\")
    shown = one_line(start.decode("utf-8", errors="backslashreplace"))
    cut = len(shown) > SHOWN_CHARACTERS or len(text) > 4 * SHOWN_CHARACTERS
    return f"'{shown[:SHOWN_CHARACTERS]}{'…' if cut else ''}'"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
