"""An RPC server is checked before llama.cpp, which ends the process on failure, connects to it."""

import socket
import struct

from localspec.core.errors import EngineError
from localspec.core.options.load_options import RpcServer

PROTOCOL = (7, 0)  # RPC_PROTO_MAJOR_VERSION, …MINOR… of the pinned llama.cpp
_HELLO, _DEVICE_COUNT = 14, 15  # rpc_cmd
_CAPABILITIES = 24  # RPC_CONN_CAPS_SIZE
_PATIENCE = 5.0  # seconds
_START = "Start it there: ggml-rpc-server -H ADDRESS -p PORT."


def device_count(server: RpcServer) -> int:
    """How many devices the server lends; says hello first, then hangs up.

    Raises EngineError for a server that is not reachable, is occupied, or is of another kind or
    version (`negotiate_hello`).
    """
    try:
        connection = socket.create_connection((server.host, server.port), _PATIENCE)
    except OSError as error:
        raise EngineError(
            f"The RPC server {server} cannot be reached: {error.strerror or error}.", _START
        ) from error
    with connection:
        reset_at_close(connection)
        count = _introduce(server, connection)
    if not count:
        raise EngineError(
            f"The RPC server {server} lends no device.", "See its messages when it starts."
        )
    return count


def reset_at_close(connection: socket.socket) -> None:
    """Let the connection end with a reset, whatever ends it.

    ggml-rpc-server does not ignore SIGPIPE: writing to a connection that was closed in good order
    kills it. It would do so late, for instance when the program it is busy with has ended.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _introduce(server: RpcServer, connection: socket.socket) -> int:
    try:
        _require_version(server, _ask(connection, _HELLO, bytes(_CAPABILITIES)))
        return int.from_bytes(_ask(connection, _DEVICE_COUNT, b""), "little")
    except TimeoutError as error:
        raise EngineError(
            f"The RPC server {server} does not answer within {_PATIENCE:g} seconds.",
            "A server answers one program at a time: end the other one, or start a second server. "
            "Else see whether it is stopped.",
        ) from error
    except OSError as error:
        raise EngineError(
            f"The program at {server} is no RPC server of llama.cpp.",
            "Correct the address. " + _START,
        ) from error


def _require_version(server: RpcServer, hello: bytes) -> None:
    major, minor = hello[:2]
    if major != PROTOCOL[0] or minor > PROTOCOL[1]:
        raise EngineError(
            f"The RPC server {server} speaks version {major}.{minor} of llama.cpp's RPC "
            f"protocol, this build {PROTOCOL[0]}.{PROTOCOL[1]}.",
            "Build both from the same llama.cpp: bash scripts/build_rpc.sh",
        )


def _ask(connection: socket.socket, command: int, request: bytes) -> bytes:
    """One command; the answer has its size in front, as in `send_rpc_cmd`."""
    connection.sendall(struct.pack("<BQ", command, len(request)) + request)
    expected = 4 + _CAPABILITIES if command == _HELLO else 4
    (size,) = struct.unpack("<Q", _read(connection, 8))
    if size != expected:
        raise ConnectionAbortedError
    return _read(connection, expected)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionAbortedError
        data += part
    return data
