"""Candidates of `localspec tune`: what is tried, and how settings are combined."""

from pathlib import Path

import pytest

from localspec.bench.tuning.candidates import (
    NOW,
    Candidate,
    PairFiles,
    candidates,
    combinations,
    load_key,
    merged,
    modes,
    shown,
)
from localspec.core.options.load_options import ALL_LAYERS, LoadOptions

ANSWERS = {"draft_tokens": "auto", "prompt_lookup": True}
TARGET, DRAFT = LoadOptions(Path("t.gguf")), LoadOptions(Path("d.gguf"))
PAIR = PairFiles({}, TARGET, DRAFT, ANSWERS)


def tried(pair: PairFiles = PAIR, *cores: int, kernels: bool = False, layers: int = 0) -> list[str]:
    return [each.shown for each in candidates(pair, cores, has_kernels=kernels, layers=layers)]


def test_threads_are_tried_that_are_not_those_of_now() -> None:
    attention = "flash_attention=off"
    assert tried(PAIR, 4, 3, 8) == [
        "threads=3", "threads=8", "draft_threads=3", "threads_batch=8", attention
    ]  # fmt: skip
    now = LoadOptions(Path("t.gguf"), threads=8, flash_attention="off")
    assert tried(PairFiles({}, now, None, ANSWERS), 4, 8) == ["threads=4", "flash_attention=on"]


def test_drafts_on_this_disk_and_kernels_are_tried_first() -> None:
    others = tuple(Path(f"/m/{name}.gguf") for name in "abc")
    pair = PairFiles({}, TARGET, DRAFT, ANSWERS, others)
    assert tried(pair, 2, kernels=True)[:3] == [
        "draft_model=a.gguf", "draft_model=b.gguf", "row_kernels=off"
    ]  # fmt: skip


def test_layers_are_tried_where_there_is_a_gpu() -> None:
    found = tried(PAIR, 2, layers=28)
    assert found[:4] == [
        "gpu_layers=21",
        "gpu_layers=14",
        "gpu_layers=0",
        "ubatch_size=2048 batch_size=2048",
    ]
    fewer = LoadOptions(Path("t.gguf"), gpu_layers=14)
    assert f"gpu_layers={ALL_LAYERS}" in tried(PairFiles({}, fewer, DRAFT, ANSWERS), 2, layers=28)


def test_what_rounds_otherwise_is_marked() -> None:
    found = candidates(PAIR, [2, 1], has_kernels=True, layers=4)
    marked = {each.knob for each in found if each.rounds}
    assert marked == {"kernels", "layers", "flash attention"}


def test_modes_are_those_that_are_not_now() -> None:
    assert [each.shown for each in modes(PAIR, [4])] == [
        "prompt_lookup=off", "draft_tokens=off", "draft_tokens=4"
    ]  # fmt: skip
    alone = PairFiles({}, TARGET, None, {"draft_tokens": "off", "prompt_lookup": False})
    assert [each.shown for each in modes(alone, [4])] == ["prompt_lookup=on", "draft_tokens=auto"]


def test_a_combination_has_one_candidate_of_a_knob() -> None:
    one, two = Candidate("threads", {"threads": 1}), Candidate("threads", {"threads": 2})
    other = Candidate("lookup", {"prompt_lookup": False})
    assert list(combinations([one, two, other])) == [
        (), (other,), (one,), (one, other), (two,), (two, other)
    ]  # fmt: skip
    assert merged([one, other]) == {"threads": 1, "prompt_lookup": False}
    assert list(combinations([])) == [()]


def test_settings_of_answers_need_no_other_load() -> None:
    assert load_key({"prompt_lookup": False, "draft_tokens": "off"}) == load_key(NOW) == ()
    assert load_key({"threads": 1, "draft_tokens": "4"}) == (("threads", 1),)
    assert shown(NOW) == "current"


def test_a_pair_is_loaded_with_changed_settings() -> None:
    heads = LoadOptions(Path("t.gguf"), load_heads=True)
    pair = PairFiles({"threads": 4, "ctx_size": 64}, TARGET, heads, ANSWERS)
    target, draft = pair.with_values({"threads": 2, "draft_tokens": "off"})
    assert (target.threads, target.ctx_size) == (2, 64)
    assert draft is not None and draft.load_heads and draft.threads == 2
    _, other = pair.with_values({"draft_model": "/m/a.gguf"})
    assert other is not None and other.path == Path("/m/a.gguf") and not other.load_heads
    plain, none = PairFiles({}, TARGET, None, ANSWERS).with_values({"row_kernels": False})
    assert none is None and not plain.row_kernels


@pytest.mark.parametrize("name", ["flash_attention", "threads", "row_kernels"])
def test_settings_of_candidates_are_settings_of_config(name: str) -> None:
    from localspec.commands.flags.settings import setting_value

    found = candidates(PAIR, [2, 1], has_kernels=True, layers=8)
    (value, *_) = (each.values[name] for each in found if name in each.values)
    assert setting_value(name, value) == value
