# ruff: noqa: F401, F811  (`hub` is a fixture)
"""Remote headers: the same verdict as on the disk, and as few bytes as it takes, counted."""

from pathlib import Path

import pytest

from localspec.core.errors import HubProblem, NotAGGUF
from localspec.hub import remote_header
from localspec.hub.client import DroppedConnection, RangeIgnored, RemoteModel, resolve
from localspec.hub.reference import parse_reference
from localspec.hub.remote_header import FIRST_BYTES, PIECE_BYTES, PairCheck, compare, read_remote
from localspec.metadata.header import read_header
from localspec.pairing import check_pair, report_json
from tests.support.fake_hub import FakeHub, drop, hub, status, whole
from tests.support.files.gguf_files import (
    Tensor,
    gguf_bytes,
    model_keys,
    model_tensors,
    words,
    write_gguf,
)

N_TOKENS = 12_000  # their texts end behind the first piece, and the merges behind the second
MERGES = [f"merge{n} again" for n in range(140_000)]
TYPES = [1] * (N_TOKENS - 10) + [3] * 10
WEIGHTS = 1 << 40  # bytes of each large model: nobody could send them


def header_bytes(tokens: list[str] | None = None, **options: object) -> bytes:
    """A header as a converter writes it; its weights follow in the imagination only."""
    options = {"types": TYPES, "merges": MERGES, "bos": 1, "eos": 2, "add_bos": False, **options}
    keys = model_keys(tokens or words(N_TOKENS), **options)
    return gguf_bytes(keys, [Tensor("token_embd.weight", (WEIGHTS // 4,))], data=b"")


HEADER = header_bytes()


def rounded_up(n_bytes: int) -> int:
    """What is read to have so many bytes: a small piece, then large ones."""
    return FIRST_BYTES + -(-(n_bytes - FIRST_BYTES) // PIECE_BYTES) * PIECE_BYTES


def put(hub: FakeHub, name: str, header: bytes) -> RemoteModel:
    hub.add(f"org/{name}-GGUF", f"{name}-Q8_0.gguf", header, size=len(header) + WEIGHTS)
    reference = parse_reference(f"org/{name}-GGUF:q8_0")
    assert reference is not None
    return resolve(reference)


def served(hub: FakeHub, model: RemoteModel) -> int:
    return sum(hub.served[f"{model.reference.repo}/{file.path}"] for file in model.files)


def compared(hub: FakeHub, target: bytes, draft: bytes, lenient: bool = False) -> PairCheck:
    """The comparison of two headers on the Hub; its count must be what the Hub sent."""
    models = put(hub, "target", target), put(hub, "draft", draft)
    result = compare(*models, lenient=lenient)
    assert result.bytes_read == sum(hub.served.values())
    return result


# --- one header ---


def test_a_header_is_read_and_no_weights(hub: FakeHub, tmp_path: Path) -> None:
    model = put(hub, "big", HEADER)
    header, n_bytes = read_remote(model)
    assert header.path == Path("hf:org/big-GGUF/big-Q8_0.gguf")
    assert header.n_bytes == len(HEADER) + WEIGHTS and header.parameters == WEIGHTS // 4
    assert header.vocab is not None and len(header.vocab) == N_TOKENS
    assert header.vocab.n_merges == len(MERGES) and header.vocab.bos_id == 1
    assert n_bytes == served(hub, model) == rounded_up(len(HEADER)) == 64 * 1024 + 2 * PIECE_BYTES
    ranges = [request.range for request in hub.asked("resolve")]
    assert ranges == ["bytes=0-65535", "bytes=65536-2162687", "bytes=2162688-4259839"]


def test_a_small_file_is_read_once(hub: FakeHub, tmp_path: Path) -> None:
    data = gguf_bytes(model_keys(words(20)), model_tensors())
    hub.add("org/small-GGUF", "small.gguf", data)
    reference = parse_reference("hf:org/small-GGUF@main/small.gguf")
    assert reference is not None
    header, n_bytes = read_remote(resolve(reference))
    local = tmp_path / "small.gguf"
    local.write_bytes(data)
    expected = read_header(local)
    assert header.values == expected.values and header.tensors == expected.tensors
    assert n_bytes == len(data) < FIRST_BYTES


def split_files(n_parts: int, claimed: int | None = None) -> dict[str, bytes]:
    files = {}
    for number in range(n_parts):
        keys = {**(model_keys(words(20)) if number == 0 else {}), "split.no": number}
        keys |= {"split.count": claimed or n_parts, "split.tensors.count": n_parts}
        tensor = Tensor(f"blk.{number}.attn_norm.weight", (100_000,))
        name = f"Q8_0/x-Q8_0-{number + 1:05d}-of-{n_parts:05d}.gguf"
        files[name] = gguf_bytes(keys, [tensor])
    return files


def test_the_headers_of_all_parts(hub: FakeHub) -> None:
    files = split_files(3)
    for name, data in files.items():
        hub.add("org/split-GGUF", name, data)
    reference = parse_reference("org/split-GGUF:Q8_0")
    assert reference is not None
    header, n_bytes = read_remote(resolve(reference))
    assert header.split_count == 3 and header.parameters == 300_000
    assert header.paths == tuple(Path(f"hf:org/split-GGUF/{name}") for name in files)
    assert header.n_bytes == sum(map(len, files.values())) and n_bytes == 3 * FIRST_BYTES


def test_parts_that_do_not_belong_together(hub: FakeHub) -> None:
    for name, data in split_files(2, claimed=3).items():
        hub.add("org/split-GGUF", name, data)
    reference = parse_reference("org/split-GGUF")
    assert reference is not None
    with pytest.raises(NotAGGUF) as caught:
        read_remote(resolve(reference))
    assert "says that its model has 3 parts, but 2 are there." in caught.value.message


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"<!doctype html>" * 10, "is a web page, not a model."),
        (HEADER[:5000], "is cut short"),
        (b"", "is empty."),
    ],
)
def test_a_damaged_file_on_the_hub(hub: FakeHub, data: bytes, sentence: str) -> None:
    hub.add("org/x-GGUF", "x.gguf", data)
    reference = parse_reference("org/x-GGUF")
    assert reference is not None
    with pytest.raises(NotAGGUF) as caught:
        read_remote(resolve(reference))
    assert caught.value.message.startswith("hf:org/x-GGUF/x.gguf ")
    assert sentence in caught.value.message and "ownload the file again" not in caught.value.hint


# --- connections ---


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before retries, none of them taken."""
    taken = list[float]()
    monkeypatch.setattr(remote_header, "sleep", taken.append)
    return taken


def test_a_dropped_connection_goes_on_where_it_stopped(hub: FakeHub, pauses: list[float]) -> None:
    model = put(hub, "big", HEADER)
    hub.faults = [drop(1000), drop(500), status(503, retry_after="2")]
    header, n_bytes = read_remote(model)
    assert header.vocab is not None and len(header.vocab) == N_TOKENS
    assert n_bytes == served(hub, model) == rounded_up(len(HEADER))
    assert pauses == [0.5, 1.0, 2.0]
    starts = [str(request.range).partition("-")[0] for request in hub.asked("resolve")]
    assert starts == [f"bytes={at}" for at in (0, 1000, 1500, 1500, 65536, 2162688)]
    ends = {str(request.range).partition("-")[2] for request in hub.asked("resolve")}
    assert ends == {"65535", "2162687", "4259839"}


def test_three_retries_and_no_more(hub: FakeHub, pauses: list[float]) -> None:
    model = put(hub, "big", HEADER)
    hub.faults = [drop(10, times=None)]
    with pytest.raises(DroppedConnection):
        read_remote(model)
    assert len(hub.asked("resolve")) == 4 and pauses == [0.5, 1.0, 2.0]


def test_no_long_pause_and_no_retry_of_a_refusal(hub: FakeHub, pauses: list[float]) -> None:
    model = put(hub, "big", HEADER)
    for fault, kind in (
        (status(429, retry_after="600"), DroppedConnection),
        (status(403), HubProblem),
        (whole(path="big"), RangeIgnored),
    ):
        hub.requests.clear()
        hub.faults = [fault]
        if kind is RangeIgnored:
            fault.times = None
        with pytest.raises(kind):
            read_remote(model)
        assert len(hub.asked("resolve")) == (2 if kind is RangeIgnored else 1)
    assert not pauses


# --- two headers ---


def test_an_accepted_pair_takes_both_headers_and_no_more(hub: FakeHub) -> None:
    result = compared(hub, HEADER, HEADER)
    assert result.report.compatible and result.report.llama_cpp_accepts
    assert result.bytes_read == 2 * rounded_up(len(HEADER))
    assert result.target.complete and result.draft.complete


def test_a_refusal_behind_the_merges_takes_both_headers(hub: FakeHub) -> None:
    result = compared(hub, HEADER, header_bytes(add_bos=True))
    assert result.report.llama_cpp_rule == "add-bos"
    assert result.bytes_read == 2 * rounded_up(len(HEADER))


@pytest.mark.parametrize(
    ("draft", "rule"),
    [
        (header_bytes(model="llama", merges=None, types=[6] * 256 + TYPES[256:]), "vocab-type"),
        (header_bytes(["other", *words(N_TOKENS)[1:-200]], types=None), "vocab-size"),
    ],
)
def test_another_vocabulary_may_draft_by_text(hub: FakeHub, draft: bytes, rule: str) -> None:
    result = compared(hub, HEADER, draft)
    assert result.report.llama_cpp_rule == rule and not result.report.llama_cpp_accepts
    assert result.target.complete and result.draft.complete


def test_a_sidecar_is_known_by_the_first_piece(hub: FakeHub) -> None:
    keys = model_keys(words(N_TOKENS), types=TYPES, merges=MERGES)
    keys = {**keys, "general.architecture": "eagle3"}
    keys = {
        "general.architecture": keys.pop("general.architecture"),
        "general.type": "model",
    } | keys
    result = compared(hub, gguf_bytes(keys), HEADER)
    assert [f.rule for f in result.report.findings] == ["sidecar"]
    assert result.bytes_read == 2 * FIRST_BYTES


def test_other_texts_are_known_when_the_tokens_are_read(hub: FakeHub) -> None:
    changed = words(N_TOKENS)
    changed[N_TOKENS - 2], changed[N_TOKENS - 1] = "[PAD1]", "<control>"
    result = compared(hub, HEADER, header_bytes(changed))
    rules = {finding.rule for finding in result.report.findings}
    assert rules == {"token-text-padding", "token-text-control"}
    assert result.report.llama_cpp_rule == "token-text"
    assert result.bytes_read == 2 * (FIRST_BYTES + PIECE_BYTES) < 2 * rounded_up(len(HEADER))


def test_an_early_report_says_what_the_whole_one_says(hub: FakeHub, tmp_path: Path) -> None:
    changed = words(N_TOKENS)
    changed[7:20] = [f"[PAD{n}]" for n in range(13)]
    early = compared(hub, HEADER, header_bytes(changed))
    paths = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    for path, header in zip(paths, (HEADER, header_bytes(changed)), strict=True):
        path.write_bytes(header)
        with path.open("r+b") as file:
            file.truncate(len(header) + WEIGHTS)  # sparse
    full = check_pair(*map(read_header, paths))
    assert set(early.report.findings) == set(full.errors)
    assert early.report.llama_cpp_rule == full.llama_cpp_rule
    as_json = report_json(early.report, early.target, early.draft)
    assert as_json["compatible"] is False
    assert as_json["draft"] == {
        "path": "hf:org/draft-GGUF/draft-Q8_0.gguf", "name": "Tiny", "architecture": "llama",
        "parameters": None, "quantization": None, "n_vocab": N_TOKENS, "tokenizer_model": "gpt2",
        "tokenizer_pre": "qwen2", "context_length": 4096,
    }  # fmt: skip


def test_lenient_does_not_stop_at_what_it_lets_pass(hub: FakeHub) -> None:
    changed = words(N_TOKENS)
    changed[N_TOKENS - 1] = "<control>"
    strict = compared(hub, HEADER, header_bytes(changed))
    hub.served.clear()
    lenient = compared(hub, HEADER, header_bytes(changed), lenient=True)
    assert not strict.report.compatible and lenient.report.compatible
    assert lenient.bytes_read == 2 * rounded_up(len(HEADER))
    changed[100] = "other"
    hub.served.clear()
    lenient = compared(hub, HEADER, header_bytes(changed), lenient=True)
    assert lenient.report.by_text and lenient.report.compatible


def test_a_local_file_and_a_remote_one(hub: FakeHub, tmp_path: Path) -> None:
    model = put(hub, "big", HEADER)
    same = write_gguf(tmp_path / "same.gguf", model_keys(words(N_TOKENS), types=TYPES))
    keys = model_keys(words(9), model="llama") | {"general.architecture": "eagle3"}
    other = write_gguf(tmp_path / "other.gguf", keys)
    result = compare(model, other)
    assert result.report.llama_cpp_rule == "vocab-type" and result.bytes_read == FIRST_BYTES
    assert not result.target.complete and result.draft.complete
    hub.served.clear()
    result = compare(model, same, weights_needed=False)
    assert result.report.llama_cpp_accepts
    assert result.bytes_read == served(hub, model) == rounded_up(len(HEADER))


def test_two_local_files_ask_no_hub(hub: FakeHub, tmp_path: Path) -> None:
    paths = [
        write_gguf(tmp_path / f"{model}.gguf", model_keys(words(9), model=model), model_tensors())
        for model in ("llama", "gpt2")
    ]
    result = compare(*paths)
    expected = check_pair(*map(read_header, paths))
    assert result.report == expected and len(result.report.findings) > 1  # all of it, not the first
    assert result.bytes_read == 0 and not hub.requests


def test_types_that_come_late_are_waited_for(hub: FakeHub) -> None:
    keys = model_keys(["x", *words(N_TOKENS - 1)], types=TYPES, merges=MERGES)
    keys["tokenizer.ggml.token_type"] = keys.pop("tokenizer.ggml.token_type")
    late = gguf_bytes(keys, [Tensor("token_embd.weight", (WEIGHTS // 4,))], data=b"")
    result = compared(hub, HEADER, late)
    assert result.report.llama_cpp_rule == "token-text"
    assert result.draft.complete
