"""May this draft speak for this target, and why not.

This room owns the rules: two headers in, findings out, each with the values that caused it and a
hint. It repeats llama.cpp's own decision and gives the reason that llama.cpp keeps to itself. It
opens no file, loads no model and prints nothing.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from localspec.metadata import ModelHeader, Vocab
from localspec.text import count, one_line

Level = Literal["error", "warning", "info"]
Role = Literal["target", "draft", "file"]

# Whose rule this room repeats (`common_speculative_are_compatible`), shown beside the verdict.
RULE_VERSION = "llama.cpp 0c1e570 (October 2026)"
MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
OLD_SIZE_DIFFERENCE = 100  # the same limit in 2024
FIRST_COMPARED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID

MIN_RATIO = 3  # below this the draft costs about as much as it saves
SMALL_DRAFT = 1_200_000_000  # parameters; models sold as 1B
SHOWN_IDS = 5
SHOWN_CHARACTERS = 40
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6

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

# Files that belong beside a model; by `general.type` or by architecture.
_SIDECARS = {
    "mmproj": ("the vision or audio part of a model", "Give the language model itself."),
    "clip": ("the vision or audio part of a model", "Give the language model itself."),
    "adapter": ("an adapter (LoRA)", "Merge it into its base model, or give the base model."),
    "imatrix": ("statistics for quantizing, an imatrix", "Give the model itself."),
}
_HEADS = {
    "eagle3": "an EAGLE-3 head",
    "dflash": "a DFlash head",
    "gemma4-assistant": "a multi-token prediction head",
}
_HEAD_HINT = "It needs the target's hidden state; choose a plain draft model."

# What a differing token is called; the class goes into the rule's name.
_TEXT_CLASSES = {
    "normal": "ordinary token",
    "byte": "byte token",
    "user-defined": "user-defined token",
    "control": "control token",
    "unused": "unused or reserved token",
    "padding": "padding token",
}
_PADDING = re.compile(rb"\[PAD\d+\]")
_RESERVED = re.compile(rb"[<\[].*(reserved|unused).*[>\]]", re.IGNORECASE | re.DOTALL)
_NON_COMMERCIAL = re.compile(r"non-?commercial|\bnc\b|research|exaone|\bmrl\b", re.IGNORECASE)

# Every rule with its level and the user's next step. The first block holds the errors that
# llama.cpp raises too, by loading the file or by its own comparison.
_REFUSED_BY_LLAMA_CPP: dict[str, tuple[Level, str]] = {
    "absurd-header": ("error", "This file would crash llama.cpp: download it again."),
    "sidecar": ("error", "Give the model itself."),
    "vocabulary-only": ("error", "Give the complete model to generate text."),
    "no-tokenizer": ("error", "Convert the model again."),
    "no-vocabulary": ("error", "This file would crash llama.cpp: give a text model."),
    "unknown-tokenizer": ("error", "Upgrade llama-cpp-python."),
    "no-merges": ("error", "Convert the model again."),
    "unknown-pre": ("error", "Upgrade llama-cpp-python, or convert the model again."),
    "duplicate-tokens": ("error", "This file would crash llama.cpp: convert the model again."),
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
RULES: dict[str, tuple[Level, str]] = _REFUSED_BY_LLAMA_CPP | {
    "not-autoregressive": ("error", "Only models that continue a text token by token can be used."),
    "no-chat-template": (
        "warning",
        "It may be a base model; without --raw its prompt is a plain transcript.",
    ),
    "draft-vocab-larger": (
        "warning",
        "localspec cuts a draft at the first id the target lacks; llama.cpp's own tools fail.",
    ),
    "pre-differs": ("warning", "The draft learned another split of text: expect less acceptance."),
    "draft-not-smaller": ("warning", "Choose a smaller draft."),
    "small-ratio": ("warning", "Expect little gain; choose a smaller draft."),
    "target-cannot-roll-back": ("warning", "localspec runs this target plainly, without a draft."),
    "draft-cannot-roll-back": (
        "warning",
        "localspec runs the target plainly: choose a draft with ordinary attention.",
    ),
    "sliding-window": (
        "info",
        "Rejected tokens can be dropped; what a longer step back misses is read again.",
    ),
    "draft-context": ("info", "Of a longer text the draft sees the most recent part."),
    "target-vocab-larger": ("info", "Drafting rests while such a token is in the draft's context."),
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
_LEVELS: dict[Level, int] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about a file or a pair: `rule` is a stable slug, `message` carries the values."""

    level: Level
    rule: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """Findings with errors first, beside llama.cpp's verdict and its first failing rule.

    `llama_cpp_rule` is "token-text" for every class of differing text, else a finding's rule.
    """

    findings: tuple[Finding, ...]
    llama_cpp_accepts: bool
    llama_cpp_rule: str | None

    @property
    def compatible(self) -> bool:
        return not self.errors

    @property
    def harmless(self) -> bool:
        """Whether no text could be corrupted by what is refused."""
        return all(finding.rule in LENIENT for finding in self.errors)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "warning")


def check_model(header: ModelHeader) -> list[Finding]:
    """Findings about a file that is to generate text by itself."""
    return [*_check_file(header, "file", "error"), *_check_template(header, "file")]


def check_pair(
    target: ModelHeader,
    draft: ModelHeader,
    *,
    weights_needed: bool = True,
    lenient: bool = False,
) -> PairReport:
    """Judge the pair strictly, as llama.cpp does; an error means that it must not run.

    ``lenient`` lowers what cannot corrupt text to warnings; llama.cpp's verdict is told as it is.
    With `weights_needed` False two vocabulary-only files may be compared, which is enough to judge
    the tokenizers.
    """
    without_weights: Level = "error" if weights_needed else "info"
    findings = [
        *_check_file(target, "target", without_weights),
        *_check_file(draft, "draft", without_weights),
    ]
    if target.vocab and draft.vocab:  # both there, and neither without tokens
        findings += _check_vocabs(target.vocab, draft.vocab)
    # llama.cpp stops at its first failing test, so this is read before the findings are sorted.
    refusals = [f.rule for f in findings if f.level == "error" and f.rule in _REFUSED_BY_LLAMA_CPP]
    findings += _check_use(target, draft)
    findings += _check_template(target, "target")
    findings += _check_notes(target, draft)
    if lenient:
        lowered: Level = "warning"
        findings = [replace(f, level=lowered) if f.rule in LENIENT else f for f in findings]
    rule = refusals[0] if refusals else None
    if rule and rule.startswith("token-text"):
        rule = "token-text"
    ordered = tuple(sorted(findings, key=lambda finding: _LEVELS[finding.level]))
    return PairReport(ordered, rule is None, rule)


def describe(header: ModelHeader) -> dict[str, object]:
    """The facts of a header that a JSON reader wants, with every value JSON can hold."""
    vocab = header.vocab
    return {
        "path": str(header.path),
        "name": header.name,
        "architecture": header.architecture,
        "parameters": header.parameters,
        "quantization": header.quantization,
        "n_vocab": None if vocab is None else len(vocab),
        "tokenizer_model": None if vocab is None else vocab.model,
        "tokenizer_pre": None if vocab is None else vocab.pre,
        "context_length": header.context_length,
    }


def report_json(report: PairReport, target: ModelHeader, draft: ModelHeader) -> dict[str, object]:
    """The whole report as JSON-ready data."""
    return {
        "compatible": report.compatible,
        "llama_cpp": {
            "accepts": report.llama_cpp_accepts,
            "rule": report.llama_cpp_rule,
            "version": RULE_VERSION,
        },
        "findings": [
            {"level": f.level, "rule": f.rule, "message": f.message, "hint": f.hint}
            for f in report.findings
        ],
        "target": describe(target),
        "draft": describe(draft),
    }


def _find(rule: str, message: str, hint: str = "", level: Level | None = None) -> Finding:
    usual_level, usual_hint = RULES[rule]
    return Finding(level or usual_level, rule, message, hint or usual_hint)


def _check_file(header: ModelHeader, role: Role, without_weights: Level) -> Iterator[Finding]:
    """Whether the file is a text model at all, and whether llama.cpp survives loading it."""
    sidecar = _find_sidecar(header, role)
    if sidecar:
        yield sidecar
        return
    if header.is_diffusion or header.is_embedding or not header.is_causal:
        kind = "an encoder"
        if header.is_diffusion or header.is_embedding:
            kind = "a diffusion model" if header.is_diffusion else "a text embedding model"
        shown = one_line(header.architecture)
        yield _find("not-autoregressive", f"The {role} ({shown}) is {kind}.")
    if not header.tensors and header.split_count < 2:
        message = f"The {role} holds a tokenizer only, no weights."
        yield _find("vocabulary-only", message, level=without_weights)
    yield from _check_sizes_of(header, role)
    yield from _check_tokenizer(header.vocab, role)


def _check_sizes_of(header: ModelHeader, role: Role) -> Iterator[Finding]:
    """Header values at which llama.cpp's assertions end the process."""
    layers, epsilon = header.block_count, header.get("attention.layer_norm_rms_epsilon")
    if layers is not None and not 1 <= layers <= MAX_LAYERS:
        message = f"The {role} claims {layers:,} layers; llama.cpp allows 1 to {MAX_LAYERS}."
        yield _find("absurd-header", message)
    if isinstance(epsilon, float) and not (math.isfinite(epsilon) and epsilon >= 0):
        yield _find("absurd-header", f"The {role} has an epsilon of {epsilon} for its norms.")


def _find_sidecar(header: ModelHeader, role: Role) -> Finding | None:
    """Files that lie beside a model and are taken for one by a loose pattern."""
    names = {tensor.name for tensor in header.tensors}
    known = _SIDECARS.get(header.architecture) or _SIDECARS.get(header.type)
    if known:
        what, hint = known
    elif header.architecture in _HEADS:
        what, hint = _HEADS[header.architecture], _HEAD_HINT
    # Heads for multi-token prediction are stored as the model with its ordinary layers left out.
    elif header.get("nextn_predict_layers") and names and "blk.0.attn_norm.weight" not in names:
        what, hint = "a multi-token prediction head", _HEAD_HINT
    elif header.type != "model":
        what, hint = f"a file of type '{one_line(header.type)}'", ""
    else:
        return None
    return _find("sidecar", f"The {role} is not a model but {what}.", hint)


def _check_tokenizer(vocab: Vocab | None, role: Role) -> Iterator[Finding]:
    """What makes `llama_vocab::impl::load` throw, or abort the whole process."""
    if vocab is None:
        yield _find("no-tokenizer", f"The {role} holds no tokenizer.")
    elif vocab.type == "NONE":
        yield _find("no-vocabulary", f"The {role} has the tokenizer {vocab.model!r}: no tokens.")
    elif vocab.type == "unknown":
        shown = one_line(vocab.model)
        yield _find("unknown-tokenizer", f"The {role} has the unknown tokenizer '{shown}'.")
    elif not len(vocab):
        yield _find("no-tokenizer", f"The {role} has a {vocab.type} tokenizer without tokens.")
    else:
        if vocab.type == "BPE":
            yield from _check_bpe(vocab, role)
        yield from _check_duplicates(vocab, role)


def _check_bpe(vocab: Vocab, role: Role) -> Iterator[Finding]:
    if vocab.n_merges is None and vocab.pre != "kimi-k2":
        message = f"The {role} has a BPE tokenizer without merges, which llama.cpp cannot load."
        yield _find("no-merges", message)
    if vocab.pre not in PRE_GROUPS:
        shown = one_line(vocab.pre)
        yield _find("unknown-pre", f"The {role} has the unknown pre-tokenizer '{shown}'.")


def _check_duplicates(vocab: Vocab, role: Role) -> Iterator[Finding]:
    """llama.cpp asserts that every token text is unique, and dies if not."""
    texts = vocab.texts()
    if len(set(texts)) == len(texts):
        return
    twice = [text for text, count in Counter(texts).items() if count > 1]
    first, second = islice((i for i, text in enumerate(texts) if text == twice[0]), 2)
    yield _find(
        "duplicate-tokens",
        f"The {role} holds {_count(len(twice), 'token text')} more than once, "
        f"such as {_show(twice[0])} as ids {first} and {second}.",
    )


def _check_template(header: ModelHeader, role: Role) -> Iterator[Finding]:
    if header.chat_template is None and header.type == "model":
        yield _find("no-chat-template", f"The {role} has no chat template.")


def _check_vocabs(target: Vocab, draft: Vocab) -> Iterator[Finding]:
    """The tests of `common_speculative_are_compatible`, in its order, then what it ignores."""
    if target.type != draft.type:
        ours, theirs = (f"{v.type} ({one_line(v.model)})" for v in (target, draft))
        yield _find("vocab-type", f"The target's vocabulary is {ours}, the draft's {theirs}.")
        return  # further differences would only repeat this one
    yield from _check_added(target, draft, "bos")
    yield from _check_added(target, draft, "eos")
    yield from _check_sizes(len(target), len(draft))
    yield from _check_texts(target, draft)
    # Only BPE has pre-tokenizers in llama.cpp, and several names mean the same one.
    groups = {PRE_GROUPS.get(vocab.pre, vocab.pre) for vocab in (target, draft)}
    if target.type == "BPE" and len(groups) == 2:
        names = f"'{one_line(target.pre)}' and '{one_line(draft.pre)}'"
        yield _find("pre-differs", f"The pre-tokenizers differ: {names}.")
    eot_ids = (target.eot_id, draft.eot_id)
    if None not in eot_ids and eot_ids[0] != eot_ids[1]:
        yield _find("end-tokens", f"The end-of-turn tokens differ: {eot_ids[0]} and {eot_ids[1]}.")


def _check_added(target: Vocab, draft: Vocab, token: Literal["bos", "eos"]) -> Iterator[Finding]:
    """Whether both add the token by themselves, and if they do, whether it is the same id."""
    added = [vocab.add_bos if token == "bos" else vocab.add_eos for vocab in (target, draft)]
    ids = [vocab.bos_id if token == "bos" else vocab.eos_id for vocab in (target, draft)]
    name, flag = token.upper(), f"add_{token}"
    if added[0] != added[1]:
        ours, theirs = _value(target, flag, added[0]), _value(draft, flag, added[1])
        message = f"{flag} is {ours} for the target but {theirs} for the draft."
        yield _find(f"add-{token}", message)
    elif ids[0] != ids[1]:
        shown = (
            f"{_value(target, f'{token}_id', ids[0])} and {_value(draft, f'{token}_id', ids[1])}"
        )
        if added[0]:
            yield _find(f"{token}-id", f"Target and draft add different {name} ids: {shown}.")
        else:
            message = f"The {name} ids differ, {shown}, but neither file adds the token."
            yield _find(f"{token}-id-unused", message)


def _check_sizes(n_target: int, n_draft: int) -> Iterator[Finding]:
    difference = abs(n_target - n_draft)
    sizes = f"the target has {n_target:,} tokens, the draft {n_draft:,}"
    many = _count(difference, "id")
    if difference > MAX_SIZE_DIFFERENCE:
        message = f"The vocabularies differ by {many}, over {MAX_SIZE_DIFFERENCE}: {sizes}."
        yield _find("vocab-size", message)
    elif n_draft > n_target:
        yield _find("draft-vocab-larger", f"{many} of the draft cannot be proposed: {sizes}.")
    elif difference:
        message = f"{many} of the target cannot be drafted or drafted from: {sizes}."
        yield _find("target-vocab-larger", message)
    if OLD_SIZE_DIFFERENCE < difference <= MAX_SIZE_DIFFERENCE:
        message = f"The vocabularies differ by {many} of {MAX_SIZE_DIFFERENCE} allowed."
        yield _find("vocab-size-old-limit", message)


def _check_texts(target: Vocab, draft: Vocab) -> Iterator[Finding]:
    """Every id from 5 to the end of the shorter vocabulary must have the same text."""
    pairs = list(zip(target.texts(), draft.texts(), strict=False))
    differing: dict[str, list[int]] = {name: [] for name in _TEXT_CLASSES}
    for token_id, (ours, theirs) in enumerate(pairs):
        if ours != theirs and token_id >= FIRST_COMPARED_ID:
            types = {target.token_type(token_id), draft.token_type(token_id)}
            differing[_text_class(ours, theirs, types)].append(token_id)
    for name, ids in differing.items():
        if ids:
            verb = "differs" if len(ids) == 1 else "differ"
            message = f"{_count(len(ids), _TEXT_CLASSES[name])} {verb}: {_list_ids(ids, pairs)}."
            yield _find(f"token-text-{name}", message)
    first = [i for i, (ours, theirs) in enumerate(pairs[:FIRST_COMPARED_ID]) if ours != theirs]
    if first and not any(differing.values()):
        message = f"Only ids below {FIRST_COMPARED_ID} differ: {_list_ids(first, pairs)}."
        yield _find("first-ids", message)


def _text_class(ours: bytes, theirs: bytes, types: set[int]) -> str:
    """The class that explains the difference best; a doubt counts as a different tokenizer."""
    if _PADDING.fullmatch(ours) or _PADDING.fullmatch(theirs):
        return "padding"
    if UNUSED in types or _RESERVED.fullmatch(ours) or _RESERVED.fullmatch(theirs):
        return "unused"
    if BYTE in types:
        return "byte"
    if USER_DEFINED in types:
        return "user-defined"
    return "control" if types <= {CONTROL, UNKNOWN} else "normal"


def _check_use(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Whether a pair that runs would also be of use."""
    yield from _check_parameters(target.parameters, draft.parameters)
    yield from _check_context(target.context_length, draft.context_length)
    for role, header in (("target", target), ("draft", draft)):
        if not header.rolls_back:
            what = f"The {role} ({header.architecture}) is recurrent or hybrid"
            yield _find(f"{role}-cannot-roll-back", f"{what} and cannot drop rejected tokens.")
        if header.sliding_window:
            window = f"a sliding window of {header.sliding_window:,} tokens"
            yield _find("sliding-window", f"The {role} attends to {window}.")
    if (target.expert_count or 0) > 1:
        message = f"The target is a mixture of {target.expert_count} experts."
        yield _find("mixture-of-experts", message)


def _check_parameters(n_target: int, n_draft: int) -> Iterator[Finding]:
    if not n_target or not n_draft or n_target >= MIN_RATIO * n_draft:
        return
    sizes = f"the target has {count(n_target)} parameters, the draft {count(n_draft)}"
    if n_draft > n_target:
        message = f"The draft is the larger model: {sizes}."
        yield _find("draft-not-smaller", message, "Are the roles swapped?")
    elif n_draft == n_target:
        yield _find("draft-not-smaller", f"The draft is as large as the target: {sizes}.")
    else:
        message = f"The target is only {n_target / n_draft:.2g} times the draft: {sizes}."
        yield _find("small-ratio", message)


def _check_context(n_target: int | None, n_draft: int | None) -> Iterator[Finding]:
    if n_target is not None and n_draft is not None and n_draft < n_target:
        message = f"The draft's context is {n_draft:,} tokens, the target's {n_target:,}."
        yield _find("draft-context", message)


def _check_notes(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Good to know, and hardly a reason against the pair."""
    if draft.chat_template is not None and draft.chat_template != target.chat_template:
        yield _find("chat-template", "Target and draft have different chat templates.")
    licenses = [one_line(header.license or "not stated") for header in (target, draft)]
    message = f"Licences: target {licenses[0]}, draft {licenses[1]}."
    if any(map(_NON_COMMERCIAL.search, licenses)):
        yield _find("license", message, "This may exclude commercial use.", "warning")
    elif target.license or draft.license:
        yield _find("license", message)
    if draft.tensors and not draft.has_output:
        yield _find("tied-embedding", "The draft's token embedding is its output matrix too.")
    yield from _check_quantization(draft)


def _check_quantization(draft: ModelHeader) -> Iterator[Finding]:
    width, name = draft.embedding_length or 0, draft.quantization
    # Q8_0, Q8_1 and whole floats are fine enough for any draft.
    if 0 < draft.parameters <= SMALL_DRAFT and re.match(r"I?T?Q[1-6]|MXFP4|NVFP4", name):
        message = f"The draft has {count(draft.parameters)} parameters in {name}."
        yield _find("draft-quantization", message)
    if width % 256 and "_K" in name:
        message = f"The draft's width {width:,} is no multiple of 256, which {name} needs."
        yield _find("quantization-width", message)


def _value(vocab: Vocab, field: str, value: bool | int | None) -> str:
    shown = "none" if value is None else str(value).lower()
    return f"{shown} (default)" if vocab.is_default(field) else shown


def _list_ids(ids: list[int], pairs: list[tuple[bytes, bytes]]) -> str:
    shown = [f"{i}: {_show(pairs[i][0])} against {_show(pairs[i][1])}" for i in ids[:SHOWN_IDS]]
    return "; ".join(shown) + ("; …" if len(ids) > SHOWN_IDS else "")


def _show(text: bytes) -> str:
    """A token's text in quotes on one line, with whatever a terminal cannot show escaped."""
    start = text[: 4 * SHOWN_CHARACTERS].replace(b"\\", b"\\\\")
    shown = one_line(start.decode("utf-8", errors="backslashreplace"))
    cut = len(shown) > SHOWN_CHARACTERS or len(text) > 4 * SHOWN_CHARACTERS
    return f"'{shown[:SHOWN_CHARACTERS]}{'…' if cut else ''}'"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
