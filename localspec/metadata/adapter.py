"""Checks of LoRA adapter files against the model they adapt, by their headers."""

from pathlib import Path
from typing import NoReturn

from localspec.core.errors import FileProblem
from localspec.core.formatting import one_line
from localspec.metadata.gguf_file import FLOAT32, PartHeader, TensorInfo
from localspec.metadata.header import ModelHeader
from localspec.metadata.splits import read_part

_HINT = "Give a LoRA adapter in GGUF, as convert_lora_to_gguf.py makes them."
_TYPES = ("F32", "F16", "BF16", "Q8_0")  # types that converters write
_INVOCATION = "adapter.alora.invocation_tokens"
_SIDES = (".lora_a", ".lora_b")


def check_adapter(path: Path, model: ModelHeader) -> None:
    """Raise FileProblem unless the file is a LoRA adapter of this model's architecture and shapes.

    By the rules of `llama_adapter_lora_init_impl`, which ends the process at a key of another type.
    Raises NotAGGUF for a damaged file.
    """
    part = read_part(path)
    kinds = [part.text(key) for key in ("general.type", "adapter.type")]
    if kinds != ["adapter", "lora"]:
        _refuse(path, f"is no LoRA adapter: its type is {_named(kinds[0], 'model')}")
    if part.types.get("adapter.lora.alpha", FLOAT32) != FLOAT32:
        _refuse(path, "holds no 32-bit number in its key 'adapter.lora.alpha'")
    architecture = part.text("general.architecture") or ""
    if architecture != model.architecture:
        _refuse(
            path,
            f"adapts {_named(architecture, 'no architecture')}, but {one_line(model.path.name)} is "
            f"{one_line(model.architecture)}",
        )
    if _INVOCATION in part.types:
        _refuse(path, "is an activated LoRA, which starts at certain tokens; that is not supported")
    _check_tensors(part, model)


def _check_tensors(part: PartHeader, model: ModelHeader) -> None:
    """Whether each pair of tensors fits the weights that it is added to."""
    weights = {tensor.name: tensor for tensor in model.tensors}
    sides: dict[str, dict[str, TensorInfo]] = {}
    for tensor in part.tensors:
        name, side = tensor.name[:-7], tensor.name[-7:]
        if side in _SIDES:
            sides.setdefault(name, {})[side] = tensor
        elif not tensor.name.endswith("_norm.weight"):  # which llama.cpp ignores
            _refuse(part.path, f"holds the tensor '{one_line(tensor.name)}', which is no LoRA's")
    if not sides:
        _refuse(part.path, "holds no tensors")
    for name, pair in sides.items():
        if len(pair) < 2 or name not in weights:
            _refuse(
                part.path,
                f"does not fit: '{one_line(name)}' lacks one of its tensors, or the model's",
            )
        if name == "token_embd.weight" and not model.has_output:
            # llama.cpp adds such a pair to the output too, which it does not fit: it would end.
            _refuse(part.path, "adapts the token embedding, which is the output matrix here too")
        if not _fits(name, _sizes(pair[".lora_a"]), _sizes(pair[".lora_b"]), _sizes(weights[name])):
            _refuse(part.path, f"does not fit: '{one_line(name)}' has other sizes")
        if any(tensor.type_name not in _TYPES for tensor in pair.values()):
            _refuse(part.path, f"stores '{one_line(name)}' in a type other than {_TYPES}")


def _fits(name: str, a: tuple[int, ...], b: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    """Whether b times a has the weight's shape; those of the embedding are transposed."""
    if len(a) > 3 or a[2:] != b[2:] or a[2:] != weight[2:]:
        return False
    if name == "token_embd.weight":
        return (b[1], a[1], a[0]) == (weight[0], weight[1], b[0])
    return (a[0], b[1], a[1]) == (weight[0], weight[1], b[0])


def _sizes(tensor: TensorInfo) -> tuple[int, ...]:
    """The shape with at least two dimensions, without trailing ones."""
    shape = [*tensor.shape, 1, 1][: max(2, len(tensor.shape))]
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    return tuple(shape)


def _named(text: str | None, otherwise: str) -> str:
    return one_line(text[:80]) if text else otherwise


def _refuse(path: Path, sentence: str) -> NoReturn:
    raise FileProblem(f"{one_line(str(path))} {sentence}.", _HINT)
