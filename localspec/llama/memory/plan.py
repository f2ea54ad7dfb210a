"""Memory plan: the context and the GPU layers of a pair that fit into free memory."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

from localspec.core.errors import NotEnoughMemory
from localspec.core.formatting import size
from localspec.core.options.load_options import (
    DEFAULT_CTX_SIZE,
    DRAFT_WINDOW,
    TRAINED_CTX_SIZE,
    LoadOptions,
    RopeOptions,
)
from localspec.llama.memory.estimate import MemoryEstimate
from localspec.llama.memory.use import MemoryUse
from localspec.metadata.draft_kind import draft_kind
from localspec.metadata.header import ModelHeader

SMALLEST_CTX = 8  # a file may claim less, and llama.cpp would abort
LEAST_CTX = 512  # tokens; a default is not lowered further
_ENOUGH_CTX = 4096  # tokens; a default is not lowered further only to keep weights in RAM
_STEP = 256  # tokens; llama.cpp rounds contexts up to this
_GPU_MARGIN = 2**30  # bytes left alone on each GPU, as by llama.cpp's own fitting
_WEIGHTS_MAY_WAIT = 0.25  # of the free RAM may go to caches though mapped weights fill the rest

Estimate = Callable[[int, int], tuple[MemoryEstimate, MemoryEstimate | None]]


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that are free: in RAM (None if the system does not report it), and on each GPU.

    ``workers`` are devices of RPC servers, which take layers of the target only. The memory is
    ``limited`` if the shell allows a process less than there may be.
    """

    ram: int | None
    gpus: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    limited: bool = False

    @property
    def gpu(self) -> int:
        """Bytes for models on all GPUs together."""
        return _usable(self.gpus)

    @property
    def devices(self) -> tuple[int, ...]:
        return self.workers + self.gpus

    @property
    def where(self) -> str:
        if not self.workers:
            return "the GPU"
        return "GPUs and RPC servers" if self.gpus else "RPC servers"


def _usable(devices: tuple[int, ...]) -> int:
    return sum(max(0, each - _GPU_MARGIN) for each in devices)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The options given for one pair; None if they are left to the plan. Contexts in tokens."""

    ctx_size: int | None
    draft_ctx_size: int | None
    gpu_layers: int | None
    draft_gpu_layers: int | None
    locked: bool = False  # weights must stay in RAM

    def draft_context(self, draft: ModelHeader | None, target_ctx: int) -> int:
        """The draft's context in tokens for such a target; 0 without a draft."""
        return self.draft_ctx_size or (draft_ctx_size(draft, target_ctx) if draft else 0)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Contexts in tokens, layers on the GPU, bytes of both models, and notes for the user.

    ``gpu_layers`` counts the output as one layer more, as llama.cpp does; without GPUs to place
    layers on it is the number asked for. Without ``window_copies`` sliding windows are not copied.
    """

    ctx_size: int
    draft_ctx_size: int
    gpu_layers: int | None
    draft_gpu_layers: int | None
    use: MemoryUse
    in_ram: int
    weights_in_ram: int
    on_gpu: int
    notes: tuple[str, ...] = ()
    window_copies: bool = True


def default_ctx_size(header: ModelHeader) -> int:
    """The target's context in tokens if memory allows: 8,192, or the trained one."""
    return max(SMALLEST_CTX, min(DEFAULT_CTX_SIZE, header.context_length or DEFAULT_CTX_SIZE))


def asked_ctx_size(header: ModelHeader, ctx_size: int | None) -> int | None:
    """The target's context in tokens as it was asked for; None if it is left to the plan."""
    if ctx_size != TRAINED_CTX_SIZE:
        return ctx_size
    return max(SMALLEST_CTX, header.context_length or DEFAULT_CTX_SIZE)


def in_slots(header: ModelHeader, options: LoadOptions, ctx_size: int) -> LoadOptions:
    """The options for a context of that size, which is that of each slot or of all of them.

    One slot may take all of a shared context, up to the trained one.
    """
    if not options.kv_unified:
        return replace(options, ctx_size=ctx_size)
    trained = header.context_length if options.rope == RopeOptions() else None
    longest = max(SMALLEST_CTX, min(ctx_size, trained or ctx_size))
    return replace(options, ctx_size=longest, shared_ctx=ctx_size)


def draft_ctx_size(header: ModelHeader, target_ctx: int) -> int:
    """The draft's context in tokens if none is asked for.

    As the target's, but no longer than the draft's trained one, nor than the tokens that most of
    its predictions depend on: reading a long prompt with the draft takes time that drafting must
    win back. Heads read with the target, at its positions.
    """
    if not draft_kind(header).is_model:
        return target_ctx
    trained = header.context_length or target_ctx
    return max(SMALLEST_CTX, min(target_ctx, trained, DRAFT_WINDOW))


def plan(
    target: ModelHeader,
    draft: ModelHeader | None,
    request: MemoryRequest,
    free: FreeMemory,
    estimate: Estimate,
) -> MemoryPlan:
    """Choose the values that the request leaves open; ``estimate`` takes both contexts in tokens.

    Raises NotEnoughMemory, naming sizes that would fit. Mapped weights that exceed the RAM are
    read from the disk again and again, which only adds a note; a default context leaves them room.
    """

    def at(ctx_size: int) -> MemoryPlan:
        draft_ctx = request.draft_context(draft, ctx_size)
        return _place(ctx_size, draft_ctx, estimate(ctx_size, draft_ctx), request, free)

    bearable = _fits if request.locked else _runs
    if request.ctx_size is not None:
        chosen = at(request.ctx_size)
        if not bearable(chosen, free):
            _refuse(target, chosen, _largest(at, request.ctx_size, free, bearable), free)
        return _with_notes(chosen, None, free)
    usual = default_ctx_size(target)
    for suits, least in ((_fits, _ENOUGH_CTX), (_leaves_room, LEAST_CTX), (bearable, LEAST_CTX)):
        chosen = at(usual)
        smaller = chosen if suits(chosen, free) else _largest(at, usual, free, suits)
        if smaller is not None and smaller.ctx_size >= min(usual, least):
            return _with_notes(smaller, usual, free)
    _refuse(target, at(min(usual, LEAST_CTX)), smaller, free)


def _place(
    ctx_size: int,
    draft_ctx: int,
    models: tuple[MemoryEstimate, MemoryEstimate | None],
    request: MemoryRequest,
    free: FreeMemory,
) -> MemoryPlan:
    """The draft goes to the GPU first: it is small, and every token waits for it several times."""
    target, draft = models
    # Each further GPU has compute buffers of its own.
    buffers = sum(model.compute for model in models if model is not None)
    room = free.gpu - max(0, len(free.gpus) - 1) * buffers
    n_draft = _layers(draft, request.draft_gpu_layers, room) if draft and free.gpus else 0
    room = _usable(free.devices) - max(0, len(free.devices) - 1) * buffers
    room -= draft.on_gpu(n_draft) if draft else 0
    n_target = _layers(target, request.gpu_layers, room) if free.devices else 0
    placed = [(target, n_target), *([(draft, n_draft)] if draft else [])]
    return MemoryPlan(
        ctx_size,
        draft_ctx,
        n_target if free.devices else request.gpu_layers,
        n_draft if free.gpus else request.draft_gpu_layers,
        sum((model.use for model, _ in placed), MemoryUse()),
        sum(model.in_ram(n) for model, n in placed),
        sum(model.weights_in_ram(n) for model, n in placed),
        sum(model.on_gpu(n) for model, n in placed),
    )


def _layers(model: MemoryEstimate, asked: int | None, room: int) -> int:
    """As many layers as asked for, or as fit into ``room`` bytes of GPU memory."""
    every = len(model.layers) + 1
    if asked is not None:
        return min(asked, every)
    return next((n for n in range(every, 0, -1) if model.on_gpu(n) <= room), 0)


def _fits(chosen: MemoryPlan, free: FreeMemory) -> bool:
    """Whether everything fits, weights included."""
    return chosen.on_gpu <= sum(free.devices) and (free.ram is None or chosen.in_ram <= free.ram)


def _leaves_room(chosen: MemoryPlan, free: FreeMemory) -> bool:
    """Whether caches and buffers leave mapped weights most of the free RAM."""
    if free.ram is None:
        return _runs(chosen, free)
    working = chosen.in_ram - chosen.weights_in_ram
    room = max(free.ram - chosen.weights_in_ram, _WEIGHTS_MAY_WAIT * free.ram)
    return chosen.on_gpu <= sum(free.devices) and working <= room


def _runs(chosen: MemoryPlan, free: FreeMemory) -> bool:
    """Whether caches and buffers fit; mapped weights may be paged in from the disk."""
    working = chosen.in_ram - chosen.weights_in_ram
    return chosen.on_gpu <= sum(free.devices) and (free.ram is None or working <= free.ram)


def _largest(
    at: Callable[[int], MemoryPlan],
    above: int,
    free: FreeMemory,
    suits: Callable[[MemoryPlan, FreeMemory], bool],
) -> MemoryPlan | None:
    """The largest context below ``above`` that suits, found by halving."""
    low, high = 0, -(-above // _STEP)  # multiples of the step: low suits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suits(at(middle * _STEP), free) else (low, middle)
    return at(low * _STEP) if low else None


def _refuse(
    target: ModelHeader, wanted: MemoryPlan, largest: MemoryPlan | None, free: FreeMemory
) -> NoReturn:
    on_devices = sum(free.devices)
    short = wanted.on_gpu > on_devices
    where = f"only {size(free.ram)} of RAM are free"
    if free.limited:
        where = f"only {size(free.ram)} are left of what this shell allows a process (ulimit -v)"
    if short:
        where = f"{size(wanted.on_gpu)} of it on {free.where}, where {size(on_devices)} are free"
        hint = "Leave --n-gpu-layers and --draft-n-gpu-layers out, or give smaller numbers."
    elif wanted.draft_ctx_size > wanted.ctx_size:
        hint = "Leave --draft-ctx-size out: a draft needs no longer context than its target."
    elif largest is not None:
        hint = f"The largest context that fits is --ctx-size {largest.ctx_size}."
    elif free.limited:
        hint = "Raise the limit: ulimit -v unlimited."
    else:
        hint = "Close other programs, or choose a smaller model or a stronger quantisation."
    draft = " with its draft" if wanted.draft_ctx_size else ""
    if wanted.draft_ctx_size > wanted.ctx_size:
        draft += f", for which {wanted.draft_ctx_size:,} tokens were asked,"
    raise NotEnoughMemory(
        f"{target.path.name}{draft} and a context of {wanted.ctx_size:,} tokens need "
        f"{wanted.use}, but {where}.",
        hint,
    )


def _with_notes(chosen: MemoryPlan, usual: int | None, free: FreeMemory) -> MemoryPlan:
    notes = []
    where = free.where if free.workers else "GPUs"
    on_gpus = f", {size(sum(free.devices))} on {where}" if free.devices else ""
    if usual is not None and chosen.ctx_size < usual:
        notes.append(
            f"The context is {chosen.ctx_size:,} tokens instead of {usual:,}: more does not fit "
            f"into the memory that is free ({size(free.ram)} of RAM{on_gpus})."
        )
    if free.ram is not None and chosen.in_ram > free.ram:
        notes.append(
            f"The models take {size(chosen.in_ram)} of RAM but only {size(free.ram)} are free: "
            "weights will be read from the disk again and again, which is slow."
        )
    return replace(chosen, notes=tuple(notes))
