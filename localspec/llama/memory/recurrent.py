"""States that recurrent layers keep in place of keys and values: their size and number."""

from collections.abc import Collection

from localspec.metadata.header import ModelHeader

SNAPSHOTS = 6  # states that llama.cpp keeps besides the present one: tokens undone without a copy
ANCHORS = 4  # copies in RAM, at the ends of prompts and answers
_FLOAT = 4  # bytes; llama.cpp keeps states in F32
_PARTS = ("ssm_", "time_mix", "shortconv")


def is_recurrent(header: ModelHeader, names: Collection[str]) -> bool:
    """Whether a layer with tensors of these names (without its number) keeps a state."""
    if header.architecture == "minimax-01":  # whose linear attention is named as the other is
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
    """Width of what the convolution of a Mamba or delta net layer reads of each token."""
    groups, state = _size(header, "ssm.group_count"), _size(header, "ssm.state_size")
    return _size(header, "ssm.inner_size") + 2 * groups * state


def _size(header: ModelHeader, key: str) -> int:
    """A number of the architecture; of a list, that of the first layer; 0 where there is none."""
    value = header.get(key)
    if isinstance(value, tuple):
        value = value[0] if value else 0
    return value if type(value) is int and value > 0 else 0
