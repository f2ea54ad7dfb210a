"""Records which model pairs llama.cpp's speculative decoding accepts, as expected values of tests.

    python scripts/record_verdicts.py --bin FOLDER

The pairs are those of `tests/support/files/edge_pairs.py`. FOLDER holds llama-speculative-simple,
built as `benchmarks/plain.py` says for llama-completion. The verdicts go to
`tests/data/llama_cpp_verdicts.json`, which `tests/test_verdicts.py` compares with
`localspec.pairing`. Run it again when llama-cpp-python or a case changes; it takes ten seconds.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.files.edge_pairs import write_pairs  # noqa: E402

VERDICTS = ROOT / "tests" / "data" / "llama_cpp_verdicts.json"
PROGRAM = "llama-speculative-simple"
# Verbosity 5 is debug: two of the reasons are told at no other level. One round, whose draft is
# dropped for being shorter than 9: an id that the other model lacks would abort the process later.
OPTIONS = (
    "--spec-type draft-simple --spec-draft-n-min 9 --temp 0 -p hi -n 0 -c 64 -t 1 -tb 1 -fit off "
    "--log-verbosity 5 --log-colors off"
).split()
SECONDS = 60
TRIES = 20  # a program that ends early loses the last lines of its log, now and then the one wanted
LONGEST_LINE = 300

_STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")
_SOURCE = re.compile(r"^\S*/(\S+\.\w+):\d+: (?=GGML_ASSERT)")
# At the end of the process several lines may become one: only a whole one will do.
_SIGNS = {
    "aborts": re.compile(r"\S+: GGML_ASSERT\(.*\) failed$"),
    "cannot load": re.compile(r"llama_model_load: error loading model: ."),
    "refuses": re.compile(r"spec +\w+: draft model .* match target model to use speculation\W? \w"),
}


def judge(code: int, lines: list[str]) -> tuple[str, str | None] | None:
    """llama.cpp's verdict and the line that gives its reason; None when the log does not say."""
    if code == 0:
        return ("accepts", None) if any("vocab_cmpt = 1" in line for line in lines) else None
    if code not in (-signal.SIGABRT, -signal.SIGSEGV):
        return None
    for verdict, pattern in _SIGNS.items():
        found = [line for line in lines if pattern.match(line)]
        if found:
            return verdict, found[0][:LONGEST_LINE]
    return None


def ask(folder: Path, target: Path, draft: Path) -> tuple[str, str | None]:
    """Run the pair until llama.cpp has told its verdict."""
    command = [str(folder / PROGRAM), "-m", str(target), "-md", str(draft), *OPTIONS]
    for _ in range(TRIES):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            env=environment(folder),
        )
        log = done.stderr.decode("utf-8", "backslashreplace").splitlines()
        lines = [_SOURCE.sub(r"\1: ", _STAMP.sub("", line)) for line in log]
        verdict = judge(done.returncode, lines)
        if verdict is not None:
            return verdict
    end = "\n".join(lines[-20:])
    raise SystemExit(f"{PROGRAM} ended with {done.returncode} and gave no verdict:\n{end}")


def environment(folder: Path) -> dict[str, str]:
    """The libraries beside the program, and no debugger where an assertion fails."""
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "GGML_NO_BACKTRACE": "1"}


def version(folder: Path) -> str:
    """What the program says of itself, such as "0.5.0-dev (build 1, commit 0c1e570)"."""
    done = subprocess.run(
        [str(folder / PROGRAM), "--version"],
        capture_output=True,
        check=True,
        text=True,
        env=environment(folder),
    )
    return str(re.findall(r"version: (.*)", done.stdout + done.stderr)[0])


def main() -> None:
    """Ask llama.cpp about every pair and write down its verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", type=Path, required=True, help=f"folder with {PROGRAM}")
    folder = parser.parse_args().bin.resolve()
    cases = {}
    with tempfile.TemporaryDirectory() as files:
        for name, target, draft in write_pairs(Path(files)):
            verdict, line = ask(folder, target, draft)
            print(f"{name}: {verdict}{f', {line}' if line else ''}", flush=True)
            content = hashlib.sha256(target.read_bytes() + draft.read_bytes()).hexdigest()
            cases[name] = {"verdict": verdict, "line": line, "sha256": content}
    command = " ".join([PROGRAM, "-m TARGET -md DRAFT", *OPTIONS])
    record = {"llama_cpp": version(folder), "command": command, "cases": cases}
    VERDICTS.parent.mkdir(exist_ok=True)
    VERDICTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
