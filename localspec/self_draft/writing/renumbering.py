"""What a model's tensors and header become when some of its layers stay, with new numbers."""

import re
from collections.abc import Mapping, Sequence

from localspec.metadata.draft_kind import n_layers, whole_number
from localspec.metadata.gguf_file import Value
from localspec.metadata.header import ModelHeader

_LAYER = re.compile(r"blk\.(\d{1,4})\.")
# Arrays of an architecture that are not by layer, however long they are.
_OF_THE_MODEL = ("rope.dimension_sections", "target_layers")
_ACTIVATION = "xielu."  # keys that lack the architecture's name
_RATIOS = "attention.compress_ratios"  # may be longer than the model
_LEADING = ("leading_dense_block_count", "hash_layer_count")  # so many first layers are different


def new_names(header: ModelHeader, layers: Sequence[int]) -> dict[str, str]:
    """Each tensor that stays, and its name among these ``layers`` of the model."""
    numbers = {old: new for new, old in enumerate(layers)}
    names: dict[str, str] = {}
    for tensor in header.tensors:
        found = _LAYER.match(tensor.name)
        if found is None:
            names[tensor.name] = tensor.name
        elif int(found[1]) in numbers:
            rest = tensor.name[found.end() :]
            names[tensor.name] = f"blk.{numbers[int(found[1])]}.{rest}"
    return names


def new_values(header: ModelHeader, layers: Sequence[int]) -> Mapping[str, Value]:
    """The keys of the header that change: counts of layers, and arrays with a value for each."""
    start = f"{header.architecture}."
    changed: dict[str, Value] = {f"{start}block_count": len(layers)}
    if header.get("nextn_predict_layers") is not None:
        changed[f"{start}nextn_predict_layers"] = 0
    for key in _LEADING:
        leading = whole_number(header, key)
        if leading is not None:
            changed[start + key] = sum(layer < leading for layer in layers)
    for key, value in header.values.items():
        if key.startswith((start, _ACTIVATION)):
            by_layer = _by_layer(header, key.removeprefix(start), value)
            if by_layer is not None:
                changed[key] = tuple(by_layer[i] for i in layers)
    return changed


def _by_layer(header: ModelHeader, key: str, value: Value) -> tuple[int | float | bool, ...] | None:
    """A value's elements, if it has one for each layer."""
    if not isinstance(value, tuple) or key in _OF_THE_MODEL:
        return None
    numbers = tuple(each for each in value if not isinstance(each, str))
    own, every = n_layers(header), header.block_count or 0
    fits = len(numbers) in (own, every) or (key == _RATIOS and len(numbers) > every)
    return numbers if fits else None
