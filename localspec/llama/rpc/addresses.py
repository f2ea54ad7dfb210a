"""Addresses of RPC servers, and whether they may be used without encryption."""

import ipaddress
import socket

from localspec.core.errors import EngineError, UsageError
from localspec.core.options.load_options import RpcServer

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Loopback, RFC 1918, link-local (RFC 3927, RFC 4291) and unique local addresses (RFC 4193).
# Python's own `is_private` also holds for addresses of documentation and shared ranges.
_PRIVATE = tuple(
    ipaddress.ip_network(network)
    for network in (
        "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16",
        "::1/128", "fe80::/10", "fc00::/7",
    )
)  # fmt: skip


def is_private(address: Address) -> bool:
    """Whether an address belongs to this machine or to a network of one's own."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in network for network in _PRIVATE)


def locate(server: RpcServer, *, trust_network: bool) -> RpcServer:
    """The server by its address: its name is looked up once, and cannot come to mean another.

    Raises UsageError for one that has an address that is not private, unless ``trust_network``,
    and EngineError for a name that is unknown or has IPv6 addresses only.
    """
    found = _look_up(server)
    foreign = next((address for address in found if not is_private(address)), None)
    if foreign is not None and not trust_network:
        named = "" if str(foreign) == server.host else f", which is {foreign},"
        raise UsageError(
            f"The RPC server {server}{named} is outside the private networks: weights and text "
            "would travel there unencrypted, and anyone on the way could change them.",
            "Use a private address, a tunnel (ssh -L, WireGuard), or, if the network is known "
            "to be safe, --trust-rpc-network.",
        )
    for address in found:
        if isinstance(address, ipaddress.IPv4Address):
            return RpcServer(str(address), server.port)
    raise EngineError(
        f"The RPC server {server} has no IPv4 address, and llama.cpp's RPC speaks IPv4 only.",
        "Name it by an IPv4 address, such as 192.168.0.2:50052.",
    )


def _look_up(server: RpcServer) -> list[Address]:
    try:
        answers = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EngineError(
            f"The RPC server {server} is unknown: {getattr(error, 'strerror', None) or error}.",
            "Correct the name, or give the address: --rpc 192.168.0.2:50052.",
        ) from error
    return [ipaddress.ip_address(str(answer[4][0])) for answer in answers]
