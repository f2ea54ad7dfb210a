"""Options of loading: bounds are UsageErrors, and what texts mean."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import UsageError
from localspec.core.options import load_options as config
from localspec.core.options.load_options import MAX_RPC_SERVERS, RpcServer, parse_rpc_servers


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


@pytest.mark.parametrize(
    ("name", "bounds", "values"),
    [
        ("parallel", "1 to 32", [0, 33]),
        ("batch_size", "64 to 65536", [0, 63, 2**16 + 1]),  # a verification fits into a batch
        ("ubatch_size", "64 to 65536", [0, 63, 2**16 + 1]),
        ("ctx_size", "8 to 2147483647", [-1, 7, 2**31]),
        ("threads", "1 to 512", [0, 513]),
    ],
)
def test_options_of_loading_have_bounds(name: str, bounds: str, values: list[int]) -> None:
    for value in values:
        said = f"^{name} is {value}, expected a value from {bounds}\\."
        with pytest.raises(UsageError, match=said):
            config.LoadOptions(Path("m.gguf"), **{name: value})  # type: ignore[arg-type]


def test_words_of_a_flag_stand_for_values_outside_the_bounds() -> None:
    assert config.LoadOptions(Path("m.gguf"), ctx_size=config.TRAINED_CTX_SIZE).ctx_size == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ctx_size": "big"}, "a whole number"),
        ({"threads": True}, "a whole number"),
        ({"batch_size": None}, "a whole number"),
        ({"mmap": 1}, "True or False"),
        ({"device": 3}, "a text"),
        ({"override_tensors": "a=CPU"}, "a list, each item a text"),
        ({"loras": ["style.gguf"]}, "a list, each item a Lora"),
        ({"tensor_split": 5}, "a tuple"),
    ],
)
def test_a_wrong_type_is_a_sentence(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=f"^[a-z_]+ is .*, expected {expected}") as raised:
        config.LoadOptions(Path("m.gguf"), **given)
    assert raised.value.hint.startswith("Leave it out for the default")


def test_a_path_may_be_a_text() -> None:
    assert config.LoadOptions("m.gguf").path == Path("m.gguf")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="^5 is no path"):
        config.LoadOptions(5)  # type: ignore[arg-type]


def test_a_type_that_is_none() -> None:
    with pytest.raises(UsageError, match="^cache_type_k 'q9' is none of: f16, f32"):
        config.LoadOptions(Path("m.gguf"), cache_type_k="q9")  # type: ignore[arg-type]


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
