"""The GGUF reader: agrees with the gguf library, refuses everything else in one sentence."""

import os
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import (
    ARRAY,
    BOOL,
    CODES,
    F32,
    F64,
    I8,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Tensor,
    Typed,
    gguf_bytes,
    model_keys,
    model_tensors,
    packed_string,
    vocab_keys,
    words,
    write_gguf,
    write_with_gguf,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec import gguf_file, metadata
from localspec.errors import FileProblem, NotAGGUF
from localspec.metadata import read_header

ARCH = {"general.architecture": "llama"}
EXTREMES = {
    U8: 255, I8: -128, U16: 65535, 3: -32768, U32: 2**32 - 1, I32: -(2**31), F32: 0.5,
    BOOL: True, U64: 2**64 - 1, I64: -(2**63), F64: 1e300,
}  # fmt: skip


def refusal(path: Path) -> FileProblem:
    """The error for `path`, which must be a single clean sentence with a next step."""
    with pytest.raises(FileProblem) as caught:
        read_header(path)
    error = caught.value
    assert error.message.endswith(".") and error.hint.endswith((".", "”"))
    assert error.message.isprintable() and error.hint.isprintable()
    return error


# --- agreement with the gguf library ---


def test_tensor_types_match_the_gguf_library() -> None:
    for type_id, sizes in gguf.GGML_QUANT_SIZES.items():
        name, block, block_bytes = gguf_file.GGML_TYPES[int(type_id)]
        assert (name, block, block_bytes) == (type_id.name, *sizes)


def test_file_types_match_the_gguf_library() -> None:
    ours = metadata.FILE_TYPES
    for file_type in gguf.LlamaFileType:
        if file_type.name != "GUESSED":
            plain = file_type.name.removeprefix("MOSTLY_").removeprefix("ALL_")
            assert ours[int(file_type)] == plain.removesuffix("_MOE")


@pytest.mark.parametrize("type_id", EXTREMES)
def test_scalars_and_arrays_of_every_type(tmp_path: Path, type_id: int) -> None:
    value = EXTREMES[type_id]
    keys = ARCH | {
        "one": Typed(type_id, value),
        "none": Typed(ARRAY, [], type_id),
        "many": Typed(ARRAY, [value, value], type_id),
    }
    ours = read_header(write_gguf(tmp_path / "ours.gguf", keys)).values
    assert ours["one"] == value and type(ours["one"]) is type(value)
    assert (ours["none"], ours["many"]) == ((), (value, value))
    del keys["none"]  # the gguf writer refuses empty arrays
    theirs = read_header(write_with_gguf(tmp_path / "theirs.gguf", keys)).values
    assert theirs["one"] == value and theirs["many"] == (value, value)


def test_strings(tmp_path: Path) -> None:
    keys = ARCH | {"text": "naïve ▁ 🙂", "empty": "", "list": ["a", "", "ß"]}
    header = read_header(write_with_gguf(tmp_path / "a.gguf", keys))
    assert {key: header.values[key] for key in keys} == keys | {"list": ("a", "", "ß")}


def test_bad_utf8_is_escaped(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", ARCH | {"general.name": b"a\xff"}))
    assert header.name == "a\\xff"


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_tensors_written_by_the_gguf_library(tmp_path: Path, alignment: int | None) -> None:
    keys = model_keys(words(20), types=[1] * 20, bos=3, add_bos=True)
    tensors = {
        "a.weight": np.ones((3, 5), dtype=np.float32),
        "b.weight": np.ones((2, 64), dtype=np.float16),
        "c.weight": np.ones(7, dtype=np.int8),
    }
    path = write_with_gguf(tmp_path / "a.gguf", keys, tensors, alignment)
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert header.n_bytes == path.stat().st_size
    assert header.parameters == 15 + 128 + 7
    for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert ours.name == theirs.name
        assert ours.shape == tuple(theirs.shape)
        assert (ours.type_id, ours.n_bytes) == (int(theirs.tensor_type), int(theirs.n_bytes))
        assert ours.offset == theirs.data_offset - reader.data_offset


@pytest.mark.parametrize("version", [2, 3])
def test_the_gguf_library_reads_what_we_read(tmp_path: Path, version: int) -> None:
    tokens = ["<s>", "naïve", b"\xc4\xa0".decode(), "x" * 300, "", *words(40)]
    keys = model_keys(tokens, types=list(range(45)), bos=1, eos=2)
    tensors = [Tensor("q.weight", (256, 2), 12), Tensor("odd.weight", (3,)), Tensor("z", (5, 7))]
    path = write_gguf(tmp_path / "a.gguf", keys, tensors, version=version)
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert header.version == version
    assert [token.decode() for token in header.vocab.tokens] == reader.get_field(
        "tokenizer.ggml.tokens"
    ).contents()
    assert header.vocab.token_types.dtype == np.int32
    assert header.vocab.token_types.tolist() == list(range(45))
    for key, value in header.values.items():
        assert reader.get_field(key).contents() == value
    assert [t.name for t in header.tensors] == [t.name for t in reader.tensors]
    assert [t.n_bytes for t in header.tensors] == [int(t.n_bytes) for t in reader.tensors]


# --- what the header says ---


def test_header_fields(tmp_path: Path) -> None:
    keys = model_keys(words(10), eos=4, eot=6) | {
        "general.license": "mit",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": Typed(I32, 20),
        "general.sampling.top_p": float("nan"),
        "general.sampling.sequence": "k;p",
        "llama.expert_count": 8,
        "llama.attention.sliding_window": 512,
        "llama.rope.scaling": [1.0, 2.0],
    }
    path = write_gguf(tmp_path / "a.gguf", keys, model_tensors(100))
    header = read_header(path)
    assert (header.path, header.paths, header.split_count) == (path, (path,), 1)
    assert (header.architecture, header.name, header.type) == ("llama", "Tiny", "model")
    assert (header.file_type, header.quantization, header.parameters) == (7, "Q8_0", 100)
    assert (header.context_length, header.block_count, header.embedding_length) == (4096, 1, 256)
    assert (header.head_count, header.expert_count, header.sliding_window) == (4, 8, 512)
    assert (header.license, header.chat_template) == ("mit", "{{ messages }}")
    assert header.sampling == {"temp": 0.5, "top_k": 20}
    assert header.get("rope.scaling") == (1.0, 2.0) and header.get("nothing") is None
    assert header.has_output and header.rolls_back and header.is_causal
    assert not header.is_embedding and not header.is_diffusion
    assert len(header.vocab) == 10 and header.vocab.eot_id == 6 and header.vocab.n_merges == 1
    assert "tokenizer.ggml.tokens" not in header.values


def test_large_arrays_are_not_kept(tmp_path: Path) -> None:
    keys = ARCH | {"small": [0] * 1024, "large": [0] * 1025}
    header = read_header(write_gguf(tmp_path / "a.gguf", keys))
    assert "small" in header.values and "large" not in header.values


def test_one_head_count_per_layer(tmp_path: Path) -> None:
    keys = ARCH | {"llama.attention.head_count": [4, 0, 8]}
    assert read_header(write_gguf(tmp_path / "a.gguf", keys)).head_count == 8


@pytest.mark.parametrize(
    ("file_type", "expected"), [(15, "Q4_K_M"), (1024 + 7, "Q8_0"), (None, "Q4_K"), (999, "Q4_K")]
)
def test_quantization(tmp_path: Path, file_type: int | None, expected: str) -> None:
    keys = ARCH | ({} if file_type is None else {"general.file_type": file_type})
    tensors = [Tensor("norm", (8,)), Tensor("big", (256, 9), 12), Tensor("norm2", (8,))]
    assert read_header(write_gguf(tmp_path / "a.gguf", keys, tensors)).quantization == expected


@pytest.mark.parametrize(
    ("architecture", "extra", "expected"),
    [
        ("llama", {}, (True, True, False)),
        ("llama", {"llama.attention.causal": False}, (True, False, False)),
        ("qwen3", {"qwen3.pooling_type": 3}, (True, True, True)),
        ("qwen3", {"qwen3.pooling_type": 0}, (True, True, False)),
        ("bert", {}, (True, False, False)),
        ("dream", {}, (True, False, False)),
        ("mamba2", {}, (False, True, False)),
        ("qwen35moe", {}, (False, True, False)),
    ],
)
def test_kind_of_model(
    tmp_path: Path, architecture: str, extra: dict[str, object], expected: tuple[bool, ...]
) -> None:
    keys = {"general.architecture": architecture} | extra
    header = read_header(write_gguf(tmp_path / "a.gguf", keys))
    assert (header.rolls_back, header.is_causal, header.is_embedding) == expected


def test_a_sidecar_may_lack_an_architecture(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", {"general.type": "imatrix"}))
    assert (header.type, header.architecture, header.vocab) == ("imatrix", "", None)


# --- the vocabulary as llama.cpp has it ---


@pytest.mark.parametrize(
    ("model", "pre", "expected"),
    [
        ("llama", None, ("SPM", 1, 2, True, False)),
        ("llama", "llama-bpe", ("SPM", 1, 2, True, False)),
        ("gpt2", None, ("BPE", 11, 11, False, False)),
        ("gpt2", "qwen2", ("BPE", 11, 11, False, False)),
        ("hybriddna", "qwen2", ("BPE", 11, 11, False, False)),
        ("whitespace", "whitespace", ("BPE", 11, 11, False, False)),
        *(
            ("gpt2", pre, ("BPE", 11, 11, True, False))
            for pre in "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 "
            "jina-v5-nano tekken chameleon granite-embed-multi-311m".split()
        ),
        *(
            ("gpt2", pre, ("BPE", None, 11, False, False))
            for pre in ("chatglm-bpe", "glm4", "glm5")
        ),
        ("gemma4", None, ("BPE", None, None, True, False)),
        ("gemma4", "qwen2", ("BPE", None, None, True, False)),
        ("bert", None, ("WPM", 101, None, True, False)),
        ("t5", None, ("UGM", None, 1, False, True)),
        ("rwkv", None, ("RWKV", None, None, False, False)),
        ("plamo2", None, ("PLaMo2", 1, 2, False, False)),
        ("test", None, ("TEST", None, None, False, False)),
        ("none", None, ("NONE", None, None, False, False)),
        ("no_vocab", None, ("NONE", None, None, False, False)),
        ("from the future", None, ("unknown", None, None, False, False)),
    ],
)
def test_hidden_defaults(
    tmp_path: Path, model: str, pre: str | None, expected: tuple[object, ...]
) -> None:
    keys = ARCH | vocab_keys(words(200), model=model, pre=pre)
    vocab = read_header(write_gguf(tmp_path / "a.gguf", keys)).vocab
    assert (vocab.type, vocab.bos_id, vocab.eos_id, vocab.add_bos, vocab.add_eos) == expected
    assert vocab.from_file == frozenset() and vocab.is_default("add_bos")


def test_keys_override_defaults(tmp_path: Path) -> None:
    keys = ARCH | vocab_keys(
        words(50), pre="llama-bpe", bos=7, eos=8, eot=9, add_bos=False, add_eos=True
    )
    vocab = read_header(write_gguf(tmp_path / "a.gguf", keys)).vocab
    assert (vocab.bos_id, vocab.eos_id, vocab.eot_id) == (7, 8, 9)
    assert (vocab.add_bos, vocab.add_eos) == (False, True)
    assert vocab.from_file == {"bos_id", "eos_id", "eot_id", "add_bos", "add_eos"}


@pytest.mark.parametrize(
    ("n_tokens", "bos", "expected", "is_default"),
    [
        (12, None, 11, True),  # the default just fits
        (11, None, None, True),  # the default falls off the end
        (11, 10, 10, False),
        (11, 11, None, True),  # neither key nor default fits
        (12, 12, 11, True),  # a key outside leaves the default
        (12, 2**32 - 1, 11, True),
    ],
)
def test_ids_outside_the_vocabulary(
    tmp_path: Path, n_tokens: int, bos: int | None, expected: int | None, is_default: bool
) -> None:
    keys = ARCH | vocab_keys(words(n_tokens), bos=bos)
    vocab = read_header(write_gguf(tmp_path / "a.gguf", keys)).vocab
    assert (vocab.bos_id, vocab.is_default("bos_id")) == (expected, is_default)


def test_forced_bos_wins_over_the_file(tmp_path: Path) -> None:
    keys = ARCH | vocab_keys(words(20), model="gemma4", add_bos=False)
    vocab = read_header(write_gguf(tmp_path / "a.gguf", keys)).vocab
    assert vocab.add_bos and vocab.is_default("add_bos") and vocab.pre == "gemma4"


def test_texts_are_c_strings(tmp_path: Path) -> None:
    keys = ARCH | vocab_keys([b"a\0b", b"", b"\0", b"\xff", "é"])
    vocab = read_header(write_gguf(tmp_path / "a.gguf", keys)).vocab
    assert vocab.tokens == [b"a\0b", b"", b"\0", b"\xff", "é".encode()]
    assert vocab.texts() == [b"a", b"[EMPTY_1]", b"[EMPTY_2]", b"\xff", "é".encode()]


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"GG", "cut short"),
        (b"GGUF", "cut short"),
        (b"hello world, I am a note\n", "it is a text file"),
        (b"hi", "it is a text file"),
        (b"\x00\x01\x02\x03\x04", "not with 'GGUF'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b"PK\x03\x04\x00\x00\x00", "zip or PyTorch"),
        (gguf_bytes(ARCH, magic=b"tjgg"), "GGJT"),
        (gguf_bytes(ARCH, version=0), "version 0, expected 2 or 3"),
        (gguf_bytes(ARCH, version=1), "version 1"),
        (gguf_bytes(ARCH, version=4), "version 4, expected 2 or 3"),
        (gguf_bytes(ARCH, version=0x02000000), "big-endian"),
        (gguf_bytes(ARCH, version=0x03000000), "big-endian"),
        (gguf_bytes({}), "no key 'general.architecture'"),
        (gguf_bytes(ARCH, n_keys=2), "cut short"),
        (gguf_bytes(ARCH, n_tensors=1), "cut short"),
        (gguf_bytes(ARCH, n_keys=10_001), "claims 10,001 keys"),
        (gguf_bytes(ARCH, n_keys=2**64 - 1), "the limit is 10,000"),
        (gguf_bytes(ARCH, n_tensors=100_001), "claims 100,001 tensors"),
        (gguf_bytes(ARCH, n_tensors=2**63), "the limit is 100,000"),
        (gguf_bytes([("a", 1), ("a", 2)]), "a second key 'a'"),
        (gguf_bytes([("", 1)]), "an empty key"),
        (gguf_bytes([(b"\x1b[2J", 1), (b"\x1b[2J", 1)]), r"a second key '\x1b[2J'"),
        (gguf_bytes([("k" * 65537, 1)]), "65,537 bytes of text in key 1"),
        (gguf_bytes({"a": Typed(STRING, raw=struct.pack("<Q", 2**40))}), "the limit is 16,777,216"),
        (gguf_bytes({"a": Typed(STRING, raw=struct.pack("<Q", 99))}), "needs 99 more bytes"),
        (gguf_bytes({"a": Typed(13, raw=b"?")}), "unknown value type 13"),
        (gguf_bytes({"a": Typed(ARRAY, raw=struct.pack("<IQ", ARRAY, 0))}), "array of arrays"),
        (gguf_bytes({"a": Typed(ARRAY, raw=struct.pack("<IQ", 77, 0))}), "unknown value type 77"),
        (gguf_bytes({"a": Typed(ARRAY, raw=struct.pack("<IQ", U8, 2_000_001))}), "2,000,001 elem"),
        (gguf_bytes({"a": Typed(ARRAY, raw=struct.pack("<IQ", U64, 9))}), "than fit, 9"),
        (gguf_bytes({"a": Typed(ARRAY, raw=struct.pack("<IQ", STRING, 9))}), "than fit, 9"),
        (gguf_bytes({"general.alignment": Typed(U64, 32)}), "another type than u32"),
        (gguf_bytes({"general.alignment": 0}), "not a power of two"),
        (gguf_bytes({"general.alignment": 48}), "not a power of two"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_files(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    error = refusal(path)
    assert isinstance(error, NotAGGUF) and says in error.message and str(path) in error.message


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([Tensor("a"), Tensor("a")], "'a' twice"),
        ([Tensor("n" * 64)], "the limit is 63"),
        ([Tensor("a", (1, 1, 1, 1, 1))], "5 dimensions"),
        ([Tensor("a", (2**32, 2**31))], "impossible shape"),
        ([Tensor("a", (0, 2**63))], "impossible shape"),
        ([Tensor("a", (8,), 99)], "unknown type 99"),
        ([Tensor("a", (8,), 4)], "unknown type 4"),
        ([Tensor("a", (33,), 8)], "Q8_0 cannot hold"),
        ([Tensor("a", (), 8)], "Q8_0 cannot hold"),
        ([Tensor("a", offset=32)], "at 32, not at 0"),
        ([Tensor("a", (1,)), Tensor("b", offset=4)], "at 4, not at 32"),
        ([Tensor("a"), Tensor("b", offset=0)], "at 0, not at 32"),
    ],
)
def test_refused_tensors(tmp_path: Path, tensors: list[Tensor], says: str) -> None:
    error = refusal(write_gguf(tmp_path / "a.gguf", ARCH, tensors, data=bytes(1000)))
    assert says in error.message
    if "unknown type" in says:
        assert "Upgrade" in error.hint


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 7), (1, 2, 3, 4)])
def test_unusual_shapes_are_fine(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", ARCH, [Tensor("a", shape)]))
    assert header.parameters == int(np.prod(shape)) == header.tensors[0].n_bytes // 4


def test_tensor_data_cut_short(tmp_path: Path) -> None:
    whole = gguf_bytes(ARCH, [Tensor("a", (8,)), Tensor("b", (3,))])
    path = tmp_path / "a.gguf"
    needed = len(whole) - 20  # the padding after the last tensor may be missing
    path.write_bytes(whole[:needed])
    assert read_header(path).parameters == 11
    path.write_bytes(whole[: needed - 1])
    assert f"need {needed:,} bytes, but it has {needed - 1:,}" in refusal(path).message


@pytest.mark.parametrize(
    "wrong",
    [
        {"general.architecture": 5},
        {"general.architecture": ["llama"]},
        {"general.name": 5},
        {"general.name": ["x"] * 2000},
        {"general.type": True},
        {"general.file_type": "Q8_0"},
        {"general.file_type": Typed(I32, -1)},
        {"llama.context_length": "long"},
        {"llama.context_length": True},
        {"llama.context_length": 4096.0},
        {"llama.attention.head_count": []},
        {"llama.attention.head_count": [1.5]},
        {"tokenizer.chat_template": 1},
        {"tokenizer.ggml.model": 1},
        {"tokenizer.ggml.pre": 1},
        {"tokenizer.ggml.tokens": [1, 2]},
        {"tokenizer.ggml.merges": [1, 2]},
        {"tokenizer.ggml.token_type": [1.0] * 10},
        {"tokenizer.ggml.token_type": [1] * 9},
        {"tokenizer.ggml.scores": [0.0] * 9},
        {"tokenizer.ggml.bos_token_id": "one"},
        {"tokenizer.ggml.bos_token_id": [1]},
        {"tokenizer.ggml.bos_token_id": Typed(I32, 1)},
        {"tokenizer.ggml.add_bos_token": 1},
        {"split.count": "two"},
    ],
)
def test_keys_of_the_wrong_type(tmp_path: Path, wrong: dict[str, object]) -> None:
    refusal(write_gguf(tmp_path / "a.gguf", model_keys(words(10)) | wrong))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "There is no file" in refusal(tmp_path / "missing.gguf").message
    assert "is a directory" in refusal(tmp_path).message
    assert "null byte" in refusal(Path("a\0b.gguf")).message
    assert r"\x1b" in refusal(tmp_path / "\x1b[31m.gguf").message
    assert "cannot be read" in refusal(tmp_path / ("n" * 300)).message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf").message


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "a.gguf", ARCH)

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)  # the tests may run as root, whom nothing stops
    assert "may not be read" in refusal(path).message


def test_the_whole_header_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "a.gguf", ARCH | {"a": "x" * (2 << 20)})
    assert read_header(path).architecture == "llama"
    monkeypatch.setattr(gguf_file, "MAX_HEADER_BYTES", 1 << 20)
    assert "header over 1 MiB" in refusal(path).message


# --- split models ---


def write_split(folder: Path, count: int = 3, stem: str = "m", promise: int = 3) -> list[Path]:
    paths = [folder / f"{stem}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1)]
    for number, path in enumerate(paths):
        split = {"split.no": Typed(U16, number), "split.count": Typed(U16, count)}
        if number == 0:
            split = model_keys(words(9)) | split | {"split.tensors.count": Typed(I32, promise)}
        write_gguf(path, split, [Tensor(f"t{number}", (8,))] if number or promise > 2 else [])
    return paths


def test_all_parts_are_counted(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    header = read_header(paths[0])
    assert header.paths == tuple(paths) and header.split_count == 3
    assert header.parameters == 24 and [t.name for t in header.tensors] == ["t0", "t1", "t2"]
    assert header.n_bytes == sum(path.stat().st_size for path in paths)
    assert len(header.vocab) == 9


def test_part_one_may_hold_no_tensors(tmp_path: Path) -> None:
    assert read_header(write_split(tmp_path, promise=2)[0]).parameters == 16


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    error = refusal(write_split(tmp_path)[1])
    assert "part 2 of 3" in error.message and "m-00001-of-00003.gguf" in error.hint


def test_missing_parts_are_listed(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 9, promise=9)
    for path in paths[2:]:
        path.unlink()
    error = refusal(paths[0])
    assert "7 are missing" in error.message and "m-00003-of-00009.gguf" in error.message
    assert "m-00008-of-00009.gguf" not in error.message


def test_a_renamed_first_part(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    other = paths[0].rename(tmp_path / "model.gguf")
    assert "its name hides" in refusal(other).message


@pytest.mark.parametrize("count", [0, 1])
def test_a_split_into_one_is_no_split(tmp_path: Path, count: int) -> None:
    keys = ARCH | {"split.count": Typed(U16, count), "split.no": Typed(U16, 0)}
    assert read_header(write_gguf(tmp_path / "a.gguf", keys)).split_count == 1


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    assert "does not say that it is part 3" in refusal(paths[0]).message
    write_split(tmp_path, promise=4)
    assert "promises 4 tensors" in refusal(paths[0]).message
    keys = {"split.no": Typed(U16, 2), "split.count": Typed(U16, 3)}
    write_gguf(paths[2], keys, [Tensor("t1")])
    assert "'t1' twice" in refusal(paths[0]).message
    paths[2].write_bytes(b"GGUF")
    assert str(paths[2]) in refusal(paths[0]).message


# --- hostile files ---

SAMPLE = gguf_bytes(
    model_keys([*words(12), b"\xff\0"], types=[1] * 13, bos=1, eos=2, add_bos=True)
    | {"general.alignment": 32, "small": [1, 2, 3], "split.count": Typed(U16, 0)},
    [Tensor("token_embd.weight", (8, 2)), Tensor("output.weight", (32,), 8), Tensor("n", (8,))],
)
FUZZ = settings(
    deadline=None,
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def survives(path: Path, content: bytes) -> None:
    """Reading `content` ends in a header or a plain refusal, soon and in little memory."""
    path.write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    try:
        read_header(path)
    except FileProblem as error:
        assert error.message.isprintable() and len(error.message) < 600
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20
    assert time.process_time() - start < 5


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(SAMPLE)
    assert read_header(path).parameters == 56
    for length in range(len(SAMPLE)):
        path.write_bytes(SAMPLE[:length])
        with pytest.raises(NotAGGUF):
            read_header(path)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), max_size=4))
def test_changed_bytes(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(SAMPLE)
    for index, value in changes:
        content[index] = value
    survives(tmp_path / "a.gguf", bytes(content))


@FUZZ
@given(st.integers(4, len(SAMPLE) - 8), st.sampled_from([2**63 - 1, 2**64 - 1, 2**32, 2**20, 0]))
def test_absurd_numbers(tmp_path: Path, index: int, number: int) -> None:
    content = SAMPLE[:index] + struct.pack("<Q", number) + SAMPLE[index + 8 :]
    survives(tmp_path / "a.gguf", content)


@FUZZ
@given(st.binary(max_size=200), st.integers(0, 3), st.integers(0, 3))
def test_noise_after_a_good_start(
    tmp_path: Path, noise: bytes, n_tensors: int, n_keys: int
) -> None:
    start = b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys)
    survives(tmp_path / "a.gguf", start + noise)


VALUES = st.one_of(
    st.integers(0, 2**32 - 1),
    st.floats(width=32),
    st.booleans(),
    st.binary(max_size=20),
    st.lists(st.binary(max_size=5), min_size=1, max_size=15),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=15),
    st.sampled_from(sorted(CODES)).map(lambda code: Typed(ARRAY, [], code)),
)


@FUZZ
@given(st.data())
def test_any_value_under_any_known_key(tmp_path: Path, data: st.DataObject) -> None:
    keys = model_keys(words(12), types=[1] * 12)
    names = [*keys, "split.count", "split.no", "general.type", "tokenizer.ggml.bos_token_id"]
    changes = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    survives(tmp_path / "a.gguf", gguf_bytes(keys | changes, model_tensors(64)))


def test_a_claimed_count_takes_no_memory(tmp_path: Path) -> None:
    for type_id in (U8, U64, STRING):
        raw = struct.pack("<IQ", type_id, 2_000_000)
        survives(tmp_path / "a.gguf", gguf_bytes({"a": Typed(ARRAY, raw=raw)}))


def test_a_large_vocabulary(tmp_path: Path) -> None:
    """Structure and memory of a 152k-token header; weights follow and are never read."""
    count = 151_936
    merges = [f"a{index} b{index}" for index in range(count - 300)]
    keys = model_keys(words(count), types=[1] * count, merges=merges, bos=count - 1)
    path = write_gguf(tmp_path / "a.gguf", keys, [Tensor("w", (1 << 20, 64))], data=b"")
    with path.open("r+b") as file:  # a sparse file: 256 MiB of weights that take no space
        file.truncate(path.stat().st_size + (256 << 20))
    tracemalloc.start()
    header = read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20
    assert len(header.vocab) == count and header.vocab.tokens[-1] == b"word151935"
    assert header.vocab.bos_id == count - 1 and header.vocab.n_merges == len(merges)
    assert header.vocab.token_types.shape == (count,) and header.parameters == 1 << 26


def test_packed_strings_are_what_the_format_says() -> None:
    assert packed_string("é") == b"\x02\0\0\0\0\0\0\0\xc3\xa9"
