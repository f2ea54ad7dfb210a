"""Mutated models of every architecture: header checks, the child's use of each, then a real answer.

`python -m tests.fuzz.models --seed 0 --count 2000`. Forked children do what the child of
`first_use` does, and then what `run` does with what passed: none of the latter may end by a signal
or hang. What the former refuse is the reason why there is a proof.
"""

import argparse
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from localspec.core.errors import LocalspecError
from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.load_options import LoadOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.loading import child, first_use
from localspec.engine.loading.pair_file import ModelFile
from localspec.llama import llama_library
from localspec.metadata.header import read_header
from localspec.metadata.splits import read_part
from tests.fuzz import headers
from tests.support.files.architectures.specs import write_architecture

SECONDS = 60  # of processor time
WAITS = 10  # times as much by the clock: a busy machine is no hang
MEMORY = 4 << 30
_MOST_WEIGHTS = 1 << 24  # bytes
_TEXT = "def add(a, b):\n    return a + b\n" * 3


def crafted(path: Path, rng: random.Random) -> bytes:
    """A file with one change of its header, and the weights where they were as far as possible."""
    parts = headers.split(path)
    rng.choice(headers.MUTATIONS)(parts, rng)
    head, n_weights = parts.packed()
    weights, size = path.read_bytes()[read_part(path).data_start :], min(n_weights, _MOST_WEIGHTS)
    return head + (weights * (1 + size // len(weights)))[:size]


def in_child(work: Callable[[], None]) -> str:
    """ "done", "refused" for an error of ours, "traceback", "hangs", or the signal."""
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WAITS * SECONDS)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        code = 0
        try:
            work()
        except LocalspecError:
            code = 1
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = 2
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return ("done", "refused", "traceback")[code]
    return "hangs" if -code in (signal.SIGPROF, signal.SIGALRM) else signal.Signals(-code).name


def options(path: Path) -> LoadOptions:
    return LoadOptions(path, ctx_size=512, threads=1, threads_batch=1)


def prove(path: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the steps, which a parent reads
    reduced = first_use._reduced(ModelFile(read_header(path), options(path)))
    child._use([reduced], measures=False, answers=False)


def answer(path: Path) -> None:
    """What `run` does with a file that was proven."""
    with Engine.load(options(path), trial=False) as engine:
        prompt = engine.encode_text(_TEXT)
        greedy = GenerateOptions(SamplingParams(temperature=0), max_tokens=24)
        for _ in engine.stream(prompt, greedy):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    rng, outcomes, began = random.Random(given.seed), Counter[str](), time.perf_counter()
    llama_library.library()  # once, for all children
    with tempfile.TemporaryDirectory() as folder:
        files = [write_architecture(Path(folder, f"{n}.gguf"), n) for n in headers.NAMES]
        others = [read_header(path) for path in files]
        path = Path(folder, "crafted.gguf")
        for number in range(given.count):
            source = rng.choice(files)
            try:
                path.write_bytes(crafted(source, rng))
            except (struct.error, OverflowError):  # shapes that no header can hold
                outcomes["not written"] += 1
                continue
            outcome = f"header: {headers.judge(path, rng.choice(others))}"
            if outcome == "header: accepted":
                outcome = f"proof: {in_child(lambda: prove(path))}"
            if outcome == "proof: done":
                outcome = f"answer: {in_child(lambda: answer(path))}"
                if outcome not in ("answer: done", "answer: refused"):
                    print(f"file {number} of seed {given.seed}, {source.stem}: {outcome}")
            outcomes[outcome] += 1
    print(f"{given.count:,} files in {time.perf_counter() - began:.0f} s")
    print(", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common()))
    allowed = {"answer: done", "answer: refused"}
    return int(any(each.startswith("answer") and each not in allowed for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
