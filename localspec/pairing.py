"""Compatibility of a draft with a target, by their headers: llama.cpp's own test, with reasons.

Checks of one file alone are in `metadata.checks.model`, of prediction heads in
`metadata.checks.heads`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from localspec.core.formatting import one_line
from localspec.metadata.checks.heads import check_embedded, check_heads_of
from localspec.metadata.checks.model import (
    BYTE,
    check_file,
    check_prompt,
    check_template,
    find_sidecar,
    loads_without_texts,
)
from localspec.metadata.checks.names import PRE_GROUPS
from localspec.metadata.draft_kind import DraftKind, draft_kind
from localspec.metadata.findings import (
    LENIENT,
    REFUSED_BY_LLAMA_CPP,
    VOCABULARY,
    Level,
    counted,
    make_finding,
    show_text,
)
from localspec.metadata.findings import Finding as Finding
from localspec.metadata.header import ModelHeader
from localspec.metadata.trimmed import TrimmedVocabulary, vocabulary_digest
from localspec.metadata.vocab import Tokenizer, Vocab

# Of the rule that is mirrored here (`common_speculative_are_compatible`).
RULE_VERSION = "llama.cpp 0c1e570 (October 2026)"
MAX_SIZE_DIFFERENCE = 128  # SPEC_VOCAB_MAX_SIZE_DIFFERENCE
OLD_SIZE_DIFFERENCE = 100  # the same limit in 2024
FIRST_COMPARED_ID = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID

MIN_RATIO = 2  # below this a draft gains at most 4 % with the costs of passes in `catalog`
SMALL_DRAFT = 1_200_000_000  # parameters; models sold as 1B
SHOWN_IDS = 5
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5  # types of tokens

# Names of differing tokens; the class goes into the rule's name.
_TEXT_CLASSES = {
    "normal": "ordinary token",
    "byte": "byte token",
    "user-defined": "user-defined token",
    "control": "control token",
    "unused": "unused or reserved token",
    "padding": "padding token",
}
_PADDING = re.compile(rb"\[PAD\d+\]")
_RESERVED = re.compile(rb"reserved|unused", re.IGNORECASE)
_NON_COMMERCIAL = re.compile(r"non-?commercial|\bnc\b|research|exaone|\bmrl\b", re.IGNORECASE)

_LEVELS = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class PairReport:
    """Findings with errors first, and llama.cpp's verdict with its first failing rule."""

    findings: tuple[Finding, ...]
    llama_cpp_accepts: bool
    llama_cpp_rule: str | None

    @property
    def compatible(self) -> bool:
        return not self.errors

    @property
    def by_text(self) -> bool:
        """Whether the draft, of another vocabulary, drafts by text."""
        return any(finding.rule == "other-vocabulary" for finding in self.findings)

    @property
    def harmless(self) -> bool:
        """Whether the errors cannot corrupt text."""
        return all(finding.rule in LENIENT for finding in self.errors)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "warning")


def check_model(header: ModelHeader) -> list[Finding]:
    """Findings about a file that is to generate text by itself."""
    return [
        *check_file(header, "file", "error"),
        *check_prompt(header.vocab, "file"),
        *check_template(header, "file"),
    ]


def check_usable(header: ModelHeader) -> list[Finding]:
    """Findings about a file by its kind: a model that generates text, or a draft alone."""
    if draft_kind(header).only_drafts:
        return list(check_file(header, "draft", "error"))
    return check_model(header)


def check_pair(
    target: ModelHeader, draft: ModelHeader, *, weights_needed: bool = True, lenient: bool = False
) -> PairReport:
    """Check the pair as strictly as llama.cpp; an error means that it must not run.

    ``lenient`` lowers findings that cannot corrupt text to warnings, but not llama.cpp's verdict.
    Without `weights_needed`, two files of vocabularies alone may be compared.
    """
    without_weights: Level = "error" if weights_needed else "info"
    kind = draft_kind(draft)
    findings = [
        *check_file(target, "target", without_weights),
        *check_prompt(target.vocab, "target"),  # a draft is given no prompt of its own
        *check_file(draft, "draft", without_weights),
        *_check_tokens(target, draft, kind),
    ]
    if not (kind.is_model or any(finding.rule == "sidecar" for finding in findings)):
        findings += check_heads_of(target, draft)
    n_compared = len(findings)
    findings += _check_use(target, draft)
    findings += check_template(target, "target")
    findings += _check_licenses(target, draft)
    if kind.is_model:
        findings += _check_draft(target, draft)
    rule = _llama_cpp_rule(findings[:n_compared])
    if draft.trimmed is not None:
        rule = rule or "vocab-type"  # to llama.cpp it is a model without a tokenizer
    if lenient:
        findings = [
            replace(f, level="warning") if f.level == "error" and f.rule in LENIENT else f
            for f in findings
        ]
    return _report(findings, rule)


def drafts_by_text(target: ModelHeader, draft: ModelHeader) -> bool:
    """Whether target and draft share no ids of tokens, so that the draft drafts by text."""
    found = _check_tokens(target, draft, draft_kind(draft))
    return any(finding.rule == "other-vocabulary" for finding in found)


def check_own_heads(target: ModelHeader) -> PairReport:
    """Check a model that is to draft for itself, by prediction heads in its own file."""
    findings = [*check_model(target), *check_embedded(target)]
    return _report(findings, _llama_cpp_rule(findings))


def certain_refusal(
    target: ModelHeader, draft: ModelHeader, *, lenient: bool = False
) -> tuple[Finding, ...]:
    """Errors of incomplete headers that `check_pair` would find too, whatever the rest says.

    llama.cpp refuses the pair for each of them. A model of another vocabulary may draft by text.
    """
    sidecars = find_sidecar(target, "target"), find_sidecar(draft, "draft")
    findings = [finding for finding in sidecars if finding is not None]
    if target.n_tokens and draft.n_tokens and target.tokenizer and draft.tokenizer:
        kinds = target.tokenizer.type, draft.tokenizer.type
        if kinds[0] == kinds[1] != "NONE":
            findings += _check_sizes(target.n_tokens, draft.n_tokens)
            if target.vocab and draft.vocab:
                findings += _check_texts(target.vocab, draft.vocab)
        elif "NONE" not in kinds:
            findings.append(_vocab_type_differs(target.tokenizer, draft.tokenizer))
    errors = [finding for finding in findings if finding.level == "error"]
    other = {error.rule for error in errors} & VOCABULARY
    known = target.vocab and draft.vocab and other <= LENIENT
    if draft_kind(draft).is_model and not known:
        errors = [error for error in errors if error.rule not in VOCABULARY]
    return tuple(error for error in errors if not (lenient and error.rule in LENIENT))


def refused(findings: tuple[Finding, ...]) -> PairReport:
    """The report with nothing but the findings of `certain_refusal`."""
    return _report(findings, _llama_cpp_rule(findings))


def _report(findings: Iterable[Finding], rule: str | None) -> PairReport:
    ordered = tuple(sorted(findings, key=lambda finding: _LEVELS.index(finding.level)))
    return PairReport(ordered, rule is None, rule)


def _llama_cpp_rule(findings: Iterable[Finding]) -> str | None:
    """The rule of llama.cpp's first refusal, at which it stops; it has one for all texts."""
    refusing = (f for f in findings if f.level == "error" or f.rule in VOCABULARY)
    rules = (f.rule for f in refusing if f.rule in REFUSED_BY_LLAMA_CPP)
    rule = next(rules, None)
    return "token-text" if rule and rule.startswith("token-text") else rule


def report_json(report: PairReport, target: ModelHeader, draft: ModelHeader) -> dict[str, object]:
    """The whole report as JSON-ready data."""
    return {
        "compatible": report.compatible,
        "llama_cpp": {
            "accepts": report.llama_cpp_accepts,
            "rule": report.llama_cpp_rule,
            "version": RULE_VERSION,
        },
        "spec_type": draft_kind(draft).spec_type,
        "findings": [finding.as_json() for finding in report.findings],
        "target": target.as_json(),
        "draft": draft.as_json(),
    }


def _check_tokens(target: ModelHeader, draft: ModelHeader, kind: DraftKind) -> Iterator[Finding]:
    if not target.vocab:
        return
    if draft.trimmed is not None:
        yield from _check_trimmed(target.vocab, draft.trimmed, kind)
    elif draft.vocab or (draft.vocab is not None and loads_without_texts(draft)):
        if not kind.is_model:
            yield from _check_ids(target.vocab, draft.vocab)
            return
        found = list(_check_vocabs(target.vocab, draft.vocab))
        errors = [finding for finding in found if finding.level == "error"]
        if draft.vocab and not {error.rule for error in errors} <= LENIENT:
            yield make_finding("other-vocabulary", "The draft has another vocabulary.")
            found = [replace(error, level="info") for error in errors]
        yield from found


def _check_vocabs(target: Vocab, draft: Vocab) -> Iterator[Finding]:
    """The tests of `common_speculative_are_compatible` in its order, then others."""
    if target.type != draft.type:
        yield _vocab_type_differs(target.tokenizer, draft.tokenizer)
        return  # further differences would only repeat this one
    yield from _check_added(target, draft, "bos")
    yield from _check_added(target, draft, "eos")
    yield from _check_sizes(len(target), len(draft))
    yield from _check_texts(target, draft)
    # Only BPE has pre-tokenizers in llama.cpp, and several names mean the same one.
    groups = {PRE_GROUPS.get(vocab.pre, vocab.pre) for vocab in (target, draft)}
    if target.type == "BPE" and len(groups) == 2:
        names = f"'{one_line(target.pre)}' and '{one_line(draft.pre)}'"
        yield make_finding("pre-differs", f"The pre-tokenizers differ: {names}.")
    eot_ids = (target.eot_id, draft.eot_id)
    if None not in eot_ids and eot_ids[0] != eot_ids[1]:
        yield make_finding(
            "end-tokens", f"The end-of-turn tokens differ: {eot_ids[0]} and {eot_ids[1]}."
        )


def _check_ids(target: Vocab, draft: Vocab) -> Iterator[Finding]:
    """Whether heads have the tokens of their target; they are given no prompt of their own."""
    if draft.type == "NONE":
        return  # only their number is known
    if target.type != draft.type:
        yield _vocab_type_differs(target.tokenizer, draft.tokenizer)
        return
    yield from (each for each in _check_sizes(len(target), len(draft)) if each.level == "error")
    yield from _check_texts(target, draft)


def _check_trimmed(target: Vocab, draft: TrimmedVocabulary, kind: DraftKind) -> Iterator[Finding]:
    """Whether the draft was trimmed for this target's tokens, as its kind is."""
    reads_by = draft.read_as if kind.kind == "mtp" else draft.table if kind.is_model else None
    if reads_by is None:
        message = f"The draft's vocabulary was not trimmed as that of {kind.words} is."
        yield make_finding("trimmed-for-another", message)
    elif vocabulary_digest(target) != draft.digest:
        message = "The draft's vocabulary was trimmed for a target with other tokens."
        yield make_finding("trimmed-for-another", message)
    else:
        yield make_finding("trimmed-vocabulary", f"The draft can propose {draft.describe()}.")


def _vocab_type_differs(target: Tokenizer, draft: Tokenizer) -> Finding:
    ours, theirs = (f"{kind} ({one_line(model)})" for kind, model in (target, draft))
    return make_finding("vocab-type", f"The target's vocabulary is {ours}, the draft's {theirs}.")


def _check_added(target: Vocab, draft: Vocab, token: Literal["bos", "eos"]) -> Iterator[Finding]:
    """Whether both add the token by themselves, and if they do, whether it is the same id."""
    added = [vocab.add_bos if token == "bos" else vocab.add_eos for vocab in (target, draft)]
    ids = [vocab.bos_id if token == "bos" else vocab.eos_id for vocab in (target, draft)]
    name, flag = token.upper(), f"add_{token}"
    if added[0] != added[1]:
        ours, theirs = _value(target, flag, added[0]), _value(draft, flag, added[1])
        message = f"{flag} is {ours} for the target but {theirs} for the draft."
        yield make_finding(f"add-{token}", message)
    elif ids[0] != ids[1]:
        key = f"{token}_id"
        shown = f"{_value(target, key, ids[0])} and {_value(draft, key, ids[1])}"
        if added[0]:
            message = f"Target and draft add different {name} ids: {shown}."
            yield make_finding(f"{token}-id", message)
        else:
            message = f"The {name} ids differ, {shown}, but neither file adds the token."
            yield make_finding(f"{token}-id-unused", message)


def _check_sizes(n_target: int, n_draft: int) -> Iterator[Finding]:
    difference = abs(n_target - n_draft)
    sizes = f"the target has {n_target:,} tokens, the draft {n_draft:,}"
    many = counted(difference, "id")
    if difference > MAX_SIZE_DIFFERENCE:
        message = f"The vocabularies differ by {many}, over {MAX_SIZE_DIFFERENCE}: {sizes}."
        yield make_finding("vocab-size", message)
    elif n_draft > n_target:
        yield make_finding(
            "draft-vocab-larger", f"{many} of the draft cannot be proposed: {sizes}."
        )
    elif difference:
        message = f"{many} of the target cannot be drafted or drafted from: {sizes}."
        yield make_finding("target-vocab-larger", message)
    if OLD_SIZE_DIFFERENCE < difference <= MAX_SIZE_DIFFERENCE:
        message = f"The vocabularies differ by {many} of {MAX_SIZE_DIFFERENCE} allowed."
        yield make_finding("vocab-size-old-limit", message)


def _check_texts(target: Vocab, draft: Vocab) -> Iterator[Finding]:
    """Every id from 5 to the end of the shorter vocabulary must have the same text."""
    texts = target.texts(), draft.texts()
    shorter = min(map(len, texts))
    if texts[0][:shorter] == texts[1][:shorter]:  # as usual; the rest takes ten times as long
        return
    pairs = list(zip(*texts, strict=False))
    differing: dict[str, list[int]] = {name: [] for name in _TEXT_CLASSES}
    for token_id, (ours, theirs) in enumerate(pairs):
        if ours != theirs and token_id >= FIRST_COMPARED_ID:
            types = {target.token_type(token_id), draft.token_type(token_id)}
            differing[_text_class(ours, theirs, types)].append(token_id)
    for name, ids in differing.items():
        if ids:
            verb = "differs" if len(ids) == 1 else "differ"
            message = f"{counted(len(ids), _TEXT_CLASSES[name])} {verb}: {_list_ids(ids, pairs)}."
            yield make_finding(f"token-text-{name}", message)
    first = [i for i, (ours, theirs) in enumerate(pairs[:FIRST_COMPARED_ID]) if ours != theirs]
    if first and not any(differing.values()):
        message = f"Only ids below {FIRST_COMPARED_ID} differ: {_list_ids(first, pairs)}."
        yield make_finding("first-ids", message)


def _is_reserved(text: bytes) -> bool:
    """Whether a token is reserved by its text, such as <|reserved_3|>."""
    bracketed = text[:1] in (b"<", b"[") and text[-1:] in (b">", b"]")
    return bracketed and _RESERVED.search(text) is not None


def _text_class(ours: bytes, theirs: bytes, types: set[int]) -> str:
    """The class of a difference; in doubt, that of another tokenizer."""
    if _PADDING.fullmatch(ours) or _PADDING.fullmatch(theirs):
        return "padding"
    if UNUSED in types or _is_reserved(ours) or _is_reserved(theirs):
        return "unused"
    if BYTE in types:
        return "byte"
    if USER_DEFINED in types:
        return "user-defined"
    return "control" if types <= {CONTROL, UNKNOWN} else "normal"


def _check_use(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Layers that matter for drafting."""
    for role, header in (("target", target), ("draft", draft)):
        if header.sliding_window:
            window = f"a sliding window of {header.sliding_window:,} tokens"
            yield make_finding("sliding-window", f"The {role} attends to {window}.")
    if (target.expert_count or 0) > 1:
        message = f"The target is a mixture of {target.expert_count} experts."
        yield make_finding("mixture-of-experts", message)


def _check_draft(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Whether a draft model is small and similar enough to be of use."""
    yield from _check_weights(target, draft)
    n_target, n_draft = target.context_length, draft.context_length
    if n_target is not None and n_draft is not None and n_draft < n_target:
        message = f"The draft's context is {n_draft:,} tokens, the target's {n_target:,}."
        yield make_finding("draft-context", message)
    if draft.chat_template is not None and draft.chat_template != target.chat_template:
        yield make_finding("chat-template", "Target and draft have different chat templates.")
    if draft.tensors and not draft.has_output:
        yield make_finding(
            "tied-embedding", "The draft's token embedding is its output matrix too."
        )
    yield from _check_quantization(draft)


def _check_weights(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    """Whether the draft is small enough: reading its weights is most of the cost of a step."""
    n_target, n_draft = target.parameters, draft.parameters
    if not n_target or not n_draft or n_target >= MIN_RATIO * n_draft:
        return
    sizes = f"the target has {target.size_label} parameters, the draft {draft.size_label}"
    if n_draft > n_target:
        message = f"The draft is the larger model: {sizes}."
        yield make_finding("draft-not-smaller", message, "Are the roles swapped?")
    elif n_draft == n_target:
        yield make_finding("draft-not-smaller", f"The draft is as big as the target: {sizes}.")
    elif target.n_bytes < MIN_RATIO * draft.n_bytes:
        ratio = f"{n_target / n_draft:.1f}".removesuffix(".0")
        few = f"only {ratio} times as big as the draft" if ratio != "1" else "hardly bigger"
        message = f"The target is {few}: {sizes}."
        yield make_finding("small-ratio", message)


def _check_licenses(target: ModelHeader, draft: ModelHeader) -> Iterator[Finding]:
    licenses = [one_line(header.license or "not stated") for header in (target, draft)]
    message = f"Licences: target {licenses[0]}, draft {licenses[1]}."
    if any(map(_NON_COMMERCIAL.search, licenses)):
        yield make_finding("license", message, "This may exclude commercial use.", "warning")
    elif target.license or draft.license:
        yield make_finding("license", message)


def _check_quantization(draft: ModelHeader) -> Iterator[Finding]:
    width, name = draft.embedding_length or 0, draft.quantization
    # In 4 bits a draft was right as often as in 8, and its steps are quicker.
    if 0 < draft.parameters <= SMALL_DRAFT and re.match("I?T?Q[1-3]", name):
        message = f"The draft has {draft.size_label} parameters in {name}."
        yield make_finding("draft-quantization", message)
    if width % 256 and "_K" in name:
        message = f"The draft's width {width:,} is no multiple of 256, which {name} needs."
        yield make_finding("quantization-width", message)


def _value(vocab: Vocab, field: str, value: bool | int | None) -> str:
    shown = "none" if value is None else str(value).lower()
    return f"{shown} (default)" if vocab.is_default(field) else shown


def _list_ids(ids: list[int], pairs: list[tuple[bytes, bytes]]) -> str:
    differing = [(i, *map(show_text, pairs[i])) for i in ids[:SHOWN_IDS]]
    shown = [f"{i}: {ours} against {theirs}" for i, ours, theirs in differing]
    return "; ".join(shown) + ("; …" if len(ids) > SHOWN_IDS else "")
