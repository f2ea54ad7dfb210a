"""Shared by the benchmark scripts: command-line options, the padded demo pair, formats of figures.

Scripts import it by its bare name, because Python puts their own folder first on its path.
"""

import argparse
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from localspec.bench import demo
from localspec.bench.padding.encoder import Quantization
from localspec.chat.answer import collect
from localspec.core import machine
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import stream_generate
from localspec.speculative.loop import Clock, TokenModel

CTX_SIZE = 512  # tokens: a prompt and an answer
GREEDY = SamplingParams(temperature=0)


class Row(Protocol):
    """A row of a table."""

    def line(self) -> str:
        """The row as text."""
        ...


RowT = TypeVar("RowT", bound=Row)


class Parser(argparse.ArgumentParser):
    """A parser whose help is the script's docstring, with options that several scripts have."""

    def __init__(self, doc: str) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def integers(self, **defaults: int | None) -> None:
        """Options that take an integer, by their names with underscores."""
        for name, default in defaults.items():
            self.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)

    def quantization(self, default: Quantization) -> None:
        """``--quantization``, one of those that the demo is measured in."""
        self.add_argument("--quantization", choices=demo.QUANTIZATIONS, default=default)

    def cpu_time(self) -> None:
        """``--cpu-time``, for `timing`."""
        self.add_argument(
            "--cpu-time", action="store_true", help="processor seconds, on one thread"
        )

    def output(self) -> None:
        """``--output``, for `write_json`."""
        self.add_argument("--output", type=Path)


def timing(args: argparse.Namespace) -> tuple[Clock, int | None]:
    """The clock and the number of threads (None: one per core) that the options ask for."""
    return (time.process_time, 1) if args.cpu_time else (time.perf_counter, args.threads)


def conditions(threads: int | None, *more: str) -> str:
    """A line that says on what the figures below it were measured."""
    count = threads or machine.physical_cores()
    return ", ".join([machine.cpu_name(), f"{count} threads", *more])


def span(values: Sequence[float], digits: int, between: str = " to ") -> str:
    """The least and the largest of the values."""
    return f"{min(values):.{digits}f}{between}{max(values):.{digits}f}"


def write_json(path: Path | None, content: object) -> None:
    """Write the content to the file, if one was named."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n")


def printed(rows: Iterable[RowT], output: Path | None = None) -> list[RowT]:
    """All rows, each printed, and written to the file, as soon as it is measured."""
    kept = []
    for row in rows:
        kept.append(row)
        print(row.line(), flush=True)
        write_json(output, [vars(each) for each in kept])
    return kept


def unheard(*progress: object) -> None:
    """Progress of padding, which no script shows."""


def padded_pair(quantization: Quantization) -> tuple[Path, Path]:
    """The demo's target and draft, padded to 283M and 20M parameters unless they are there."""
    return demo.padded_pair(quantization, unheard)


def load(
    files: Iterable[Path],
    threads: int | None,
    ctx_size: int | None = CTX_SIZE,
    *,
    ignore_eos: bool = False,
) -> Engine:
    """A target, and perhaps a draft; with ``ignore_eos`` answers end only where they are full."""
    options = [LoadOptions(path, ctx_size=ctx_size, threads=threads) for path in files]
    engine = Engine.load(*options)
    if ignore_eos:
        engine.is_stop = lambda token: False  # type: ignore[method-assign]
    return engine


def empty_caches(*models: TokenModel | None) -> None:
    """Make every model forget all it has read."""
    for model in models:
        if model is not None:
            model.truncate(0)


def decode_plainly(engine: Engine, prompt: list[int], tokens: int) -> tuple[str, list[float]]:
    """The text of a greedy answer without a draft, and the seconds until each of its tokens."""
    empty_caches(engine.target)
    seconds: list[float] = []
    responses = stream_generate(engine, prompt, GenerateOptions(GREEDY, 0, max_tokens=tokens))
    answer = collect(responses, lambda response: seconds.append(response.stats.seconds))
    return answer.text, seconds


@contextmanager
def listening(command: Sequence[str]) -> Iterator[int]:
    """The port of a server that has loaded; ``command`` starts it and names no address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen([*command, *address], stdout=quiet, stderr=quiet)
    try:
        _await(server, port)
        yield port
    finally:
        server.terminate()
        server.wait()


def _await(server: subprocess.Popen[bytes], port: int) -> None:
    """Return when the model is loaded."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{server.args!r} has ended")
