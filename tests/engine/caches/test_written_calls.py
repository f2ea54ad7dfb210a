"""WrittenCalls: bounded, each owner's own, and none whose tokens cannot be told from thoughts."""

from collections.abc import Sequence
from typing import Any

import pytest

from localspec.chat.message import Message
from localspec.chat.reasoning import tagged
from localspec.chat.tools.tool import ToolCall
from localspec.engine.caches.written_calls import WrittenCalls
from localspec.engine.text_stream import OutputFormat

BYTES = OutputFormat(lambda token: bytes([token]))
TOKENS = list(b"a call")


def message(call_id: str, arguments: Any = None, content: str = "") -> Message:
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": "f", "arguments": arguments or {}},
    }
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def kept(store: WrittenCalls, owner: str, call_id: str, tokens: Sequence[int] = TOKENS) -> None:
    store.keep(owner, BYTES, [ToolCall("f", "{}", call_id)], " ", tokens)


def test_the_owner_who_has_most_loses_the_least_recently_used() -> None:
    store = WrittenCalls(most=70 * 3 + 10)
    for name in ("1", "2"):
        kept(store, "a", name)
    kept(store, "b", "1")
    assert store.tokens("a", message("1")) == TOKENS  # used last
    kept(store, "a", "3")
    found = {(o, n): store.tokens(o, message(n)) for o, n in ("a1", "a2", "a3", "b1", "b2")}
    assert [key for key, tokens in found.items() if tokens] == [("a", "1"), ("a", "3"), ("b", "1")]
    kept(store, "b", "9", [*b"x"] * 10_000)
    assert store.tokens("a", message("1")) == TOKENS and store.tokens("b", message("9")) is None


def test_what_is_kept_of_the_same_ids_is_the_last() -> None:
    store = WrittenCalls(most=150)
    for _ in range(9):
        kept(store, "", "functions.f:0")
    kept(store, "", "other")
    assert store.tokens("", message("functions.f:0")) == store.tokens("", message("other"))
    assert store.tokens("", message("other", {"a": 1})) is None
    assert store.tokens("", message("other", content="Text")) is None
    assert store.tokens("", {"role": "assistant", "content": ""}) is None


@pytest.mark.parametrize(
    ("said", "state", "found"),
    [
        ("<t>hm</t>\n\ncall", "start", "call"),
        ("hm</t>call\n", "thoughts", "call\n"),
        (" call", "start", " call"),
        ("<t>hm</t>", "start", ""),
    ],
)
def test_thoughts_are_the_template_s(said: str, state: str, found: str) -> None:
    output = OutputFormat(BYTES.piece, tagged("<t>", "</t>"), state)
    store = WrittenCalls()
    store.keep("", output, [ToolCall("f", "{}", "1")], "", list(said.encode()))
    assert bytes(store.tokens("", message("1")) or []).decode() == found


def test_a_token_that_holds_thoughts_and_a_call_is_not_kept() -> None:
    pieces = [b"<t>hm", b"</t> call"]
    output = OutputFormat(pieces.__getitem__, tagged("<t>", "</t>"))
    store = WrittenCalls()
    store.keep("", output, [ToolCall("f", "{}", "1")], "", [0, 1])
    assert store.tokens("", message("1")) is None
