"""Compares the speed of plain decoding in localspec with that of llama.cpp's llama-completion.

    python benchmarks/plain.py --bin llama-build/bin

Both read the same file, take turns, decode greedily with the same threads, and must say the same
text. Only generation time counts, not that of the prompt. llama-completion comes from the llama.cpp
inside llama-cpp-python's source distribution, built with cmake:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz
    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B llama-build -DCMAKE_BUILD_TYPE=Release
    cmake --build llama-build --target llama-completion
"""

import argparse
import re
import statistics
import subprocess
from pathlib import Path

from common import CTX_SIZE, Parser, conditions, decode_plainly, load, padded_pair, span

from localspec.bench.demo import QUANTIZATIONS
from localspec.bench.padding.encoder import Quantization
from localspec.core import machine
from localspec.engine.engine import Engine

PROMPTS = ("def copyfile(src, dst):\n", "class Lock:\n", "import os\n\n\ndef walk(top):\n")

_TRIES = 5  # programs of llama.cpp at times end before their log is written
_EVAL = re.compile(r"\beval time =\s+([\d.]+) ms /\s+(\d+) runs")
_SPEED = re.compile(r"decoded\s+(\d+) tokens in\s+([\d.]+) seconds")
_SAMPLING = re.compile(r"\bsampling time =\s+([\d.]+) ms")


def run_program(
    program: Path, model: Path, prompt: str, tokens: int, threads: int, *more: str
) -> tuple[str, str]:
    """What a program of llama.cpp prints and what it logs, for a greedy answer of full length."""
    command = [str(program), "-m", str(model), "-p", prompt, "-n", str(tokens)]
    command += ["-c", str(CTX_SIZE), "-t", str(threads), "--temp", "0", "--ignore-eos"]
    command += ["-lv", "4", *more]
    done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def speculate(
    folder: Path, model: Path, prompt: str, tokens: int, threads: int, *more: str
) -> tuple[str, str, int, float]:
    """What llama-speculative-simple prints and logs, the tokens it generates and their seconds."""
    program = folder / "llama-speculative-simple"
    more = ("-td", str(threads), *more)
    for _ in range(_TRIES):
        out, log = run_program(program, model, prompt, tokens, threads, *more)
        found = _SPEED.findall(log + out)
        if found and "n_accept" in log + out:
            break
    count, seconds = found[-1]
    return out, log, int(count), float(seconds)


def theirs(folder: Path, model: Path, prompt: str, tokens: int, threads: int) -> tuple[str, float]:
    """The text llama-completion prints and its tokens per second, by its own clocks."""
    program = folder / "llama-completion"
    more = ("--no-display-prompt", "-no-cnv", "--perf")
    for _ in range(_TRIES):
        text, log = run_program(program, model, prompt, tokens, threads, *more)
        evaluated, sampled = _EVAL.findall(log), _SAMPLING.findall(log)
        if evaluated and sampled:
            milliseconds, runs = evaluated[-1]
            return text, 1000 * int(runs) / (float(milliseconds) + float(sampled[-1]))
    raise SystemExit(f"{program} told no times, in {_TRIES} runs; its log ends so:\n{log[-500:]}")


def ours(engine: Engine, prompt: str, tokens: int) -> tuple[str, float]:
    """The text of our loop without a draft and its tokens per second: everything in a round.

    llama.cpp counts the first token as part of the prompt, so it is left out here as well.
    """
    text, seconds = decode_plainly(engine, engine.encode_text(prompt), tokens)
    return text, (len(seconds) - 1) / (seconds[-1] - seconds[0])


def compare(quantization: Quantization, args: argparse.Namespace) -> str:
    """The ratio of both speeds, and whether the texts are the same."""
    target, _ = padded_pair(quantization)
    ratios, same = [], True
    with load([target], args.threads, ignore_eos=True) as engine:
        ours(engine, PROMPTS[0], 16)
        for prompt in PROMPTS * args.repeats:
            their_text, their_tps = theirs(args.bin, target, prompt, args.tokens, args.threads)
            our_text, our_tps = ours(engine, prompt, args.tokens)
            ratios.append(our_tps / their_tps)
            same = same and our_text.strip() == their_text.strip()
            print(f"  {quantization} ours {our_tps:6.1f} theirs {their_tps:6.1f} tok/s", flush=True)
    return (
        f"{quantization}: ours over theirs {statistics.median(ratios):.3f} (median of "
        f"{len(ratios)}, {span(ratios, 3)}), same text: {same}"
    )


def main() -> None:
    """Print the speeds of both sides, and their ratio for each quantization."""
    parser = Parser(__doc__)
    parser.add_argument("--bin", type=Path, required=True, help="folder with llama-completion")
    parser.integers(repeats=5, tokens=64, threads=machine.physical_cores())
    args = parser.parse_args()
    print(conditions(args.threads, f"{args.tokens} tokens"))
    for quantization in QUANTIZATIONS:
        print(compare(quantization, args))


if __name__ == "__main__":
    main()
