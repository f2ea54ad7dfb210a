"""Data that a layer keeps of the tokens read: keys and values, maybe of a window, or a state."""

from collections.abc import Collection, Mapping

from localspec.core.options.load_options import LoadOptions
from localspec.metadata.gguf_file import GGML_TYPES_BY_NAME
from localspec.metadata.header import ModelHeader

Shapes = Mapping[str, tuple[int, ...]]  # of a layer's tensors, by their names without its number

SNAPSHOTS = 6  # earlier states that llama.cpp keeps: tokens undone without a copy
ANCHORS = 4  # copies in RAM of the state of a sequence, for later prompts
_CELLS = 256  # llama.cpp rounds the size of a cache up to a multiple of this
_FLOAT = 4  # bytes; llama.cpp keeps states in F32
_PARTS = ("ssm_", "time_mix", "shortconv")
_BOTH = frozenset({"falcon-h1"})  # attention and a recurrent state in each layer

# Layers of an architecture that slide, by its `load_arch_hparams`: all but one of so many;
# with `first`, the one that sees everything comes first. A key in the file may say otherwise.
_FULL_EVERY = {
    "afmoe": 4, "cohere2": 4, "exaone-moe": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5,
    "gpt-oss": 2, "llama4": 4, "mellum": 4, "olmo2": 4, "plamo3": 8,
}  # fmt: skip
_FULL_FIRST = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
_UNWINDOWED = frozenset({"phi3"})  # llama.cpp ignores the window its files state


def is_recurrent(header: ModelHeader, names: Collection[str]) -> bool:
    """Whether a layer with tensors of these names (without its number) keeps a state."""
    if header.architecture == "minimax-01":  # its linear attention has the other's names
        return "attn_norm_2.weight" in names
    return any(name.startswith(_PARTS) for name in names)


def state_bytes(header: ModelHeader) -> int:
    """Bytes of one layer's state for one sequence.

    Convolution and recurrence together, as `llama_hparams::n_embd_r` and `n_embd_s` have them.
    """
    width, heads = header.embedding_length or 0, _size(header, "attention.head_count")
    convolution = max(0, _size(header, "ssm.conv_kernel") - 1)
    if head := _size(header, "wkv.head_size"):
        return _FLOAT * width * ((_size(header, "token_shift_count") or 2) + head)
    if length := _size(header, "shortconv.l_cache"):
        return _FLOAT * width * (length - 1)
    if head := _size(header, "kda.head_dim"):
        return _FLOAT * heads * head * (3 * (convolution or 3) + head)
    if header.architecture == "minimax-01":
        return _FLOAT * heads * _size(header, "attention.key_length") ** 2
    inner, state = _size(header, "ssm.inner_size"), _size(header, "ssm.state_size")
    return _FLOAT * (convolution * convolved(header) + state * inner)


def convolved(header: ModelHeader) -> int:
    """Width of a token's input to the convolution of a Mamba or delta net layer."""
    groups, state = _size(header, "ssm.group_count"), _size(header, "ssm.state_size")
    return _size(header, "ssm.inner_size") + 2 * groups * state


def sliding_layers(header: ModelHeader, count: int) -> list[bool]:
    """Which layers keep only a window of the text; of unknown architectures none, to be safe."""
    architecture, pattern = header.architecture, header.get("attention.sliding_window_pattern")
    if not header.sliding_window or architecture in _UNWINDOWED:
        return [False] * count
    if isinstance(pattern, tuple):
        return [i < len(pattern) and bool(pattern[i]) for i in range(count)]
    every = _FULL_EVERY.get(architecture, _FULL_FIRST.get(architecture))
    if every is None:
        return [False] * count
    if isinstance(pattern, int) and pattern > 0:
        every = pattern
    full = 0 if architecture in _FULL_FIRST else every - 1
    return [i % every != full for i in range(count)]


def padded(cells: int) -> int:
    """``cells`` rounded up as llama.cpp rounds the size of a cache."""
    return cells + -cells % _CELLS


def window_cells(cells: int, window: int, sequences: int, ubatch: int) -> int:
    """Cells of sliding layers if other layers have ``cells``: `llama_kv_cache_iswa`."""
    return min(cells, padded(sequences * window + ubatch))


def token_bytes(header: ModelHeader, index: int, shapes: Shapes, options: LoadOptions) -> int:
    """Bytes of cached keys and values of one token in one layer."""
    shared = header.get("attention.shared_kv_layers")
    if isinstance(shared, int) and index >= (header.block_count or 0) - shared:
        return 0
    keys, values = _kv_widths(header, index, shapes)
    return _packed(keys, options.cache_type_k) + _packed(values, options.cache_type_v)


def _packed(width: int, type_name: str) -> int:
    stored = GGML_TYPES_BY_NAME[type_name]
    return width * stored.block_bytes // stored.block_elements


def _kv_widths(header: ModelHeader, index: int, shapes: Shapes) -> tuple[int, int]:
    """Elements of a token's key and value: as wide as the layer's projections make them."""
    if is_recurrent(header, shapes) and header.architecture not in _BOTH:
        return 0, 0
    rank = header.get("attention.kv_lora_rank")
    if isinstance(rank, int) and header.get("attention.key_length_mla") is not None:
        turned = header.get("rope.dimension_count")
        return rank + (turned if isinstance(turned, int) else 0), 0
    rows = [shapes.get(f"attn_{name}.weight", ()) for name in ("k", "v")]
    if len(rows[0]) == 2:  # if values are the keys again, they have no projection
        return rows[0][1], rows[1][1] if len(rows[1]) == 2 else rows[0][1]
    if not {"attn_qkv.weight", "attn_kv_b.weight"} & set(shapes):
        return 0, 0
    heads = header.head_count or 1
    given = header.get("attention.head_count_kv")
    if isinstance(given, tuple) and index < len(given):
        given = given[index]
    n_kv = given if isinstance(given, int) and "attn_qkv.weight" in shapes else heads
    usual = (header.embedding_length or 0) // heads
    lengths = [header.get(f"attention.{name}_length") for name in ("key", "value")]
    key, value = (length if isinstance(length, int) else usual for length in lengths)
    return n_kv * key, n_kv * value


def _size(header: ModelHeader, key: str) -> int:
    """A number of the architecture; of a list, that of the first layer; 0 if there is none."""
    value = header.get(key)
    if isinstance(value, tuple):
        value = value[0] if value else 0
    return value if type(value) is int and value > 0 else 0
