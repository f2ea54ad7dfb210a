"""A log in a real pipe, which its reader does not read, or has closed."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple, TextIO

import pytest

from localspec.commands.serve.log_stream import LogStream

LINE = "x" * 999 + "\n"
NOTICE = "Lines of the log that could not be written here: "


class Pipe(NamedTuple):
    log: LogStream
    reader: TextIO


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A log, and the end of its pipe that a reader has."""
    reading, writing = os.pipe()
    with ExitStack() as stack:
        reader = stack.enter_context(open(reading, encoding="utf-8"))
        writer = stack.enter_context(open(writing, "w", encoding="utf-8"))
        yield Pipe(LogStream(writer), reader)


def test_lines_that_nobody_reads_are_counted(pipe: Pipe) -> None:
    for _ in range(3000):
        pipe.log.write(LINE)
    read = iter(pipe.reader.readline, "")
    kept = lost = 0
    while kept + lost < 3000:
        if (line := next(read)) == LINE:
            kept += 1
        else:
            lost += int(line.removeprefix(NOTICE).removesuffix(".\n"))
    assert kept + lost == 3000 and kept > 1000 and lost > 0
    pipe.log.write("again\n")
    assert next(read) == "again\n"


def test_a_closed_pipe_is_no_error(pipe: Pipe) -> None:
    pipe.reader.close()
    for _ in range(9):
        assert pipe.log.write(LINE) == len(LINE)
    pipe.log.end(60)
    assert not pipe.log._thread.is_alive()


def test_lines_go_on_where_writing_failed_for_a_time(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that was full."""
    with monkeypatch.context() as full, open("/dev/full", "wb") as disk:
        full.setattr(pipe.log, "_descriptor", disk.fileno())
        pipe.log.write("first\n")
        while not pipe.log._lost:
            pass
    pipe.log.write("second\n")
    assert pipe.reader.readline() == f"{NOTICE}2.\n"
    pipe.log.write("third\n")
    assert pipe.reader.readline() == "third\n"


def test_a_pipe_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.log.fileno(), False)
    for _ in range(500):
        pipe.log.write(LINE)
    assert all(pipe.reader.readline() == LINE for _ in range(500))
