"""GGUF model header: architecture, sizes, tokenizer and tensors as one frozen `ModelHeader`.

It can be had in stages, so that a remote file needs few bytes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.core.config import KeyValue
from localspec.metadata.byte_reader import Source
from localspec.metadata.gguf_file import HeaderReader, PartHeader, TensorInfo, Value
from localspec.metadata.splits import finish_parts, read_parts
from localspec.metadata.trimmed import TrimmedVocabulary, read_trimmed
from localspec.metadata.vocab import (
    TOKEN_KEYS,
    TOKEN_TYPES,
    TOKENS,
    Tokenizer,
    build_vocab,
    read_tokenizer,
)
from localspec.metadata.vocab import Vocab as Vocab  # part of every header

FILE_TYPES = {  # general.file_type (`llama_ftype`) -> the name quantizers put into file names
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
FILE_TYPE_GUESSED = 1024
_LONGEST_LABEL = 300  # characters
_SAMPLING, _MOST_RECOMMENDED = "general.sampling.", 32  # keys
_EMPTY_BEFORE_READ = ("architecture", "parameters", "quantization")  # where others are None

# `llm_arch_is_diffusion`, and architectures that encode or embed instead of continuing a text.
DIFFUSION = frozenset("dream llada llada-moe rnd1".split())
ENCODERS = frozenset(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding llama-embed t5 t5encoder".split()
)


@dataclass(frozen=True, slots=True, eq=False)
class ModelHeader:
    """What a GGUF file says about itself, all parts of a split model taken together.

    `n_bytes` is the size on disk, `parameters` the number of tensor elements. `values` holds
    scalars by their full key, and arrays of up to 1024 elements as tuples. `data_start` is where
    the weights begin in the first part, in bytes. A draft whose vocabulary was `trimmed` has no
    tokens of its own; it reads and proposes its target's.

    Of a header that is not `complete`, what is None or empty may still come: the tensors are
    missing, `n_tokens` is what the file announces, and `vocab` has its texts and types, while its
    special ids and flags may still be llama.cpp's defaults.
    """

    complete: bool
    path: Path
    paths: tuple[Path, ...]
    version: int
    n_bytes: int
    architecture: str
    name: str | None
    type: str | None
    file_type: int | None
    quantization: str
    parameters: int
    context_length: int | None
    block_count: int | None
    embedding_length: int | None
    head_count: int | None
    expert_count: int | None
    sliding_window: int | None
    license: str | None
    chat_template: str | None
    sampling: Mapping[str, float | int | str]
    tokenizer: Tokenizer | None
    pre: str | None
    n_tokens: int | None
    vocab: Vocab | None
    tensors: tuple[TensorInfo, ...]
    values: Mapping[str, Value]
    split_count: int
    data_start: int
    trimmed: TrimmedVocabulary | None

    def as_json(self) -> dict[str, object]:
        """What a JSON reader wants to know; None for what is absent or not read."""
        facts: dict[str, object] = {
            "path": str(self.path),
            "name": self.name,
            "architecture": self.architecture,
            "parameters": self.parameters,
            "quantization": self.quantization,
            "n_vocab": self.n_tokens,
            "tokenizer_model": self.tokenizer and self.tokenizer.model,
            "tokenizer_pre": self.pre,
            "context_length": self.context_length,
        }
        if not self.complete:
            facts |= {key: facts[key] or None for key in _EMPTY_BEFORE_READ}
        return facts

    def get(self, key: str) -> Value | None:
        """The value of `{architecture}.{key}`, or None."""
        return self.values.get(f"{self.architecture}.{key}")

    @property
    def has_output(self) -> bool:
        """Whether the output matrix is its own tensor rather than the token embedding again."""
        return any(tensor.name == "output.weight" for tensor in self.tensors)

    @property
    def is_diffusion(self) -> bool:
        return self.architecture in DIFFUSION

    @property
    def is_causal(self) -> bool:
        """Whether the model continues a text from left to right."""
        known = self.architecture not in ENCODERS and not self.is_diffusion
        return known and self.get("attention.causal") is not False

    @property
    def is_autoregressive(self) -> bool:
        """Whether the model continues a text token by token."""
        return self.is_causal and not self.is_embedding

    @property
    def is_embedding(self) -> bool:
        """Whether the file asks for pooled vectors, as text embedding and ranking models do."""
        return bool(self.get("pooling_type"))


class StagedHeader:
    """A model's header, read from sources in stages: `start`, `vocabulary`, `whole`.

    Each reads no further than it must, and nothing twice. All raise what the sources raise, and
    `NotAGGUF` for what `read_header` refuses.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        self._readers = [HeaderReader(part) for part in parts]

    def start(self) -> ModelHeader:
        """The kind of model and of tokenizer, and how many tokens it has; not complete."""
        part = self._readers[0].part
        self._readers[0].advance(lambda key: TOKENS in part.announced)
        return self._so_far()

    def vocabulary(self) -> ModelHeader:
        """What `start` gave, and the texts and types of the tokens, if they come together."""
        part = self._readers[0].part
        self._readers[0].advance(lambda key: TOKENS in part.arrays and key not in TOKEN_KEYS)
        return self._so_far()

    def whole(self) -> ModelHeader:
        """Everything, of all parts."""
        return _build_header(finish_parts(self._readers))

    def _so_far(self) -> ModelHeader:
        return _build_header([reader.part for reader in self._readers], complete=False)


def read_header(path: Path, override_kv: Sequence[KeyValue] = ()) -> ModelHeader:
    """Read the header of the GGUF file at `path`; for a split model, of every part.

    `override_kv` are values in place of the file's. Raises `FileProblem` if the path or a part of
    the model is missing or unreadable, `NotAGGUF` if the content is not a complete, sane,
    little-endian GGUF file of version 2 or 3, and `UsageError` for a value of another type.
    """
    parts = read_parts(path)
    for key, value in override_kv:
        parts[0].override(key, value)
    return _build_header(parts)


def _build_header(parts: Sequence[PartHeader], complete: bool = True) -> ModelHeader:
    first, tensors = parts[0], tuple(tensor for part in parts for tensor in part.tensors)
    architecture, kind = first.text("general.architecture") or "", first.text("general.type")
    if complete:
        kind = kind or "model"
        if kind == "model" and not architecture:  # only sidecars, such as an imatrix, may lack it
            first.fail("has no key 'general.architecture', so no program can run it")
    vocab = build_vocab(first) if complete or _has_tokens(first) else None
    pre, n_tokens = _tokens_of(first, vocab, complete)
    file_type = first.number("general.file_type") if complete else None

    trimmed = read_trimmed(first, architecture, len(parts)) if complete else None
    if trimmed is not None:
        n_tokens = trimmed.size

    def number(key: str) -> int | None:
        return first.number(f"{architecture}.{key}") if complete else None

    return ModelHeader(
        complete=complete,
        path=first.path,
        paths=tuple(part.path for part in parts),
        version=first.version,
        n_bytes=sum(part.n_bytes for part in parts),
        architecture=architecture,
        name=_label(first, "general.name"),
        type=kind,
        file_type=file_type,
        quantization=_quantization(file_type, tensors) if complete else "",
        parameters=sum(tensor.n_elements for tensor in tensors) if complete else 0,
        context_length=first.number(f"{architecture}.context_length"),
        block_count=number("block_count"),
        embedding_length=number("embedding_length"),
        head_count=number("attention.head_count"),
        expert_count=number("expert_count"),
        sliding_window=number("attention.sliding_window"),
        license=_label(first, "general.license") if complete else None,
        chat_template=first.text("tokenizer.chat_template") if complete else None,
        sampling=_sampling(first.values) if complete else {},
        tokenizer=read_tokenizer(first),
        pre=pre,
        n_tokens=n_tokens,
        vocab=vocab,
        tensors=tensors,
        values=dict(first.values),
        split_count=len(parts),
        data_start=first.data_start,
        trimmed=trimmed,
    )


def _has_tokens(part: PartHeader) -> bool:
    """Whether the texts and the types of the tokens were read."""
    return TOKENS in part.arrays and TOKEN_TYPES in part.arrays


def _tokens_of(
    part: PartHeader, vocab: Vocab | None, complete: bool
) -> tuple[str | None, int | None]:
    """Pre-tokenizer and number of tokens; while keys are still to come, as far as announced."""
    if not complete:
        return part.text("tokenizer.ggml.pre"), part.announced.get(TOKENS)
    return (None, None) if vocab is None else (vocab.pre, len(vocab))


def _label(part: PartHeader, key: str) -> str | None:
    """A text that is only shown: nobody needs megabytes of it."""
    text = part.text(key)
    return text if text is None or len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "…"


def _quantization(file_type: int | None, tensors: tuple[TensorInfo, ...]) -> str:
    if file_type is not None and (named := FILE_TYPES.get(file_type & ~FILE_TYPE_GUESSED)):
        return named
    weight: Counter[str] = Counter()
    for tensor in tensors:
        weight[tensor.type_name] += tensor.n_bytes
    return weight.most_common(1)[0][0] if weight else "unknown"


def _sampling(values: Mapping[str, Value]) -> dict[str, float | int | str]:
    """What is below `general.sampling.`: numbers, and all else as text of some length."""
    keys = [key for key in values if key.startswith(_SAMPLING) and len(key) <= _LONGEST_LABEL]
    found: dict[str, float | int | str] = {}
    for key in keys[:_MOST_RECOMMENDED]:
        value = values[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            value = str(value)[:_LONGEST_LABEL]
        found[key.removeprefix(_SAMPLING)] = value
    return found
