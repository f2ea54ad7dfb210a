"""Shows how a network's delay changes what drafting gains, with two RPC servers on loopback.

    python benchmarks/rpc_delay.py [--delays 0 5 20] [--repeats 3]

The padded demo target is spread over two of llama.cpp's RPC servers (scripts/build_rpc.sh), the
draft stays here. Before the second server stands a proxy that passes everything on so many
milliseconds later, each way. The demo's questions are answered plainly and with --draft auto in
turn, the pair measured anew for each delay. A turn is a wait of this side for the second server:
each costs twice the delay.
"""

import contextlib
import multiprocessing
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from common import CTX_SIZE, GREEDY, Parser, conditions, padded_pair, printed

from localspec.bench.comparison import Comparison
from localspec.bench.demo import QUESTIONS
from localspec.bench.plan import BenchPlan
from localspec.bench.run import run_bench
from localspec.core.errors import EngineError
from localspec.core.options.load_options import LoadOptions, RpcServer, RpcServers
from localspec.engine.engine import Engine
from localspec.llama.rpc.handshake import device_count

_HEAD = """
|one way|plain tok/s|auto tok/s|speedup|90 % interval|tokens drafted a round|turns a plain token|
|-------|-----------|----------|-------|-------------|----------------------|-------------------|"""
_CHUNK = 2**18  # bytes
_WAITING = 256  # chunks on their way, each direction
_CONNECTIONS = 8  # that a proxy takes in its life: one looks, one stays
_ATTEMPTS, _PAUSE = 200, 0.05  # seconds


@dataclass(frozen=True)
class Row:
    """What was measured with a delay, in milliseconds."""

    delay: float
    plain: float
    auto: float
    speedup: float
    interval: tuple[float, float] | None
    drafted: float
    turns: float

    def line(self) -> str:
        """The row in Markdown."""
        low, high = self.interval or (float("nan"),) * 2
        return (
            f"|{self.delay:g} ms|{self.plain:.1f}|{self.auto:.1f}|{self.speedup:.2f}x|"
            f"{low:.2f} to {high:.2f}|{self.drafted:.2f}|{self.turns:.2f}|"
        )


class Proxy:
    """Stands before a server in a process of its own; ``delay`` in seconds may change at any time.

    ``turns`` counts how often something was sent behind something that was received.
    """

    def __init__(self, server: RpcServer) -> None:
        self.delay: Synchronized[float] = multiprocessing.Value("d", 0.0)
        self.turns: Synchronized[int] = multiprocessing.Value("q", 0)
        listening = socket.create_server(("127.0.0.1", 0))
        self.server = RpcServer("127.0.0.1", listening.getsockname()[1])
        self._process = multiprocessing.Process(
            target=self._serve, args=(listening, server), daemon=True
        )
        self._process.start()
        listening.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()

    def _serve(self, listening: socket.socket, server: RpcServer) -> None:
        for _ in range(_CONNECTIONS):
            near, _ = listening.accept()
            far = socket.create_connection((server.host, server.port))
            answered = threading.Event()
            for end in near, far:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ends in (near, far), (far, near):
                threading.Thread(
                    target=self._carry, args=(*ends, answered, ends[0] is near), daemon=True
                ).start()

    def _carry(
        self, source: socket.socket, sink: socket.socket, answered: threading.Event, asks: bool
    ) -> None:
        """One direction: what is read now is written later."""
        waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(_WAITING)
        threading.Thread(target=_deliver, args=(waiting, sink), daemon=True).start()
        data = b"-"
        while data:
            with contextlib.suppress(ConnectionError):
                data = b""
                data = source.recv(_CHUNK)
            if asks and answered.is_set():
                answered.clear()
                self.turns.value += 1
            elif not asks:
                answered.set()
            waiting.put((time.monotonic() + self.delay.value, data))


def _deliver(waiting: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)


@contextlib.contextmanager
def worker(program: str, threads: int) -> Iterator[RpcServer]:
    """One of llama.cpp's servers while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = RpcServer("127.0.0.1", free.getsockname()[1])
    command = [program, "-H", server.host, "-p", str(server.port), "-t", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(EngineError):
                device_count(server)
                break
            time.sleep(_PAUSE)
        yield server
    finally:
        process.kill()
        process.wait()


def measure(engine: Engine, proxy: Proxy, delay: float, repeats: int, tokens: int) -> Row:
    """One row of the table; ``delay`` in milliseconds."""
    proxy.delay.value = delay / 1000
    engine.profile.forget()
    prompts = [engine.encode_chat([{"role": "user", "content": each}]) for each in QUESTIONS]
    plan = BenchPlan(GREEDY, (0, "auto"), repeats, tokens)
    turns = _turns(engine, proxy, prompts[0])
    (comparison,) = run_bench(engine, {"demo": prompts}, plan)
    _require_same_text(comparison)
    plain, auto = comparison.figures(comparison.names)
    rounds = auto.tokens / auto.mean_accepted_length
    return Row(
        delay,
        plain.generation_tps,
        auto.generation_tps,
        auto.speedup,
        auto.speedup_interval,
        auto.drafted / rounds,
        turns,
    )


def _turns(engine: Engine, proxy: Proxy, prompt: Sequence[int], tokens: int = 8) -> float:
    """Waits for the second server in a pass of one token."""
    engine.target.truncate(0)
    engine.target.decode(prompt, 1)
    before = proxy.turns.value
    for _ in range(tokens):
        engine.target.decode(prompt[-1:], 1)
    engine.target.truncate(0)
    return (proxy.turns.value - before) / tokens


def _require_same_text(comparison: Comparison) -> None:
    unexplained = [each for each in comparison.differences if not each.is_rounding]
    if unexplained:
        sys.exit(f"The texts differ: {unexplained[0]}")


def rows(
    files: tuple[Path, Path], delays: Sequence[float], repeats: int, tokens: int, threads: int
) -> Iterator[Row]:
    """One row for each delay, in milliseconds, on servers that stay."""
    beside = Path(sys.executable).parent
    program = shutil.which("ggml-rpc-server", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        sys.exit("ggml-rpc-server is not on the path: bash scripts/build_rpc.sh")
    with worker(program, threads) as first, worker(program, threads) as second:
        proxy = Proxy(second)
        try:
            target = LoadOptions(
                files[0],
                ctx_size=CTX_SIZE,
                threads=threads,
                rpc=RpcServers([first, proxy.server]),
            )
            draft = LoadOptions(files[1], ctx_size=CTX_SIZE, threads=threads)
            with Engine.load(target, draft) as engine:
                for delay in delays:
                    yield measure(engine, proxy, delay, repeats, tokens)
        finally:
            proxy.close()


def main() -> None:
    """Measure and print the table."""
    parser = Parser(__doc__ or "")
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 5.0, 20.0], metavar="MS")
    parser.quantization("F16")
    parser.integers(repeats=3, tokens=64, threads=1)
    parser.output()
    args = parser.parse_args()
    if not all(0 <= delay <= 1000 for delay in args.delays):
        parser.error("a delay is between 0 and 1000 ms")
    print(conditions(args.threads, f"two RPC servers on loopback, {args.quantization}"))
    print(_HEAD)
    files = padded_pair(args.quantization)
    printed(rows(files, args.delays, args.repeats, args.tokens, args.threads), args.output)


if __name__ == "__main__":
    main()
