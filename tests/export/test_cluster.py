"""Sizes of a pair on several GPUs: even splits, what each holds, and what does not fit."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.core.errors import NotEnoughMemory, UsageError
from localspec.export.cluster import split_pair
from localspec.export.deployment import Cluster
from localspec.export.facts import PairFacts
from tests.support.library.exports import facts_of, model

MIB = 2**20
HEADS = "llama.attention.head_count"


def pair(folder: Path, cluster: Cluster, heads: tuple[int, int] = (8, 4)) -> PairFacts:
    target = model(folder, "big", 96, keys={HEADS: heads[0]})
    draft = model(folder, "small", 16, keys={HEADS: heads[1]})
    return facts_of(target, draft, cluster=cluster)


def test_one_gpu_holds_everything(tmp_path: Path) -> None:
    split = split_pair(pair(tmp_path, Cluster()), pipeline=True)
    assert (split.tensor, split.pipeline) == (1, 1)
    assert 2 * 112 * MIB <= split.weights < 2 * 113 * MIB  # bf16
    assert split.per_gpu == split.weights + split.kv
    assert split.sentence.startswith("Sizes by the headers: weights 224 MiB in bf16")


@pytest.mark.parametrize(
    ("gpus", "machines", "tensor", "stages"),
    [(2, 1, 2, 1), (4, 1, 4, 1), (8, 1, 4, 2), (6, 1, 2, 3), (3, 1, 1, 3), (2, 2, 2, 2)],
)
def test_heads_of_both_models_decide(
    tmp_path: Path, gpus: int, machines: int, tensor: int, stages: int
) -> None:
    split = split_pair(pair(tmp_path, Cluster(gpus=gpus, machines=machines)), pipeline=True)
    assert (split.tensor, split.pipeline) == (tensor, stages)


def test_the_draft_is_on_the_last_group(tmp_path: Path) -> None:
    split = split_pair(pair(tmp_path, Cluster(gpus=4, machines=2)), pipeline=True)
    weights = 2 * 96 * MIB // 8 + 2 * 16 * MIB // 4
    assert weights <= split.per_gpu < weights + split.kv + MIB
    assert "on each of 8 GPUs" in split.sentence


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(1, 12), st.integers(1, 4), st.sampled_from([(32, 8), (12, 6), (5, 2), (7, 7)]))
def test_every_split_is_even_and_uses_every_gpu(
    tmp_path: Path, gpus: int, machines: int, heads: tuple[int, int]
) -> None:
    known = pair(tmp_path, Cluster(gpus=gpus, machines=machines), heads)
    try:
        split = split_pair(known, pipeline=True)
    except UsageError:
        assert gpus * machines > 4  # as many as there are layers
        return
    assert split.tensor * split.pipeline == gpus * machines
    assert heads[0] % split.tensor == heads[1] % split.tensor == 0
    assert split.per_gpu * gpus * machines >= split.weights


def test_more_groups_than_layers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="5 groups of GPUs are more than the 4 layers"):
        split_pair(pair(tmp_path, Cluster(gpus=5)), pipeline=True)


def test_what_does_not_fit(tmp_path: Path) -> None:
    small = Cluster(gpus=2, gpu_memory=100 * MIB)
    with pytest.raises(NotEnoughMemory) as caught:
        split_pair(pair(tmp_path, small), pipeline=True)
    assert "on each of 2 GPUs, of whose 100 MiB 90% can be used" in caught.value.message
    assert "It takes 3 GPUs" in caught.value.hint
    fits = Cluster(gpus=2, gpu_memory=200 * MIB)
    assert split_pair(pair(tmp_path, fits), pipeline=True).tensor == 2


def test_heads_of_keys_are_copied_beyond_their_number(tmp_path: Path) -> None:
    def held(kv_heads: int) -> int:
        keys = {HEADS: 8, f"{HEADS}_kv": kv_heads, "llama.attention.key_length": 64}
        keys["llama.attention.value_length"] = 64
        target = model(tmp_path, "big", 8, keys=keys)
        known = facts_of(target, target, cluster=Cluster(gpus=8))
        split = split_pair(known, pipeline=True)
        return split.per_gpu - split.weights // 8

    assert held(1) == held(2) == held(8) > 0
