"""How a pair is split over several GPUs, and the memory that each GPU needs."""

import math
from dataclasses import dataclass
from typing import NoReturn

from localspec.core.errors import NotEnoughMemory, UsageError
from localspec.core.formatting import size
from localspec.core.options.load_options import LoadOptions
from localspec.export.deployment import Cluster
from localspec.export.facts import PairFacts
from localspec.llama.memory.estimate import estimate_memory
from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import ModelHeader

_BF16 = 2  # bytes of a weight as these engines load it
_USABLE = 0.9  # of a GPU's memory, about what both engines take of it


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs that share every layer (``tensor``), and groups of them with layers each (``pipeline``).

    ``weights`` and ``kv`` are bytes of both models in all, the cache for one sequence of the
    context; ``per_gpu`` is what the fullest GPU holds of them.
    """

    tensor: int
    pipeline: int
    weights: int
    kv: int
    per_gpu: int

    @property
    def sentence(self) -> str:
        """The sizes, for a comment."""
        gpus = self.tensor * self.pipeline
        whole = f"weights {size(self.weights)} in bf16, cache of one context {size(self.kv)}"
        if gpus == 1:
            return f"Sizes by the headers: {whole}"
        return f"Sizes by the headers: {whole}; about {size(self.per_gpu)} on each of {gpus} GPUs"


def split_pair(facts: PairFacts, *, pipeline: bool) -> Split:
    """How the pair is split over the GPUs of a cluster.

    The number of attention heads, of an ordinary draft too, must be divisible by the GPUs that
    share a layer (`verify_with_parallel_config` in vLLM). With ``pipeline`` the remaining factor
    is groups with layers of their own. Raises UsageError for GPUs that cannot be used like that,
    NotEnoughMemory where the models do not fit.
    """
    cluster = facts.cluster
    shared = cluster.gpus if pipeline else cluster.gpus * cluster.machines
    tensor = _divisor(shared, _split_heads(facts))
    stages = cluster.gpus * cluster.machines // tensor if pipeline else 1
    if not pipeline and tensor != shared:
        _refuse_heads(facts, shared)
    layers = n_layers(facts.target) or 1
    if stages > layers:
        raise UsageError(
            f"{stages} groups of GPUs are more than the {layers} layers of the target.",
            "Give fewer --gpus or --machines.",
        )
    split = _measure(facts, tensor, stages)
    _require_gpu_room(split, cluster)
    return split


def _split_heads(facts: PairFacts) -> list[int]:
    """Attention heads of each model that is split over the GPUs."""
    split = [facts.target, *([facts.draft] if facts.kind.is_model else [])]
    return [header.head_count or 1 for header in split]


def _divisor(gpus: int, heads: list[int]) -> int:
    """The largest part of the GPUs among which all heads can be divided."""
    return max(n for n in range(1, gpus + 1) if gpus % n == 0 and not any(h % n for h in heads))


def _refuse_heads(facts: PairFacts, gpus: int) -> NoReturn:
    counts = _split_heads(facts)
    heads = " and ".join(f"{count:,}" for count in counts)
    largest = math.gcd(*counts)
    even = " or ".join(str(n) for n in range(1, min(largest, 256) + 1) if largest % n == 0)
    raise UsageError(
        f"{gpus} GPUs cannot share the {heads} attention heads evenly, and this engine splits "
        "layers of a pair in no other way.",
        f"Give --gpus and --machines that make {even} in all, or take vLLM: --to vllm",
    )


def _measure(facts: PairFacts, tensor: int, stages: int) -> Split:
    headers = facts.models
    weights = [_BF16 * header.parameters for header in headers]
    caches = [_cache(header, facts.ctx_size) for header in headers]
    held = [
        -(-cache // min(tensor, _kv_heads(h))) for cache, h in zip(caches, headers, strict=True)
    ]
    # The draft is as a whole on the last group.
    per_gpu = -(-weights[0] // (tensor * stages)) + -(-held[0] // stages)
    per_gpu += sum(-(-each // tensor) for each in weights[1:]) + sum(held[1:])
    return Split(tensor, stages, sum(weights), sum(caches), per_gpu)


def _cache(header: ModelHeader, ctx_size: int) -> int:
    """Bytes of keys, values and recurrent states of one sequence, 16 bits each."""
    return sum(estimate_memory(header, ctx_size, LoadOptions(header.path)).kv)


def _kv_heads(header: ModelHeader) -> int:
    """Heads of keys and values: GPUs beyond their number hold copies."""
    found = header.get("attention.head_count_kv")
    if isinstance(found, tuple):
        found = max((n for n in found if isinstance(n, int)), default=1)
    return found if isinstance(found, int) and found > 0 else header.head_count or 1


def _require_gpu_room(split: Split, cluster: Cluster) -> None:
    if cluster.gpu_memory is None or split.per_gpu <= _USABLE * cluster.gpu_memory:
        return
    gpus = split.tensor * split.pipeline
    needed = -(-(split.weights + split.kv) // int(_USABLE * cluster.gpu_memory))
    raise NotEnoughMemory(
        f"The pair does not fit: about {size(split.per_gpu)} on each of {gpus} "
        f"GPU{'' if gpus == 1 else 's'}, of whose {size(cluster.gpu_memory)} "
        f"{_USABLE:.0%} can be used.",
        f"It takes {max(needed, gpus + 1)} GPUs of this size or more, or a smaller --ctx-size; or "
        "name a quantized repository with --target-repo and leave --gpu-memory out.",
    )
