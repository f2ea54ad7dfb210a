"""Kinds of layers of which llama.cpp needs at least one, where a model has them."""

import re

from localspec.metadata.draft_kind import n_layers
from localspec.metadata.header import ModelHeader

_LAYER = re.compile(r"blk\.(\d{1,4})\.(.+)")
_STATE = ("ssm_", "shortconv.")  # what only layers with a recurrent state have
_ATTENTION = re.compile(r"attn_(?!.*norm)")
_FROM_FIRST = ("arwkv7", "rwkv7")  # all layers read the values of the first


def needed_layers(header: ModelHeader) -> tuple[frozenset[int], ...]:
    """Sets of layers; of each of them one must stay.

    llama.cpp's memory of a hybrid model aborts without a layer that attends, or one with a state.
    """
    if header.architecture in _FROM_FIRST:
        return (frozenset({0}),)
    if header.architecture == "gemma4":  # the others leave its rope factors without a user
        return _full_attention(header)
    recurrent, attending = _layers_by_tensors(header)
    attending -= recurrent
    return (frozenset(recurrent), frozenset(attending)) if recurrent and attending else ()


def _full_attention(header: ModelHeader) -> tuple[frozenset[int], ...]:
    """The layers without a window."""
    pattern = header.get("attention.sliding_window_pattern")
    count = n_layers(header)
    windows = pattern[:count] if isinstance(pattern, tuple) else ()
    full = frozenset(i for i, window in enumerate(windows) if not window)
    return (full,) if full else ()


def _layers_by_tensors(header: ModelHeader) -> tuple[set[int], set[int]]:
    """Layers with a state, and layers that have any tensor of attention."""
    count = n_layers(header)
    recurrent: set[int] = set()
    attending: set[int] = set()
    for tensor in header.tensors:
        found = _LAYER.match(tensor.name)
        if found is None or int(found[1]) >= count:
            continue
        if found[2].startswith(_STATE):
            recurrent.add(int(found[1]))
        elif _ATTENTION.match(found[2]):
            attending.add(int(found[1]))
    return recurrent, attending
