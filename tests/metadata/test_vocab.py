"""The vocabulary as llama.cpp has it: hidden defaults, texts, and values it refuses."""

from collections.abc import Sequence
from pathlib import Path

from localspec.metadata.header import read_header
from localspec.metadata.vocab import Vocab
from tests.support.files.gguf_files import (
    ARRAY,
    F32,
    F64,
    I8,
    I32,
    U8,
    U32,
    U64,
    Typed,
    vocab_keys,
    words,
    write_gguf,
)
from tests.support.files.headers import refusal, vocab_of

ARCH = {"general.architecture": "llama"}


def read_vocab(path: Path) -> Vocab:
    return vocab_of(read_header(path))


def made(tmp_path: Path, tokens: Sequence[str | bytes], **options: object) -> Vocab:
    """The vocabulary of a file with these tokens; `vocab_keys` takes the options."""
    keys = ARCH | vocab_keys(tokens, **options)  # type: ignore[arg-type]
    return read_vocab(write_gguf(tmp_path / "a.gguf", keys))


ADDS_BOS = (
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
    "jina-v5-nano tekken chameleon granite-embed-multi-311m"
).split()
HIDDEN_DEFAULTS: dict[tuple[str, str | None], tuple[object, ...]] = {
    ("llama", None): ("SPM", 1, 2, True, False),
    ("llama", "llama-bpe"): ("SPM", 1, 2, True, False),
    ("gpt2", None): ("BPE", 11, 11, False, False),
    ("gpt2", "qwen2"): ("BPE", 11, 11, False, False),
    ("hybriddna", "qwen2"): ("BPE", 11, 11, False, False),
    ("whitespace", "whitespace"): ("BPE", 11, 11, False, False),
    **{("gpt2", pre): ("BPE", 11, 11, True, False) for pre in ADDS_BOS},
    **{("gpt2", pre): ("BPE", None, 11, False, False) for pre in ("chatglm-bpe", "glm4", "glm5")},
    ("gemma4", None): ("BPE", None, None, True, False),
    ("gemma4", "qwen2"): ("BPE", None, None, True, False),
    ("bert", None): ("WPM", 101, None, True, False),
    ("t5", None): ("UGM", None, 1, False, True),
    ("rwkv", None): ("RWKV", None, None, False, False),
    ("plamo2", None): ("PLaMo2", 1, 2, False, False),
    ("test", None): ("TEST", None, None, False, False),
    ("none", None): ("NONE", None, None, False, False),
    ("no_vocab", None): ("NONE", None, None, False, False),
    ("from the future", None): ("unknown", None, None, False, False),
}


def test_hidden_defaults(tmp_path: Path) -> None:
    vocabs = {
        (model, pre): made(tmp_path, words(200), model=model, pre=pre)
        for model, pre in HIDDEN_DEFAULTS
    }
    assert {
        case: (vocab.type, vocab.bos_id, vocab.eos_id, vocab.add_bos, vocab.add_eos)
        for case, vocab in vocabs.items()
    } == HIDDEN_DEFAULTS
    for vocab in vocabs.values():
        assert vocab.from_file == frozenset() and vocab.is_default("add_bos"), vocab.pre


def test_keys_override_defaults(tmp_path: Path) -> None:
    options = {"pre": "llama-bpe", "bos": 7, "eos": 8, "eot": 9, "add_bos": False, "add_eos": True}
    vocab = made(tmp_path, words(50), **options)
    assert (vocab.bos_id, vocab.eos_id, vocab.eot_id) == (7, 8, 9)
    assert (vocab.add_bos, vocab.add_eos) == (False, True)
    assert vocab.from_file == {"bos_id", "eos_id", "eot_id", "add_bos", "add_eos"}


def test_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    for n_tokens, bos, expected, is_default in (
        (12, None, 11, True),  # the default just fits
        (11, None, None, True),  # the default falls off the end
        (11, 10, 10, False),
        (11, 11, None, True),  # neither key nor default fits
        (12, 12, 11, True),  # a key outside leaves the default
        (12, 2**32 - 1, 11, True),
    ):
        vocab = made(tmp_path, words(n_tokens), bos=bos)
        found = vocab.bos_id, vocab.is_default("bos_id")
        assert found == (expected, is_default), (n_tokens, bos)


def test_forced_bos_wins_over_the_file(tmp_path: Path) -> None:
    vocab = made(tmp_path, words(20), model="gemma4", add_bos=False)
    assert vocab.add_bos and vocab.is_default("add_bos") and vocab.pre == "gemma4"


def test_texts_are_c_strings(tmp_path: Path) -> None:
    vocab = made(tmp_path, [b"a\0b", b"", b"\0", b"\xff", "é"])
    assert vocab.tokens == [b"a\0b", b"", b"\0", b"\xff", "é".encode()]
    assert vocab.texts() == [b"a", b"[EMPTY_1]", b"[EMPTY_2]", b"\xff", "é".encode()]


def test_hybriddna_drops_the_mark_of_its_k_mers(tmp_path: Path) -> None:
    mark = "\ue000"
    tokens = ["A" + mark, "<oov>", "ACGT" + mark, "ACGT", mark, "T" + mark * 2]
    for model, expected in (
        ("hybriddna", ["A" + mark, "<oov>", "ACGT", "ACGT", mark, "T" + mark]),
        ("gpt2", tokens),
    ):
        vocab = made(tmp_path, tokens, model=model)
        assert [text.decode() for text in vocab.texts()] == expected
        assert [text.decode() for text in vocab.keys()] == tokens
    vocab = made(tmp_path, ["ACGT" + mark], model="hybriddna")
    assert vocab.texts() == vocab.tokens


def test_ids_of_a_type(tmp_path: Path) -> None:
    vocab = made(tmp_path, words(5), types=[1, 6, 3, 6, 1])
    assert (vocab.ids_of_type(6), vocab.ids_of_type(2)) == ([1, 3], [])
    assert made(tmp_path, words(5)).ids_of_type(1) == []


# --- values whose type llama.cpp insists on ---

IDS = (
    "bos eos eot eom unknown seperator padding mask fim_pre fim_suf fim_mid fim_pad fim_rep "
    "fim_sep prefix suffix middle"
).split()
FLAGS = (
    "add_bos_token add_eos_token add_sep_token add_space_prefix remove_extra_whitespaces "
    "normalizer.lowercase normalizer.strip_accents"
).split()
WRONG: dict[str, list[object]] = {
    **{f"{name}_token_id": [Typed(I32, 1), Typed(U64, 1), True, "1", [1]] for name in IDS},
    "token_type_count": [Typed(I32, 1)],
    **{name: [1, Typed(U8, 1), "true", [True]] for name in FLAGS},
    "scores": [["1"] * 9, Typed(ARRAY, [1.0] * 9, F64), [0.0] * 8, 1.0],
    "token_type": [Typed(ARRAY, [1] * 9, U32), [1.0] * 9, [1] * 8, 1],
    "tokens": [[1] * 9, "word", 5],
    "merges": [[1, 2], "a b"],
    "suppress_tokens": [Typed(ARRAY, [1], U32), ["1"], 1],
}
RIGHT: dict[str, object] = {
    **{f"{name}_token_id": 1 for name in IDS},
    "token_type_count": 2,
    **{name: True for name in FLAGS},
    "scores": Typed(ARRAY, [1] * 10, I32),
    "suppress_tokens": [1, 2],
    "cls_token_id": Typed(I32, 1),  # which llama.cpp does not read
    "precompiled_charsmap": [1.0],  # nor this, unless the tokenizer is UGM
}


def named(name: str, value: object) -> dict[str, object]:
    return {f"tokenizer.ggml.{name}": value}


def test_a_value_of_another_type_is_refused(tmp_path: Path) -> None:
    other_words = []
    for name, value in ((name, value) for name, values in WRONG.items() for value in values):
        keys = ARCH | vocab_keys(words(9)) | named(name, value)
        error = refusal(write_gguf(tmp_path / f"{name}.gguf", keys))
        said = error.message.replace(f"{name}.gguf", "")
        if name not in said and "9 tokens but only 8" not in said:
            other_words.append((name, value, said))
        # What has no tokenizer has no such keys either.
        keys |= {"tokenizer.ggml.model": "none"}
        if name not in ("merges", "bos_token_id", "eos_token_id", "eot_token_id", *FLAGS[:2]):
            read_header(write_gguf(tmp_path / f"{name}.gguf", keys))
    assert not other_words


def test_values_of_the_right_type(tmp_path: Path) -> None:
    sizes = {}
    for name, value in RIGHT.items():
        keys = ARCH | vocab_keys(words(10)) | named(name, value)
        sizes[name] = len(read_vocab(write_gguf(tmp_path / f"{name}.gguf", keys)))
    assert sizes == dict.fromkeys(RIGHT, 10)


def test_merges_matter_to_bpe_alone(tmp_path: Path) -> None:
    for value, count in (([1, 2], 2), (5, None), (["a b"], 1)):
        keys = ARCH | vocab_keys(words(9), model="llama") | named("merges", value)
        assert read_vocab(write_gguf(tmp_path / "a.gguf", keys)).n_merges == count


def test_the_character_map_of_ugm(tmp_path: Path) -> None:
    for each in (I8, U8, F32):
        keys = ARCH | vocab_keys(words(9), model="t5")
        keys |= named("precompiled_charsmap", Typed(ARRAY, [1, 2], each))
        path = write_gguf(tmp_path / "a.gguf", keys)
        if each == F32:
            assert "precompiled_charsmap" in refusal(path).message
        else:
            assert read_vocab(path).type == "UGM"
