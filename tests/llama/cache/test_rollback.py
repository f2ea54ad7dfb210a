"""Tokens taken back from real contexts: logits are as if they had never been read."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.core.options.load_options import LoadOptions
from localspec.llama import llama_library
from localspec.llama.cache.rollback import Fork, Snapshots
from localspec.llama.memory.layer_cache import ANCHORS, SNAPSHOTS
from localspec.llama.model import LlamaModel
from localspec.llama.pass_class import find_class
from localspec.metadata.header import read_header
from tests.support.llama.today import STATEFUL, WAYS
from tests.support.real_pair import options

pytestmark = pytest.mark.llama

WITH_SNAPSHOTS = [name for name in STATEFUL if Snapshots.name in WAYS[name]]
CASES = [(name, strategy) for name in STATEFUL for strategy in WAYS[name]]
PROMPT = list(range(30, 70))
Files = Callable[[str], Path]


def loaded(path: Path, strategy: str, **more: Any) -> LlamaModel:
    asked: LoadOptions = options(path, **{"ctx_size": 256} | more)
    return LlamaModel(read_header(path), asked, strategies=(strategy,))


@pytest.fixture(scope="module", params=CASES, ids=lambda pair: " ".join(pair))
def models(
    request: pytest.FixtureRequest, architecture: Files
) -> Iterator[tuple[LlamaModel, LlamaModel]]:
    """A model that is rolled back by one strategy, and the same, which never is."""
    name, strategy = request.param
    model, oracle = (loaded(architecture(name), strategy) for _ in range(2))
    assert model.rollback.name == strategy
    yield model, oracle
    model.close()
    oracle.close()


def assert_same_next(model: LlamaModel, oracle: LlamaModel) -> None:
    """The model says what one says that reads its tokens for the first time."""
    oracle.truncate(0)
    expected = oracle.decode([*model.tokens, 7], 1)[0]
    found = model.decode([7], 1)[0]
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()
    assert model.tokens == oracle.tokens and model.pending == 0


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["verify", "verify", "step", "return", "less"]),
        st.integers(0, 12),
        st.integers(0, 12),
    ),
    max_size=12,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_after_any_history_the_state_is_right(
    models: tuple[LlamaModel, LlamaModel], steps: list[tuple[str, int, int]]
) -> None:
    model, oracle = models
    model.truncate(0)
    model.decode(PROMPT, 0)
    for step, count, kept in steps:
        before = len(model.tokens)
        if step == "verify":  # as the loop does: a pending token and a draft of which some is kept
            model.decode([9, *range(100, 100 + count)], count + 1)
            model.truncate(before + 1 + min(kept, count))
        elif step == "step":  # as a draft does: marked, then one at a time
            model.checkpoint()
            for token in range(120, 120 + count):
                model.decode([token], 1)
            model.truncate(before + min(kept, count))
        elif step == "less":  # also behind what was taken back just now
            model.truncate(max(len(PROMPT), before - count))
        else:
            model.truncate(len(PROMPT) - min(2, count))
    assert_same_next(model, oracle)


def test_returning_to_a_prompt_or_an_answer_reads_little_again(
    models: tuple[LlamaModel, LlamaModel],
) -> None:
    """As /regen and /undo do; of five copies the one goes without which five tokens are read."""
    model, oracle = models
    model.truncate(0)
    model.decode(PROMPT, 0)
    ends = []
    for turn in range(2):
        ends.append(len(model.tokens))
        for token in range(8):
            model.decode([20 + turn + token], 1)
        ends.append(len(model.tokens))
        model.decode(PROMPT[: 5 + turn], 0)
    pending = []
    for end in reversed(ends[1:]):
        model.truncate(end)
        pending.append(model.pending)
    assert pending == ([0, 5, 0] if model.rollback.name == Fork.name else [0, 0, 0])
    assert_same_next(model, oracle)


def test_a_short_rollback_leaves_little_to_read_again(
    models: tuple[LlamaModel, LlamaModel],
) -> None:
    model, oracle = models
    model.truncate(0)
    model.decode(PROMPT, 0)
    for token in range(6):  # away from the prompt's end, of which there is a copy
        model.decode([token], 1)
    pending = []
    for _ in range(7):
        length = len(model.tokens)
        model.decode([1, 2, 3, 4], 4)
        model.truncate(length + 2)
        pending.append(model.pending)
    # With fork it grows by what each round keeps, until more than 8 are read by themselves.
    assert pending == ([2, 4, 6, 8, 10, 2, 4] if model.rollback.name == Fork.name else [0] * 7)
    model.truncate(length + 1)  # once more, with no pass in between
    assert_same_next(model, oracle)


def test_a_copy_of_a_text_that_was_replaced_is_forgotten(
    models: tuple[LlamaModel, LlamaModel],
) -> None:
    model, oracle = models
    model.truncate(0)
    model.decode(PROMPT, 0)
    for token in range(5):
        model.decode([token], 1)
    model.decode([*range(10)], 0)  # a copy at 55
    model.truncate(50)
    for token in range(20, 33):
        model.decode([token], 1)
    model.decode([1, 2, 3], 3)
    model.truncate(60)
    assert_same_next(model, oracle)


@pytest.mark.parametrize(("before", "kept"), [(40, 38), (40, 25), (25, 10), (25, 0)])
def test_what_an_interrupted_pass_read_is_taken_back_too(
    models: tuple[LlamaModel, LlamaModel],
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    kept: int,
) -> None:
    """Ctrl-C comes when llama.cpp has read a token, but the model has not noted it yet."""
    model, oracle = models
    model.truncate(0)
    model.decode(PROMPT, 0)
    model.truncate(before)  # some of it is read again, where there is no copy
    library = llama_library.library()
    real = library.llama_decode

    def interrupted(*arguments: object) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(library, "llama_decode", interrupted)
        model.decode([3], 1)
    model.truncate(kept)
    model.decode([5], 1)
    assert_same_next(model, oracle)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("qwen35", "fork"), ("qwen35", "snapshots"), ("falcon-h1", "fork"), ("mamba2", "fork")],
)
def test_exact_passes_say_the_same_bit_for_bit(
    architecture: Files, name: str, strategy: str
) -> None:
    model = loaded(architecture(name), strategy, exact=True, row_kernels=False)
    passes = find_class(model)
    assert passes.step > 1  # F16 rounds differently when one token is decoded alone
    model.use_class(replace(passes, alone=False))
    tokens = [*range(60, 90)]
    model.decode(PROMPT, 0)
    together = model.decode(tokens, len(tokens)).copy()
    model.truncate(len(PROMPT))
    for token, expected in zip(tokens, together, strict=True):
        assert np.array_equal(model.decode([token], 1)[0], expected)
        assert model.pending < passes.step
    model.close()


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_llama_cpp_agrees_to_a_rollback_that_no_snapshot_was_written_for(
    architecture: Files, name: str
) -> None:
    """The trap that `Snapshots.observe` is there for: the state is a wrong one."""
    model, oracle = (loaded(architecture(name), Snapshots.name) for _ in range(2))
    for each in (model, oracle):
        each.decode(PROMPT, 0)
    for token in (11, 12, 13):
        model.decode([token], 1)
    llama = llama_library.library()
    memory = llama.llama_get_memory(model.context)
    assert llama.llama_memory_seq_rm(memory, 0, len(PROMPT) + 1, -1)
    model.cells.held = len(PROMPT) + 1
    del model.tokens[model.cells.held :]
    expected = oracle.decode([11, 7], 1)[0]
    wrong = model.decode([7], 1)[0]
    assert np.abs(wrong - expected).max() > 0.1 * np.abs(expected).max()
    for token in (12, 13):
        model.decode([token], 1)
    model.truncate(len(PROMPT))  # not by llama.cpp's leave, but from the copy
    oracle.truncate(len(PROMPT))
    assert_same_next(model, oracle)
    model.close()
    oracle.close()


def test_snapshots_reach_as_far_as_they_are_written(architecture: Files) -> None:
    model = loaded(architecture("qwen35"), Snapshots.name)
    model.decode(PROMPT, 0)
    model.decode([1] * (SNAPSHOTS + 1), SNAPSHOTS + 1)
    model.truncate(len(PROMPT) + 1)
    assert model.pending == 0
    for token in range(6):
        model.decode([token], 1)
    model.decode([1] * 12, 12)  # wider: from a copy, made before
    model.truncate(len(PROMPT) + 9)
    assert model.pending == 2
    model.close()


def test_a_micro_batch_bounds_the_snapshots(architecture: Files) -> None:
    model, oracle = (
        loaded(architecture("qwen35"), Snapshots.name, ubatch_size=64) for _ in range(2)
    )
    model.decode([i % 50 for i in range(130)], 0)  # the last micro-batch has two tokens
    model.truncate(127)
    assert model.pending == 127
    assert_same_next(model, oracle)
    model.close()
    oracle.close()


def test_a_copy_made_for_a_draft_stays_where_a_prompt_begins(architecture: Files) -> None:
    model, oracle = (loaded(architecture("qwen35"), Snapshots.name) for _ in range(2))
    model.decode([*PROMPT, 1, 2, 3], 1)
    end = len(model.tokens)
    model.decode([4] * 12, 12)  # wider than the snapshots reach: from a copy
    model.truncate(end)
    model.decode([5, 6, 7], 0)  # another prompt, whose own end is copied too
    model.truncate(end)
    assert model.pending == 0
    assert_same_next(model, oracle)
    model.close()
    oracle.close()


@pytest.mark.parametrize("strategy", WAYS["lfm2"])
def test_a_state_comes_back_with_the_window_of_sliding_layers(
    architecture: Files, strategy: str
) -> None:
    """Some of their cells in front of the state were used again for what followed it."""
    small = {"ctx_size": 1024, "batch_size": 64, "ubatch_size": 64}
    model, oracle = (loaded(architecture("lfm2-sliding"), strategy, **small) for _ in range(2))
    model.decode(PROMPT, 0)
    model.decode([1], 1)
    model.decode([2, 3, 4, 5], 4)
    for token in range(240):
        model.decode([token % 200], 1)
    model.truncate(len(PROMPT) + 5)
    assert_same_next(model, oracle)
    for turn in range(2 * ANCHORS):
        model.decode([turn, turn + 1], 0)
        model.decode([7], 1)
    assert 0 < len(model.reusable_lengths().copies) <= 1 + ANCHORS
    assert_same_next(model, oracle)
    model.close()
    oracle.close()


def test_a_strategy_that_llama_cpp_lacks_is_not_tried(
    architecture: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, path, passes = llama_library.library(), architecture("falcon-h1"), [0]
    real = library.llama_decode

    def counted(*arguments: object) -> object:
        passes[-1] += 1
        return real(*arguments)

    monkeypatch.setattr(library, "llama_decode", counted)
    for strategies in ((Fork.name,), (Snapshots.name, Fork.name)):
        model = LlamaModel(read_header(path), options(path, ctx_size=256), strategies=strategies)
        assert model.rollback.name == Fork.name
        model.close()
        passes.append(0)
    assert 0 < passes[0] == passes[1]
