"""Options of engines that serve a pair from its original weights on GPUs."""

import re
from dataclasses import dataclass
from functools import partial

from localspec.core.options.option import Bounds, option

_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}
_COUNT = Bounds(1, 4096)  # GPUs of a machine, and machines


def _bytes(text: str) -> int:
    """Read ``24GiB``, ``24G`` or ``80GB`` (which GPUs are sold by, and means GiB)."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?([MGT])(?:i?B)?", text, re.IGNORECASE)
    if found is None or not float(found[1]):
        raise ValueError("expected a size such as 24GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


_cluster = partial(option, panel="Serving on GPUs (vllm, sglang)")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Repositories of the weights (None: those that the headers name), and the GPUs.

    ``gpu_memory`` is in bytes, None where it is not known.
    """

    target_repo: str | None = _cluster(
        None,
        "--target-repo",
        "Repository of the target's safetensors. Default: the one that its header names.",
        metavar="ORG/NAME",
    )
    draft_repo: str | None = _cluster(
        None, "--draft-repo", "The same for the draft.", metavar="ORG/NAME"
    )
    gpus: int = _cluster(1, "--gpus", "GPUs of each machine.", bounds=_COUNT)
    machines: int = _cluster(1, "--machines", "Machines.", bounds=_COUNT)
    gpu_memory: int | None = _cluster(
        None,
        "--gpu-memory",
        "Memory of each GPU, such as 24GiB: whether the pair fits is checked.",
        metavar="SIZE",
        parse=_bytes,
    )
