"""Text stream: chunking never changes the text, stop strings never leak."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.reasoning import Splitter, known_format, tagged
from localspec.chat.tools.finder import CallFinder
from localspec.chat.tools.forms import HERMES
from localspec.chat.tools.tool import Tool, ToolCall
from localspec.engine.text_stream import TextStream

# Stop strings over a small alphabet meet the text often, and each other: "b", "ab", "abb".
stops_strategy = st.lists(st.text("ab\u00e9\u20ac\n", min_size=0, max_size=4), max_size=3)
bytes_strategy = st.one_of(
    st.text("ab\u00e9\u20ac\n", max_size=24).map(str.encode),
    st.binary(max_size=24),
    st.lists(st.sampled_from(b"ab\xc3\xa9\xe2\x82\xac\xf0\xed"), max_size=16).map(bytes),
)


def stream(chunks: Sequence[bytes], stop: Sequence[str]) -> tuple[str, bool]:
    """All the text of the chunks, and whether a stop string ended it."""
    reader = TextStream(stop)
    text = "".join([*(push(reader, chunk) for chunk in chunks), push(reader, b"", final=True)])
    return text, reader.stopped


def push(reader: TextStream, data: bytes, final: bool = False) -> str:
    """The answer's text, where there are no thoughts."""
    pieces = reader.push(data, final)
    assert all(text and not reasoning for text, reasoning in pieces)
    return "".join(text for text, _ in pieces)


def cut_at(data: bytes, places: set[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(bytes_strategy, stops_strategy, st.sets(st.integers(0, 24)))
def test_chunking_never_changes_text(data: bytes, stop: list[str], places: set[int]) -> None:
    whole = stream([data], stop)
    assert stream(cut_at(data, places), stop) == whole
    assert stream([bytes([byte]) for byte in data], stop) == whole


@given(bytes_strategy, stops_strategy)
def test_text_ends_before_the_first_stop_string(data: bytes, stop: list[str]) -> None:
    text, stopped = stream([data], stop)
    decoded = data.decode("utf-8", "replace")
    wanted = [s for s in stop if s]
    assert stopped == any(s in decoded for s in wanted)
    assert not any(s in text for s in wanted)
    assert decoded.startswith(text)
    if stopped:
        assert any(decoded[len(text) :].startswith(s) for s in wanted)
    else:
        assert text == decoded


@given(bytes_strategy, stops_strategy)
def test_only_what_may_begin_a_stop_string_is_held_back(data: bytes, stop: list[str]) -> None:
    reader = TextStream(stop)
    shown = ""
    for end in range(1, len(data) + 1):
        shown += push(reader, data[end - 1 : end])
        if reader.stopped:
            break
        so_far = data[:end].decode("utf-8", "ignore")
        if "\ufffd" not in data[:end].decode("utf-8", "replace"):
            held = so_far[len(shown) :]
            assert held == "" or any(s.startswith(held) for s in stop)


@pytest.mark.parametrize(
    ("stop", "data", "text"),
    [
        (["aab"], b"aaab", "a"),
        (["aab", "b"], b"aaab", "a"),
        (["xabc", "ab"], b"xabc", "x"),
        (["ab", "b"], b"zab", "z"),
        (["\u20ac"], "1 \u20ac".encode(), "1 "),
        ([""], b"all", "all"),
    ],
)
def test_stop_strings(stop: list[str], data: bytes, text: str) -> None:
    assert stream([bytes([byte]) for byte in data], stop)[0] == text
    assert stream([data], stop)[0] == text


def test_stop_strings_count_in_the_answer_and_not_in_the_thoughts() -> None:
    reader = TextStream(["END"], Splitter(tagged("<think>", "</think>")))
    assert reader.push(b"<think>the END is not") == [("the END is not", True)]
    assert reader.push(b" yet</think>\n\nso E") == [(" yet", True), ("so ", False)]
    assert reader.push(b"ND more") == []
    assert reader.stop_text == "END" and reader.push(b"more", final=True) == []


def test_a_stop_string_ends_what_comes_in_the_same_piece() -> None:
    form = known_format("<|channel|>")
    assert form is not None
    reader = TextStream(["END"], Splitter(form))
    said = "<|channel|>final<|message|>one END<|end|><|channel|>analysis<|message|>two"
    assert reader.push(said.encode()) == [("one ", False)]
    assert reader.push(b" and more") == []


def test_a_character_of_a_mark_may_come_in_parts() -> None:
    reader = TextStream([], Splitter(tagged("\u25c1think\u25b7", "\u25c1/think\u25b7")))
    pieces = []
    for byte in "\u25c1think\u25b7a\u25c1/think\u25b7b".encode():
        pieces += reader.push(bytes([byte]))
    assert pieces == [("a", True), ("b", False)]


@pytest.mark.parametrize(
    ("data", "held"),
    [
        (b"one E", [("E", False)]),
        (b"one", []),
        (b"<thin", [("<thin", False)]),
        (b"<think>one </thi", [(" </thi", True)]),
        (b"<think>one</think>E\xc3", [("E\ufffd", False)]),
        (b"one END", []),
    ],
)
def test_what_is_held_back_can_be_looked_at(data: bytes, held: list[tuple[str, bool]]) -> None:
    reader = TextStream(["END"], Splitter(tagged("<think>", "</think>")))
    reader.push(data)
    assert reader.held == held
    assert reader.held == reader.push(b"", final=True) == held


def test_nothing_is_copied_where_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is asked for at each round; a copy took as long as the whole round."""
    readers = [TextStream(["stop"]), TextStream(["stop"], Splitter(tagged("<think>", "</think>")))]
    for reader in readers:
        reader.push(b"<think>ab</think>ab")
    monkeypatch.setattr("copy.copy", lambda value: pytest.fail(f"{value} was copied"))
    assert [reader.held for reader in readers] == [[], []]


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "END"}}\n</tool_call>'
FOUND = ToolCall("f", '{"a": "END"}')


def with_calls(*stop: str) -> TextStream:
    think = Splitter(tagged("<think>", "</think>"))
    return TextStream(stop, think, CallFinder(HERMES, (Tool("f", {}, {}),)))


@given(st.sets(st.integers(0, 120)))
def test_calls_stand_in_the_answer_and_hide_stop_strings(places: set[int]) -> None:
    data = f"<think>So {CALL}</think>\n\nI look.\n{CALL}\nEND more".encode()
    reader, said = with_calls("END"), ""
    for piece in cut_at(data, places):
        said += "".join(text for text, reasoning in reader.push(piece) if not reasoning)
    said += "".join(text for text, reasoning in reader.push(b"", True) if not reasoning)
    assert (said, reader.stopped) == ("I look.\n", True)
    assert (reader.take_calls(), reader.take_calls()) == ((FOUND,), ())


def test_what_follows_a_stop_string_is_no_call() -> None:
    reader = with_calls("END")
    assert reader.push(f"one END {CALL}".encode()) == [("one ", False)]
    assert reader.stopped and reader.take_calls() == ()


def test_a_call_whose_arguments_have_not_begun_is_held_as_text() -> None:
    reader = with_calls("more")
    begun, rest = CALL[:-32], CALL[-32:]
    assert reader.push(f"one {begun}".encode()) == [("one", False)]
    assert reader.held == [(f" {begun}", False)]
    assert reader.push(rest.encode()) == []
    assert reader.take_calls() == (FOUND,) and reader.held == []
