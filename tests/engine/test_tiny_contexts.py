"""Pairs with tiny contexts: no pass is wider than llama.cpp takes, which would end the process."""

from pathlib import Path

import pytest

from localspec.core.options.generate_options import GenerateOptions
from localspec.core.options.sampling_params import SamplingParams
from localspec.engine.engine import Engine
from localspec.engine.grammar.source import read_schema
from localspec.llama import llama_library
from tests.fuzz import contexts
from tests.fuzz.models import in_child
from tests.support.real_pair import options

pytestmark = pytest.mark.llama


@pytest.mark.parametrize("ctx_size", [8, 32])
@pytest.mark.parametrize(("exact", "parallel", "branches"), [(0, 1, 3), (1, 1, 1), (0, 2, 1)])
def test_forced_tokens_that_a_draft_cannot_hold(
    demo_files: tuple[Path, Path], ctx_size: int, exact: int, parallel: int, branches: int
) -> None:
    text = "The quick brown fox jumps over the lazy dog and runs away into the deep dark forest."

    def answer() -> None:
        target, draft = demo_files
        common = {"exact": bool(exact), "parallel": parallel}
        first = options(target, ctx_size=512, branches=branches, **common)
        second = options(draft, ctx_size=ctx_size, **common)
        with Engine.load(first, second, trial=False) as engine:
            grammar = read_schema(f'{{"const": "{text}"}}').grammar
            asked = GenerateOptions(SamplingParams(temperature=0), 4, grammar=grammar)
            pieces = [*engine.stream(engine.encode_text("def f(x): return"), asked)]
        assert "".join(map(str, pieces)) == f'"{text}"'

    llama_library.library()  # once, for all children
    assert in_child(answer) == "done"


def test_a_grid_of_tiny_contexts(tmp_path: Path, thorough: bool) -> None:
    count = 12 if thorough else 6
    outcomes, bad = contexts.fuzz(1, count, contexts.pairs(tmp_path, heads=False))
    assert bad == [] and outcomes.total() == count
