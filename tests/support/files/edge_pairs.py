"""Pairs of small model files on both sides of every edge of llama.cpp's comparison.

Each file is complete, so that llama.cpp itself can be asked (`scripts/record_verdicts.py`), and the
same bytes every time, so that its answers stay true of them. All weights are zero: nobody reads
what such a model says.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.files.gguf_files import ARRAY, F32, I32, Tensor, Typed, vocab_keys, write_gguf
from tests.support.files.tiny_models import byte_alphabet

Text = str | bytes
Options = dict[str, object]

SIZE = 300  # tokens of an ordinary file
WIDTH = 32
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
HALF = 1  # GGML_TYPE_F16
MARK = "\ue000"  # ends the k-mers of the tokenizer "hybriddna"; llama.cpp drops it


def bpe(changes: Mapping[int, Text] | None = None, size: int = SIZE) -> list[Text]:
    """GPT-2's 256 bytes, then words, with some texts changed."""
    tokens: list[Text] = [*byte_alphabet(), *(f"word{index}" for index in range(256, size))]
    del tokens[size:]
    for index, text in (changes or {}).items():
        tokens[index] = text
    return tokens


def spm(changes: Mapping[int, Text] | None = None, size: int = SIZE) -> Options:
    """A SentencePiece vocabulary: three special tokens, 256 bytes, then words."""
    tokens: list[Text] = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "h", "i", *(f"\u2581word{index}" for index in range(262, size))]
    for index, text in (changes or {}).items():
        tokens[index] = text
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (size - 259)]
    scores = [0.0] * 259 + [-float(index) for index in range(size - 259)]
    return {
        "model": "llama",
        "pre": None,
        "tokens": tokens,
        "types": types,
        "merges": None,
        "keys": {"tokenizer.ggml.scores": Typed(ARRAY, scores, F32)},
    }


def few(size: int) -> list[Text]:
    """So small a vocabulary that it begins with what is asked: "hi"."""
    return ["h", "i", *(f"word{index}" for index in range(2, size))]


def ending(token_type: int, count: int, size: int = SIZE) -> list[int]:
    """Token types: the last `count` are of this type, the others ordinary."""
    return [NORMAL] * (size - count) + [token_type] * count


def layers(n_tokens: int) -> list[Tensor]:
    """The tensors of a llama of one layer, its embedding as its output matrix too."""
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    norms = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    return [
        Tensor("token_embd.weight", (WIDTH, n_tokens), HALF),
        *(Tensor(f"{name}.weight", (WIDTH,)) for name in norms),
        *(Tensor(f"blk.0.{name}.weight", (WIDTH, WIDTH), HALF) for name in square),
    ]


GEMMA4: Options = {"model": "gemma4", "pre": None}
BERT: Options = {"model": "bert", "pre": None, "merges": None}
T5 = spm() | {"model": "t5"}
PLAMO2 = spm() | {"model": "plamo2"}
RWKV = spm({9: "\\n"}) | {"model": "rwkv"}  # it must know the newline
ADDED: Options = {"add_bos": True}
EOS: Options = {"add_eos": True}


def tokenizer(**keys: object) -> Options:
    """Keys of the tokenizer beside the usual ones."""
    return {"keys": {f"tokenizer.ggml.{name}": value for name, value in keys.items()}}


# Name: what the target's file says, what the draft's does. `write_model` knows the words.
CASES: dict[str, tuple[Options, Options]] = {
    "same": ({}, {}),
    # The type of the vocabulary, and what each type takes for granted.
    "type: SPM and SPM": (spm(), spm()),
    "type: SPM and BPE": (spm(), {}),
    "type: BPE and SPM": ({}, spm()),
    "type: BPE and WPM": ({}, BERT),
    "type: BPE and UGM": ({}, T5),
    "type: BPE and RWKV": ({}, RWKV),
    "type: BPE and PLaMo2": ({}, PLAMO2),
    "type: BPE by the name of whitespace": ({}, {"model": "whitespace"}),
    "type: BPE by the name of hybriddna": ({"model": "hybriddna"}, {}),
    "type: BPE by the name of gemma4": (GEMMA4 | {"bos": 256}, ADDED | {"bos": 256}),
    "type: none, with a size": ({}, {"model": "none", "keys": {"llama.vocab_size": SIZE}}),
    "WPM: bos is 101 and added": (BERT, BERT | ADDED | {"bos": 101}),
    "WPM: bos is not 100": (BERT, BERT | {"bos": 100}),
    "UGM: eos is 1 and added": (T5, T5 | EOS | {"eos": 1}),
    "UGM: eos is added": (T5 | {"add_eos": False}, T5),
    "RWKV: nothing is added": (RWKV, RWKV | {"add_bos": False, "add_eos": False}),
    "PLaMo2: bos is 1": (PLAMO2 | ADDED, PLAMO2 | ADDED | {"bos": 1}),
    "PLaMo2: bos is not added": (PLAMO2, PLAMO2 | ADDED),
    # add_bos: given, by default of the type or of pre, forced.
    "add_bos: true and false": (ADDED, {"add_bos": False}),
    "add_bos: true and default false": (ADDED, {}),
    "add_bos: default false and true": ({}, ADDED),
    "add_bos: false and default false": ({"add_bos": False}, {}),
    "add_bos: default false and false": ({}, {"add_bos": False}),
    "add_bos: default true of pre and true": ({"pre": "llama-bpe"}, ADDED),
    "add_bos: true and default true of pre": (ADDED, {"pre": "llama-bpe"}),
    "add_bos: default true of pre and false": ({"pre": "llama-bpe"}, {"add_bos": False}),
    "add_bos: default false and default true of pre": ({}, {"pre": "tekken"}),
    "add_bos: false against the default of pre": ({"pre": "tekken", "add_bos": False}, {}),
    "add_bos: two pre that add": ({"pre": "tekken"}, {"pre": "chameleon"}),
    "add_bos: forced by gemma4, and false": (
        GEMMA4 | {"bos": 256, "add_bos": False},
        {"bos": 256, "add_bos": False},
    ),
    "add_bos: forced by pre gemma4, and true": ({"pre": "gemma4", "add_bos": False}, ADDED),
    "add_bos: false, and forced by pre of granite": (
        {"add_bos": False},
        {"pre": "granite-embed-multi-311m", "add_bos": False},
    ),
    "add_bos: gemma4 overrules pre": (
        GEMMA4 | {"pre": "llama-bpe", "bos": 256},
        GEMMA4 | {"bos": 256},
    ),
    "add_bos: SPM, default true and true": (spm(), spm() | ADDED),
    "add_bos: SPM, default true and false": (spm(), spm() | {"add_bos": False}),
    "add_bos: SPM, false and default true": (spm() | {"add_bos": False}, spm()),
    "add_bos: true, and no id for the draft": (ADDED | {"bos": 5}, ADDED | {"pre": "glm4"}),
    "add_bos: true, and no id for either": (ADDED | {"pre": "glm4"}, ADDED | {"pre": "glm4"}),
    "add_bos: gemma4 without an id": (GEMMA4, GEMMA4),
    # Its id counts only where it is added.
    "bos id: differs, added": (ADDED | {"bos": 5}, ADDED | {"bos": 6}),
    "bos id: differs, added by pre": ({"pre": "tekken", "bos": 5}, {"pre": "tekken", "bos": 6}),
    "bos id: differs, not added": ({"bos": 5}, {"bos": 6}),
    "bos id: missing is 11": (ADDED, ADDED | {"bos": 11}),
    "bos id: 11 is missing": (ADDED | {"bos": 11}, ADDED),
    "bos id: missing is not 12": (ADDED, ADDED | {"bos": 12}),
    "bos id: SPM, missing is 1": (spm(), spm() | {"bos": 1}),
    "bos id: SPM, missing is not 2": (spm(), spm() | {"bos": 2}),
    "bos id: the last one": (ADDED | {"bos": SIZE - 1}, ADDED),
    "bos id: out of range is 11": (ADDED | {"bos": SIZE}, ADDED | {"bos": 11}),
    "bos id: -1 is 11": (ADDED | {"bos": 0xFFFFFFFF}, ADDED),
    "bos id: out of range for the draft alone": (
        ADDED | {"bos": SIZE, "tokens": bpe(size=SIZE + 1)},
        ADDED | {"bos": SIZE},
    ),
    "bos id: none by pre, not added": ({}, {"pre": "glm4"}),
    "bos id: none by pre, but given": (ADDED, ADDED | {"bos": 11, "pre": "chatglm-bpe"}),
    "bos id: none by pre, and out of range": (ADDED, ADDED | {"bos": SIZE, "pre": "glm5"}),
    "bos id: 11 of 12 tokens": (ADDED | {"tokens": few(99)}, ADDED | {"tokens": few(12)}),
    "bos id: 11 of 11 tokens": (ADDED | {"tokens": few(99)}, ADDED | {"tokens": few(11)}),
    # The same for eos.
    "add_eos: true and default false": (EOS, {}),
    "add_eos: default false and true": ({}, EOS),
    "add_eos: default false and false": ({}, {"add_eos": False}),
    "add_eos: SPM, true and default false": (spm() | EOS, spm()),
    "add_eos: SPM, default false and false": (spm(), spm() | {"add_eos": False}),
    "add_eos: true, and no id for either": (GEMMA4 | EOS | {"bos": 5}, GEMMA4 | EOS | {"bos": 5}),
    "eos id: differs, added": (EOS | {"eos": 5}, EOS | {"eos": 6}),
    "eos id: differs, not added": ({"eos": 5}, {"eos": 6}),
    "eos id: missing is 11": (EOS, EOS | {"eos": 11}),
    "eos id: SPM, missing is 2": (spm() | EOS, spm() | EOS | {"eos": 2}),
    "eos id: out of range is 11": (EOS | {"eos": 1 << 31}, EOS | {"eos": 11}),
    "eos id: none of gemma4, added": (
        GEMMA4 | EOS | {"bos": 5, "eos": 6},
        GEMMA4 | EOS | {"bos": 5},
    ),
    # Sizes: by how many tokens the target is larger, or the draft.
    **{
        f"size: target {more} larger": ({"tokens": bpe(size=SIZE + more)}, {})
        for more in (1, 100, 101, 127, 128, 129)
    },
    **{
        f"size: draft {more} larger": ({}, {"tokens": bpe(size=SIZE + more)})
        for more in (1, 100, 101, 127, 128, 129)
    },
    "size: SPM, target 128 larger": (spm(size=SIZE + 128), spm()),
    "size: SPM, draft 129 larger": (spm(), spm(size=SIZE + 129)),
    "size: no id is compared": ({"tokens": few(3)}, {"tokens": bpe(size=5)}),
    # Texts.
    **{
        f"text: id {index}": ({}, {"tokens": bpe({index: "other"})})
        for index in (0, 4, 5, 150, SIZE - 1)
    },
    "text: the last shared id, target larger": (
        {"tokens": bpe({SIZE - 1: "other"}, SIZE + 9)},
        {},
    ),
    "text: the last shared id, draft larger": ({}, {"tokens": bpe({SIZE - 1: "other"}, SIZE + 9)}),
    "text: the tail beyond the draft": ({"tokens": bpe({SIZE: "other"}, SIZE + 9)}, {}),
    "text: the tail beyond the target": ({}, {"tokens": bpe({SIZE: "other"}, SIZE + 9)}),
    "text: SPM, id 270": (spm({270: "other"}), spm()),
    "text: SPM, ids 0 to 2": (spm({0: "[UNK]", 1: "[BOS]", 2: "[EOS]"}), spm()),
    "text: two ids swapped": ({}, {"tokens": bpe({280: "word281", 281: "word280"})}),
    "text: only the case differs": ({}, {"tokens": bpe({280: "Word280"})}),
    "text: one begins like the other": ({}, {"tokens": bpe({280: "word2801"})}),
    "text: composed and decomposed": (
        {"tokens": bpe({280: "caf\u00e9"})},
        {"tokens": bpe({280: "cafe\u0301"})},
    ),
    "text: empty in both": ({"tokens": bpe({280: ""})}, {"tokens": bpe({280: ""})}),
    "text: empty and its stand-in": (
        {"tokens": bpe({280: ""})},
        {"tokens": bpe({280: "[EMPTY_280]"})},
    ),
    "text: empty and another stand-in": (
        {"tokens": bpe({280: ""})},
        {"tokens": bpe({280: "[EMPTY_281]"})},
    ),
    "text: the same up to a null byte": (
        {"tokens": bpe({280: b"same\0a"})},
        {"tokens": bpe({280: b"same\0b"})},
    ),
    "text: ended by a null byte": ({"tokens": bpe({280: b"word\x00280"})}, {}),
    "text: begins with a null byte": (
        {"tokens": bpe({280: b"\0word"})},
        {"tokens": bpe({280: "[EMPTY_280]"})},
    ),
    "text: not UTF-8, the same": (
        {"tokens": bpe({280: b"\xff\xfe"})},
        {"tokens": bpe({280: b"\xff\xfe"})},
    ),
    "text: not UTF-8, other bytes": (
        {"tokens": bpe({280: b"\xff\xfe"})},
        {"tokens": bpe({280: b"\xff\xfd"})},
    ),
    "text: a mark that hybriddna drops": (
        {"tokens": bpe({279: "<oov>", 280: "ACGT"})},
        {"tokens": bpe({279: "<oov>", 280: "ACGT" + MARK}), "model": "hybriddna"},
    ),
    "text: the mark before the k-mers": (
        {"tokens": bpe({279: "ACGT", 280: "<oov>"})},
        {"tokens": bpe({279: "ACGT" + MARK, 280: "<oov>"}), "model": "hybriddna"},
    ),
    # What is not compared.
    "types: control and ordinary": ({"types": ending(CONTROL, 9)}, {"types": ending(NORMAL, 9)}),
    "types: user-defined and unused": (
        {"types": ending(USER_DEFINED, 9)},
        {"types": ending(UNUSED, 9)},
    ),
    "types: none given": ({"types": ending(CONTROL, 9)}, {}),
    "merges: differ": ({"merges": ("w o", "r d")}, {"merges": ("o r", "wo r")}),
    "merges: none in the draft": ({"merges": ("w o", "r d")}, {"merges": ()}),
    "pre: differs": ({"pre": "qwen2"}, {"pre": "smollm"}),
    "pre: missing": ({"pre": "qwen2"}, {"pre": None}),
    "pre: empty": ({"pre": "qwen2"}, {"pre": ""}),
    "pre: SPM, from the future": (spm(), spm() | {"pre": "from the future"}),
    "template: differs": (
        {"keys": {"tokenizer.chat_template": "{{ messages }}"}},
        {"keys": {"tokenizer.chat_template": "{{ messages[0] }}"}},
    ),
    "template: missing": ({"keys": {"tokenizer.chat_template": "{{ messages }}"}}, {}),
    "eot: differs": ({"eot": 7}, {"eot": 8}),
    "other ids: differ": (
        tokenizer(padding_token_id=7, unknown_token_id=8),
        tokenizer(padding_token_id=8, seperator_token_id=9),
    ),
    "scores: differ": (spm(), spm() | tokenizer(scores=[0.5] * SIZE)),
    # Which of two reasons is named.
    "order: type before bos": (spm(), {"tokens": bpe(size=100)}),
    "order: bos before eos": (ADDED | EOS, {"tokens": bpe(size=100)}),
    "order: eos before size": (EOS, {"tokens": bpe(size=100)}),
    "order: size before text": ({"tokens": bpe({5: "other"})}, {"tokens": bpe(size=100)}),
    # Files that llama.cpp does not load.
    "load: a token twice": ({}, {"tokens": bpe({280: "word281"})}),
    "load: a token twice, in the target": ({"tokens": bpe({280: "word281"})}, {}),
    "load: a token twice by a null byte": ({}, {"tokens": bpe({280: b"word281\0"})}),
    "load: a token twice by a stand-in": ({}, {"tokens": bpe({280: "", 281: "[EMPTY_280]"})}),
    "load: no merges": ({}, {"merges": None}),
    "load: no merges, in the target": ({"merges": None}, {}),
    "load: no merges, kimi-k2": ({}, {"merges": None, "pre": "kimi-k2"}),
    "load: unknown pre": ({}, {"pre": "from the future"}),
    "load: unknown tokenizer": ({}, {"model": "from the future"}),
    "load: no tokenizer": ({}, {"model": None}),
    "load: tokenizer none": ({}, {"model": "none"}),
    "load: tokenizer none in both": (
        {"model": "none", "keys": {"llama.vocab_size": SIZE}},
        {"model": "none", "keys": {"llama.vocab_size": SIZE}},
    ),
    "load: no weights": ({}, {"tensors": []}),
    "load: an embedding of other tokens": ({}, {"tensors": layers(SIZE + 1)}),
    "load: bos id as i32": ({}, tokenizer(bos_token_id=Typed(I32, 5))),
    "load: padding id as i32": ({}, tokenizer(padding_token_id=Typed(I32, 5))),
    "load: add_bos as a number": ({}, tokenizer(add_bos_token=1)),
    "load: add_space_prefix as a number": ({}, tokenizer(add_space_prefix=1)),
    "load: too few scores": ({}, tokenizer(scores=[0.0] * (SIZE - 1))),
    "load: scores as texts": ({}, tokenizer(scores=[str(index) for index in range(SIZE)])),
    "load: too few token types": ({}, {"types": [NORMAL] * (SIZE - 1)}),
    "load: SPM, a byte without its number": (
        spm({5: "x"}) | {"types": [NORMAL] * SIZE},
        spm({5: "x"}),
    ),
}


def write_pairs(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    """Write every pair into `folder`: name of the case, target, draft."""
    for number, (name, (target, draft)) in enumerate(CASES.items()):
        yield (
            name,
            write_model(folder / f"{number:03d}-target.gguf", **target),  # type: ignore[arg-type]
            write_model(folder / f"{number:03d}-draft.gguf", **draft),  # type: ignore[arg-type]
        )


def write_model(
    path: Path,
    *,
    tokens: Sequence[Text] | None = None,
    model: str | None = "gpt2",
    keys: Mapping[str, object] | None = None,
    tensors: Sequence[Tensor] | None = None,
    **options: object,
) -> Path:
    """Write a llama of one layer and return `path`; `vocab_keys` takes the other options.

    `keys` are added to the file's; None for `model` or `tensors` [] leave those out.
    """
    texts = bpe() if tokens is None else tokens
    content: dict[str, object] = {
        "general.architecture": "llama",
        "general.file_type": 1,
        "llama.context_length": 64,
        "llama.block_count": 1,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH,
        **vocab_keys(texts, model=model or "", **options),  # type: ignore[arg-type]
        **(keys or {}),
    }
    if model is None:
        del content["tokenizer.ggml.model"]
    whole = layers(len(texts)) if tensors is None else tensors
    return write_gguf(path, content, whole)
