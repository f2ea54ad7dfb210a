"""Config: `--draft` is read as meant, and what competes is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core import config
from localspec.core.config import (
    MAX_DRAFT_TOKENS,
    MAX_RPC_SERVERS,
    DraftOptions,
    DraftTokens,
    RpcServer,
    choose_draft,
    parse_draft_tokens,
    parse_rpc_servers,
)
from localspec.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8", (8,)),
        ("0", (0,)),
        ("62", (62,)),
        ("off", (0,)),
        ("auto", ("auto",)),
        ("0,2,4", (0, 2, 4)),
        (" off , 3,auto ", (0, 3, "auto")),
        ("", None),
        (",", None),
        ("3,", None),
        ("-1", None),
        ("2.5", None),
        ("AUTO", None),
        ("draft.gguf", None),
        ("8.gguf", None),
        ("./8", None),
        ("3,draft.gguf", None),
        ("\u00b2", None),
    ],
)
def test_parse_lengths(text: str, lengths: tuple[DraftTokens, ...] | None) -> None:
    assert parse_draft_tokens(text) == lengths


@pytest.mark.parametrize("text", ["63", "1,63", "99999999"])
def test_a_draft_longer_than_we_verify_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=str(MAX_DRAFT_TOKENS)):
        parse_draft_tokens(text)
    with pytest.raises(UsageError):
        choose_draft([text], None, None)


@given(st.lists(st.one_of(st.integers(0, MAX_DRAFT_TOKENS), st.just("auto")), min_size=1))
def test_lengths_are_read_as_written(lengths: list[DraftTokens]) -> None:
    assert parse_draft_tokens(",".join(map(str, lengths))) == tuple(lengths)


SMALL, OTHER = "small.gguf", "other.gguf"


@pytest.mark.parametrize(
    ("either", "model", "lengths", "expected"),
    [
        ([], None, None, DraftOptions()),
        (["8"], None, None, DraftOptions(None, (8,))),
        (["auto"], None, None, DraftOptions(None, ("auto",))),
        (["off"], None, None, DraftOptions(None, (0,))),
        (["0,2"], None, None, DraftOptions(None, (0, 2))),
        (["small.gguf"], None, None, DraftOptions(SMALL)),
        (["small.gguf", "4"], None, None, DraftOptions(SMALL, (4,))),
        (["4", "small.gguf"], None, None, DraftOptions(SMALL, (4,))),
        (["off", "small.gguf"], None, None, DraftOptions(SMALL, (0,))),
        ([], SMALL, None, DraftOptions(SMALL)),
        ([], None, "4", DraftOptions(None, (4,))),
        ([], SMALL, "auto", DraftOptions(SMALL, ("auto",))),
        (["4"], SMALL, None, DraftOptions(SMALL, (4,))),
        (["small.gguf"], None, "4,off", DraftOptions(SMALL, (4, 0))),
    ],
)
def test_choose_draft(
    either: list[str], model: str | None, lengths: str | None, expected: DraftOptions
) -> None:
    before = list(either)
    assert choose_draft(either, model, lengths) == expected
    assert either == before


@pytest.mark.parametrize(
    ("either", "model", "lengths", "message"),
    [
        (["small.gguf", "other.gguf"], None, None, "Two draft models"),
        (["small.gguf"], OTHER, None, "Two draft models"),
        (["small.gguf", "4"], OTHER, None, "Two draft models"),
        (["4", "5"], None, None, "Two draft lengths"),
        (["4", "auto"], None, None, "Two draft lengths"),
        (["off"], None, "4", "Two draft lengths"),
        ([], None, "many", "no draft length"),
        (["small.gguf"], None, "", "no draft length"),
        ([], None, "small.gguf", "no draft length"),
    ],
)
def test_competing_drafts_are_refused(
    either: list[str], model: str | None, lengths: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        choose_draft(either, model, lengths)
    assert raised.value.hint


def test_one_length() -> None:
    assert DraftOptions().one_length("auto") == "auto"
    assert DraftOptions(None, (0,)).one_length("auto") == 0
    with pytest.raises(UsageError, match="not a list"):
        DraftOptions(None, (0, 4)).one_length("auto")


@pytest.mark.parametrize("text", ["-3", "1.5", "-1,5"])
def test_a_number_that_is_no_length_is_not_taken_for_a_file(text: str) -> None:
    with pytest.raises(UsageError, match="no draft length"):
        choose_draft([text], None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=int:-3", ("a.b", -3)),
        ("a=float:1e-5", ("a", 1e-5)),
        ("a=bool:true", ("a", True)),
        ("a=str:x=y:z", ("a", "x=y:z")),
        ("a=str:", ("a", "")),
    ],
)
def test_a_value_in_place_of_the_files(text: str, expected: tuple[str, object]) -> None:
    found = config.parse_key_value(text)
    assert found == expected and type(found.value) is type(expected[1])


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=", "a=1", "=int:1", "a=int:", "a=int:1.5", "a=float:nan", "a=float:inf",
     "a=bool:1", "a=u32:1", "a=int:9223372036854775808", "k" * 128 + "=int:1",
     "a=str:" + "v" * 128, "a=str:\udcff"],
)  # fmt: skip
def test_no_value_in_place_of_the_files(text: str) -> None:
    with pytest.raises(ValueError):
        config.parse_key_value(text)


@given(st.text())
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (config.parse_key_value, config.parse_lora, config.parse_shares):
        for given_text in (text, f"a=int:{text}", f"a=float:{text}", f"{text}:{text}"):
            with contextlib.suppress(ValueError):
                assert parse(given_text) is not None


def test_shares_and_scales() -> None:
    assert config.parse_shares("3,1") == config.parse_shares("3/1") == (3, 1)
    assert config.parse_lora("C:\\a b.gguf:-0.5") == (Path("C:\\a b.gguf"), -0.5)


@pytest.mark.parametrize("parallel", [0, 33])
def test_texts_at_the_same_time_are_few(parallel: int) -> None:
    with pytest.raises(UsageError, match=f"{parallel} texts") as caught:
        config.LoadOptions(Path("m.gguf"), parallel=parallel)
    assert "from 1 to 32" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["batch_size", "ubatch_size"])
@pytest.mark.parametrize("size", [0, 63, 2**16 + 1])
def test_a_verification_fits_into_a_batch(name: str, size: int) -> None:
    with pytest.raises(UsageError, match=f"{name} is {size}, expected a value from 64 to 65536"):
        config.LoadOptions(Path("m.gguf"), **{name: size})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("127.0.0.1:50052", [("127.0.0.1", 50052)]),
        ("worker-1.lan:1, 10.0.0.2:65535", [("worker-1.lan", 1), ("10.0.0.2", 65535)]),
        ("[fd00::2]:7,[fe80::1%eth0]:8", [("fd00::2", 7), ("fe80::1%eth0", 8)]),
    ],
)
def test_rpc_servers(text: str, servers: list[tuple[str, int]]) -> None:
    assert list(parse_rpc_servers(text)) == servers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected HOST:PORT"),
        ("worker", "expected HOST:PORT"),
        ("worker:", "expected HOST:PORT"),
        (":50052", "expected HOST:PORT"),
        ("worker:x", "expected HOST:PORT"),
        ("worker:-1", "expected HOST:PORT"),
        ("worker:\u0661", "expected HOST:PORT"),
        ("fd00::2:7", "expected HOST:PORT"),  # an IPv6 address that nothing ends
        ("[worker]:7", "expected HOST:PORT"),
        ("http://worker:7", "expected HOST:PORT"),
        ("worker:7,", "expected HOST:PORT"),
        ("user@worker:7", "neither a host name"),
        ("a b:7", "neither a host name"),
        ("x" * 254 + ":7", "neither a host name"),
        ("worker:0", "from 1 to 65535"),
        ("worker:65536", "from 1 to 65535"),
        ("worker:" + "9" * 5000, "from 1 to 65535"),
        ("worker:7,worker:7", "named twice"),
        (",".join(f"worker:{port}" for port in range(1, MAX_RPC_SERVERS + 2)), "at most 16"),
    ],
)
def test_what_names_no_rpc_server(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_rpc_servers(text)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        for server in parse_rpc_servers(text):
            assert 1 <= server.port <= 65535 and server.host


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_rpc_server_is_read_as_it_is_written(address: object, port: int) -> None:
    server = RpcServer(str(address), port)
    assert list(parse_rpc_servers(str(server))) == [server]
