"""Addresses: which are private, and that a name is believed only as far as all it stands for."""

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.errors import EngineError, UsageError
from localspec.core.options.load_options import RpcServer
from localspec.llama.rpc.addresses import is_private, locate


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("127.0.0.1", True),
        ("127.255.255.255", True),
        ("10.0.0.1", True),
        ("172.15.255.255", False),
        ("172.16.0.0", True),
        ("172.31.255.255", True),
        ("172.32.0.0", False),
        ("192.168.1.1", True),
        ("192.169.0.0", False),
        ("169.254.1.1", True),
        ("100.64.0.1", False),  # shared by a provider's customers
        ("192.0.2.1", False),
        ("0.0.0.0", False),
        ("8.8.8.8", False),
        ("255.255.255.255", False),
        ("::1", True),
        ("fe80::1", True),
        ("fd12::1", True),
        ("fbff::1", False),
        ("fec0::1", False),
        ("2001:db8::1", False),
        ("::ffff:10.0.0.1", True),
        ("::ffff:8.8.8.8", False),
    ],
)
def test_which_addresses_are_private(text: str, private: bool) -> None:
    assert is_private(ipaddress.ip_address(text)) is private


@given(st.ip_addresses())
def test_no_address_of_the_internet_is_private(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert not (is_private(address) and address.is_global)


def resolved(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    answers = [(0, socket.SOCK_STREAM, 0, "", (address, 1)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: answers)


def test_a_name_becomes_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "fd00::2", "10.0.0.2")
    assert locate(RpcServer("worker", 7), trust_network=False) == RpcServer("10.0.0.2", 7)


def test_a_name_with_one_public_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "10.0.0.2", "8.8.8.8")
    with pytest.raises(UsageError, match="worker:7, which is 8.8.8.8, is outside") as caught:
        locate(RpcServer("worker", 7), trust_network=False)
    assert "--trust-rpc-network" in caught.value.hint
    assert locate(RpcServer("worker", 7), trust_network=True).host == "10.0.0.2"


def test_a_public_address_is_refused() -> None:
    with pytest.raises(UsageError, match="RPC server 8.8.8.8:7 is outside"):
        locate(RpcServer("8.8.8.8", 7), trust_network=False)


def test_ipv6_is_what_llama_cpp_does_not_speak() -> None:
    with pytest.raises(EngineError, match=r"\[::1\]:7 has no IPv4 address"):
        locate(RpcServer("::1", 7), trust_network=False)


def test_a_scope_is_no_part_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "fe80::1%eth0", "192.168.0.2")
    assert locate(RpcServer("worker", 7), trust_network=False).host == "192.168.0.2"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 64])
def test_an_unknown_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host.endswith("invalid"):

        def unknown(*arguments: object, **more: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(EngineError, match=f"The RPC server {host}:7 is unknown: "):
        locate(RpcServer(host, 7), trust_network=False)
