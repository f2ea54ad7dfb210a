"""Facts of a model file for `localspec inspect`: its header in words, memory, and findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap

from localspec.core.formatting import count, one_line, size
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_choice import recommendation
from localspec.llama.memory.estimate import estimate_run
from localspec.llama.memory.plan import default_ctx_size
from localspec.llama.memory.probe import as_loaded, attention_here, pair_bytes
from localspec.llama.memory.use import MemoryUse
from localspec.metadata.draft_kind import claimed_heads, draft_kind, has_heads
from localspec.metadata.findings import counted
from localspec.metadata.header import ModelHeader, Vocab
from localspec.pairing import MIN_RATIO, Finding, check_usable

_LONG_CTX = 32768  # tokens: what coding agents fill


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts as pairs of a label and words, and findings on the file as a model to run.

    ``memory`` is for a target's default context size.
    """

    header: ModelHeader
    facts: tuple[tuple[str, str], ...]
    memory: MemoryUse
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether the file can generate text, or draft for a model that can."""
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def runs(self) -> bool:
        """Whether the file can generate text."""
        return self.usable and not draft_kind(self.header).only_drafts

    def as_json(self) -> dict[str, object]:
        return {
            **self.header.as_json(),
            "runs": self.runs,
            "as_draft": draft_kind(self.header).as_json(),
            "own_heads": claimed_heads(self.header) if has_heads(self.header) else 0,
            "facts": dict(self.facts),
            "memory": self.memory.as_json(),
            "findings": [finding.as_json() for finding in self.findings],
        }


def model_info(header: ModelHeader, free: int | None = None) -> ModelInfo:
    """Facts of a file and findings on it, each fit for one line; ``free`` bytes for models."""
    findings = tuple(check_usable(header))
    usable = not any(finding.level == "error" for finding in findings)
    ctx_size = default_ctx_size(header)
    load = as_loaded(LoadOptions(header.path))
    use = estimate_run(header, ctx_size, load).use
    facts = [*_model(header), *_text(header), *_memory(header, use, ctx_size, free)]
    facts += [*_heads(header, ctx_size, use), *_use(header, usable)]
    shown = tuple((label, one_line(words)) for label, words in facts)
    return ModelInfo(header, shown, use, findings)


def together(headers: Sequence[ModelHeader]) -> dict[int, int]:
    """Bytes that a target and its draft take, by the context in tokens: the default, and a long."""
    target = headers[0]
    trained = target.context_length or _LONG_CTX
    return {
        ctx_size: pair_bytes(target, headers[1], ctx_size)
        for ctx_size in (default_ctx_size(target), min(_LONG_CTX, trained))
    }


def _model(header: ModelHeader) -> Iterator[tuple[str, str]]:
    parts = f" in {header.split_count} parts" if header.split_count > 1 else ""
    yield "file", f"{header.path}{parts}"
    if header.name:
        yield "name", header.name
    experts = f", {header.expert_count} experts" if (header.expert_count or 0) > 1 else ""
    yield "architecture", f"{header.architecture or header.type}{experts}"
    if header.parameters:
        n_bytes = header.n_bytes - (header.trimmed.table_bytes if header.trimmed else 0)
        bits = 8 * n_bytes / header.parameters
        yield "parameters", f"{header.size_label} ({header.parameters:,} in the file)"
        yield "quantisation", f"{header.quantization}, {bits:.1f} bits for each parameter"
    yield "file size", size(header.n_bytes)
    shape = [
        f"{number:,} {noun}{'' if number == 1 or noun == 'wide' else 's'}"
        for number, noun in (
            (header.block_count, "layer"),
            (header.embedding_length, "wide"),
            (header.head_count, "head"),
        )
        if number
    ]
    if shape:
        yield "shape", ", ".join(shape)


def _heads(header: ModelHeader, ctx_size: int, use: MemoryUse) -> Iterator[tuple[str, str]]:
    """The inputs of a file of heads from its target, or the heads in a model's own file."""
    kind = draft_kind(header)
    if has_heads(header):
        load = as_loaded(LoadOptions(header.path, load_heads=True))
        more = estimate_run(header, ctx_size, load).use.total - use.total
        heads = counted(claimed_heads(header), "prediction head")
        yield "heads", f"{heads} of its own, used unless another draft is named: {size(more)} more"
    if kind.is_model:
        return
    reads = [f"hidden states {kind.target_width:,} wide" if kind.target_width else "hidden states"]
    if kind.target_layers:
        reads.append(f"the inputs of layers {', '.join(map(str, kind.target_layers))}")
    yield "heads", f"{kind.words} ({kind.spec_type})"
    yield "reads", f"of its target {', '.join(reads)}"
    if kind.block_size:
        sure = ", with a confidence for each" if kind.has_confidence else ""
        yield "drafts", f"blocks of {kind.block_size} tokens in one pass{sure}"
    if kind.reduced_vocabulary:
        yield "chooses", f"among {kind.reduced_vocabulary:,} tokens of the vocabulary"


def _memory(
    header: ModelHeader, use: MemoryUse, ctx_size: int, free: int | None
) -> Iterator[tuple[str, str]]:
    if use.weights:
        here = "" if free is None else f"; {size(free)} are free here"
        if free is not None and use.total > free:
            here += ", which is too little"
        context = f"{ctx_size:,} tokens of context"
        yield "memory", f"about {size(use.total)} for {context}: {use.parts}{here}"
    if header.get("attention.head_count"):
        yield "flash attention", str(attention_here(header))


def _text(header: ModelHeader) -> Iterator[tuple[str, str]]:
    if header.context_length:
        window = header.sliding_window
        seen = f", most layers see {window:,} tokens back" if window else ""
        yield "context", f"{header.context_length:,} tokens{seen}"
    if header.trimmed is not None:
        yield "tokenizer", "none: it reads the tokens of its target"
        yield "proposes", f"{header.trimmed.describe()}; only localspec can run such a draft"
    elif header.vocab is not None:
        vocab = header.vocab
        pre = f", {vocab.pre}" if vocab.type == "BPE" else ""
        yield "tokenizer", f"{len(vocab):,} tokens, {vocab.type} ({vocab.model}{pre})"
        special = [
            f"{name} {token} {_quoted(vocab, token)}{' (added)' if added else ''}"
            for name, token, added in (
                ("bos", vocab.bos_id, vocab.add_bos),
                ("eos", vocab.eos_id, vocab.add_eos),
                ("eot", vocab.eot_id, False),
            )
            if token is not None
        ]
        yield "special tokens", ", ".join(special) or "none"
    template = header.chat_template
    yield "chat template", "none" if template is None else f"{len(template):,} characters"
    if header.sampling:
        yield "recommends", ", ".join(starmap(recommendation, header.sampling.items()))


def _quoted(vocab: Vocab, token: int) -> str:
    return repr(vocab.tokens[token][:40].decode("utf-8", "backslashreplace"))


def _use(header: ModelHeader, usable: bool) -> Iterator[tuple[str, str]]:
    yield "licence", header.license or "not stated"
    base = [
        str(value)
        for key in ("general.base_model.0.name", "general.base_model.0.repo_url")
        if isinstance(value := header.values.get(key), str)
    ]
    if base:
        yield "base model", ", ".join(base)
    if not header.parameters or not usable:
        return
    if draft_kind(header).only_drafts:
        made_for = "a model with the tokens" if header.trimmed else "the model"
        yield "as a draft", f"only for {made_for} that it was made for"
        return
    yield "as a target", f"for drafts of at most {count(header.parameters // MIN_RATIO)} parameters"
    yield "as a draft", f"for targets of at least {count(header.parameters * MIN_RATIO)} parameters"
