"""Checks of one model file by its header: whether llama.cpp loads it and survives a prompt."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Literal

from localspec.core.formatting import one_line
from localspec.metadata.checks.heads import check_heads, heads_problem
from localspec.metadata.checks.names import PRE_GROUPS, architecture_faults, tensor_faults
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.findings import Finding, Level, counted, make_finding, show_text
from localspec.metadata.header import ModelHeader
from localspec.metadata.vocab import Vocab

Role = Literal["target", "draft", "file"]
Fault = tuple[str, str]  # rule, and a sentence without its subject

BYTE = 6  # a token's type
# Bytes of a token's text: tokenizers recurse along it; known ones have a few hundred.
_MAX_TOKEN = 4096
_MAX_SPELLED = 512  # of PLaMo2, whose table grows with the cube of a length
_UNESCAPED = re.compile(rb"\\x(?P<hex>..)|\\(?P<letter>.)|(?P<byte>.)", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}

# Marks of turns and tools, as <|im_start|> and [INST]; shorter ones may be words of a vocabulary.
_MARK = re.compile(r"<[^\s<>{}'\"]{3,60}>|\[/?[A-Z][A-Z_]{2,60}\]")
_MARKS = (2, 3, 4)  # types of tokens that are found whole: unknown, control, user-defined
_CHATML = "<|im_start|>"
# To llama.cpp these are control tokens, whatever their type (`llama_vocab::impl::load`).
_ENDS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <turn|> "
    "<|endoftext|> </s> <|eom_id|> <EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> "
    "<|tool_response> <｜end▁of▁sentence｜>".encode().split()
)

# Tokenizers that add BOS or EOS to a prompt, and assert that there is one.
_ADD_TOKENS = frozenset({"BPE", "SPM", "UGM", "WPM"})
# Tokenizers that read the number of a byte token from its text.
_BYTES_BY_NAME = frozenset({"BPE", "SPM", "UGM"})

# Files that are stored next to a model; by `general.type` or by architecture.
_SIDECARS = {
    "mmproj": ("the vision or audio part of a model", "Give the language model itself."),
    "clip": ("the vision or audio part of a model", "Give the language model itself."),
    "adapter": ("an adapter (LoRA)", "Merge it into its base model, or give the base model."),
    "imatrix": ("statistics for quantizing, an imatrix", "Give the model itself."),
}
_HEAD_HINT = "It only drafts: give the model that it was made for, and this file with --draft."


def check_file(header: ModelHeader, role: Role, without_weights: Level) -> Iterator[Finding]:
    """Findings against a file in its role; a draft may also be prediction heads."""
    kind = draft_kind(header)
    if sidecar := find_sidecar(header, role):
        yield sidecar
        return
    if kind.is_model and not header.is_autoregressive:
        message = f"The {role} ({one_line(header.architecture)}) is {_other(header)}."
        yield make_finding("not-autoregressive", message)
    if not header.tensors and header.split_count < 2:
        message = f"The {role} holds a tokenizer only, no weights."
        yield make_finding("vocabulary-only", message, level=without_weights)
    # Values and tensors show in the child of a first use.
    yield from _findings(
        role, (("unknown-architecture", each) for each in architecture_faults(header))
    )
    yield from _findings(role, (("unknown-tensor", each) for each in tensor_faults(header)))
    # No text is given to a draft: one without tokens is refused for its type alone.
    if role != "draft" or not loads_without_texts(header):
        yield from _findings(role, _tokenizer_faults(header.vocab))
    if kind.is_model:
        yield from _findings(role, _embedding_faults(header))
        if role != "draft" and (problem := heads_problem(header)):
            yield make_finding("heads-left-out", problem, level="info")
    else:
        yield from check_heads(header, kind)


def _findings(role: Role, faults: Iterator[Fault]) -> Iterator[Finding]:
    for rule, fault in faults:
        yield make_finding(rule, f"The {role} {fault}.")


def _other(header: ModelHeader) -> str:
    """Kind of a model that is not autoregressive."""
    if header.is_diffusion:
        return "a diffusion model"
    return "a text embedding model" if header.is_embedding else "an encoder"


def check_prompt(vocab: Vocab | None, role: Role) -> Iterator[Finding]:
    """Findings for tokens that a target's prompt needs, or llama.cpp ends the process."""
    if vocab is None:
        return
    if vocab.type in _ADD_TOKENS:
        yield from _findings(role, _prompt_faults(vocab))
    if vocab.type == "SPM":
        yield from _findings(role, _missing_bytes(vocab))
    if vocab.type == "RWKV":
        yield from _findings(role, _missing_starts(vocab))


def _prompt_faults(vocab: Vocab) -> Iterator[Fault]:
    # WPM begins every text with BOS, whatever the file says; it never adds EOS.
    if (vocab.add_bos or vocab.type == "WPM") and vocab.bos_id is None:
        yield "no-bos-id", "begins each prompt with BOS, but has no such token"
    if vocab.add_eos and vocab.type != "WPM" and vocab.eos_id is None:
        yield "no-eos-id", "ends each prompt with EOS, but has no such token"


def _missing_bytes(vocab: Vocab) -> Iterator[Fault]:
    """A text outside the vocabulary is spelled in bytes (`llama_vocab::byte_to_token`)."""
    known = set(vocab.keys())
    spelled = ((b"<0x%02X>" % byte, bytes([byte])) for byte in range(256))
    missing = [name for name, byte in spelled if name not in known and byte not in known]
    if missing:
        yield "no-byte-tokens", f"has no token for {counted(len(missing), 'byte')} of a text"


def check_template(header: ModelHeader, role: Role) -> Iterator[Finding]:
    if header.chat_template is None and header.type == "model":
        yield make_finding("no-chat-template", f"The {role} has no chat template.")
    if header.vocab and (split := _split_marks(header.vocab, header.chat_template or _CHATML)):
        shown = ", ".join(map(show_text, split[:3]))
        message = f"The {role} stores marks of its chat template as ordinary tokens: {shown}."
        yield make_finding("split-marks", message)


def _split_marks(vocab: Vocab, template: str) -> list[bytes]:
    """Marks in a template that are tokens, but of a type that prompts are not searched for."""
    marks = {found.encode() for found in _MARK.findall(template)} - _ENDS
    known = marks & set(vocab.tokens) if marks else ()
    return sorted(
        each for each in known if vocab.token_type(vocab.tokens.index(each)) not in _MARKS
    )


def loads_without_texts(header: ModelHeader) -> bool:
    """Whether llama.cpp loads a model that has no tokenizer, and makes up empty tokens for it."""
    return header.vocab is not None and header.vocab.type == "NONE" and _dummy_tokens(header) > 0


def find_sidecar(header: ModelHeader, role: Role) -> Finding | None:
    """The finding for a file that is not a model, but belongs to one.

    Of an incomplete header, only if the rest of it cannot change the finding.
    """
    kind, is_named = draft_kind(header), header.architecture and header.type is not None
    settled = header.complete or header.architecture in _SIDECARS or is_named
    known = _SIDECARS.get(header.architecture) or _SIDECARS.get(header.type or "")
    if known is None and kind.only_drafts and role != "draft":
        known = kind.words, _HEAD_HINT
    if known is None and header.complete and kind.is_model and header.type not in (None, "model"):
        known = f"a file of type '{one_line(header.type)}'", ""
    if known is None or not settled:
        return None
    return make_finding("sidecar", f"The {role} is not a model but {known[0]}.", known[1])


def _tokenizer_faults(vocab: Vocab | None) -> Iterator[Fault]:
    """Why `llama_vocab::impl::load` would throw, or end the process."""
    if vocab is None:
        yield "no-tokenizer", "holds no tokenizer"
    elif vocab.type == "NONE":
        yield "no-vocabulary", f"has the tokenizer {vocab.model!r}: no tokens"
    elif vocab.type == "unknown":
        yield "unknown-tokenizer", f"has the unknown tokenizer '{one_line(vocab.model)}'"
    elif not len(vocab):
        yield "no-tokenizer", f"has a {vocab.type} tokenizer without tokens"
    else:
        if vocab.type == "BPE" and vocab.n_merges is None and vocab.pre != "kimi-k2":
            yield "no-merges", "has a BPE tokenizer without merges, which llama.cpp cannot load"
        if vocab.type == "BPE" and vocab.pre not in PRE_GROUPS:
            yield "unknown-pre", f"has the unknown pre-tokenizer '{one_line(vocab.pre)}'"
        keys = vocab.keys()
        yield from _duplicates(keys)
        yield from _unreadable_texts(vocab, keys)
        if vocab.type in _BYTES_BY_NAME:
            yield from _bytes_without_number(vocab, keys)


def _unreadable_texts(vocab: Vocab, keys: list[bytes]) -> Iterator[Fault]:
    """Tokens at which a tokenizer would end the process, or not end itself."""
    if max(map(len, keys)) > (_MAX_SPELLED if vocab.type == "PLaMo2" else _MAX_TOKEN):
        longest = max(range(len(keys)), key=lambda i: len(keys[i]))
        yield "token-length", f"has a token of {len(keys[longest]):,} bytes as id {longest}"
    if vocab.type == "WPM" and (ids := vocab.ids_of_type(BYTE)):
        yield "byte-number", f"has {counted(len(ids), 'byte token')}, which BERT's tokenizer lacks"


def _missing_starts(vocab: Vocab) -> Iterator[Fault]:
    """A text that begins like a token, and like none that ends, is tokenized without end."""
    starts = [found for key in vocab.keys() if (found := _UNESCAPED.match(key))]
    alone = {_first_byte(found) for found in starts if found.end() == len(found.string)}
    if absent := {_first_byte(found) for found in starts} - alone:
        yield "no-byte-tokens", f"has tokens that begin with {show_text(min(absent))}, but not it"


def _first_byte(found: re.Match[bytes]) -> bytes:
    """The byte that a token's text begins with (`llama_unescape_rwkv_token`)."""
    if digits := found["hex"]:
        high, low = (each - (87 if each >= ord("a") else 48) for each in digits)
        return bytes([(high * 16 + low) % 256])
    letter: bytes = found["letter"] or b""
    return _LETTERS.get(letter, letter) or found["byte"]


def _duplicates(keys: list[bytes]) -> Iterator[Fault]:
    """llama.cpp asserts that every token text is unique."""
    if len(set(keys)) == len(keys):
        return
    twice = [key for key, times in Counter(keys).items() if times > 1]
    first, second = islice((i for i, key in enumerate(keys) if key == twice[0]), 2)
    example = f"such as {show_text(twice[0])} as ids {first} and {second}"
    many = counted(len(twice), "token text")
    yield "duplicate-tokens", f"holds {many} more than once, {example}"


def _bytes_without_number(vocab: Vocab, keys: list[bytes]) -> Iterator[Fault]:
    """llama.cpp reads a byte's number after the third character, and throws if there is none."""
    short = [i for i in vocab.ids_of_type(BYTE) if len(keys[i]) < len("<0x")]
    if short:
        example = f"such as {show_text(keys[short[0]])} as id {short[0]}"
        many = counted(len(short), "byte token")
        yield "byte-number", f"holds {many} without a number, {example}"


def _embedding_faults(header: ModelHeader) -> Iterator[Fault]:
    """llama.cpp requires one row of the embedding for each token."""
    n_tokens = _dummy_tokens(header) if loads_without_texts(header) else len(header.vocab or ())
    shapes = [tensor.shape for tensor in header.tensors if tensor.name == "token_embd.weight"]
    if n_tokens and shapes and len(shapes[0]) > 1 and shapes[0][1] != n_tokens:
        sizes = f"{shapes[0][1]:,} rows for {n_tokens:,} tokens"
        yield "embedding-size", f"has an embedding of {sizes}"


def _dummy_tokens(header: ModelHeader) -> int:
    """Number of empty tokens that llama.cpp makes up without a tokenizer."""
    size = header.get("vocab_size")
    return size if isinstance(size, int) else 0
