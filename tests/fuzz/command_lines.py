"""Random command lines: each ends with an exit code and a sentence, none with a traceback.

`python -m tests.fuzz.command_lines --seed 0 --count 2000`, in folders of its own and without a Hub.
"""

import argparse
import contextlib
import io
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from localspec import cli

NOBODY = "http://127.0.0.1:9"  # a Hub where nobody listens
# Others load models for minutes, serve, or wait for what is typed.
COMMANDS = (
    *(("run",), ("bench",), ("check",), ("inspect",), ("suggest",), ("list",), ("pairs",)),
    *(("verify",), ("export",), ("download",), ("pair", "add"), ("pair", "show")),
    *(("pair", "remove"), ("draft", "make"), ("config",), ("config", "set"), ("config", "unset")),
)
VALUES = (
    *("", "0", "-1", "1", "4", "1e999", "nan", "9" * 400, "auto", "off", "on", "true", "x", "a,b"),
    *("0,2,4", "a=b", "a:1", "../..", "/dev/null", "/", ".", "~", "hf:a/b", "hf:a/b/c.gguf:Q4"),
    *("org/repo:Q4_K_M", "\x1b[31m", "\udcff", "ü€", "{}", "[[", '{"type": 5}', "a" * 5000, "--"),
    *("demo", "qwen3-14b", "text.gguf", "cut.gguf", "missing.gguf", "pipe", "find", "self", "mtp"),
)


def prepare(folder: Path) -> None:
    """Files that the values name."""
    whole = (Path(__file__).parents[2] / "models" / "demo" / "draft.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(whole[:5000])
    (folder / "text.gguf").write_text("words " * 99)
    os.mkfifo(folder / "pipe")


def words_of(rng: random.Random) -> list[str]:
    """A command with some of its flags, and values of any kind."""
    names = rng.choice(COMMANDS)
    command: Any = typer.main.get_command(cli.app)
    for name in names:
        command = command.commands[name]
    flags = [flag for each in command.params for flag in each.opts if flag.startswith("-")]
    flags.append("--help")
    words = [*names]
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        flag, value = rng.choice(flags), rng.choice(VALUES)
        kinds = flag, value, f"{flag}={value}"
        words += [rng.choice(kinds), *([rng.choice(VALUES)] * rng.randrange(2))]
    return [word for word in words if word not in ("demo", "--draft=self")] + ["--draft=off"] * (
        names == ("run",)
    )


def end_of(words: list[str]) -> str:
    """The exit code; raises whatever else came out."""
    sys.argv = ["localspec", *words]
    out, err = io.StringIO(), io.StringIO()
    sys.stdin = io.StringIO("")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
    assert code in (0, 1, 2), code
    assert code == 0 or (out.getvalue() + err.getvalue()).strip(), "no sentence"
    assert "Traceback" not in err.getvalue() and "\x1b[31m" not in out.getvalue()
    return f"exit code {code}"


def fuzz(seed: int, count: int) -> tuple[Counter[str], tuple[float, list[str]]]:
    """How so many command lines ended, and the one that took longest."""
    rng, ends, longest = random.Random(seed), Counter[str](), (0.0, [""])
    for number in range(count):
        words, began = words_of(rng), time.perf_counter()
        try:
            ends[end_of(words)] += 1
        except BaseException as error:
            error.add_note(f"command line {number} of seed {seed}: {words}")
            raise
        longest = max(longest, (time.perf_counter() - began, words))
    return ends, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        os.chdir(folder)
        os.environ |= {"HOME": folder, "LOCALSPEC_MODELS": f"{folder}/models"}
        os.environ |= {"LOCALSPEC_CACHE": f"{folder}/cache", "HF_ENDPOINT": NOBODY}
        ends, longest = fuzz(given.seed, given.count)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{dict(ends)}; at most {longest[0]:.1f} s each, {peak} MiB; slowest: {longest[1]}")


if __name__ == "__main__":
    main()
