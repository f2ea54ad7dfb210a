"""Shell scripts: a command over several lines, quoted, with comments that end where they should."""

import shlex
from collections.abc import Iterable, Sequence

from localspec import __version__
from localspec.core.formatting import one_line

Words = Sequence[str]  # of one line: an option and its value


def script(
    comments: Iterable[str],
    command: Sequence[Words],
    before: Iterable[str] = (),
    after: Iterable[str] = (),
) -> str:
    """A POSIX shell script that runs one command; more arguments are handed on to it.

    ``before`` are lines of shell as they are, ``after`` more options as they are; all else is
    quoted.
    """
    lines = ["#!/bin/sh", *(f"# {one_line(each)}" for each in comments), *before]
    quoted = [shlex.join(words) for words in command]
    lines.append(" \\\n  ".join([*quoted, *after, '"$@"']))
    return "\n".join(lines) + "\n"


def made_by(title: str, engine: str) -> str:
    """The first comment: what this is, and for which version it was written."""
    return f"{title}, for {engine}. Written by localspec {__version__}."
