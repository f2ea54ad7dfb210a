"""GGUF model header: architecture, sizes, tokenizer and tensors; read in stages if remote."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.core.formatting import count
from localspec.core.options.load_options import KeyValue
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
_SIZE_LABEL = re.compile(r"[\dxA.]{1,9}[KMBT]")  # also 8x7B, A3B
_SAMPLING, _MOST_RECOMMENDED = "general.sampling.", 32  # keys

# `llm_arch_is_diffusion`, and architectures that encode or embed instead of continuing a text.
DIFFUSION = frozenset("dream llada llada-moe rnd1".split())
ENCODERS = frozenset(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding llama-embed t5 t5encoder".split()
)


@dataclass(frozen=True, slots=True, eq=False)
class ModelHeader:
    """Header of a GGUF file, or of all parts of a split model together.

    `values` are scalars by their full key, and arrays of up to 1024 elements as tuples.
    `data_start` is the byte at which the weights begin in the first part. A draft with a `trimmed`
    vocabulary has no tokens of its own.

    If not `complete`, values may be missing: there are no tensors, `n_tokens` is the announced
    number, and special ids and flags of `vocab` may still be llama.cpp's defaults.
    """

    complete: bool
    path: Path
    paths: tuple[Path, ...]
    n_bytes: int
    architecture: str
    name: str | None
    type: str | None
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
        """The main facts; None for those that are absent or not read."""
        return {
            "path": str(self.path),
            "name": self.name,
            "architecture": self.architecture if self.complete else self.architecture or None,
            "parameters": self.parameters if self.complete else None,
            "quantization": self.quantization if self.complete else None,
            "n_vocab": self.n_tokens,
            "tokenizer_model": self.tokenizer and self.tokenizer.model,
            "tokenizer_pre": self.pre,
            "context_length": self.context_length,
        }

    def get(self, key: str) -> Value | None:
        return self.values.get(f"{self.architecture}.{key}")

    @property
    def size_label(self) -> str:
        """The size that a model is sold by, such as 1.5B, if its file states it; else its count.

        A count includes an output matrix that is a copy of the token embedding.
        """
        label = str(self.values.get("general.size_label"))
        return label if _SIZE_LABEL.fullmatch(label) else count(self.parameters)

    @property
    def has_output(self) -> bool:
        """Whether the output matrix is its own tensor rather than the token embedding again."""
        return any(tensor.name == "output.weight" for tensor in self.tensors)

    @property
    def is_diffusion(self) -> bool:
        return self.architecture in DIFFUSION

    @property
    def is_autoregressive(self) -> bool:
        """Whether the model continues a text from left to right, token by token."""
        causal = self.architecture not in ENCODERS and self.get("attention.causal") is not False
        return causal and not self.is_diffusion and not self.is_embedding

    @property
    def is_embedding(self) -> bool:
        """Whether the file asks for pooled vectors, as text embedding and ranking models do."""
        return bool(self.get("pooling_type"))


class StagedHeader:
    """A model's header, read in stages that each read as little as possible.

    All methods raise the errors of the sources, and `NotAGGUF` as `read_header`.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        self._readers = [HeaderReader(part) for part in parts]

    def start(self) -> ModelHeader:
        """Not complete: architecture, type of tokenizer, number of tokens."""
        part = self._readers[0].part
        self._readers[0].advance(lambda key: TOKENS in part.announced)
        return self._so_far()

    def vocabulary(self) -> ModelHeader:
        """`start`, and the texts and types of tokens if the file has them together."""
        part = self._readers[0].part
        self._readers[0].advance(lambda key: TOKENS in part.arrays and key not in TOKEN_KEYS)
        return self._so_far()

    def whole(self) -> ModelHeader:
        return _build_header(finish_parts(self._readers))

    def _so_far(self) -> ModelHeader:
        return _build_header([reader.part for reader in self._readers], complete=False)


def read_header(path: Path, override_kv: Sequence[KeyValue] = ()) -> ModelHeader:
    """Read the header of a GGUF file, or of all parts of a split model.

    `override_kv` replaces values of the file. Raises `FileProblem` if a file is missing or
    unreadable, `NotAGGUF` if it is not a valid little-endian GGUF file of version 2 or 3, and
    `UsageError` for a value of another type.
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
    has_tokens = TOKENS in first.arrays and TOKEN_TYPES in first.arrays
    vocab = build_vocab(first) if complete or has_tokens else None
    pre, n_tokens = _tokens_of(first, vocab, complete)
    # Before the end nothing more is read, so that a value of a wrong type does not hide a finding.
    rest = first if complete else PartHeader(first.path, first.n_bytes)
    trimmed = read_trimmed(rest, architecture, len(parts))

    def number(key: str) -> int | None:
        return rest.number(f"{architecture}.{key}")

    return ModelHeader(
        complete=complete,
        path=first.path,
        paths=tuple(part.path for part in parts),
        n_bytes=sum(part.n_bytes for part in parts),
        architecture=architecture,
        name=_label(first, "general.name"),
        type=kind,
        quantization=_quantization(rest.number("general.file_type"), tensors),
        parameters=sum(tensor.n_elements for tensor in tensors),
        context_length=first.number(f"{architecture}.context_length"),
        block_count=number("block_count"),
        embedding_length=number("embedding_length"),
        head_count=number("attention.head_count"),
        expert_count=number("expert_count"),
        sliding_window=number("attention.sliding_window"),
        license=_label(rest, "general.license"),
        chat_template=rest.text("tokenizer.chat_template"),
        sampling=_sampling(rest.values),
        tokenizer=read_tokenizer(first),
        pre=pre,
        n_tokens=trimmed.size if trimmed else n_tokens,
        vocab=vocab,
        tensors=tensors,
        values=dict(first.values),
        split_count=len(parts),
        data_start=first.data_start,
        trimmed=trimmed,
    )


def _tokens_of(
    part: PartHeader, vocab: Vocab | None, complete: bool
) -> tuple[str | None, int | None]:
    """Pre-tokenizer and number of tokens; those that the file announces if not complete."""
    if not complete:
        return part.text("tokenizer.ggml.pre"), part.announced.get(TOKENS)
    return (None, None) if vocab is None else (vocab.pre, len(vocab))


def _label(part: PartHeader, key: str) -> str | None:
    """A text that is only shown, truncated."""
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
    """Values below `general.sampling.`: numbers, and all others as truncated text."""
    keys = [key for key in values if key.startswith(_SAMPLING) and len(key) <= _LONGEST_LABEL]
    found: dict[str, float | int | str] = {}
    for key in keys[:_MOST_RECOMMENDED]:
        value = values[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            value = str(value)[:_LONGEST_LABEL]
        found[key.removeprefix(_SAMPLING)] = value
    return found
