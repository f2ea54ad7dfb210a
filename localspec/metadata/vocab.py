"""Vocabulary of a GGUF file as llama.cpp loads it: texts and types of tokens, special ids."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.metadata.gguf_file import (
    BOOL,
    FLOAT32,
    INT8,
    INT32,
    STRING,
    UINT8,
    UINT32,
    PartHeader,
)

VocabType = Literal["NONE", "SPM", "BPE", "WPM", "UGM", "RWKV", "PLaMo2", "TEST", "unknown"]

_PREFIX = "tokenizer.ggml."
TOKENS, TOKEN_TYPES, _SCORES = (f"{_PREFIX}{name}" for name in ("tokens", "token_type", "scores"))
TOKEN_KEYS = (TOKENS, TOKEN_TYPES, _SCORES)  # one element for each token

# Keys whose exact type llama.cpp insists on, whether or not we read them.
_IDS = (
    "bos eos eot eom unknown seperator padding mask "
    "fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep prefix suffix middle"
)
_U32_KEYS = frozenset(
    {f"{_PREFIX}{name}_token_id" for name in _IDS.split()} | {f"{_PREFIX}token_type_count"}
)
_BOOL_KEYS = frozenset(
    _PREFIX + name
    for name in (
        "add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces "
        "normalizer.lowercase normalizer.strip_accents"
    ).split()
)
_KMER_MARK = "\ue000".encode()  # ends the k-mers of hybriddna, so that each is a token of its own


class Tokenizer(NamedTuple):
    """llama.cpp's type of the vocabulary, and the file's own name for its tokenizer."""

    type: VocabType
    model: str


class _Defaults(NamedTuple):
    type: VocabType
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False


# Defaults of `llama_vocab::impl::load` for each tokenizer, before it reads the file's own keys.
TOKENIZERS = {
    "llama": _Defaults("SPM", 1, 2, add_bos=True),
    "gpt2": _Defaults("BPE", 11, 11),
    "hybriddna": _Defaults("BPE", 11, 11),
    "whitespace": _Defaults("BPE", 11, 11),
    "gemma4": _Defaults("BPE"),
    "bert": _Defaults("WPM", 101, None, add_bos=True),
    "t5": _Defaults("UGM", None, 1, add_eos=True),
    "rwkv": _Defaults("RWKV"),
    "plamo2": _Defaults("PLaMo2", 1, 2),
    "test": _Defaults("TEST"),
    "none": _Defaults("NONE"),
    "no_vocab": _Defaults("NONE"),
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
    eos_id, eot_id, add_bos and add_eos that are no defaults.
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

    @property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.type, self.model)

    def is_default(self, field: str) -> bool:
        return field not in self.from_file

    def keys(self) -> list[bytes]:
        """llama.cpp's keys of tokens: C strings, with a substitute for each empty one."""
        if all(self.tokens) and b"\0" not in b"".join(self.tokens):  # as in every sane file
            return self.tokens
        cut = (token.partition(b"\0")[0] if b"\0" in token else token for token in self.tokens)
        return [text or b"[EMPTY_%d]" % token_id for token_id, text in enumerate(cut)]

    def texts(self) -> list[bytes]:
        """Token texts as llama.cpp compares them: the keys, except in one tokenizer."""
        keys = self.keys()
        if self.model != "hybriddna" or b"<oov>" not in keys:
            return keys
        start = keys.index(b"<oov>") + 1
        return keys[:start] + [key.removesuffix(_KMER_MARK) or key for key in keys[start:]]

    def token_type(self, token_id: int) -> int:
        return 1 if self.token_types is None else int(self.token_types[token_id])

    def ids_of_type(self, token_type: int) -> list[int]:
        if self.token_types is None:
            return []
        found: list[int] = np.flatnonzero(self.token_types == token_type).tolist()
        return found


def read_tokenizer(part: PartHeader) -> Tokenizer | None:
    """The tokenizer by its name; None if there is none, or it is not read yet."""
    model = part.text("tokenizer.ggml.model")
    return None if model is None else Tokenizer(_defaults(model).type, model)


def _defaults(model: str) -> _Defaults:
    return TOKENIZERS.get(model, _Defaults("unknown"))


def build_vocab(part: PartHeader) -> Vocab | None:
    """The vocabulary as `llama_vocab::impl::load` makes it, or None without a tokenizer.

    Raises `NotAGGUF` if that throws because of a value's type or an array's length.
    """
    model = part.text("tokenizer.ggml.model")
    if model is None:
        return None
    default = _defaults(model)
    if default.type not in ("NONE", "unknown"):  # else llama.cpp reads the name only
        _require_types(part, default.type)
    pre = "gemma4" if model == "gemma4" else part.text("tokenizer.ggml.pre") or "default"
    if default.type == "BPE":
        default = default._replace(
            add_bos=pre in PRE_ADDS_BOS, bos_id=None if pre in PRE_WITHOUT_BOS else default.bos_id
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
    merges = part.arrays.get(f"{_PREFIX}merges")
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


def _require_types(part: PartHeader, kind: VocabType) -> None:
    part.require(_U32_KEYS, UINT32, "u32")
    part.require(_BOOL_KEYS, BOOL, "true or false")
    part.array(f"{_PREFIX}suppress_tokens", "list of i32", INT32)
    if kind == "BPE":  # the merges of other types are ignored
        part.array(f"{_PREFIX}merges", "list of texts", STRING)
    if kind == "UGM":
        part.array(f"{_PREFIX}precompiled_charsmap", "list of bytes", INT8, UINT8)


def _tokens(part: PartHeader) -> list[bytes]:
    array = part.array(TOKENS, "list of texts", STRING)
    if array is None:
        return []
    scores = part.array(_SCORES, "list of f32 or i32", FLOAT32, INT32)
    if scores is not None and scores.length < array.length:
        part.fail(f"has {array.length:,} tokens but only {scores.length:,} token scores")
    return array.strings


def _token_types(part: PartHeader, n_tokens: int) -> NDArray[np.int32] | None:
    array = part.array(TOKEN_TYPES, "list of i32", INT32) if n_tokens else None
    if array is None:
        return None
    if array.length < n_tokens:
        part.fail(f"has {n_tokens:,} tokens but only {array.length:,} token types")
    return np.frombuffer(array.packed, dtype="<i4", count=n_tokens).astype(np.int32, copy=False)


def _special_id(
    part: PartHeader, name: str, default: int | None, n_tokens: int, from_file: set[str]
) -> int | None:
    """The id; one outside the vocabulary counts as not given, a default outside it as none."""
    given = part.number(f"{_PREFIX}{name}_token_id")
    if given is not None and given < n_tokens:
        from_file.add(f"{name}_id")
        return given
    return default if default is not None and default < n_tokens else None


def _added(part: PartHeader, name: str, default: bool, from_file: set[str]) -> bool:
    given = part.flag(f"{_PREFIX}{name}_token")
    if given is None:
        return default
    from_file.add(name)
    return given
