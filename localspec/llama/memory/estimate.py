"""Memory estimate from a GGUF header: weights, KV cache and compute buffers by layer."""

import itertools
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.core.options.load_options import MAX_DRAFT_TOKENS, MAX_ROWS, LoadOptions
from localspec.llama.memory.attention import score_bytes, with_attention
from localspec.llama.memory.layer_cache import (
    ANCHORS,
    SNAPSHOTS,
    convolved,
    is_recurrent,
    padded,
    sliding_layers,
    state_bytes,
    token_bytes,
    window_cells,
)
from localspec.llama.memory.use import MemoryUse
from localspec.metadata.draft_kind import draft_kind, has_heads, n_layers, output_width
from localspec.metadata.gguf_file import TensorInfo
from localspec.metadata.header import ModelHeader

MAX_LAYERS = 1024  # that are looked at; llama.cpp allows half as many
_FLOAT = 4  # bytes
# Types of weights that llama.cpp's own code copies into another layout, on ARM in addition: without
# them an estimate lacks up to the whole file again (`ggml_repack_get_optimal_repack_type`).
_REPACKED = ("Q4_0", "Q4_K", "IQ4_NL", "MXFP4")
_ON_ARM = ("Q5_K", "Q6_K", "Q8_0") if platform.machine() in ("arm64", "aarch64") else ()
_BLOCK = re.compile(r"blk\.(\d{1,4})\.")


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of a model with a context: ``layers`` and ``kv`` hold one entry for each layer.

    ``embedding`` stays in RAM; ``output`` is the part after the last layer. A model whose output
    matrix is its embedding again needs a copy of it on a GPU, of ``copied`` bytes. ``anchors`` are
    copies of states and windows, in RAM wherever the layers are. Prediction heads
    that are loaded come after the model's own layers. ``repacked`` weights are copies whose mapped
    originals are not read again, so that only `use` counts both.
    """

    embedding: int
    layers: tuple[int, ...]
    output: int
    kv: tuple[int, ...]
    compute: int
    copied: int = 0
    anchors: int = 0
    repacked: int = 0

    @property
    def use(self) -> MemoryUse:
        """All of it, as if on one device."""
        weights = self.embedding + sum(self.layers) + self.output
        return MemoryUse(weights + self.repacked, sum(self.kv) + self.anchors, self.compute)

    def on_gpu(self, n_layers: int) -> int:
        """Bytes on the GPU with the last ``n_layers`` there, the output counted as one more layer.

        As in llama.cpp (`i_gpu_start`): with 1, the output alone.
        """
        if n_layers <= 0:
            return 0
        first = max(0, len(self.layers) + 1 - n_layers)
        weights = self.output + self.copied + sum(self.layers[first:])
        return weights + sum(self.kv[first:]) + self.compute

    def in_ram(self, n_layers: int) -> int:
        """Bytes in RAM with the last ``n_layers`` on the GPU."""
        if n_layers <= 0:
            return self.use.total - self.repacked
        first = max(0, len(self.layers) + 1 - n_layers)
        return self.weights_in_ram(n_layers) + sum(self.kv[:first]) + self.anchors + self.compute

    def weights_in_ram(self, n_layers: int) -> int:
        """Bytes of `in_ram` that are weights: mapped, they can be read from the disk again."""
        if n_layers <= 0:
            return self.use.weights - 2 * self.repacked
        first = max(0, len(self.layers) + 1 - n_layers)
        return self.embedding + sum(self.layers[:first])

    def scaled(self, kv: float, compute: float) -> "MemoryEstimate":
        """The same with caches and buffers that many times as large."""
        scaled = tuple(round(kv * each) for each in self.kv)
        return replace(self, kv=scaled, compute=round(compute * self.compute))


def keeps_state(header: ModelHeader) -> bool:
    """Whether any layer keeps a recurrent state."""
    blocks, *_ = _by_place(header, with_heads=False)
    return any(is_recurrent(header, _shapes(block)) for block in blocks)


def has_cells(header: ModelHeader) -> bool:
    """Whether any layer keeps keys and values of each token."""
    blocks, *_ = _by_place(header, with_heads=False)
    options = LoadOptions(header.path)
    return any(token_bytes(header, i, _shapes(each), options) for i, each in enumerate(blocks))


def tensor_bytes(header: ModelHeader) -> int:
    return sum(tensor.n_bytes for tensor in header.tensors)


def estimate_run(
    header: ModelHeader, ctx_size: int, options: LoadOptions, heads: LoadOptions | None = None
) -> MemoryEstimate:
    """The most that generating takes, with all copies of states to return to.

    For ``options.parallel`` sequences, each of up to ``ctx_size`` tokens. ``heads`` is
    how heads in its file are loaded: as the model if they are loaded and it is None.
    The rollback strategy is not known before the weights are loaded: `Snapshots` takes the most,
    and one copy more than `Fork` (see `llama.cache.rollback`). If no state is recurrent, copies
    of sliding windows take no more than the cache.
    """
    heads = (heads or options) if options.load_heads else None
    once = estimate_memory(header, ctx_size, options, heads=heads)
    run = estimate_memory(header, ctx_size, options, snapshots=SNAPSHOTS, heads=heads)
    state = (sum(run.kv) - sum(once.kv)) // SNAPSHOTS
    window = _window_bytes(header, ctx_size, options)
    if state:
        return replace(run, anchors=(1 + ANCHORS) * (state + options.parallel * window))
    copies = ANCHORS * options.parallel * window if options.copies_windows else 0
    return replace(run, anchors=min(copies, sum(run.kv)))


def _window_bytes(header: ModelHeader, ctx_size: int, options: LoadOptions) -> int:
    """Bytes of the windows of one sequence; 0 if all of the context fits into the cells."""
    options = with_attention(header, options, ctx_size, on_device=bool(options.gpu_layers))
    asked, window = options.cells(ctx_size) + options.filling, header.sliding_window or 0
    ubatch = min(options.batch_size, options.ubatch_size, asked)
    cells, windowed = _cells(header, asked, options, options.parallel, ubatch)
    if windowed == cells:
        return 0
    blocks, *_ = _by_place(header, with_heads=False)
    slides = sliding_layers(header, len(blocks))
    each = [token_bytes(header, i, _shapes(block), options) for i, block in enumerate(blocks)]
    return window * sum(itertools.compress(each, slides))


def estimate_memory(
    header: ModelHeader,
    ctx_size: int,
    options: LoadOptions,
    *,
    sequences: int = 1,
    snapshots: int = 0,
    heads: LoadOptions | None = None,
) -> MemoryEstimate:
    """Estimate the memory of ``header``'s model with ``ctx_size`` tokens of context.

    Of ``options`` the cache types, the batch sizes, adapters, ``exact``, ``parallel`` and
    ``branches`` count: so many sequences, and a row of logits for each or each path.
    Recurrent layers keep a state for each of the ``sequences`` (`n_seq_max`; the attention's cells
    they share, as with `kv_unified`), and each as many ``snapshots`` of it (`n_rs_seq`). With
    ``heads``, NextN layers after the model's own are loaded (`load_mtp`) and have a context of
    their own, as long, with caches of these types.
    Repeats llama.cpp's arithmetic for weights and caches; the compute buffers follow a formula that
    was fitted to its log. Recurrent layers have the input of their convolution twice in addition.
    """
    options = with_attention(header, options, ctx_size, on_device=bool(options.gpu_layers))
    alone = not draft_kind(header).is_model  # a file of heads holds nothing else
    with_heads = alone or (heads is not None and has_heads(header))
    blocks, embedding, output, copied = _by_place(header, with_heads)
    output += sum(path.stat().st_size for path, _ in options.loras)
    sequences = max(sequences, options.parallel)
    asked = options.cells(ctx_size) + options.filling
    batch = min(options.batch_size, options.ubatch_size, asked)
    cells, windowed = _cells(header, asked, options, sequences, batch)
    slides = sliding_layers(header, len(blocks))
    states = sequences * (1 + snapshots)
    own = 0 if alone else n_layers(header)
    # Heads have cells for each slot's text, and `heads.head.ROOM`.
    of_heads = padded(options.parallel * (ctx_size + MAX_DRAFT_TOKENS + 2) + options.filling)
    kv = tuple(
        (windowed if slides[i] else cells if i < own else of_heads)
        * token_bytes(header, i, shapes, options if i < own else heads or options)
        + states * state_bytes(header) * is_recurrent(header, shapes)
        for i, shapes in enumerate(map(_shapes, blocks))
    )
    at_once = batch + -batch % options.sequences  # as `graph_reserve` rounds
    scores = score_bytes(header, at_once, cells) if options.flash_attention == "off" else 0
    compute = _compute(header, at_once, cells + (windowed if any(slides) else 0), scores)
    compute += _FLOAT * options.sequences * (len(header.vocab) if header.vocab else 0)
    compute += 2 * _FLOAT * batch * convolved(header) * (not alone)
    if with_heads and not alone:  # their context has buffers too, and both store hidden states
        compute += _compute(header, batch, cells, scores) + 2 * _FLOAT * batch * (
            output_width(header) or 0
        )
    layers = tuple(sum(tensor.n_bytes for tensor in block) for block in blocks)
    outputs = [tensor for tensor in header.tensors if tensor.name == "output.weight"]
    repacked = sum(map(_repacked, itertools.chain(*blocks, outputs)))
    repacked *= options.mmap and not (options.row_kernels or options.gpu_layers)
    return MemoryEstimate(embedding, layers, output, kv, compute, copied, repacked=repacked)


def _repacked(tensor: TensorInfo) -> int:
    """Bytes of a tensor's copy in another layout, of eight rows at a time; 0 without one."""
    is_matrix = len(tensor.shape) > 1 and tensor.shape[1] % 8 == 0
    return tensor.n_bytes if is_matrix and tensor.type_name in _REPACKED + _ON_ARM else 0


def _cells(
    header: ModelHeader, asked: int, options: LoadOptions, sequences: int, batch: int
) -> tuple[int, int]:
    """Cells of a layer for ``asked`` tokens of all sequences, and of one with a sliding window.

    The sequences share them, or have cells of their own (`n_ctx_seq` in llama_context).
    """
    parts = sequences if options.own_cells else 1
    each = padded(asked // parts)
    if options.exact:  # `swa_full`
        return parts * each, parts * each
    return parts * each, parts * window_cells(
        each, header.sliding_window or 0, sequences // parts, batch
    )


def _by_place(
    header: ModelHeader, with_heads: bool
) -> tuple[list[list[TensorInfo]], int, int, int]:
    """Tensors of each layer; bytes of the embedding, the output, and the embedding's copy."""
    blocks: list[list[TensorInfo]] = [[] for _ in range(min(header.block_count or 0, MAX_LAYERS))]
    last = MAX_LAYERS if with_heads else n_layers(header)  # others are skipped (`TENSOR_SKIP`)
    embedding = output = copied = 0
    for tensor in header.tensors:
        found = _BLOCK.match(tensor.name)
        if found and int(found[1]) < len(blocks):
            if int(found[1]) < last:
                blocks[int(found[1])].append(tensor)
        elif tensor.name.startswith(("output", "cls")):
            output += tensor.n_bytes
        else:
            embedding += tensor.n_bytes
            copied += tensor.n_bytes if tensor.name == "token_embd.weight" else 0
    return blocks, embedding, output, 0 if header.has_output else copied


def _shapes(block: Sequence[TensorInfo]) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer's tensors by their names without its number."""
    return {tensor.name.split(".", 2)[2]: tensor.shape for tensor in block}


def _compute(header: ModelHeader, batch: int, cells: int, scores: int) -> int:
    """Bytes of intermediate results: of feed-forward, of attention, or of the last logits.

    Fitted to llama.cpp's log on CPUs for five models of half a million to 283 million
    parameters: of each token four rows as wide as the model and three as its feed-forward part;
    without flash attention also the ``scores``, seven rows, and masks twice as large. Found
    again within 3 % for headers of five models of 0.6 to 27 billion with flash attention, and
    within 9 % for two of 8 and 27 billion without.
    """
    forward = header.get("feed_forward_length")
    wide = max(forward) if isinstance(forward, tuple) and forward else forward
    expert, used = header.get("expert_feed_forward_length"), header.get("expert_used_count")
    widths = [n for n in (wide,) if isinstance(n, int)]
    if isinstance(expert, int) and isinstance(used, int):
        widths.append(expert * used)
    width = header.embedding_length or 0
    steps = _FLOAT * batch * (4 * width + 3 * max(widths, default=0))
    masks = (_FLOAT if scores else 2) * batch * cells
    attention = scores + 7 * _FLOAT * batch * width if scores else 0
    n_vocab = len(header.vocab) if header.vocab else 0
    if header.trimmed is not None:
        n_vocab = len(header.trimmed.ids)
    last = _FLOAT * (MAX_ROWS * n_vocab + batch * width)
    return max(max(steps, attention) + masks, last)
