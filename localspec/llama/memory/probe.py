"""Memory of a pair on this machine: estimated from headers, asked of llama.cpp if it is tight.

It is also the child process in which llama.cpp plans a load without weights: a file that makes
llama.cpp abort ends that process only.
"""

import json
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from localspec.core import machine, worker
from localspec.core.errors import EngineError, NotEnoughMemory
from localspec.core.formatting import size
from localspec.core.limits import allowed
from localspec.core.options.load_options import LoadOptions, RpcServers, load_options
from localspec.llama import llama_library, row_kernels
from localspec.llama.memory.attention import AttentionChoice, choose_attention
from localspec.llama.memory.estimate import MemoryEstimate, estimate_memory, estimate_run
from localspec.llama.memory.plan import (
    LEAST_CTX,
    FreeMemory,
    MemoryPlan,
    MemoryRequest,
    asked_ctx_size,
    default_ctx_size,
    draft_ctx_size,
    in_slots,
    plan,
)
from localspec.llama.memory.use import MemoryUse
from localspec.llama.parameters import uses_devices
from localspec.metadata.header import ModelHeader, read_header

_TIGHT = 0.5  # of the free memory: from there on llama.cpp is asked, which takes a second
_PATIENCE = 60  # seconds for the child
_MOST_BYTES = 8 * 2**30  # in the child; half a GB is usual
_WORTH_TELLING = 2**30  # bytes


def free_memory(device: str | None = None) -> FreeMemory:
    """Memory that is free now, on the devices named as by ``--device``, or on all."""
    ram = machine.memory()
    chosen = llama_library.devices() if device is None else llama_library.choose_devices(device)
    gpus = [each for each in chosen if each.kind == "GPU"]
    workers = [each for each in chosen if each.kind == llama_library.RPC_SERVER]
    # Apple's GPU uses the same memory, and memory that a backend does not report cannot be planned.
    known = sys.platform != "darwin" and all(each.total for each in gpus)
    reported = all(each.total for each in workers)
    return FreeMemory(
        None if ram is None else ram[0],
        tuple(each.free for each in gpus) if known else (),
        tuple(each.free for each in workers) if reported else (),
        limited=allowed("RLIMIT_AS") is not None,
    )


def memory_for_models(*, total: bool = False) -> int | None:
    """Bytes for models: free RAM, or all of it, and the memory of GPUs; None if unknown."""
    memory = machine.memory()
    if memory is None:
        return None
    on_gpus = free_memory().gpu if machine.has_nvidia_gpu() else 0
    return memory[1 if total else 0] + on_gpus


def would_allocate(path: Path, options: LoadOptions) -> MemoryUse | None:
    """llama.cpp's own figures for a file, None if it gives none; no weights are loaded."""
    try:
        # A server answers one connection at a time, and this process has that one.
        alone = replace(options, path=path, rpc=RpcServers())
        ended = worker.ask("localspec.llama.memory.probe", asdict(alone), _PATIENCE)
        return MemoryUse(**json.loads(ended.output))
    except (OSError, ValueError, TypeError):
        return None


def plan_here(
    target: ModelHeader,
    target_options: LoadOptions,
    draft: ModelHeader | None = None,
    draft_options: LoadOptions | None = None,
    free: FreeMemory | None = None,
) -> MemoryPlan:
    """Contexts and GPU layers for a pair on this machine, as far as the options leave them open.

    If memory is tight, there are no copies of sliding windows: the context and the weights have
    priority. Raises NotEnoughMemory for models that cannot fit.
    """
    free = free or free_memory(target_options.device)
    free = _placeable(free, target_options, draft_options)
    target_options = as_loaded(target_options)
    draft_options = draft_options and as_loaded(draft_options)
    request = MemoryRequest(
        asked_ctx_size(target, target_options.ctx_size),
        draft_options.ctx_size if draft_options else None,
        target_options.gpu_layers,
        draft_options.gpu_layers if draft_options else None,
        target_options.resident,
    )
    scales = [(1.0, 1.0)] * 2

    def estimate(
        ctx_size: int, draft_ctx: int, copies: bool = False
    ) -> tuple[MemoryEstimate, MemoryEstimate | None]:
        load = replace(in_slots(target, target_options, ctx_size), window_copies=copies)
        first = estimate_run(target, load.ctx_size or ctx_size, load, draft_options)
        first = first.scaled(*scales[0])
        if draft is None or draft_options is None:
            return first, None
        load = replace(draft_options, window_copies=copies, shared_ctx=load.shared_ctx)
        return first, estimate_run(draft, draft_ctx, load).scaled(*scales[1])

    ctx_size = request.ctx_size or default_ctx_size(target)
    draft_ctx = request.draft_context(draft, ctx_size)
    least = request.ctx_size or min(ctx_size, LEAST_CTX)
    least_draft = request.draft_context(draft, least)
    is_tight = _is_tight(estimate(ctx_size, draft_ctx, copies=True), free)
    if is_tight and not _is_hopeless(estimate(least, least_draft), free):
        scales[0] = _correction(target, ctx_size, target_options)
        if draft is not None and draft_options is not None:
            scales[1] = _correction(draft, draft_ctx, draft_options)
    with suppress(NotEnoughMemory):
        chosen = plan(target, draft, request, free, partial(estimate, copies=True))
        if not chosen.notes:
            return chosen
    return replace(plan(target, draft, request, free, estimate), window_copies=False)


def as_loaded(options: LoadOptions) -> LoadOptions:
    """The options for an estimate, which does not know the build: on a device, or with row kernels.

    Then flash attention is on, unless it is chosen, and no weights are repacked. Where llama.cpp
    cannot be loaded, the estimate is the larger one, for a build with neither.
    """
    either = any(_computed_by(options))
    flash = "on" if either and options.flash_attention == "auto" else options.flash_attention
    return replace(options, row_kernels=either, flash_attention=flash)


def _computed_by(options: LoadOptions) -> tuple[bool, bool]:
    """Whether devices compute a model, and whether row kernels do; neither without llama.cpp."""
    try:
        return uses_devices(options), row_kernels.in_use(options)
    except EngineError:
        return False, False


def attention_here(header: ModelHeader) -> AttentionChoice:
    """The choice of ``--flash-attn auto`` for a model in its default context on this machine."""
    options, ctx_size = LoadOptions(header.path), default_ctx_size(header)
    on_device, kernels = _computed_by(options)
    return choose_attention(header, options, ctx_size, on_device=on_device, row_kernels=kernels)


def pair_bytes(target: ModelHeader, draft: ModelHeader, ctx_size: int) -> int:
    """Bytes that a pair takes with default options, for a context of the target in tokens."""
    contexts = ((target, ctx_size), (draft, draft_ctx_size(draft, ctx_size)))
    loaded = [(each, n, as_loaded(LoadOptions(each.path))) for each, n in contexts]
    return sum(estimate_run(*each).use.total for each in loaded)


def _placeable(free: FreeMemory, target: LoadOptions, draft: LoadOptions | None) -> FreeMemory:
    """Free memory on devices where layers can be placed.

    Explicit placement of tensors or models is better than an estimate by layers.
    """
    if target.split_mode == "none":
        free = replace(free, gpus=free.gpus[target.main_gpu :][:1])
    by_hand = target.cpu_moe_layers or target.override_tensors or target.tensor_split
    by_hand = by_hand or target.split_mode in ("row", "tensor")
    if draft is not None:
        by_hand = by_hand or draft.override_tensors or draft.device != target.device
    if by_hand:
        ram = None if free.ram is None else free.ram + sum(free.devices)
        return FreeMemory(ram, limited=free.limited)
    return free


def announcement(chosen: MemoryPlan, free: FreeMemory, sharing: int = 1) -> str | None:
    """A line to print before the weights are read, if reading them takes a while.

    ``sharing`` is how many slots share the context.
    """
    if chosen.use.total < _WORTH_TELLING:
        return None
    where = f", {size(chosen.on_gpu)} of it on {free.where}" if chosen.on_gpu else ""
    shared = f" that {sharing} slots share" if sharing > 1 else ""
    return (
        f"Loading {size(chosen.use.total)}{where}, context of {chosen.ctx_size:,} tokens{shared}; "
        f"{size(free.ram)} of RAM free."
    )


def _is_tight(models: tuple[MemoryEstimate, MemoryEstimate | None], free: FreeMemory) -> bool:
    total = sum(model.use.total for model in models if model is not None)
    on_devices = free.gpu + sum(free.workers) if free.devices else None
    room = [each for each in (free.ram, on_devices) if each is not None]
    return any(total > _TIGHT * each for each in room)


def _is_hopeless(models: tuple[MemoryEstimate, MemoryEstimate | None], free: FreeMemory) -> bool:
    """Whether caches and buffers would not fit even at half of their estimated size.

    llama.cpp then need not be asked, which takes memory and time in proportion to the context.
    """
    if free.ram is None:
        return False
    working = sum(model.use.kv + model.use.compute for model in models if model is not None)
    return working > 2 * (free.ram + sum(free.devices))


def _correction(header: ModelHeader, ctx_size: int, options: LoadOptions) -> tuple[float, float]:
    """llama.cpp's caches and buffers relative to the estimate's, at one context."""
    load = in_slots(header, options, ctx_size)
    exact = would_allocate(header.path, load)
    heads = load if load.load_heads else None
    rough = estimate_memory(header, load.ctx_size or ctx_size, load, sequences=2, heads=heads).use
    if exact is None or not (rough.kv and rough.compute and exact.kv and exact.compute):
        return 1.0, 1.0
    return exact.kv / rough.kv, exact.compute / rough.compute


def _answer() -> None:
    """Read options; print what llama.cpp would allocate as JSON."""
    from localspec.llama.model import LlamaModel

    options = load_options(worker.question())
    limit_memory(_MOST_BYTES)
    planned = LlamaModel(read_header(options.path, options.override_kv), options, weightless=True)
    print(json.dumps(asdict(planned.memory)))
    planned.close()


def limit_memory(n_bytes: int) -> None:
    """Limit this process's memory, so that it fails rather than take RAM from other processes.

    Drivers of GPUs reserve far more than they use, so with a GPU there is no limit.
    """
    if not any(device.is_gpu for device in llama_library.devices()):
        worker.limit_memory(n_bytes)


if __name__ == "__main__":
    _answer()
