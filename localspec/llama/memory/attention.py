"""Whether flash attention computes a model, and the attention scores held without it."""

from dataclasses import replace
from typing import NamedTuple

from localspec.core.options.load_options import BATCH, CacheType, LoadOptions
from localspec.metadata.header import ModelHeader

# One to a few tokens after 200 others cost the same with and without it on CPUs, of any geometry:
# see docs/measurements/results.md. A context of so many tokens is on average half full.
_SHORT_CTX = 512
_MOST_SCORES = 2**28  # bytes of attention scores of one pass without flash attention
_FLOAT = 4  # bytes


class AttentionChoice(NamedTuple):
    """Whether a context uses flash attention, and why."""

    flash: bool
    reason: str

    def __str__(self) -> str:
        return f"{'on' if self.flash else 'off'}: {self.reason}"


def choose_attention(
    header: ModelHeader,
    options: LoadOptions,
    ctx_size: int,
    *,
    on_device: bool,
    row_kernels: bool = False,
) -> AttentionChoice:
    """The choice of ``--flash-attn auto`` for a context of ``ctx_size`` tokens a text.

    llama.cpp turns flash attention on if it works, but its CPU kernel computes one row after the
    other, which makes verification expensive. ``on_device``: some layers are not on the CPU.
    ``row_kernels``: those are in use, see `llama.row_kernels`.
    """
    if options.flash_attention != "auto":
        return AttentionChoice(options.flash_attention == "on", "as requested")
    if on_device:
        return AttentionChoice(True, "layers are on a device")
    if row_kernels:
        return AttentionChoice(True, "the row kernels compute several tokens at once with it")
    if is_quantized(options.cache_type_v):
        return AttentionChoice(True, "a quantised V cache requires it")
    if options.cells(ctx_size) <= _SHORT_CTX:
        return AttentionChoice(True, f"the context has at most {_SHORT_CTX} tokens")
    if not _has_uniform_values(header):
        return AttentionChoice(True, "without it, V caches of different widths take more memory")
    return AttentionChoice(False, "on a CPU, verifying several tokens is faster without it")


def is_quantized(cache_type: CacheType) -> bool:
    """Whether a cache of this type stores blocks, which flash attention alone reads as values."""
    return cache_type not in ("f16", "bf16", "f32")


def with_attention(
    header: ModelHeader,
    options: LoadOptions,
    ctx_size: int,
    *,
    on_device: bool,
    row_kernels: bool = False,
) -> LoadOptions:
    """The options with flash attention on or off.

    Without it a pass holds the scores of all its tokens at once; if flash attention was left
    open, ``ubatch_size`` is lowered so that they stay within 256 MiB if possible.
    """
    choice = choose_attention(
        header, options, ctx_size, on_device=on_device, row_kernels=row_kernels
    )
    if choice.flash or options.flash_attention == "off":
        return replace(options, flash_attention="on" if choice.flash else "off")
    fitting = _MOST_SCORES // max(1, score_bytes(header, 1, options.cells(ctx_size)))
    ubatch = min(options.ubatch_size, max(BATCH.low, fitting - fitting % BATCH.low))
    return replace(options, flash_attention="off", ubatch_size=ubatch)


def score_bytes(header: ModelHeader, batch: int, cells: int) -> int:
    """Bytes of the attention scores of ``batch`` tokens over ``cells`` in the widest layer."""
    heads = header.get("attention.head_count")
    widest = max(heads, default=0) if isinstance(heads, tuple) else heads
    return _FLOAT * batch * cells * (widest if isinstance(widest, int) else 0)


def _has_uniform_values(header: ModelHeader) -> bool:
    """Whether the values of all attention layers are equally wide, and stored as they are.

    `llama_kv_cache` pads the others to the widest without flash attention; those of MLA are a part
    of the keys.
    """
    lengths = ("value_length", "value_length_swa")
    widths = {header.get(f"attention.{name}") for name in lengths} - {None}
    kv_heads = header.get("attention.head_count_kv")
    counts = set(kv_heads) - {0} if isinstance(kv_heads, tuple) else set()
    is_mla = header.get("attention.kv_lora_rank") is not None
    return len(widths) <= 1 and len(counts) <= 1 and not is_mla
