"""A GGUF header as `ModelHeader`, `Vocab`, tensor sizes.

This room owns what the keys mean and hands out frozen facts, the vocabulary already as llama.cpp
would load it. The bytes are `gguf_file`'s; whether a model is any good is `pairing`'s to judge.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.config import RECOMMENDED_KEYS
from localspec.gguf_file import INT32, STRING, Part, TensorInfo, Value, read_parts

VocabType = Literal["NONE", "SPM", "BPE", "WPM", "UGM", "RWKV", "PLaMo2", "TEST", "unknown"]

FILE_TYPES = {  # general.file_type (`llama_ftype`) -> the name quantizers put into file names
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
FILE_TYPE_GUESSED = 1024

# `llm_arch_is_recurrent`, `llm_arch_is_hybrid`: their state cannot drop the last few tokens.
NO_ROLLBACK = frozenset(
    "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7 jamba falcon-h1 plamo2 granitehybrid lfm2 "
    "lfm2moe nemotron_h nemotron_h_moe qwen3next kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 "
    "qwen35moe qwen4exp deepseek4 minimax-01".split()
)
# `llm_arch_is_diffusion`, and architectures that encode or embed instead of continuing a text.
DIFFUSION = frozenset("dream llada llada-moe rnd1".split())
ENCODERS = frozenset(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding llama-embed t5 t5encoder".split()
)


class _Tokenizer(NamedTuple):
    type: VocabType
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False


# What `llama_vocab::impl::load` assumes for each tokenizer before it looks at the file's own keys.
TOKENIZERS = {
    "llama": _Tokenizer("SPM", 1, 2, add_bos=True),
    "gpt2": _Tokenizer("BPE", 11, 11),
    "hybriddna": _Tokenizer("BPE", 11, 11),
    "whitespace": _Tokenizer("BPE", 11, 11),
    "gemma4": _Tokenizer("BPE"),
    "bert": _Tokenizer("WPM", 101, None, add_bos=True),
    "t5": _Tokenizer("UGM", None, 1, add_eos=True),
    "rwkv": _Tokenizer("RWKV"),
    "plamo2": _Tokenizer("PLaMo2", 1, 2),
    "test": _Tokenizer("TEST"),
    "none": _Tokenizer("NONE"),
    "no_vocab": _Tokenizer("NONE"),
}
PRE_ADDS_BOS = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken "
    "chameleon".split()
)
PRE_FORCES_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
PRE_WITHOUT_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})


@dataclass(frozen=True, slots=True, eq=False)
class Vocab:
    """A vocabulary with llama.cpp's hidden defaults applied (`llama_vocab::impl::load`).

    `tokens` are the file's raw bytes; `token_types` has one entry per token (1 normal, 2 unknown,
    3 control, 4 user-defined, 5 unused, 6 byte), or is None. `from_file` names those of bos_id,
    eos_id, eot_id, add_bos and add_eos that the file decided; the others are defaults.
    """

    model: str
    type: VocabType
    pre: str
    tokens: list[bytes]
    token_types: NDArray[np.int32] | None
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    add_bos: bool
    add_eos: bool
    from_file: frozenset[str]
    n_merges: int | None

    def __len__(self) -> int:
        return len(self.tokens)

    def is_default(self, field: str) -> bool:
        return field not in self.from_file

    def texts(self) -> list[bytes]:
        """Token texts as llama.cpp holds them: C strings, and a stand-in for each empty one."""
        cut = (token.partition(b"\0")[0] if b"\0" in token else token for token in self.tokens)
        return [text or b"[EMPTY_%d]" % token_id for token_id, text in enumerate(cut)]

    def token_type(self, token_id: int) -> int:
        return 1 if self.token_types is None else int(self.token_types[token_id])


@dataclass(frozen=True, slots=True, eq=False)
class ModelHeader:
    """What a GGUF file says about itself, all parts of a split model taken together.

    `n_bytes` is the size on disk, `parameters` the number of tensor elements. `values` holds
    scalars by their full key, and arrays of up to 1024 elements as tuples.
    """

    path: Path
    paths: tuple[Path, ...]
    version: int
    n_bytes: int
    architecture: str
    name: str | None
    type: str
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
    sampling: Mapping[str, float | int]
    vocab: Vocab | None
    tensors: tuple[TensorInfo, ...]
    values: Mapping[str, Value]
    split_count: int

    def get(self, key: str) -> Value | None:
        """The value of `{architecture}.{key}`, or None."""
        return self.values.get(f"{self.architecture}.{key}")

    @property
    def has_output(self) -> bool:
        """Whether the output matrix is its own tensor rather than the token embedding again."""
        return any(tensor.name == "output.weight" for tensor in self.tensors)

    @property
    def rolls_back(self) -> bool:
        """Whether the last tokens can be dropped from a context; engine probes this again."""
        return self.architecture not in NO_ROLLBACK

    @property
    def is_diffusion(self) -> bool:
        return self.architecture in DIFFUSION

    @property
    def is_causal(self) -> bool:
        """Whether the model continues a text from left to right."""
        known = self.architecture not in ENCODERS and not self.is_diffusion
        return known and self.get("attention.causal") is not False

    @property
    def is_embedding(self) -> bool:
        """Whether the file asks for pooled vectors, as text embedding and ranking models do."""
        return bool(self.get("pooling_type"))


def read_header(path: Path) -> ModelHeader:
    """Read the header of the GGUF file at `path`; for a split model, of every part.

    Raises `FileProblem` if the path or a part of the model is missing or unreadable, and
    `NotAGGUF` if the content is not a complete, sane, little-endian GGUF file of version 2 or 3.
    """
    parts = read_parts(path)
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return _build_header(parts[0], parts, tensors)


def _build_header(first: Part, parts: list[Part], tensors: tuple[TensorInfo, ...]) -> ModelHeader:
    kind = first.text("general.type") or "model"
    architecture = first.text("general.architecture") or ""
    if kind == "model" and not architecture:  # only sidecars, such as an imatrix, may lack it
        first.fail("has no key 'general.architecture', so no program can run it")
    file_type = first.number("general.file_type")
    return ModelHeader(
        path=first.path,
        paths=tuple(part.path for part in parts),
        version=first.version,
        n_bytes=sum(part.n_bytes for part in parts),
        architecture=architecture,
        name=first.text("general.name"),
        type=kind,
        file_type=file_type,
        quantization=_quantization(file_type, tensors),
        parameters=sum(tensor.n_elements for tensor in tensors),
        context_length=first.number(f"{architecture}.context_length"),
        block_count=first.number(f"{architecture}.block_count"),
        embedding_length=first.number(f"{architecture}.embedding_length"),
        head_count=first.number(f"{architecture}.attention.head_count"),
        expert_count=first.number(f"{architecture}.expert_count"),
        sliding_window=first.number(f"{architecture}.attention.sliding_window"),
        license=first.text("general.license"),
        chat_template=first.text("tokenizer.chat_template"),
        sampling=_sampling(first.values),
        vocab=_build_vocab(first),
        tensors=tensors,
        values=first.values,
        split_count=len(parts),
    )


def _quantization(file_type: int | None, tensors: tuple[TensorInfo, ...]) -> str:
    if file_type is not None and (named := FILE_TYPES.get(file_type & ~FILE_TYPE_GUESSED)):
        return named
    weight: Counter[str] = Counter()
    for tensor in tensors:
        weight[tensor.type_name] += tensor.n_bytes
    return weight.most_common(1)[0][0] if weight else "unknown"


def _sampling(values: Mapping[str, Value]) -> dict[str, float | int]:
    found = {name: values.get(f"general.sampling.{name}") for name in RECOMMENDED_KEYS}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _build_vocab(part: Part) -> Vocab | None:
    """The vocabulary as `llama_vocab::impl::load` would have it, or None without a tokenizer."""
    model = part.text("tokenizer.ggml.model")
    if model is None:
        return None
    default = TOKENIZERS.get(model, _Tokenizer("unknown"))
    pre = "gemma4" if model == "gemma4" else part.text("tokenizer.ggml.pre") or "default"
    if default.type == "BPE":
        default = default._replace(
            add_bos=pre in PRE_ADDS_BOS,
            bos_id=None if pre in PRE_WITHOUT_BOS else default.bos_id,
        )
    tokens = [] if default.type == "NONE" else _tokens(part)
    from_file: set[str] = set()
    ids = {
        name: _special_id(part, name, given, len(tokens), from_file)
        for name, given in (("bos", default.bos_id), ("eos", default.eos_id), ("eot", None))
    }
    add_bos = _added(part, "add_bos", default.add_bos, from_file)
    if default.type == "BPE" and pre in PRE_FORCES_BOS and not add_bos:
        add_bos = True
        from_file.discard("add_bos")
    merges = part.arrays.get("tokenizer.ggml.merges")
    if merges is not None and merges.type_id != STRING:
        part.fail("has merges that are not a list of texts")
    return Vocab(
        model=model,
        type=default.type,
        pre=pre,
        tokens=tokens,
        token_types=_token_types(part, len(tokens)),
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        eot_id=ids["eot"],
        add_bos=add_bos,
        add_eos=_added(part, "add_eos", default.add_eos, from_file),
        from_file=frozenset(from_file),
        n_merges=None if merges is None else merges.length,
    )


def _tokens(part: Part) -> list[bytes]:
    array = part.arrays.get("tokenizer.ggml.tokens")
    if array is None:
        return []
    if array.type_id != STRING:
        part.fail("has a vocabulary that is not a list of texts")
    scores = part.arrays.get("tokenizer.ggml.scores")
    if scores is not None and scores.length < array.length:
        part.fail(f"has {array.length:,} tokens but only {scores.length:,} token scores")
    return array.strings


def _token_types(part: Part, n_tokens: int) -> NDArray[np.int32] | None:
    array = part.arrays.get("tokenizer.ggml.token_type")
    if array is None or n_tokens == 0:
        return None
    if array.type_id != INT32 or array.length < n_tokens:
        part.fail(f"needs {n_tokens:,} token types as i32, but has {array.length:,} elements")
    return np.frombuffer(array.packed, dtype="<i4", count=n_tokens).astype(np.int32, copy=False)


def _special_id(
    part: Part, name: str, default: int | None, n_tokens: int, from_file: set[str]
) -> int | None:
    """An id outside the vocabulary counts as not given; a default outside it as none."""
    given = part.number(f"tokenizer.ggml.{name}_token_id")
    if given is not None and given < n_tokens:
        from_file.add(f"{name}_id")
        return given
    return default if default is not None and default < n_tokens else None


def _added(part: Part, name: str, default: bool, from_file: set[str]) -> bool:
    given = part.flag(f"tokenizer.ggml.{name}_token")
    if given is None:
        return default
    from_file.add(name)
    return given
