"""What a user should know of a pair that is loaded, in sentences."""

import shlex
import sys

from localspec.core import machine
from localspec.core.config import LoadOptions, RopeOptions
from localspec.llama import llama_library
from localspec.llama.heads.head import Head
from localspec.llama.model import LlamaModel


def stretched(model: LlamaModel) -> list[str]:
    """One line when the context is longer than the model was trained for."""
    trained = model.header.context_length
    if trained is None or model.n_ctx <= trained or model.options.rope != RopeOptions():
        return []
    return [
        f"The context of {model.n_ctx} tokens is longer than the {trained} that "
        f"{model.header.path.name} was trained for: expect nonsense beyond them."
    ]


def not_overridden(target: LlamaModel, draft: LlamaModel | Head | None) -> list[str]:
    """A line for each replaced value that no model asked for."""
    taken = target.overridden | (draft.overridden if draft else frozenset())
    return [
        f"--override-kv {key} has no effect: llama.cpp did not ask for this key, or for another "
        "type of value."
        for key, _ in target.options.override_kv
        if key not in taken
    ]


def without_gpu(options: LoadOptions, draft: LoadOptions | None) -> list[str]:
    """One line when it was said how to spread layers over GPUs, and llama.cpp has none."""
    given = {
        "--n-gpu-layers": options.gpu_layers,
        "--draft-n-gpu-layers": draft and draft.gpu_layers,
        "--tensor-split": options.tensor_split,
        "--main-gpu": options.main_gpu,
        "--split-mode": options.split_mode != "layer",
    }
    flags = [flag for flag, value in given.items() if value]
    if not flags or options.rpc or any(device.is_gpu for device in llama_library.devices()):
        return []
    return [f"No effect without a GPU that llama.cpp can use: {', '.join(flags)}."]


def missing_gpu(*, any_maker: bool = False) -> list[str]:
    """One line when the machine has an NVIDIA card that this build cannot use.

    Of ``any_maker`` also others, which may be little faster than the processor they are a part of.
    """
    makers = machine.gpu_makers() if any_maker else []
    nvidia = machine.has_nvidia_gpu()
    if not (nvidia or makers) or llama_library.build().gpu_offload:
        return []
    maker, api = ("NVIDIA", "cuda") if nvidia else (" and ".join(makers), "vulkan")
    return [
        f"This build of llama.cpp has no GPU support, but the machine has a GPU by {maker}. Mend "
        f"it in localspec's own folder: bash scripts/build_{api}.sh --python "
        + shlex.quote(sys.executable)
    ]
