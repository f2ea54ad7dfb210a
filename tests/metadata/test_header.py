# ruff: noqa: F401, F811  (`make` is a fixture)
"""The GGUF reader: agrees with the gguf library, refuses everything else in one sentence."""

import json
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.core.errors import FileProblem, NotAGGUF, UsageError
from localspec.core.options.load_options import CACHE_TYPES, KeyValue
from localspec.metadata import gguf_file, header
from localspec.metadata.header import ModelHeader, StagedHeader, read_header
from tests.support.files.gguf_files import (
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
    words,
    write_gguf,
    write_with_gguf,
)
from tests.support.files.headers import N_WORDS, Bytes, Make, make, refusal, types_of, vocab_of

ARCH = {"general.architecture": "llama"}
EXTREMES = {
    U8: 255, I8: -128, U16: 65535, 3: -32768, U32: 2**32 - 1, I32: -(2**31), F32: 0.5,
    BOOL: True, U64: 2**64 - 1, I64: -(2**63), F64: 1e300,
}  # fmt: skip


# --- agreement with the gguf library ---


def test_tensor_types_match_the_gguf_library() -> None:
    for type_id, sizes in gguf.GGML_QUANT_SIZES.items():
        assert gguf_file.GGML_TYPES[int(type_id)] == (int(type_id), type_id.name, *sizes)


def test_every_cache_type_is_a_tensor_type() -> None:
    for name in CACHE_TYPES:
        known = gguf.GGMLQuantizationType[name.upper()]
        assert gguf_file.GGML_TYPES_BY_NAME[name].type_id == known


def test_file_types_match_the_gguf_library() -> None:
    ours = header.FILE_TYPES
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
    tensors: dict[str, NDArray[Any]] = {
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
    theirs = {name: field.contents() for name, field in reader.fields.items()}
    ours = [token.decode() for token in vocab_of(header).tokens]
    assert ours == theirs["tokenizer.ggml.tokens"]
    assert types_of(header).dtype == np.int32
    assert types_of(header).tolist() == list(range(45))
    for key, value in header.values.items():
        assert theirs[key] == value
    assert [t.name for t in header.tensors] == [t.name for t in reader.tensors]
    assert [t.n_bytes for t in header.tensors] == [int(t.n_bytes) for t in reader.tensors]


# --- what the header says ---


def test_header_fields(tmp_path: Path) -> None:
    keys = model_keys(words(10), eos=4, eot=6) | {
        "general.license": "mit",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": Typed(I32, 20),
        "general.sampling.mirostat": True,
        "general.sampling.sequence": "k;p" * 200,
        "general.sampling." + 300 * "x": 1,
        "llama.expert_count": 8,
        "llama.attention.sliding_window": 512,
        "llama.rope.scaling": [1.0, 2.0],
    }
    path = write_gguf(tmp_path / "a.gguf", keys, model_tensors(100))
    header = read_header(path)
    assert (header.path, header.paths, header.split_count) == (path, (path,), 1)
    assert (header.architecture, header.name, header.type) == ("llama", "Tiny", "model")
    assert (header.quantization, header.parameters) == ("Q8_0", 100)
    assert (header.context_length, header.block_count, header.embedding_length) == (4096, 1, 256)
    assert (header.head_count, header.expert_count, header.sliding_window) == (4, 8, 512)
    assert (header.license, header.chat_template) == ("mit", "{{ messages }}")
    recommended = {"temp": 0.5, "top_k": 20, "mirostat": "True", "sequence": "k;p" * 100}
    assert header.sampling == recommended
    assert header.get("rope.scaling") == (1.0, 2.0) and header.get("nothing") is None
    assert header.has_output and header.is_autoregressive
    assert not header.is_embedding and not header.is_diffusion
    vocab = vocab_of(header)
    assert len(vocab) == 10 and vocab.eot_id == 6 and vocab.n_merges == 1
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
        ("llama", {}, (True, False)),
        ("llama", {"llama.attention.causal": False}, (False, False)),
        ("qwen3", {"qwen3.pooling_type": 3}, (False, True)),
        ("qwen3", {"qwen3.pooling_type": 0}, (True, False)),
        ("bert", {}, (False, False)),
        ("dream", {}, (False, False)),
        ("mamba2", {}, (True, False)),
        ("qwen35moe", {}, (True, False)),
    ],
)
def test_kind_of_model(
    tmp_path: Path, architecture: str, extra: dict[str, object], expected: tuple[bool, ...]
) -> None:
    keys = {"general.architecture": architecture} | extra
    header = read_header(write_gguf(tmp_path / "a.gguf", keys))
    assert (header.is_autoregressive, header.is_embedding) == expected


def test_a_sidecar_may_lack_an_architecture(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", {"general.type": "imatrix"}))
    assert (header.type, header.architecture, header.vocab) == ("imatrix", "", None)


# --- refusals ---


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"GG", "cut short"),
        (b"GGUF", "cut short"),
        (b"hello world, I am a note\n", "it is a text file"),
        (b"hi", "it is a text file"),
        (b"\x00\x01\x02\x03\x04", "the bytes 00 01 02 03, not with GGUF"),
        (b"localspec state\n\x00\x01", "is a prompt cache"),
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
        {"tokenizer.ggml.scores": ["0"] * 10},
        {"tokenizer.ggml.bos_token_id": "one"},
        {"tokenizer.ggml.bos_token_id": [1]},
        {"tokenizer.ggml.bos_token_id": Typed(I32, 1)},
        {"tokenizer.ggml.add_bos_token": 1},
        {"split.count": "two"},
    ],
)
def test_keys_of_the_wrong_type(tmp_path: Path, wrong: dict[str, object]) -> None:
    refusal(write_gguf(tmp_path / "a.gguf", model_keys(words(10)) | wrong))


# --- hostile files ---

SAMPLE = gguf_bytes(
    model_keys([*words(12), b"\xff\0"], types=[1] * 13, bos=1, eos=2, add_bos=True)
    | {"general.alignment": 32, "small": [1, 2, 3], "split.count": Typed(U16, 0)},
    [Tensor("token_embd.weight", (8, 2)), Tensor("output.weight", (32,), 8), Tensor("n", (8,))],
)
FUZZ = settings(
    deadline=None,
    max_examples=2 * settings().max_examples,
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
    vocab = vocab_of(header)
    assert len(vocab) == count and vocab.tokens[-1] == b"word151935"
    assert vocab.bos_id == count - 1 and vocab.n_merges == len(merges)
    assert types_of(header).shape == (count,) and header.parameters == 1 << 26


def test_packed_strings_are_what_the_format_says() -> None:
    assert packed_string("é") == b"\x02\0\0\0\0\0\0\0\xc3\xa9"


# --- from elsewhere, and in stages ---


def facts(header: ModelHeader) -> tuple[object, ...]:
    vocab = vocab_of(header)
    return header.values, header.tensors, vocab.tokens, types_of(header).tolist(), vocab.bos_id


MANY = words(300)
STAGED = gguf_bytes(
    model_keys(MANY, types=[1] * 299 + [3], bos=3, merges=["a b"] * 50), model_tensors()
)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=5))
def test_any_source_gives_the_same_header(tmp_path_factory, extra: list[int]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("a") / "a.gguf"
    path.write_bytes(STAGED)
    staged = StagedHeader([Bytes(STAGED, tuple(extra))])
    start, vocabulary = staged.start(), staged.vocabulary()
    assert start.architecture == "llama" and start.n_tokens == 300 and start.vocab is None
    assert vocabulary.vocab is not None and vocabulary.vocab.token_type(299) == 3
    assert facts(staged.whole()) == facts(read_header(path))


def test_each_stage_reads_no_further_than_it_must() -> None:
    source = Bytes(STAGED)
    staged = StagedHeader([source])
    assert source.given == 0
    start = staged.start()
    assert source.given <= STAGED.index(b"word0") and start.tokenizer == ("BPE", "gpt2")
    assert (start.name, start.type, start.pre) == ("Tiny", None, "qwen2")
    assert staged.start().n_tokens == 300 and source.given < STAGED.index(b"word299")
    vocabulary = staged.vocabulary()
    at = STAGED.index(b"tokenizer.ggml.merges")
    assert at < source.given < at + 50 and vocabulary.vocab is not None
    assert vocabulary.vocab.tokens == [word.encode() for word in MANY]
    assert staged.start().n_tokens == 300 and staged.vocabulary().vocab is not None
    assert source.given < at + 50
    header = staged.whole()
    assert source.given < len(STAGED) - 4 * 4096  # no weights
    assert header.complete and not start.complete and not vocabulary.complete
    assert start.values.keys() < header.values.keys()  # what was handed out stays as it was
    assert header.vocab is not None and header.tokenizer == start.tokenizer
    assert (header.n_tokens, header.pre, header.type) == (300, "qwen2", "model")


def test_stages_of_a_header_without_tokens() -> None:
    staged = StagedHeader([Bytes(gguf_bytes(ARCH | {"general.type": "mmproj"}))])
    start = staged.start()
    assert (start.type, start.tokenizer, start.n_tokens, start.vocab) == (
        "mmproj",
        None,
        None,
        None,
    )
    assert staged.vocabulary().vocab is None and staged.whole().vocab is None


def test_a_header_read_in_part_as_json(make: Make) -> None:
    started = StagedHeader([Bytes(STAGED)]).start().as_json()
    assert started.keys() == make().as_json().keys()
    assert started["n_vocab"] == N_WORDS and started["tokenizer_model"] == "gpt2"
    assert started["parameters"] is None
    assert started["architecture"] == "llama" and started["quantization"] is None
    json.dumps(started)


def test_a_stage_judges_nothing_that_only_the_whole_needs() -> None:
    keys = ARCH | {"general.type": "mmproj", "general.license": 5}
    staged = StagedHeader([Bytes(gguf_bytes(keys, model_tensors()))])
    start = staged.start()  # read to its end, as no tokens come
    assert (start.license, start.as_json()["parameters"]) == (None, None)
    with pytest.raises(NotAGGUF, match=r"general\.license"):
        staged.whole()


def test_an_empty_vocabulary_as_json(make: Make) -> None:
    for empty, model in ((make(model="none"), "none"), (make(tokens=0), "gpt2")):
        told = empty.as_json()
        assert (told["n_vocab"], told["tokenizer_model"]) == (0, model)


def test_no_vocabulary_as_json(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "a.gguf", {"general.architecture": "clip"}))
    assert header.as_json()["n_vocab"] is None


def test_types_that_do_not_follow_the_tokens_are_not_waited_for() -> None:
    keys = model_keys(words(20), types=[1] * 20)
    keys["tokenizer.ggml.token_type"] = keys.pop("tokenizer.ggml.token_type")
    staged = StagedHeader([Bytes(gguf_bytes(keys))])
    staged.start()
    assert staged.vocabulary().vocab is None
    header = staged.whole()
    assert header.vocab is not None and header.vocab.token_types is not None


# --- values in place of the file's ---


def test_a_replaced_value_is_read_as_if_it_were_in_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_keys(words(9), add_bos=True), model_tensors())
    replaced = (
        KeyValue("llama.context_length", 77), KeyValue("tokenizer.ggml.add_bos_token", False),
        KeyValue("general.name", "Other"), KeyValue("llama.rope.freq_base", 2.5),
    )  # fmt: skip
    found = read_header(path, replaced)
    assert (found.context_length, found.name, found.get("rope.freq_base")) == (77, "Other", 2.5)
    assert vocab_of(read_header(path)).add_bos and not vocab_of(found).add_bos
    assert read_header(path).context_length == 4096


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("llama.context_length", 7.0, "Write llama.context_length=int:VALUE."),
        ("general.name", 3, "Write general.name=str:VALUE."),
        ("tokenizer.ggml.add_bos_token", 0, "Write tokenizer.ggml.add_bos_token=bool:VALUE."),
        ("tokenizer.ggml.tokens", "a", "Lists must stay."),
    ],
)
def test_a_replaced_value_is_of_the_type_of_the_file(
    tmp_path: Path, key: str, value: int | float | str, hint: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_keys(words(9), add_bos=True), model_tensors())
    with pytest.raises(UsageError) as caught:
        read_header(path, [KeyValue(key, value)])
    assert key in caught.value.message and caught.value.hint == hint


@pytest.mark.parametrize(
    ("label", "shown"),
    [("1.5B", "1.5B"), ("8x7B", "8x7B"), ("\x1b[2J9B", "0"), ("bigB", "0"), (5, "0"), (None, "0")],
)
def test_the_size_that_a_model_is_sold_by(tmp_path: Path, label: Any, shown: str) -> None:
    keys = ARCH | ({} if label is None else {"general.size_label": label})
    assert read_header(write_gguf(tmp_path / "a.gguf", keys)).size_label == shown
