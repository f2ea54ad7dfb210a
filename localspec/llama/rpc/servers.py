"""RPC servers connected as devices of llama.cpp."""

import contextlib
import ctypes
import os
import shlex
import socket
import sys
from dataclasses import replace

from localspec.core.errors import EngineError
from localspec.core.options.load_options import LoadOptions, RpcServer, RpcServers
from localspec.llama import llama_library
from localspec.llama.rpc import loss
from localspec.llama.rpc.addresses import locate
from localspec.llama.rpc.handshake import device_count

_OTHERS = 2  # backends of a context in addition to its devices: the CPU, and BLAS
_connected: dict[RpcServer, list[int]] = {}  # handles of the devices


def is_available() -> bool:
    return bool(llama_library.library().llama_supports_rpc())


def connect(options: LoadOptions) -> LoadOptions:
    """Make the devices of ``options.rpc`` known to llama.cpp; the options with their addresses.

    A server is connected once and for the life of the process: it serves one connection at a time.
    Raises UsageError for an address that must be trusted first, EngineError for a build without
    RPC and for a server that llama.cpp could not use.
    """
    if not options.rpc:
        return options
    _require_build()
    located = [locate(each, trust_network=options.trust_rpc_network) for each in options.rpc]
    servers = RpcServers(dict.fromkeys(located))
    new = [each for each in servers if each not in _connected]
    _require_device_limit(sum(device_count(each) for each in new))
    if new:
        loss.expect()
    for each in new:
        _add(each)
    return replace(options, rpc=servers)


def warning(servers: RpcServers) -> str:
    """A sentence on security, shown before servers get anything."""
    several = len(servers) > 1
    who = f"RPC servers {', '.join(map(str, servers))}" if several else f"RPC server {servers[0]}"
    them = "them" if several else "it"
    return (
        f"Weights and text go to the {who} without encryption, and whoever reaches {them} can "
        f"use {them} and read along: only for a network where all machines are trusted."
    )


def devices_of(servers: RpcServers) -> list[int]:
    """llama.cpp's handles of the devices of servers that were connected."""
    return [handle for each in servers for handle in _connected[each]]


def _require_build() -> None:
    if not is_available():
        raise EngineError(
            "--rpc: this build of llama.cpp has no RPC backend.",
            "Build one with it, in localspec's own folder: bash scripts/build_rpc.sh --python "
            + shlex.quote(sys.executable),
        )


def _require_device_limit(added: int) -> None:
    """Raise EngineError for more devices than llama.cpp's scheduler can have: it would abort."""
    most = int(llama_library.library().llama_max_devices()) - _OTHERS
    have = sum(device.kind != "CPU" for device in llama_library.devices())
    if have + added > most:
        raise EngineError(
            f"With these RPC servers there would be {have + added} devices, and llama.cpp takes "
            f"{most} at most.",
            "Name fewer servers, or let them lend fewer devices: ggml-rpc-server --device.",
        )


def _add(server: RpcServer) -> None:
    """As `add_rpc_devices` in llama.cpp; the first device holds the connection open."""
    ggml = llama_library.ggml()
    registry = ggml.ggml_backend_reg_by_name(b"RPC")
    function = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_rpc_add_server")
    add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(function)
    with llama_library.log.watch():
        added = add_server(str(server).encode())
        devices = [
            ggml.ggml_backend_reg_dev_get(added, i)
            for i in range(ggml.ggml_backend_reg_dev_count(added))
        ]
        ggml.ggml_backend_dev_init(devices[0], None)
        ggml.ggml_backend_register(added)
    _connected[server] = devices
    for connection in _sockets(server):
        loss.guard(server, connection)


def _sockets(server: RpcServer) -> list[socket.socket]:
    """This process's connections to a server, if the system lists its open files."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):
                connection = socket.socket(fileno=os.dup(int(name)))
                if connection.getpeername() == tuple(server):
                    found.append(connection)
    return found
