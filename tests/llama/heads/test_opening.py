"""Opening heads: what is refused, and that it is refused by a sentence."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.core.errors import EngineError, IncompatiblePair
from localspec.llama import llama_library
from localspec.llama.heads import hidden_states
from localspec.llama.heads.hidden_states import Tap
from localspec.llama.heads.opening import open_head
from localspec.llama.memory.estimate import estimate_memory
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import read_header
from tests.support.llama.heads import PAIRS, head_pair
from tests.support.real_pair import load_model, options, random_ids

pytestmark = pytest.mark.llama

Files = Callable[[str], Path]


@pytest.mark.parametrize(
    ("target", "heads"),
    [
        ("llama", None),  # has none
        ("qwen35-mtp2", None),  # has two, and its graph asserts that there is one
        ("llama", "mtp-qwen35"),  # another architecture
        ("falcon-h1", "eagle3"),  # its graph has no such taps, and would abort
        ("falcon-h1", "dflash"),
        ("llama", "gemma4-assistant"),
    ],
)
def test_heads_that_cannot_be_run_are_refused(
    architecture: Files, target: str, heads: str | None
) -> None:
    with pytest.raises(IncompatiblePair, match=r"\.$") as refused:  # noqa: SIM117
        with head_pair(architecture, target, heads):
            pass
    assert refused.value.hint


def test_a_target_loaded_without_its_heads_is_a_mistake_of_the_caller(architecture: Files) -> None:
    path = architecture("glm4moe-mtp")
    with closing(load_model(path, ctx_size=256)) as target:
        with pytest.raises(ValueError, match="load_heads"):
            open_head(target, None, options(path, ctx_size=256))


def test_a_file_that_llama_cpp_cannot_load_is_named(architecture: Files, tmp_path: Path) -> None:
    whole, cut = architecture("eagle3"), tmp_path / "cut.gguf"
    header = replace(read_header(whole), path=cut, paths=(cut,))
    cut.write_bytes(whole.read_bytes()[:-4096])
    with closing(load_model(architecture("llama"), ctx_size=256)) as target:
        with pytest.raises(EngineError, match=r"cut\.gguf"):
            open_head(target, header, options(cut, ctx_size=256))
        assert target.listener is None


def test_a_build_without_the_functions_is_told_by_a_sentence(
    architecture: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden_states.unstable.cache_clear()
    monkeypatch.setattr(hidden_states, "_BOUND", ("no_such_function",))
    with pytest.raises(EngineError, match="This build of llama-cpp-python cannot") as refused:
        hidden_states.unstable()
    assert (
        "--no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36" in refused.value.hint
    )
    hidden_states.unstable.cache_clear()


def test_states_of_zeros_are_told_by_a_sentence(
    architecture: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    with head_pair(architecture, "glm4moe-mtp", None) as pair:
        nothing = np.zeros((8, pair.head.tap.width), np.float32)
        monkeypatch.setattr(Tap, "rows", lambda tap, count: nothing[:count])
        with pytest.raises(EngineError, match="no hidden states"):
            pair.target.decode(random_ids(8), 0)


def test_a_target_without_the_tap_gives_zeros(architecture: Files) -> None:
    """What the sentence above is for: llama.cpp itself says nothing."""
    with closing(load_model(architecture("falcon-h1"), ctx_size=256)) as target:
        width = llama_library.library().llama_model_n_embd_out(target.weights.handle)
        tap = Tap(target.context, (None,), width)
        tap.switch(True)
        target.decode(random_ids(8), 0)
        assert not tap.rows(8).any()


@pytest.mark.parametrize(("target", "heads"), PAIRS)
@pytest.mark.parametrize(
    ("of_target", "of_heads"),
    [("q8_0", "f16"), ("f16", "q8_0"), ("f32", "q4_0")],  # without flash attention: f32, f16
)
def test_heads_have_caches_of_their_own_type(
    architecture: Files, target: str, heads: str | None, of_target: str, of_heads: str
) -> None:
    """An assistant reads its target's cache, whatever it was given."""
    path = architecture(target)
    flash = "on" if of_target == "q8_0" else "off"
    types = {"cache_type_k": of_target, "cache_type_v": of_target, "flash_attention": flash}
    with closing(load_model(path, ctx_size=2048, load_heads=heads is None, **types)) as model:
        own = path if heads is None else architecture(heads)
        given = options(own, ctx_size=2048, cache_type_k=of_heads, cache_type_v=of_heads)
        head = open_head(model, None if heads is None else read_header(own), given)
        with closing(head):
            model.decode(random_ids(8), 0)
            assert not np.isnan(head.decode([*random_ids(8), 1], 1)).any()
            if heads == "gemma4-assistant":
                assert head.settings()["cache_type_k"] == of_target
                return
            assert head.settings()["cache_type_k"] == of_heads
            estimate = estimate_memory(head.header, 2048, given, heads=given)
            planned = sum(estimate.kv[n_layers(head.header) if heads is None else 0 :])
            assert head.memory.kv == pytest.approx(planned, abs=0.01 * 2**20)  # as llama.cpp rounds
