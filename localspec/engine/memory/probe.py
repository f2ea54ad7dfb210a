"""Memory of a pair on this machine: estimated from headers, asked of llama.cpp where it is tight.

It is also the child process in which llama.cpp plans a load without weights: a file that makes
llama.cpp abort ends that process only.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from localspec.core import machine
from localspec.core.config import LoadOptions
from localspec.core.formatting import size
from localspec.engine.llama import llama_library
from localspec.engine.memory.estimate import MemoryEstimate, estimate_memory
from localspec.engine.memory.plan import (
    FreeMemory,
    MemoryPlan,
    MemoryRequest,
    default_ctx_size,
    draft_ctx_size,
    plan,
)
from localspec.engine.memory.use import MemoryUse
from localspec.metadata.header import ModelHeader, read_header

_TIGHT = 0.5  # of what is free: from there on llama.cpp is asked, which takes a second
_PATIENCE = 60  # seconds for the child
_WORTH_TELLING = 2**30  # bytes


def free_memory(device: str | None = None) -> FreeMemory:
    """What is free now, on the devices named as by ``--device``, or on all."""
    ram = machine.memory()
    chosen = llama_library.devices() if device is None else llama_library.choose_devices(device)
    gpus = [each for each in chosen if each.kind == "GPU"]
    # Apple's GPU works in the same memory, and what a backend does not tell cannot be planned with.
    known = sys.platform != "darwin" and all(each.total for each in gpus)
    return FreeMemory(None if ram is None else ram[0], tuple(g.free for g in gpus) if known else ())


def memory_for_models(*, total: bool = False) -> int | None:
    """Bytes for models: RAM that is free, or all of it, and what GPUs have; None where unknown."""
    memory = machine.memory()
    if memory is None:
        return None
    on_gpus = free_memory().gpu if machine.has_nvidia_gpu() else 0
    return memory[1 if total else 0] + on_gpus


def would_allocate(path: Path, options: LoadOptions) -> MemoryUse | None:
    """What llama.cpp says it would take for a file, None when it does not say; no weights load."""
    asked = json.dumps(asdict(replace(options, path=path)), default=str)
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "localspec.engine.memory.probe",
            ],  # -P: no module of this folder
            input=asked,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        return MemoryUse(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def plan_here(
    target: ModelHeader,
    target_options: LoadOptions,
    draft: ModelHeader | None = None,
    draft_options: LoadOptions | None = None,
    free: FreeMemory | None = None,
) -> MemoryPlan:
    """Contexts and GPU layers for a pair on this machine, as far as the options leave them open.

    Raises NotEnoughMemory for what cannot fit.
    """
    free = free or free_memory(target_options.device)
    by_hand = target_options.cpu_moe_layers or target_options.override_tensors
    if draft_options is not None:
        by_hand = by_hand or draft_options.device != target_options.device
    if by_hand:  # whoever places tensors or models knows better than an estimate by layers
        free = FreeMemory(None if free.ram is None else free.ram + sum(free.gpus))
    request = MemoryRequest(
        target_options.ctx_size,
        draft_options.ctx_size if draft_options else None,
        target_options.gpu_layers,
        draft_options.gpu_layers if draft_options else None,
        target_options.mlock,
    )
    correct: list[Callable[[MemoryEstimate], MemoryEstimate]] = [lambda rough: rough] * 2

    def estimate(ctx_size: int, draft_ctx: int) -> tuple[MemoryEstimate, MemoryEstimate | None]:
        first = correct[0](estimate_memory(target, ctx_size, target_options))
        if draft is None or draft_options is None:
            return first, None
        return first, correct[1](estimate_memory(draft, draft_ctx, draft_options))

    ctx_size = request.ctx_size or default_ctx_size(target)
    draft_ctx = request.draft_ctx_size or (draft_ctx_size(draft, ctx_size) if draft else 0)
    flash = target_options.flash_attention  # without it, buffers grow beyond the estimate
    if flash == "off" or _is_tight(estimate(ctx_size, draft_ctx), free):
        correct[0] = _correction(target, ctx_size, target_options)
        if draft is not None and draft_options is not None:
            correct[1] = _correction(draft, draft_ctx, draft_options)
    return plan(target, draft, request, free, estimate)


def announcement(chosen: MemoryPlan, free: FreeMemory) -> str | None:
    """A line for before the weights are read, where reading them takes a while."""
    if chosen.use.total < _WORTH_TELLING:
        return None
    where = f", {size(chosen.on_gpu)} of it on the GPU" if chosen.on_gpu else ""
    return (
        f"Loading {size(chosen.use.total)}{where}: {chosen.use.parts} for a context of "
        f"{chosen.ctx_size:,} tokens; {size(free.ram)} of RAM free."
    )


def _is_tight(models: tuple[MemoryEstimate, MemoryEstimate | None], free: FreeMemory) -> bool:
    total = sum(model.use.total for model in models if model is not None)
    room = [each for each in (free.ram, free.gpu if free.gpus else None) if each is not None]
    return any(total > _TIGHT * each for each in room)


def _correction(
    header: ModelHeader, ctx_size: int, options: LoadOptions
) -> Callable[[MemoryEstimate], MemoryEstimate]:
    """How far llama.cpp's own plan is from the estimate at one context, applied to any."""
    exact = would_allocate(header.path, replace(options, ctx_size=ctx_size))
    rough = estimate_memory(header, ctx_size, options).use
    if exact is None or not (rough.kv and rough.compute and exact.kv and exact.compute):
        return lambda unchanged: unchanged
    return lambda other: other.scaled(exact.kv / rough.kv, exact.compute / rough.compute)


def _answer() -> None:
    """Read options as JSON from stdin, and print what llama.cpp would allocate as JSON."""
    from localspec.engine.llama.model import LlamaModel

    asked = json.loads(sys.stdin.read())
    asked["override_tensors"] = tuple(asked["override_tensors"])
    options = LoadOptions(**asked | {"path": Path(asked["path"])})
    planned = LlamaModel(read_header(options.path), options, weightless=True)
    print(json.dumps(asdict(planned.memory)))
    planned.close()


if __name__ == "__main__":
    _answer()
