"""Graphs kept by shape, in a llama.cpp that `scripts/build_cuda.sh` has patched: the same logits.

LLAMA_CPP_LIB_PATH names such a build for a run of these tests.
"""

import os
import subprocess
import sys

import pytest

from localspec.llama import llama_library

pytestmark = pytest.mark.llama

# Widths change all the time, contexts grow past a multiple of 256 cells, tokens are forgotten, two
# contexts take turns, as do one slot and four, and what is kept is once more than is allowed.
CODE = """
import hashlib, sys, time
import numpy as np
from localspec.core.options.load_options import LoadOptions
from localspec.core import paths
from localspec.llama.model import LlamaModel
from localspec.metadata.header import read_header

found, seconds = hashlib.sha256(), 0.0
def passes(models, widths, rounds):
    global seconds
    for i in range(rounds):
        for model in models:
            width = widths[i % len(widths)]
            tokens = [(7919 * (i + j) + 1) % model.n_vocab for j in range(width)]
            began = time.perf_counter()
            rows = model.decode(tokens, 1 if i % 5 == 4 else width)
            seconds += time.perf_counter() - began
            assert np.isfinite(rows).all()
            found.update(rows.tobytes())
            model.truncate(len(model.tokens) - width // 2)
for flash in ("off", "on"):
    options = [LoadOptions(path, ctx_size=1024, threads=1, flash_attention=flash)
               for path in (*paths.demo_pair(), paths.bundled_folder() / "hybrid.gguf")]
    models = [LlamaModel(read_header(each.path), each) for each in options]
    for model in models:
        model.decode(range(1, 120), 0)
    passes(models, (1, 4, 1, 2, 7, 1, 40, 3), 120)
    passes(models, range(1, 33), 32)
    for model in models:
        model.truncate(0)
        model.decode(range(1, 300), 1)
    passes(models, (1, 5), 20)
    for model in models:
        model.close()
print(found.hexdigest())
print(seconds, file=sys.stderr)
"""


def logits(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_build_says_whether_it_keeps_graphs() -> None:
    build = llama_library.build()
    assert build.kept_graphs >= 0
    assert (build.kept_graphs > 0) == hasattr(llama_library.library()._lib, "llama_kept_graphs")


def test_logits_are_those_of_a_single_graph() -> None:
    if not llama_library.build().kept_graphs:
        pytest.skip("this llama.cpp is not patched: see scripts/build_cuda.sh")
    single = logits(LLAMA_KEPT_GRAPHS="0")
    for most in "3", "32":
        assert logits(LLAMA_KEPT_GRAPHS=most) == single
