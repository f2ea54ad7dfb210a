"""Compare plain decoding through localspec's loop with llama.cpp's own llama-completion.

Both read the same file, take turns, decode greedily with the same threads, and must say the same
text. Only generation time counts, prompt time apart. llama-completion comes from the llama.cpp
inside llama-cpp-python's source distribution, built with cmake:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz
    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B llama-build -DCMAKE_BUILD_TYPE=Release
    cmake --build llama-build --target llama-completion
    python benchmarks/plain.py --bin llama-build/bin
"""

import argparse
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

from localspec.bench.demo import QUANTIZATIONS, padded_pair
from localspec.core import machine
from localspec.core.config import LoadOptions, SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.generate import GenerationResponse, collect, stream_generate

PROMPTS = ("def copyfile(src, dst):\n", "class Lock:\n", "import os\n\n\ndef walk(top):\n")

_EVAL = re.compile(r"\beval time =\s+([\d.]+) ms /\s+(\d+) runs")
_SAMPLING = re.compile(r"\bsampling time =\s+([\d.]+) ms")
CTX_SIZE = 512


def theirs(program: Path, model: Path, prompt: str, tokens: int, threads: int) -> tuple[str, float]:
    """The text llama-completion prints and its tokens per second, by its own clocks."""
    command = [str(program), "-m", str(model), "-p", prompt, "-n", str(tokens)]
    command += ["-c", str(CTX_SIZE), "-t", str(threads), "--temp", "0", "--no-display-prompt"]
    command += ["-no-cnv", "--ignore-eos", "--perf", "-lv", "4"]
    done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    log = done.stderr.decode("utf-8", "replace")
    milliseconds, runs = _EVAL.findall(log)[-1]
    spent = float(milliseconds) + float(_SAMPLING.findall(log)[-1])
    return done.stdout.decode("utf-8", "replace"), 1000 * int(runs) / spent


def ours(engine: Engine, prompt: str, tokens: int) -> tuple[str, float]:
    """The text of our loop without a draft and its tokens per second: everything in a round.

    llama.cpp counts the first token as part of the prompt, so it is left out here as well.
    """
    engine.target.keep(0)
    greedy = SamplingParams(temperature=0)
    seconds = []

    def responses() -> Iterator[GenerationResponse]:
        ids = engine.encode_text(prompt)
        for response in stream_generate(engine, ids, greedy, 0, max_tokens=tokens):
            seconds.append(response.stats.seconds)
            yield response

    text = collect(responses()).text
    return text, (len(seconds) - 1) / (seconds[-1] - seconds[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", type=Path, required=True, help="folder with llama-completion")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=machine.physical_cores())
    options = parser.parse_args()
    print(f"{machine.cpu_name()}, {options.threads} threads, {options.tokens} tokens")
    for quantization in QUANTIZATIONS:
        target, _ = padded_pair(quantization, lambda label, done, total: None)
        load = LoadOptions(target, ctx_size=CTX_SIZE, threads=options.threads)
        with Engine.load(load) as engine:
            engine.is_stop = lambda token: False  # type: ignore[method-assign]  # as --ignore-eos
            ours(engine, PROMPTS[0], 16)
            ratios, same = [], True
            for i in range(options.repeats * len(PROMPTS)):
                prompt = PROMPTS[i % len(PROMPTS)]
                program = options.bin / "llama-completion"
                their_text, their_tps = theirs(
                    program, target, prompt, options.tokens, options.threads
                )
                our_text, our_tps = ours(engine, prompt, options.tokens)
                ratios.append(our_tps / their_tps)
                same = same and our_text.strip() == their_text.strip()
                print(
                    f"  {quantization} ours {our_tps:6.1f} theirs {their_tps:6.1f} tok/s",
                    flush=True,
                )
        print(
            f"{quantization}: ours over theirs {statistics.median(ratios):.3f} (median of "
            f"{len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}), same text: {same}"
        )


if __name__ == "__main__":
    main()
