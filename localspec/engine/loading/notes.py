"""Notes for the user about a loaded pair, in sentences."""

import platform
import shlex
import sys

from localspec.core import machine
from localspec.core.options.load_options import LoadOptions, RopeOptions
from localspec.llama import llama_library, row_kernels
from localspec.llama.heads.head import Head
from localspec.llama.memory.estimate import keeps_state
from localspec.llama.model import LlamaModel
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader
from localspec.pairing import drafts_by_text

_X86_64 = ("x86_64", "AMD64")  # processors for which there are row kernels
_CHAIN = "The target verifies chains, without branches: {}."


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
    """A line for each overridden key that no model read."""
    taken = target.overridden | (draft.overridden if draft else frozenset())
    return [
        f"--override-kv {key} has no effect: llama.cpp did not ask for this key, or for another "
        "type of value."
        for key, _ in target.options.override_kv
        if key not in taken
    ]


def slow_exact(model: LlamaModel) -> list[str]:
    """One line if --exact turns drafting off, with the reason."""
    if not model.passes.alone:
        return []
    left = "" if model.rounding is None else model.rounding.left
    more = f" llama.cpp's own code computes {left}." if left else ""
    return [f"With --exact, {model.passes}.{more}"]


def refused_kernels(options: LoadOptions) -> list[str]:
    """One line if row kernels were wanted and are wrong on this processor."""
    reason = row_kernels.refusal() if options.row_kernels else None
    return [] if reason is None else [reason]


def missing_kernels() -> list[str]:
    """How to build llama.cpp with row kernels, if this build could have them; one line."""
    if row_kernels.form() is not None or platform.machine() not in _X86_64:
        return []
    missing = (
        "This build of llama.cpp lacks localspec's row kernels, which make passes of several "
        "tokens cheap on the CPU. Build it in localspec's own folder: "
    )
    if llama_library.build().gpu_offload:
        python = shlex.quote(sys.executable)
        return [f"{missing}bash scripts/build_cuda.sh (or build_vulkan.sh) --python {python}"]
    include = r'CMAKE_ARGS="-DCMAKE_PROJECT_INCLUDE=\"$PWD/scripts/llama_only.cmake\""'
    return [f"{missing}{include} {llama_library.reinstall(llama_library.build().bindings)}"]


def without_gpu(options: LoadOptions, draft: LoadOptions | None) -> list[str]:
    """If GPU options are given and llama.cpp has no GPU: which, and why, if that is known."""
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
    note = f"No effect without a GPU that llama.cpp can use: {', '.join(flags)}."
    return [note, *unloaded_backends()]


def unloaded_backends() -> list[str]:
    """One line for each backend of this build that is not loaded, with the reason."""
    found = llama_library.backends(llama_library.libraries())
    return [
        f"llama.cpp's {name} backend is not loaded: {reason}. Its driver may be missing."
        for name, reason in found.items()
        if reason is not None
    ]


def missing_gpu(*, any_maker: bool = False) -> list[str]:
    """The reasons why llama.cpp cannot use this machine's NVIDIA GPU, one sentence each.

    With ``any_maker`` also other GPUs; integrated ones may be little faster than the processor.
    """
    makers = machine.gpu_makers() if any_maker else []
    nvidia = machine.has_nvidia_gpu()
    if not (nvidia or makers) or llama_library.build().gpu_offload:
        return []
    if unloaded := unloaded_backends():
        return unloaded
    maker, api = ("NVIDIA", "cuda") if nvidia else (" and ".join(makers), "vulkan")
    return [
        f"This build of llama.cpp has no GPU support, but the machine has a GPU by {maker}. Fix "
        f"it in localspec's own folder: bash scripts/build_{api}.sh --python "
        + shlex.quote(sys.executable)
    ]


def no_trees_reason(
    target: ModelHeader, draft: ModelHeader | None, options: LoadOptions
) -> str | None:
    """Why this pair verifies no trees; None if it may, or none are wanted.

    ``draft`` is None without a draft, and for heads in the target's file.
    """
    if options.branches == 1:
        return None
    if keeps_state(target):
        return _CHAIN.format("a recurrent state reads tokens in one order only")
    if options.parallel > 1:
        return _CHAIN.format("its sequences are the slots of --parallel")
    if options.load_heads or (draft is not None and not draft_kind(draft).is_model):
        return _CHAIN.format("heads read along with one sequence")
    if options.exact:
        return _CHAIN.format("--exact needs passes that round as plain decoding does")
    if draft is None:
        return _CHAIN.format("only a draft model proposes several candidates for a place")
    if drafts_by_text(target, draft):
        return _CHAIN.format("a draft of another vocabulary drafts one text")
    return None


def not_branched(model: LlamaModel, asked: LoadOptions) -> str | None:
    """Why the loaded model verifies no trees, though `no_trees_reason` found no reason."""
    if model.options.branches == asked.branches:
        return None
    if model.weights.is_sliding:
        return _CHAIN.format("layers with a sliding window forget what another path may need")
    return _CHAIN.format("llama.cpp cannot roll it back, or mixes up its paths")
