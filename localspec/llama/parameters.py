"""llama.cpp's parameters of a model and of its context, from how it is to be loaded."""

import ctypes
import itertools
import os
import re
from dataclasses import asdict
from typing import Any

from localspec.core.errors import UsageError
from localspec.core.options.load_options import MAX_ROWS, KeyValue, LoadOptions
from localspec.llama import llama_library, row_kernels
from localspec.llama.cache import rollback
from localspec.llama.rpc.servers import devices_of
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME
from localspec.metadata.header import ModelHeader

# Draft steps are one token wide, also after full acceptance; verifications are padded to the
# width of the last pass if that costs less than a change.
SINGLE_STEPS, FILLED_PASSES = "single", "filled"
REMEDIES = frozenset((SINGLE_STEPS, FILLED_PASSES))
_FLASH = {"auto": -1, "off": 0, "on": 1}
_SPLIT = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_ROPE_SCALING = {"none": 0, "linear": 1, "yarn": 2}
_KV_TYPES = {int: (0, "val_i64"), float: (1, "val_f64"), bool: (2, "val_bool"), str: (3, "val_str")}
_LOAD_AUTO, _LOAD_NONE, _LOAD_MLOCK, _LOAD_MMAP_MLOCK = -1, 0, 2, 3
_MAX_LAYERS = 512  # LLAMA_MAX_LAYERS
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # LLM_FFN_EXPS_REGEX in llama.cpp
# Python's and C++'s regular expressions both recurse, and C++'s overflow the stack of the process.
_LONGEST_PATTERN, _DEEPEST_PATTERN = 1024, 32  # characters, open parentheses
# Tokens of a prompt in one pass on a CPU: 64 are read as fast as 512 by two threads, and llama.cpp
# computes attention for 64 at once. An expert sees a share of them: of 16 it reads a tenth slower.
_STEP, _STEP_OF_EXPERT = 64, 32
_STEP_THREADS = 4  # that wait for each other some hundred times a pass, so more get longer passes


class _TensorOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which the bindings leave out."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def model_parameters(options: LoadOptions, *, weightless: bool = False) -> Any:
    """`llama_model_params`, to be kept as long as the model: it owns the memory it points to.

    The row kernels read weights in the layout of the file: other layouts are left out, so that the
    weights stay mapped.
    Raises UsageError for a device, a buffer type or a pattern that llama.cpp would not take.
    """
    llama = llama_library.library()
    llama_library.leave_out_amx()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = -1 if options.gpu_layers is None else options.gpu_layers
    params.load_mode = _load_mode(options)
    params.load_mtp = options.load_heads
    params.use_extra_bufts = not row_kernels.in_use(options)
    if weightless:
        params.no_alloc, params.load_mode = True, _LOAD_NONE  # others abort without weights
    params.split_mode, params.main_gpu = _SPLIT[options.split_mode], options.main_gpu
    if options.tensor_split:
        params.tensor_split = _tensor_split(options.tensor_split, llama.llama_max_devices())
    if options.override_kv:
        params.kv_overrides = _kv_overrides(options.override_kv)
    chosen = _devices(options)
    if chosen is not None:
        params.device_list = (ctypes.c_void_p * (len(chosen) + 1))(*chosen)  # lives as long
        params.devices = ctypes.addressof(params.device_list)
    overrides = _tensor_overrides(options)
    if overrides:
        params.override_list = (_TensorOverride * (len(overrides) + 1))(*overrides)
        params.tensor_buft_overrides = ctypes.addressof(params.override_list)
    return params


def has_branches(options: LoadOptions, strategy: str) -> bool:
    """Whether a context's sequences are the paths of a tree, and not slots."""
    return options.sequences > options.parallel and strategy == rollback.Trim.name


def context_parameters(options: LoadOptions, n_ctx: int, threads: int, strategy: str) -> Any:
    """`llama_context_params` for sequences of up to ``n_ctx`` tokens, with a rollback strategy."""
    params = llama_library.library().llama_context_default_params()
    params.n_ctx = options.cells(n_ctx) + options.filling
    sequences = options.sequences if has_branches(options, strategy) else options.parallel
    own_cells = options.own_cells and strategy == rollback.Trim.name
    params.n_seq_max, params.kv_unified = sequences, sequences > 1 and not own_cells
    params.n_batch, params.n_ubatch = options.batch_size, options.ubatch_size
    # Layers with a sliding window keep no more than that, and a batch. Cells that are used again
    # move if a rejected draft reached past the last one, and rounding depends on their order.
    params.swa_full = options.exact
    params.n_outputs_max = params.n_outputs_max_per_seq = MAX_ROWS
    params.n_threads = threads
    params.n_threads_batch = options.threads_batch or threads
    params.flash_attn_type = _FLASH[options.flash_attention]
    params.type_k = GGML_TYPES_BY_NAME[options.cache_type_k].type_id
    params.type_v = GGML_TYPES_BY_NAME[options.cache_type_v].type_id
    rollback.configure(params, strategy)
    for name, value in asdict(options.rope).items():
        if value is not None:
            setattr(params, name, _ROPE_SCALING.get(value, value))
    return params


def _load_mode(options: LoadOptions) -> int:
    if options.mlock:
        return _LOAD_MMAP_MLOCK if options.mmap else _LOAD_MLOCK
    return _LOAD_AUTO if options.mmap else _LOAD_NONE


def _tensor_split(shares: tuple[float, ...], most: int) -> Any:
    """Shares by device; llama.cpp reads as many as there can be devices."""
    if len(shares) >= most:
        raise UsageError(
            f"--tensor-split has {len(shares)} shares, but llama.cpp takes fewer than {most}.",
            "Give one share for each GPU, such as 3,1.",
        )
    return (ctypes.c_float * most)(*shares)


def _kv_overrides(given: tuple[KeyValue, ...]) -> Any:
    """The array llama.cpp wants, which ends with an empty key."""
    entry = llama_library.library().llama_model_kv_override
    array = (entry * (len(given) + 1))()
    for i, (key, value) in enumerate(given):
        tag, member = _KV_TYPES[type(value)]
        array[i].tag, array[i].key = tag, key.encode()
        setattr(array[i].value, member, value.encode() if isinstance(value, str) else value)
    return array


def prompt_step(header: ModelHeader, options: LoadOptions, threads: int) -> int:
    """Tokens of a prompt in one pass: the part of the reading that a cancellation loses.

    On a CPU as few as are read at full speed; a device reads a whole batch in a moment. It depends
    on no measurement, so that the same prompt is always read, and rounded, in the same way.
    """
    if uses_devices(options):
        return options.batch_size
    step = _STEP * -(-(options.threads_batch or threads) // _STEP_THREADS)
    experts, used = header.get("expert_count"), header.get("expert_used_count")
    if isinstance(experts, int) and isinstance(used, int) and used > 0:
        step = max(step, _STEP_OF_EXPERT * experts // used)
    return min(step, options.batch_size)


def uses_devices(options: LoadOptions) -> bool:
    """Whether any layer may be computed elsewhere than on the CPU."""
    if options.gpu_layers == 0:
        return False
    chosen = _devices(options)
    if chosen is not None:
        return bool(chosen)
    return any(device.kind not in ("CPU", "accelerator") for device in llama_library.devices())


def width_remedies(options: LoadOptions) -> frozenset[str]:
    """The remedies for changing widths of passes that LOCALSPEC_PASS_WIDTHS names, of `REMEDIES`.

    On a device llama.cpp prepares a pass of another width than the last again, for up to a third of
    its time. Remedies are off if no device computes, and unless they are named: their gain was
    not measured yet. Raises UsageError for an unknown name.
    """
    named = frozenset(os.environ.get("LOCALSPEC_PASS_WIDTHS", "").replace(",", " ").split())
    if unknown := named - REMEDIES:
        raise UsageError(
            f"LOCALSPEC_PASS_WIDTHS knows no {min(unknown)!r}.",
            f"Expected some of: {', '.join(sorted(REMEDIES))}.",
        )
    return named if named and uses_devices(options) else frozenset()


def _devices(options: LoadOptions) -> list[int] | None:
    """Handles of the devices that take layers; None if that is left to llama.cpp.

    It would take every RPC server that it knows, for every model. Those of ``options.rpc`` come
    first, then the GPUs here, or else an integrated one (`llama_prepare_model_devices`).
    """
    every = llama_library.devices()
    workers = [device.name for device in every if device.kind == llama_library.RPC_SERVER]
    if options.device is not None:
        chosen = llama_library.choose_devices(options.device)
        if options.rpc and all(device.name not in workers for device in chosen):
            raise UsageError(
                f"--device {options.device} names no device of --rpc.",
                f"Leave --device out, or name them too: {','.join(workers)}.",
            )
        return [device.handle for device in chosen]
    if not workers:
        return None
    kinds = ("GPU",) if any(device.kind == "GPU" for device in every) else ("integrated GPU",)
    return devices_of(options.rpc) + [each.handle for each in every if each.kind in kinds]


def _tensor_overrides(options: LoadOptions) -> list[_TensorOverride]:
    """`--n-cpu-moe` and `--override-tensor PATTERN=BUFFER` in llama.cpp's form."""
    pairs = [
        (rf"blk\.{i}{_EXPERTS}", "CPU") for i in range(min(options.cpu_moe_layers, _MAX_LAYERS))
    ]
    for text in options.override_tensors:
        pattern, _, buffer = text.partition("=")
        _check_pattern(pattern)
        pairs.append((pattern, buffer))
    known = llama_library.buffer_types() if pairs else {}
    overrides = []
    for pattern, buffer in pairs:
        if buffer not in known:
            raise UsageError(
                f"There is no buffer type {buffer[:80]!r}.",
                f"Expected PATTERN=BUFFER with one of: {', '.join(known)}.",
            )
        overrides.append(_TensorOverride(os.fsencode(pattern), known[buffer]))
    return overrides


def _check_pattern(pattern: str) -> None:
    """Raise UsageError for an invalid regular expression, or one that would crash llama.cpp."""
    flag = f"--override-tensor {pattern if len(pattern) <= 80 else pattern[:80] + '…'!r}"
    hint = r"Expected PATTERN=BUFFER, such as blk\.1\..*=CPU."
    depths = itertools.accumulate({"(": 1, ")": -1}.get(character, 0) for character in pattern)
    if len(pattern) > _LONGEST_PATTERN or max(depths, default=0) > _DEEPEST_PATTERN:
        raise UsageError(
            f"{flag}: a pattern has at most {_LONGEST_PATTERN:,} characters and "
            f"{_DEEPEST_PATTERN} nested parentheses.",
            hint,
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UsageError(
            f"{flag}: the pattern is not a regular expression ({error}).", hint
        ) from error
