"""Bodies of answers: as many bytes as were requested, of this file, soon enough, uncompressed."""

import time
from collections.abc import Callable, Iterator

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import HubProblem
from localspec.hub import body
from localspec.hub.body import file_bytes, read_json
from localspec.hub.http_errors import DroppedConnection, RangeIgnored
from localspec.hub.reference import RemoteFile

FILE = RemoteFile("sub/x.gguf", 1000, None)


def answer(status: int = 206, *pieces: bytes, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, headers=named, content=iter(pieces))


def sentence(call: Callable[[], object], kind: type[HubProblem] = HubProblem) -> str:
    """The message of the error, which must be one clean sentence with a next step."""
    with pytest.raises(kind) as caught:
        call()
    for text in (caught.value.message, caught.value.hint):
        assert text.endswith(".") and text.isprintable()
    assert type(caught.value) is kind
    return caught.value.message


@pytest.fixture(autouse=True)
def usual_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)


# --- content of a file ---


@pytest.mark.parametrize(
    "said",
    [
        answer(206, b"x", Content_Range="bytes 0-0/1000"),
        answer(200, b"x", b"rest", Content_Length="1000"),
        answer(200, b"x"),  # which does not say how many bytes it has
    ],
)
def test_the_requested_bytes(said: httpx2.Response) -> None:
    assert b"".join(file_bytes(said, FILE, 0, 1)) == b"x"


@pytest.mark.parametrize(
    ("said", "start", "says"),
    [
        (answer(206, Content_Range="bytes 11-99/1000"), 10, "another part of sub/x.gguf"),
        (answer(206, Content_Range="bytes 10-99/*"), 10, "another part of sub/x.gguf"),
        (answer(206), 10, "another part of sub/x.gguf"),
        (answer(206, Content_Range="bytes 10-99/1001"), 10, "has 1001 bytes on the Hub"),
        (answer(200, Content_Length="999"), 0, "has 999 bytes on the Hub"),
        (answer(200, Content_Length="\t9"), 0, "bytes on the Hub"),
        (answer(200, Content_Type="text/html"), 0, "a web page instead of sub/x.gguf"),
        (answer(200, Content_Encoding="gzip"), 0, "was compressed in transfer"),
    ],
)
def test_other_bytes_than_requested(said: httpx2.Response, start: int, says: str) -> None:
    assert says in sentence(lambda: list(file_bytes(said, FILE, start, 1)))


def test_a_whole_file_instead_of_its_end() -> None:
    said = answer(200, Content_Length="1000")
    assert "sends all of" in sentence(lambda: list(file_bytes(said, FILE, 10, 1)), RangeIgnored)


@given(st.lists(st.binary(max_size=10), max_size=8), st.integers(1, 60), st.booleans())
def test_as_many_bytes_as_were_requested(pieces: list[bytes], size: int, told: bool) -> None:
    content, got = b"".join(pieces), bytearray()
    headers = {"Content_Range": "bytes 0-59/1000"}
    headers |= {"Content_Length": str(len(content))} if told else {}

    def read() -> None:
        for piece in file_bytes(answer(206, *pieces, **headers), FILE, 0, size):
            got.extend(piece)

    if len(content) >= size:
        read()
    else:
        said = f"ended after {len(content):,} of {size:,} bytes"
        assert said in sentence(read, DroppedConnection)
    assert bytes(got) == content[:size]


class Clock:
    """The time, which goes on by `step` seconds whenever somebody looks."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_a_byte_a_second_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", Clock(1.0))
    got = bytearray()

    def read() -> None:
        said = answer(206, *[b"x"] * 1000, Content_Range="bytes 0-999/1000")
        for piece in file_bytes(said, FILE, 0, 1000):
            got.extend(piece)

    assert sentence(read, DroppedConnection) == "The Hub sent only 16 bytes in 16 seconds."
    assert bytes(got) == b"x" * 16


def test_a_slow_line_is_fast_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", Clock(1.0))
    pieces = [bytes(1 << 10)] * 100
    file = RemoteFile("x.gguf", 100 << 10, None)
    said = answer(200, *pieces)
    assert b"".join(file_bytes(said, file, 0, file.size)) == b"".join(pieces)


# --- JSON ---


def test_an_object_is_read() -> None:
    assert read_json(answer(200, b'{"sha": ', b'"x"}')) == {"sha": "x"}


@pytest.mark.parametrize(
    "text",
    [b"[]", b"", b"{", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000],
)
def test_anything_else_is_no_answer_of_a_hub(text: bytes) -> None:
    assert "does not answer like a Hub" in sentence(lambda: read_json(answer(200, text)))


def test_gigabytes_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while True:
            sent += 1 << 20
            yield b" " * (1 << 20)

    said = httpx2.Response(200, content=endless())
    assert "lists more than 4 MB of file names" in sentence(lambda: read_json(said))
    assert sent <= body.MAX_JSON_BYTES + (2 << 20)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x"])
def test_nothing_is_decompressed(encoding: str) -> None:
    said = answer(200, b"\x1f\x8b", Content_Encoding=encoding)
    assert "was compressed in transfer" in sentence(lambda: read_json(said))
